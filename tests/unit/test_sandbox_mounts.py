"""What a container sees as its files."""

from __future__ import annotations

import posixpath

import pytest

from eks_fsdp.sandbox.mounts import Mount, MountPlanError, Operation, is_shown, plan


class FakeHost:
    """A host of directories (ending with /), links (with ->) and files."""

    def __init__(self, *entries: str) -> None:
        self.kinds: dict[str, str] = {}
        self.links: dict[str, str] = {}
        for entry in entries:
            path, arrow, text = entry.partition("->")
            for parent in _parents(path):
                self.kinds[parent] = "dir"
            if arrow:
                self.links[path] = text
            self.kinds[path.rstrip("/")] = "link" if arrow else ("dir" if path.endswith("/") else "file")

    def kind(self, path: str) -> str | None:
        return self.kinds.get(path)

    def entries(self, path: str) -> list[str]:
        return sorted(posixpath.basename(known) for known in self.kinds if posixpath.dirname(known) == path)

    def link(self, path: str) -> str:
        return self.links[path]


def _parents(path: str) -> list[str]:
    found = []
    while (path := posixpath.dirname(path.rstrip("/"))) != "/":
        found.append(path)
    return found


HOST = FakeHost(
    "/usr/bin/sh", "/usr/share/doc/", "/bin->usr/bin", "/etc/passwd", "/etc/ssl/", "/var/lib/x/", "/root/", "/f"
)


def made(operations: list[Operation], path: str) -> Operation:
    """The one operation whose target is ``path``."""
    found = [o for o in operations if (o[2] if o[0] == "bind" else o[1]) == path]
    assert len(found) == 1, (path, found)
    return found[0]


def test_the_hosts_directories_are_bound_read_only_and_its_links_are_copied() -> None:
    operations = plan([], {}, HOST)
    assert made(operations, "/usr") == ["bind", "/usr", "/usr", "ro"]
    assert made(operations, "/bin") == ["link", "/bin", "usr/bin"]
    assert made(operations, "/f") == ["link", "/f", "/.host/f"]
    assert made(operations, "/.host") == ["bind", "/", "/.host", "ro"]


def test_etc_is_made_anew_with_links_and_own_files_replace_the_hosts() -> None:
    operations = plan([], {"/etc/passwd": "/.pod/passwd"}, HOST)
    assert made(operations, "/etc") == ["dir", "/etc"]
    assert made(operations, "/etc/ssl") == ["link", "/etc/ssl", "/.host/etc/ssl"]
    assert made(operations, "/etc/passwd") == ["link", "/etc/passwd", "/.pod/passwd"]


def test_a_target_inside_a_host_directory_opens_it_instead_of_touching_it() -> None:
    operations = plan([Mount("/v", "/usr/share/new")], {}, HOST)
    assert made(operations, "/usr") == ["dir", "/usr"]
    assert made(operations, "/usr/bin") == ["link", "/usr/bin", "/.host/usr/bin"]
    assert made(operations, "/usr/share/doc") == ["link", "/usr/share/doc", "/.host/usr/share/doc"]
    assert made(operations, "/usr/share/new") == ["bind", "/v", "/usr/share/new", "rw"]


def test_links_on_the_way_to_a_target_are_followed() -> None:
    operations = plan([Mount("/v", "/var/run/secrets/token", read_only=True)], {"/bin/tool": "/.host/t"}, HOST)
    assert made(operations, "/run/secrets/token") == ["bind", "/v", "/run/secrets/token", "ro"]
    assert made(operations, "/usr/bin/tool") == ["link", "/usr/bin/tool", "/.host/t"]
    assert made(operations, "/var/run") == ["link", "/var/run", "/run"]


def test_a_mount_inside_a_mount_comes_after_it() -> None:
    operations = plan([Mount("/inner", "/mnt/a/b"), Mount("/outer", "/mnt/a")], {}, HOST)
    outer, inner = made(operations, "/mnt/a"), made(operations, "/mnt/a/b")
    assert operations.index(outer) < operations.index(inner)


def test_a_mount_replaces_what_is_at_its_target() -> None:
    operations = plan([Mount("/shared-memory", "/dev/shm")], {}, HOST)
    assert made(operations, "/dev/shm") == ["bind", "/shared-memory", "/dev/shm", "rw"]


def test_directories_of_its_own_are_empty() -> None:
    operations = plan([], {}, HOST)
    for path in ("/tmp", "/run", "/mnt", "/var/lib"):
        assert made(operations, path) == ["dir", path]
    assert not [o for o in operations if o[1].startswith("/var/lib/")]


def test_links_in_a_circle_and_the_root_itself_are_refused() -> None:
    with pytest.raises(MountPlanError, match="too many links"):
        plan([Mount("/v", "/a/b")], {}, FakeHost("/a->b", "/b->a"))
    with pytest.raises(MountPlanError, match="root itself"):
        plan([Mount("/v", "/")], {}, HOST)


@pytest.mark.parametrize(
    ("path", "shown"), [("/opt/venv", True), ("/tmp/clone", False), ("/var/x", False), ("/tmpx", True)]
)
def test_which_directories_need_a_mount_of_their_own(path: str, shown: bool) -> None:
    assert is_shown(path) is shown
