"""Settings of training jobs."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from eks_fsdp.spec.base import Strict
from eks_fsdp.spec.trainer import TrainerConfig

from .common import Labels, Name


class JobSettings(Strict):
    """One PyTorchJob."""

    nodes: int = Field(ge=1, le=1024)
    """Workers; each has a node of its own."""
    group: str | None = None
    """Name of the GPU group; None: the only one."""
    team: Name | None = None
    """Team in whose namespace the job runs; None: the stack's namespace."""
    run: str = Field(default="1", pattern=r"^[a-z0-9]([-a-z0-9]{0,14}[a-z0-9])?$")
    """Change it to run the same job once more."""
    processes_per_node: int | None = Field(default=None, ge=1, le=64)
    """Ranks on each node; None: one for each GPU."""
    transport: Literal["efa", "tcp", "gloo"] = "efa"
    """What the ranks must talk over; a run over anything else is no valid point of a chart. ``gloo`` is for simulated nodes."""
    rendezvous: Literal["etcd-v3", "c10d"] = "etcd-v3"
    """torchrun's rendezvous backend. With `image` the default is c10d: etcd-v3's handler must be in the image."""
    max_restarts: int = Field(default=0, ge=0, le=100)
    """Restarts by torchrun within a pod, before the kubelet restarts the container."""
    backoff_limit: int = Field(default=3, ge=0, le=100)
    """Container restarts after which the job has failed."""
    deadline_minutes: int = Field(default=24 * 60, ge=1)
    """Minutes after which the job is ended, whatever it does."""
    grace_seconds: int = Field(default=120, ge=30, le=3600)
    """Seconds between SIGTERM and SIGKILL: the trainer saves a checkpoint in between."""
    topology: Literal["preferred", "required", "none"] = "preferred"
    """Whether nodes that are close in the network are taken together, as far as nodes say where they are."""
    scratch: bool = True
    """Whether the node's local disks are mounted at ``/scratch``."""
    image: str | None = None
    """The user's own image with its tag or digest; None: the trainer's."""
    env: dict[str, str] = {}
    """Environment beside the program's own."""
    labels: Labels = {}
    """Labels of the PyTorchJob beside the program's own."""
    trainer: TrainerConfig = TrainerConfig()
    """Configuration of the training program."""

    @model_validator(mode="before")
    @classmethod
    def _own_image_meets_at_c10d(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("image") is not None and "rendezvous" not in value:
            return {**value, "rendezvous": "c10d"}
        return value
