"""What a container sees as its files: a plan of directories, links and mounts, made without touching any file.

The root is a tmpfs. The host's top-level directories are bound into it read-only, so that interpreters and libraries are
where they always are; the whole host is at `HOST` as well. Where a mount's target or a file of the image lies inside a
host directory, that directory is *opened*: made anew, with a link to `HOST` for each of its entries. So nothing that a
container needs is ever created on the host.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

HOST = "/.host"
EMPTY = ("/tmp", "/run", "/mnt", "/media", "/var/lib", "/var/log", "/var/cache", "/var/tmp")
"""Directories that every container has to itself."""
HIDDEN = ("/boot", "/lost+found", "/var", "/proc", "/dev")
"""Directories of the host that are not bound (some are made anew)."""
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
DEVICE_LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1"}
MOST_LINKS = 40

Operation = list[str]
"""``["dir", path]``, ``["link", path, text]``, ``["bind", source, path, "ro" or "rw"]`` (the target is made first, of
the source's kind), ``["tmpfs", path]``, ``["proc", path]`` or ``["devpts", path]``; done in order by container.py."""


class Host(Protocol):
    """What the plan asks of the host's files."""

    def kind(self, path: str) -> str | None:
        """``dir``, ``link``, ``file`` (anything else) or None; links are not followed."""

    def entries(self, path: str) -> list[str]:
        """Names in a directory; none where it cannot be read."""

    def link(self, path: str) -> str:
        """A link's text."""


class RealHost:
    """The files of this machine."""

    def kind(self, path: str) -> str | None:
        """See `Host`."""
        if os.path.islink(path):
            return "link"
        if os.path.isdir(path):
            return "dir"
        return "file" if os.path.lexists(path) else None

    def entries(self, path: str) -> list[str]:
        """See `Host`."""
        try:
            return sorted(os.listdir(path))
        except OSError:
            return []

    def link(self, path: str) -> str:
        """See `Host`."""
        return os.readlink(path)


@dataclass(frozen=True)
class Mount:
    """``source`` on the host shown at ``target`` in the container."""

    source: str
    target: str
    read_only: bool = False


@dataclass
class _Node:
    kind: str
    """dir, link, host (a host directory shown whole), mount or special (an operation's name as ``text``)."""
    path: str
    text: str = ""
    read_only: bool = False
    children: dict[str, _Node] = field(default_factory=dict)


class MountPlanError(ValueError):
    """A mount's target cannot be: its links go round in a circle, or a file is where a directory should be."""


def plan(mounts: Iterable[Mount], links: Mapping[str, str], host: Host) -> list[Operation]:
    """The operations that make a root with ``mounts`` and ``links`` (path in the container -> text).

    Later mounts hide earlier ones at the same target. Raises `MountPlanError`.
    """
    tree = _base(host)
    for path, text in links.items():
        _place(tree, path, _Node("link", path, text), host)
    # Outer mounts first, so that /data/sub lies in what is mounted at /data.
    for mount in sorted(mounts, key=lambda m: os.path.normpath(m.target).count("/")):
        node = _Node("mount", mount.target, mount.source, mount.read_only)
        _place(tree, os.path.normpath("/" + mount.target), node, host)
    operations: list[Operation] = []
    for child in tree.children.values():
        _emit(child, operations)
    return operations


def _base(host: Host) -> _Node:
    root = _Node("dir", "/")
    for name in host.entries("/"):
        path = f"/{name}"
        if path in HIDDEN or path in EMPTY:
            continue
        root.children[name] = _entry(host, path, top=True)
    root.children[HOST[1:]] = _Node("mount", HOST, "/", True)
    _open(root.children.setdefault("etc", _Node("dir", "/etc")), host)
    for path in EMPTY:
        _place(root, path, _Node("dir", path), host)
    _place(root, "/var/run", _Node("link", "/var/run", "/run"), host)
    _place(root, "/proc", _Node("special", "/proc", "proc"), host)
    for name in DEVICES:
        _place(root, f"/dev/{name}", _Node("mount", "", f"/dev/{name}"), host)
    for name, text in DEVICE_LINKS.items():
        _place(root, f"/dev/{name}", _Node("link", "", text), host)
    _place(root, "/dev/stderr", _Node("link", "", "/proc/self/fd/2"), host)
    _place(root, "/dev/ptmx", _Node("link", "", "pts/ptmx"), host)
    _place(root, "/dev/pts", _Node("special", "", "devpts"), host)
    _place(root, "/dev/shm", _Node("special", "", "tmpfs"), host)
    return root


def _entry(host: Host, path: str, *, top: bool = False) -> _Node:
    kind = host.kind(path)
    if kind == "link":
        return _Node("link", path, host.link(path))
    if kind == "dir" and top:
        return _Node("host", path)
    return _Node("link", path, HOST + path)


def _open(node: _Node, host: Host) -> None:
    """Turn a host directory, or a link to one at `HOST`, into a directory of links."""
    source = node.path
    node.kind, node.text = "dir", ""
    node.children = {name: _entry(host, os.path.join(source, name)) for name in host.entries(source)}


def _place(root: _Node, path: str, leaf: _Node, host: Host) -> None:
    """Put ``leaf`` at ``path``, opening the host's directories and following the links on the way."""
    parts = [part for part in path.split("/") if part]
    followed = 0
    current, trail, done = root, [root], 0
    while done < len(parts) - 1 or (done < len(parts) and leaf.kind == "mount"):
        name = parts[done]
        child = current.children.get(name)
        if name == ".." or (child is not None and child.kind == "link" and not _is_host_directory(child, host)):
            if name == "..":
                trail = trail[:-1] or [root]
                current, done = trail[-1], done + 1
                continue
            assert child is not None
            if done == len(parts) - 1 and child.text.startswith(HOST):
                break
            followed += 1
            if followed > MOST_LINKS:
                raise MountPlanError(f"{path}: too many links on the way")
            parts = [part for part in child.text.split("/") if part not in ("", ".")] + parts[done + 1 :]
            done = 0
            if child.text.startswith("/"):
                current, trail = root, [root]
            continue
        if done == len(parts) - 1:
            break
        if child is None:
            child = _Node("dir", _join(current, name))
            current.children[name] = child
        elif child.kind in ("host", "link"):
            _open(child, host)
        elif child.kind == "special":
            raise MountPlanError(f"{path}: cannot lie in {child.path}")
        current, done = child, done + 1
        trail.append(child)
    if not parts[done:]:
        raise MountPlanError(f"{path}: is the root itself")
    leaf.path = _join(current, parts[done])
    current.children[parts[done]] = leaf


def _is_host_directory(node: _Node, host: Host) -> bool:
    return node.text == HOST + node.path and host.kind(node.path) == "dir"


def _join(parent: _Node, name: str) -> str:
    return f"{parent.path.rstrip('/')}/{name}"


def _emit(node: _Node, operations: list[Operation]) -> None:
    if node.kind == "dir":
        operations.append(["dir", node.path])
    elif node.kind == "link":
        operations.append(["link", node.path, node.text])
    elif node.kind == "host":
        operations.append(["bind", node.path, node.path, "ro"])
    elif node.kind == "mount":
        operations.append(["bind", node.text, node.path, "ro" if node.read_only else "rw"])
    else:
        operations.append([node.text, node.path])
    for child in node.children.values():
        _emit(child, operations)


def is_shown(path: str) -> bool:
    """Whether a directory of the host is at the same path in every container anyway."""
    return not any(path == hidden or path.startswith(hidden + "/") for hidden in (*HIDDEN, *EMPTY, "/etc"))
