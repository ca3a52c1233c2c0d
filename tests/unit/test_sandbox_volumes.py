"""Volumes on disk."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from eks_fsdp.sandbox.volumes import VolumeError, VolumeFolders, Volumes, select, write_atomically


def test_files_change_all_at_once_and_old_ones_go(tmp_path: Path) -> None:
    write_atomically(tmp_path, {"a": (b"1", 0o644), "sub/b": (b"2", 0o600)})
    assert ((tmp_path / "a").read_bytes(), (tmp_path / "sub" / "b").read_bytes()) == (b"1", b"2")
    before = (tmp_path / "..data").readlink()
    write_atomically(tmp_path, {"a": (b"3", 0o644)})
    assert (tmp_path / "a").read_bytes() == b"3"
    assert sorted(entry.name for entry in tmp_path.iterdir() if not entry.name.startswith("..")) == ["a"]
    assert not (tmp_path / before).exists()


def test_items_choose_keys_paths_and_modes() -> None:
    content = {"k": b"1", "other": b"2"}
    assert select(content, None, 0o644, "x") == {"k": (b"1", 0o644), "other": (b"2", 0o644)}
    assert select(content, [{"key": "k", "path": "p", "mode": 0o400}], 0o644, "x") == {"p": (b"1", 0o400)}
    with pytest.raises(VolumeError, match="configmap 'x' has no key 'none'"):
        select(content, [{"key": "none", "path": "p"}], 0o644, "configmap 'x'")


def volumes(tmp_path: Path, *described: dict[str, Any]) -> Volumes:
    pod = {"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {"volumes": list(described)}}

    async def claim(name: str) -> dict[str, Any]:
        csi = {"driver": "fsx.csi.aws.com", "volumeHandle": "fs-1"}
        return {"metadata": {"name": f"pv-{name}"}, "spec": {"csi": csi} if name == "fsx" else {}}

    async def token(audience: str | None, seconds: int) -> str:
        return f"token for {audience}, {seconds} s"

    return Volumes(
        pod=pod,
        folder=tmp_path / "pod",
        folders=VolumeFolders(tmp_path, "node"),
        lookup=lambda kind, name: {"data": {"k": "v"}} if (kind, name) == ("ConfigMap", "cm") else None,
        claim=claim,
        token=token,
        node_capacity={},
    )


def mounted(made: Volumes, name: str, **others: str) -> Path:
    (mount,) = made.mounts({"name": "c", "volumeMounts": [{"name": name, "mountPath": "/m", **others}]})
    return Path(mount.source)


def test_each_kind_of_volume_has_its_place(tmp_path: Path) -> None:
    made = volumes(
        tmp_path,
        {"name": "empty", "emptyDir": {}},
        {"name": "host", "hostPath": {"path": "/var/lib/x"}},
        {"name": "shared", "persistentVolumeClaim": {"claimName": "fsx"}},
        {"name": "own", "persistentVolumeClaim": {"claimName": "disk"}},
        {
            "name": "all",
            "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}, {"configMap": {"name": "cm"}}]},
        },
    )
    asyncio.run(made.prepare())
    assert mounted(made, "empty") == tmp_path / "pod" / "empty"
    assert mounted(made, "host") == tmp_path / "nodes" / "node" / "files" / "var/lib/x"
    assert mounted(made, "shared") == tmp_path / "filesystems" / "fs-1"
    assert mounted(made, "own", subPath="a/b") == tmp_path / "volumes" / "pv-disk" / "a/b"
    assert (mounted(made, "all") / "token").read_text() == "token for None, 3607 s"
    assert (mounted(made, "all") / "k").read_text() == "v"
    with pytest.raises(VolumeError, match="leaves the volume"):
        mounted(made, "empty", subPath="../x")


def test_a_bucket_is_a_folder_that_is_only_read(tmp_path: Path) -> None:
    async def claim(name: str) -> dict[str, Any]:
        csi = {"driver": "s3.csi.aws.com", "volumeHandle": "h", "volumeAttributes": {"bucketName": "weights"}}
        return {"metadata": {"name": "pv"}, "spec": {"csi": csi, "mountOptions": ["read-only", "prefix llama/"]}}

    made = volumes(tmp_path, {"name": "models", "persistentVolumeClaim": {"claimName": "s3-models"}})
    made.claim = claim

    async def prepare() -> None:
        asked = asyncio.create_task(made.prepare())
        request = tmp_path / "buckets" / ".requests" / "weights"
        while not request.exists():
            await asyncio.sleep(0.01)
        request.unlink()
        await asked

    asyncio.run(prepare())
    (mount,) = made.mounts({"name": "c", "volumeMounts": [{"name": "models", "mountPath": "/mnt/models"}]})
    assert (Path(mount.source), mount.read_only) == (tmp_path / "buckets" / "weights" / "llama", True)


def test_what_is_missing_is_named_unless_it_is_optional(tmp_path: Path) -> None:
    with pytest.raises(VolumeError, match="secret 'none' not found"):
        asyncio.run(volumes(tmp_path, {"name": "s", "secret": {"secretName": "none"}}).prepare())
    made = volumes(tmp_path, {"name": "s", "secret": {"secretName": "none", "optional": True}})
    asyncio.run(made.prepare())
    assert list(mounted(made, "s").glob("[!.]*")) == []
