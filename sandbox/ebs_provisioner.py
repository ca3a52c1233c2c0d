"""The part of the EBS CSI driver that makes and deletes volumes: claims of its storage classes become volumes of the account.

It works only where the add-on ``aws-ebs-csi-driver`` is installed, and it ends with the cluster: the volume of a claim that
is still there by then stays in the account, as on AWS.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import math
import re
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp

from .environment import quantity
from .kubeapi import ApiError, KubeApi

Object = dict[str, Any]
DRIVER, ADDON = "ebs.csi.aws.com", "aws-ebs-csi-driver"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
"""Where the scheduler tells which node the claim's first pod goes to."""
ZONE = "topology.kubernetes.io/zone"
CLAIMS, VOLUMES = "/api/v1/persistentvolumeclaims", "/api/v1/persistentvolumes"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
RETRY_SECONDS, STOP_SECONDS, CLOSE_SECONDS = 1.0, 5.0, 0.1
GIB = 2**30
log = logging.getLogger("eks_fsdp.sandbox.ebs")


def volume_name(claim: Object) -> str:
    """Of the volume that is made for a claim."""
    return f"pvc-{claim['metadata']['uid']}"


def is_wanted(claim: Object, classes: Mapping[str, Object]) -> bool:
    """Whether a claim waits for a volume of this driver, and is told where its pod goes if that is waited for."""
    kind = classes.get(str(claim["spec"].get("storageClassName")))
    if kind is None or kind["provisioner"] != DRIVER or claim["metadata"].get("deletionTimestamp"):
        return False
    if claim.get("status", {}).get("phase") != "Pending" or claim["spec"].get("volumeName"):
        return False
    return kind.get("volumeBindingMode") != "WaitForFirstConsumer" or SELECTED_NODE in _annotations(claim)


def is_released(volume: Object) -> bool:
    """Whether a volume of this driver is to be deleted: its claim is gone, and its class said so."""
    spec = volume["spec"]
    ours = (spec.get("csi") or {}).get("driver") == DRIVER
    deletes = spec.get("persistentVolumeReclaimPolicy") == "Delete"
    return ours and deletes and volume.get("status", {}).get("phase") == "Released"


def volume_request(claim: Object, kind: Object, zone: str, cluster: str) -> dict[str, Any]:
    """CreateVolume's parameters for a claim of the storage class ``kind``."""
    parameters = kind.get("parameters") or {}
    tags = {"CSIVolumeName": volume_name(claim), "ebs.csi.aws.com/cluster": "true", "Name": f"{cluster}-dynamic"}
    for key, text in parameters.items():
        if re.fullmatch(r"tagSpecification_\d+", key):
            name, _, value = text.partition("=")
            tags[name] = value
    return {
        "AvailabilityZone": zone,
        "Size": math.ceil(quantity(claim["spec"]["resources"]["requests"]["storage"]) / GIB),
        "VolumeType": parameters.get("type", "gp3"),
        "Encrypted": parameters.get("encrypted") == "true",
        "TagSpecifications": [
            {"ResourceType": "volume", "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}
        ],
    }


def persistent_volume(claim: Object, kind: Object, zone: str, made: Mapping[str, Any]) -> Object:
    """The PersistentVolume of ``made``, a volume as CreateVolume describes it, already promised to its claim."""
    metadata = claim["metadata"]
    reference = {"kind": "PersistentVolumeClaim", "apiVersion": "v1"}
    reference |= {key: metadata[key] for key in ("name", "namespace", "uid")}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": volume_name(claim), "annotations": {"pv.kubernetes.io/provisioned-by": DRIVER}},
        "spec": {
            "capacity": {"storage": f"{made['Size']}Gi"},
            "accessModes": claim["spec"]["accessModes"],
            "persistentVolumeReclaimPolicy": kind.get("reclaimPolicy", "Delete"),
            "storageClassName": kind["metadata"]["name"],
            "claimRef": reference,
            "csi": {"driver": DRIVER, "volumeHandle": made["VolumeId"], "fsType": "ext4"},
            "nodeAffinity": {
                "required": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": ZONE, "operator": "In", "values": [zone]}]}]
                }
            },
        },
    }


def _annotations(item: Object) -> dict[str, str]:
    return item["metadata"].get("annotations") or {}


class EbsProvisioner:
    """The driver of one cluster, on a thread of its own. `start` it, and `stop` it with the cluster."""

    def __init__(self, cluster: str, kubeconfig: Object, client: Callable[[str], Any]) -> None:
        """``client``: boto3 clients of the account by service."""
        self._cluster = cluster
        self._kubeconfig = kubeconfig
        self._client = client
        self._classes: dict[str, Object] = {}
        self._claims: dict[str, Object] = {}
        self._volumes: dict[str, Object] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Task[None] | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ebs", daemon=True)

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """End; what is under way is broken off."""
        if self._ready.wait(STOP_SECONDS) and self._loop is not None and self._main is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._main.cancel)
        self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        with tempfile.TemporaryDirectory(prefix="eks-fsdp-ebs-") as folder:
            ca = Path(folder) / "ca.pem"
            cluster = self._kubeconfig["clusters"][0]["cluster"]
            ca.write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
            token = self._kubeconfig["users"][0]["user"]["token"]
            try:
                asyncio.run(self._serve(cluster["server"], str(ca), token))
            except asyncio.CancelledError:
                return
            except Exception:
                log.exception("the EBS driver of cluster %s has ended", self._cluster)

    async def _serve(self, server: str, ca: str, token: str) -> None:
        self._loop, self._main = asyncio.get_running_loop(), asyncio.current_task()
        api = KubeApi(server, ca, token)
        changed = asyncio.Event()
        watches = [
            asyncio.ensure_future(api.follow(path, self._keeper(known, changed), asyncio.Event()))
            for path, known in ((CLASSES, self._classes), (CLAIMS, self._claims), (VOLUMES, self._volumes))
        ]
        self._ready.set()
        try:
            while True:
                await changed.wait()
                changed.clear()
                try:
                    await self._look(api)
                except (ApiError, aiohttp.ClientError, TimeoutError, OSError) as error:
                    log.warning("%s", error)
                    await asyncio.sleep(RETRY_SECONDS)
                    changed.set()
        finally:
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)
            await api.close()
            # Encrypted connections end a moment after they were told to.
            await asyncio.sleep(CLOSE_SECONDS)

    @staticmethod
    def _keeper(known: dict[str, Object], changed: asyncio.Event) -> Callable[[str, Object], None]:
        def keep(change: str, item: Object) -> None:
            namespace = item["metadata"].get("namespace")
            key = f"{namespace}/{item['metadata']['name']}" if namespace else item["metadata"]["name"]
            if change == "DELETED":
                known.pop(key, None)
            else:
                known[key] = item
            changed.set()

        return keep

    async def _look(self, api: KubeApi) -> None:
        for volume in [v for v in self._volumes.values() if is_released(v)]:
            await self._delete(api, volume)
        wanted = [
            c for c in self._claims.values() if is_wanted(c, self._classes) and volume_name(c) not in self._volumes
        ]
        if wanted and not await asyncio.to_thread(self._installed):
            raise OSError(f"the add-on {ADDON} is not installed, and {len(wanted)} claims wait for it")
        for claim in wanted:
            await self._create(api, claim)

    def _installed(self) -> bool:
        return ADDON in self._client("eks").list_addons(clusterName=self._cluster)["addons"]

    async def _create(self, api: KubeApi, claim: Object) -> None:
        kind = self._classes[claim["spec"]["storageClassName"]]
        node = _annotations(claim).get(SELECTED_NODE)
        nodes = [await api.get(f"/api/v1/nodes/{node}")] if node else (await api.get("/api/v1/nodes"))["items"]
        zone = str(nodes[0]["metadata"]["labels"][ZONE])
        request = volume_request(claim, kind, zone, self._cluster)
        made = await asyncio.to_thread(self._client("ec2").create_volume, **request)
        try:
            created = await api.create(VOLUMES, persistent_volume(claim, kind, zone, made))
        except (ApiError, aiohttp.ClientError, TimeoutError):
            await asyncio.to_thread(self._client("ec2").delete_volume, VolumeId=made["VolumeId"])
            raise
        self._volumes[volume_name(claim)] = created

    async def _delete(self, api: KubeApi, volume: Object) -> None:
        from botocore.exceptions import ClientError

        handle = volume["spec"]["csi"]["volumeHandle"]
        try:
            await asyncio.to_thread(self._client("ec2").delete_volume, VolumeId=handle)
        except ClientError as error:
            if error.response["Error"]["Code"] != "InvalidVolume.NotFound":
                raise OSError(f"volume {handle}: {error}") from None
        await api.delete(f"{VOLUMES}/{volume['metadata']['name']}")
        self._volumes.pop(volume["metadata"]["name"], None)
