"""What the ranks really talk over: EFA, TCP or gloo.

``EKS_FSDP_TRANSPORT`` is what the job was declared to use. ``gloo`` also means CPU, GPUs or not.

With NCCL the answer comes from the process itself once its communicator stands: NCCL uses EFA when it has loaded a
network plugin (``libnccl-net*``) on libfabric and holds an RDMA device open (``/dev/infiniband/uverbs*``). A plugin
that is there but does not come up leaves libfabric mapped and no device open: that is TCP.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal, cast, get_args

from .errors import TrainingFailed

Transport = Literal["efa", "tcp", "gloo"]
VARIABLE = "EKS_FSDP_TRANSPORT"

_PLUGIN = re.compile(r"/libnccl-net[^/]*\.so")
_LIBFABRIC = re.compile(r"/libfabric\.so")


def declared() -> Transport | None:
    """What the environment declares; None: nothing."""
    value = os.environ.get(VARIABLE) or None
    return cast("Transport | None", value)


def problems() -> list[str]:
    """What is wrong with the declaration, by itself."""
    value = declared()
    if value is not None and value not in get_args(Transport):
        return [f"{VARIABLE}: {value!r}; accepted: {', '.join(get_args(Transport))}"]
    return []


def detect(backend: str, process: Path = Path("/proc/self")) -> Transport:
    """What the process group of ``backend`` (``nccl`` or ``gloo``) uses; call it after the first collective."""
    if backend == "gloo":
        return "gloo"
    mapped = _read(process / "maps")
    return "efa" if _PLUGIN.search(mapped) and _LIBFABRIC.search(mapped) and _holds_rdma_device(process) else "tcp"


def require(used: Transport) -> None:
    """Raise `TrainingFailed` where EFA was declared and is not used: the run would be slow at full price."""
    if declared() == "efa" and used != "efa":
        raise TrainingFailed(
            f"{VARIABLE}: 'efa' was declared, and the ranks talk over {used}: the pod has no EFA device "
            "(vpc.amazonaws.com/efa), or the image lacks libfabric or the NCCL plugin aws-ofi-nccl"
        )


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _holds_rdma_device(process: Path) -> bool:
    try:
        descriptors = list((process / "fd").iterdir())
    except OSError:
        return False
    for descriptor in descriptors:
        try:
            target = os.readlink(descriptor)
        except OSError:
            continue
        if target.startswith("/dev/infiniband/uverbs"):
            return True
    return False
