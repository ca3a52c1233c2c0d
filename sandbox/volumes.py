"""A pod's volumes as directories of this machine."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eks_fsdp.sandbox.bucket_mirror import BucketError, bucket_folder
from eks_fsdp.sandbox.environment import Lookup, decode, field_value, resource_value
from eks_fsdp.sandbox.mounts import Mount

Object = dict[str, Any]
Files = dict[str, tuple[bytes, int]]
"""Relative path -> content and mode."""
FSX_DRIVER = "fsx.csi.aws.com"
S3_DRIVER = "s3.csi.aws.com"
DEFAULT_MODE = 0o644
TOKEN_SECONDS = 3607
"""What the API server's admission asks for; refreshed after `TOKEN_REFRESH` of it."""
TOKEN_REFRESH = 0.7


class VolumeError(RuntimeError):
    """A volume cannot be made now (FailedMount): the message names what is missing."""


@dataclass(frozen=True)
class VolumeFolders:
    """Where volumes that outlive a pod are."""

    root: Path
    node: str

    def host_path(self, path: str) -> Path:
        """A node's own directory for a hostPath volume."""
        return self.root / "nodes" / self.node / "files" / path.strip("/")

    def persistent(self, volume: Object) -> Path:
        """A PersistentVolume's directory: FSx file systems are shared by all nodes."""
        csi = volume["spec"].get("csi")
        if csi and csi.get("driver") == FSX_DRIVER:
            return self.root / "filesystems" / str(csi["volumeHandle"]).replace("/", "_")
        return self.root / "volumes" / str(volume["metadata"]["name"])

    @property
    def buckets(self) -> Path:
        """Where buckets are shown as folders."""
        return self.root / "buckets"


Claim = Callable[[str], Awaitable[Object]]
"""Claim name -> the bound PersistentVolume. Raises `VolumeError`."""
TokenRequest = Callable[[str | None, int], Awaitable[str]]
"""Audience and lifetime in seconds -> a token of the pod's service account."""


@dataclass
class Volumes:
    """The volumes of one pod, made in ``folder``."""

    pod: Object
    folder: Path
    folders: VolumeFolders
    lookup: Lookup
    claim: Claim
    token: TokenRequest
    node_capacity: dict[str, str]
    _paths: dict[str, Path] = field(default_factory=dict)
    _written: dict[str, Files] = field(default_factory=dict)
    _read_only: set[str] = field(default_factory=set)
    _tokens: dict[str, tuple[float, str]] = field(default_factory=dict)

    async def prepare(self) -> None:
        """Make every volume. Raises `VolumeError`, `ConfigurationError`."""
        for volume in self.pod["spec"].get("volumes", []):
            self._paths[volume["name"]] = await self._make(volume)

    async def refresh(self) -> None:
        """Bring volumes of ConfigMaps, Secrets and tokens up to date; what is missing now keeps its last content."""
        for volume in self.pod["spec"].get("volumes", []):
            if volume["name"] in self._written:
                try:
                    self._write(volume["name"], await self._files(volume))
                except VolumeError:
                    continue

    def uses(self, kind: str, name: str) -> bool:
        """Whether a volume shows this ConfigMap or Secret."""
        key, name_key = ("configMap", "name") if kind == "ConfigMap" else ("secret", "secretName")
        for volume in self.pod["spec"].get("volumes", []):
            if volume.get(key, {}).get(name_key) == name:
                return True
            for source in volume.get("projected", {}).get("sources", []):
                if source.get(key, {}).get("name") == name:
                    return True
        return False

    def mounts(self, container: Object) -> list[Mount]:
        """The container's volumeMounts. Raises `VolumeError`."""
        found = []
        for mount in container.get("volumeMounts", []):
            name = mount["name"]
            if name not in self._paths:
                raise VolumeError(f"volumeMount {name!r}: the pod has no such volume")
            source = self._paths[name]
            sub = mount.get("subPath") or ""
            if sub:
                if ".." in Path(sub).parts:
                    raise VolumeError(f"volumeMount {name!r}: subPath {sub!r} leaves the volume")
                source = source / sub
                if not os.path.lexists(source):
                    source.mkdir(parents=True)
                source = source.resolve()
            read_only = bool(mount.get("readOnly")) or name in self._written or name in self._read_only
            found.append(Mount(str(source), mount["mountPath"], read_only))
        return found

    def remove(self) -> None:
        """Delete what belongs to the pod alone."""
        shutil.rmtree(self.folder, ignore_errors=True)

    async def _make(self, volume: Object) -> Path:
        name: str = volume["name"]
        path = self.folder / name
        if "emptyDir" in volume:
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(0o777)
            return path
        if "hostPath" in volume:
            return self._host_path(volume["hostPath"])
        if "persistentVolumeClaim" in volume:
            return await self._persistent(name, volume["persistentVolumeClaim"])
        if "csi" in volume or "ephemeral" in volume:
            raise VolumeError(f"volume {name!r}: inline CSI and ephemeral volumes are not supported")
        path.mkdir(parents=True, exist_ok=True)
        self._write(name, await self._files(volume))
        return path

    async def _persistent(self, name: str, source: Object) -> Path:
        volume = await self.claim(source["claimName"])
        options = volume["spec"].get("mountOptions") or []
        if source.get("readOnly") or "read-only" in options or "ro" in options:
            self._read_only.add(name)
        csi = volume["spec"].get("csi") or {}
        if csi.get("driver") != S3_DRIVER:
            path = self.folders.persistent(volume)
            path.mkdir(parents=True, exist_ok=True)
            return path
        prefix = next((str(o).removeprefix("prefix ") for o in options if str(o).startswith("prefix ")), "")
        try:
            path = await bucket_folder(self.folders.buckets, csi["volumeAttributes"]["bucketName"]) / prefix
        except BucketError as error:
            raise VolumeError(str(error)) from None
        path.mkdir(parents=True, exist_ok=True)
        return path

    def _host_path(self, source: Object) -> Path:
        path = self.folders.host_path(source["path"])
        kind = source.get("type") or ""
        if kind in ("File", "FileOrCreate"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        else:
            path.mkdir(parents=True, exist_ok=True)
        return path

    async def _files(self, volume: Object) -> Files:
        if "projected" not in volume:
            return await self._source(volume, _mode(volume, DEFAULT_MODE))
        files: Files = {}
        default = int(volume["projected"].get("defaultMode") or DEFAULT_MODE)
        for source in volume["projected"].get("sources", []):
            files.update(await self._source(source, default))
        return files

    async def _source(self, source: Object, mode: int) -> Files:
        if "configMap" in source:
            return self._object("ConfigMap", source["configMap"], "name", mode)
        if "secret" in source:
            return self._object("Secret", source["secret"], "secretName", mode)
        if "downwardAPI" in source:
            return {
                item["path"]: (self._downward(item).encode(), item.get("mode") or mode)
                for item in source["downwardAPI"].get("items", [])
            }
        if "serviceAccountToken" in source:
            return {source["serviceAccountToken"]["path"]: (await self._token(source["serviceAccountToken"]), mode)}
        kinds = ", ".join(key for key in source if key != "name")
        raise VolumeError(f"volume source {kinds!r} is not supported")

    def _object(self, kind: str, source: Object, name_key: str, mode: int) -> Files:
        name = source.get(name_key) or source.get("name")
        value = self.lookup(kind, str(name))
        if value is None:
            if source.get("optional"):
                return {}
            raise VolumeError(f"{kind.lower()} {name!r} not found")
        return select(decode({**value, "kind": kind}), source.get("items"), mode, f"{kind.lower()} {name!r}")

    def _downward(self, item: Object) -> str:
        if "fieldRef" in item:
            return field_value(self.pod, item["fieldRef"]["fieldPath"])
        return resource_value(self.pod, {"name": ""}, item["resourceFieldRef"], self.node_capacity)

    async def _token(self, source: Object) -> bytes:
        seconds = int(source.get("expirationSeconds") or TOKEN_SECONDS)
        key = json.dumps(source, sort_keys=True)
        made, token = self._tokens.get(key, (0.0, ""))
        if not token or time.monotonic() - made > seconds * TOKEN_REFRESH:
            token = await self.token(source.get("audience"), seconds)
            self._tokens[key] = (time.monotonic(), token)
        return token.encode()

    def _write(self, name: str, files: Files) -> None:
        if self._written.get(name) != files:
            write_atomically(self.folder / name, files)
            self._written[name] = files


def select(content: dict[str, bytes], items: Iterable[Object] | None, mode: int, what: str) -> Files:
    """The keys that ``items`` name, at their paths; all of them where there are no items. Raises `VolumeError`."""
    if not items:
        return {key: (data, mode) for key, data in content.items()}
    files: Files = {}
    for item in items:
        if item["key"] not in content:
            raise VolumeError(f"{what} has no key {item['key']!r}")
        files[item["path"]] = (content[item["key"]], item.get("mode") or mode)
    return files


def write_atomically(folder: Path, files: Files) -> None:
    """Show ``files`` in ``folder`` all at once, as the kubelet does: links to ``..data``, which is replaced in one step."""
    version = f"..{time.time_ns()}"
    for path, (data, mode) in files.items():
        target = folder / version / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        target.chmod(mode)
    (folder / version).mkdir(exist_ok=True)
    current = folder / "..data"
    previous = os.readlink(current) if current.is_symlink() else None
    temporary = folder / "..data_tmp"
    temporary.symlink_to(version)
    temporary.replace(current)
    wanted = {Path(path).parts[0] for path in files}
    for name in wanted:
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")
    for entry in os.listdir(folder):
        if not entry.startswith("..") and entry not in wanted:
            (folder / entry).unlink()
    if previous and previous != version:
        shutil.rmtree(folder / previous, ignore_errors=True)


def _mode(volume: Object, default: int) -> int:
    for key in ("configMap", "secret", "downwardAPI"):
        if key in volume:
            return int(volume[key].get("defaultMode") or default)
    return default
