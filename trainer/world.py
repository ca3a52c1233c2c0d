"""The process group, and what ranks tell each other."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]  # exported, but not in __all__

from eks_fsdp.spec.base import SettingsError

from . import transport
from .config import Ranks

_TIMEOUT = timedelta(minutes=10)


@dataclass(frozen=True)
class World:
    """The process group and this process in it."""

    ranks: Ranks
    device: torch.device
    backend: str
    """``nccl`` or ``gloo``."""

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which alone prints."""
        return self.ranks.rank == 0

    def total(self, *values: float) -> list[float]:
        """Sums over all ranks."""
        return self._reduce(values, dist.ReduceOp.SUM)

    def highest(self, *values: float) -> list[float]:
        """Maxima over all ranks."""
        return self._reduce(values, dist.ReduceOp.MAX)

    def _reduce(self, values: tuple[float, ...], operation: dist.ReduceOp.RedOpType) -> list[float]:
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, operation)
        reduced: list[float] = tensor.tolist()
        return reduced

    def everyone(self, value: Any) -> list[Any]:
        """``value`` of each rank, by rank."""
        gathered: list[Any] = [None] * self.ranks.world_size
        dist.all_gather_object(gathered, value)
        return gathered

    def from_leader(self, value: Any) -> Any:
        """Rank 0's ``value``."""
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def barrier(self) -> None:
        """Wait for all ranks."""
        dist.barrier()

    def close(self) -> None:
        """Leave the process group."""
        dist.destroy_process_group()


def choose_device(ranks: Ranks) -> torch.device:
    """This rank's GPU, or the CPU where there is none or the job was declared to use gloo. Raises `SettingsError`."""
    if transport.declared() == "gloo" or not torch.cuda.is_available():
        if transport.declared() == "efa":
            raise SettingsError(f"{transport.VARIABLE}: 'efa', and there is no GPU here; accepted: gloo")
        return torch.device("cpu")
    if ranks.local_rank >= torch.cuda.device_count():
        raise SettingsError(
            f"processes_per_node: {ranks.local_world_size}, and there are {torch.cuda.device_count()} GPUs here; "
            "accepted: one process for each GPU"
        )
    return torch.device("cuda", ranks.local_rank)


def set_threads(local_world_size: int) -> None:
    """Share the CPU's cores among the processes of this node, unless OMP_NUM_THREADS says how many to use."""
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // local_world_size))


def start(ranks: Ranks) -> World:
    """Choose the device and join the process group. Raises `SettingsError`."""
    device = choose_device(ranks)
    backend = "nccl" if device.type == "cuda" else "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        set_threads(ranks.local_world_size)
    bound = device if device.type == "cuda" else None
    if ranks.torchrun:
        dist.init_process_group(backend, timeout=_TIMEOUT, device_id=bound)
    else:
        dist.init_process_group(backend, timeout=_TIMEOUT, device_id=bound, store=HashStore(), rank=0, world_size=1)
    return World(ranks, device, backend)


def places(world: World) -> tuple[list[str], list[str]]:
    """Distinct node names and distinct host names of all ranks, each sorted."""
    host = socket.gethostname()
    found = world.everyone((os.environ.get("NODE_NAME") or host, host))
    return sorted({node for node, _ in found}), sorted({pod for _, pod in found})
