"""Environment of a job's containers: what NCCL, libfabric and PyTorch must be told, and nothing that they know by now.

What is left out on purpose, as today's EFA plugin of NCCL sets it or libfabric no longer reads it: ``FI_PROVIDER``,
``FI_EFA_USE_DEVICE_RDMA``, ``FI_EFA_FORK_SAFE``, ``FI_EFA_ENABLE_SHM_TRANSFER``, ``NCCL_PROTO``, ``NCCL_BUFFSIZE``, ``RDMAV_*``.
"""

from __future__ import annotations

from typing import Literal

from eks_fsdp.spec.instances import InstanceType
from eks_fsdp.spec.names import HUGGING_FACE_SECRET, SCRATCH_MOUNT

from .objects import Manifest

Transport = Literal["efa", "tcp", "gloo"]
FROM_POD = {"PET_LOCAL_ADDR": "status.podIP", "NODE_NAME": "spec.nodeName", "POD_NAME": "metadata.name"}
"""Variables whose values the kubelet knows, and the pod's fields they come from."""
TOKEN_VARIABLE = "HF_TOKEN"
"""Where Hugging Face's libraries look for the token."""
_TRANSPORT: dict[str, dict[str, str]] = {
    "efa": {
        # Huge pages make fork() fail with ENOMEM in data loaders.
        "FI_EFA_USE_HUGE_PAGE": "0",
        # A plugin that does not load is an error then, instead of TCP. Old and new plugins answer to this spelling.
        "NCCL_NET": "AWS Libfabric",
    },
    "tcp": {"NCCL_NET": "Socket"},
    "gloo": {},
}


def job_environment(transport: Transport, instance: InstanceType, *, scratch: bool) -> dict[str, str]:
    """Variables with plain values for ranks on nodes of type ``instance``; ``scratch``: whether `SCRATCH_MOUNT` is there."""
    values = {
        "EKS_FSDP_TRANSPORT": transport,
        # The pod's one interface. Left to itself, NCCL may take a link of the CNI on some nodes.
        "GLOO_SOCKET_IFNAME": "eth0",
        "NCCL_SOCKET_IFNAME": "eth0",
        **_TRANSPORT[transport],
    }
    if transport != "gloo":
        # The last collectives of each rank, written out where one hangs: which rank did not come is in there.
        values |= {
            "TORCH_FR_BUFFER_SIZE": "20000",
            "TORCH_FR_DUMP_ON_TIMEOUT": "1",
            "TORCH_FR_DUMP_TEMP_FILE": f"{SCRATCH_MOUNT if scratch else '/tmp'}/nccl_trace_rank_",
        }
        if instance.name.startswith(("g5.", "g6.")) and instance.gpus > 1:
            # Their GPUs reach each other through the host's memory alone, and copy engines do that twice as fast.
            values["NCCL_SHM_USE_CUDA_MEMCPY"] = "1"
    if scratch:
        values["HF_HOME"] = f"{SCRATCH_MOUNT}/hugging-face"
    return values


def token_variable() -> Manifest:
    """The Hugging Face token, which the kubelet takes from the Secret: neither the job's object nor its logs have it."""
    reference = {"name": HUGGING_FACE_SECRET, "key": "token"}
    return {"name": TOKEN_VARIABLE, "valueFrom": {"secretKeyRef": reference}}
