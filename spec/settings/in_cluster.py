"""Settings of what runs in the cluster: device plugins, etcd, operator, queue, teams, secrets."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, SecretStr, model_validator

from eks_fsdp.spec.base import Strict
from eks_fsdp.spec.versions import TRAINING_OPERATOR_MANIFESTS

from .common import Arn, Name, PartSettings, PrincipalArn


class TrainingOperatorSettings(PartSettings):
    """The Kubeflow training operator."""

    manifests: str = TRAINING_OPERATOR_MANIFESTS
    """Its kustomization: a URL with a ``ref`` (git and the network are needed), or a folder, relative to the program's."""
    cpu: str = Field(default="100m", pattern=r"^[1-9]\d*m?$")
    """CPU request."""
    memory: str = Field(default="256Mi", pattern=r"^[1-9]\d*(Mi|Gi)$")
    """Memory request and limit."""


class DevicePluginSettings(Strict):
    """The daemons that make GPUs and EFA interfaces schedulable."""

    nvidia: PartSettings = PartSettings()
    """NVIDIA device plugin."""
    efa: PartSettings = PartSettings()
    """EFA device plugin."""


class EtcdSettings(PartSettings):
    """etcd for rendezvous."""

    persistent: bool = False
    """Whether its data is on an EBS volume: a restart then keeps what running jobs have agreed on."""
    storage_gib: int = Field(default=8, ge=1, le=1024)
    """Size of that volume in GiB."""


class QueueSettings(PartSettings):
    """Kueue: a job gets all its nodes at once or waits holding none. ``none``: jobs start at once, and may hold each other up."""

    manifests: str | None = None
    """Its kustomization, as a URL or a folder; None: the release's own."""
    wait_for_pods_minutes: int = Field(default=15, ge=1, le=240)
    """Minutes in which an admitted job must run, else it goes back into the queue."""
    topology: Literal["nodes", "network"] = "nodes"
    """What a job's nodes are chosen by. ``nodes``: whichever are free; ``network``: EFA nodes that are close to each other, by
    AWS' labels ``topology.k8s.aws/network-node-layer-*``. An EFA node without these labels then gets no job."""
    order: Literal["best-effort", "strict"] = "best-effort"
    """``best-effort``: a job that fits may overtake an older one that does not; ``strict``: none may, and large jobs get their turn."""
    reclaim: bool = False
    """Whether a team takes its own nodes back from jobs that borrow them. These save a checkpoint and wait in the queue again."""

    def topology_of(self, *, efa: bool) -> Literal["nodes", "network"]:
        """What nodes with or without EFA are chosen by."""
        return self.topology if efa else "nodes"


class TeamSettings(Strict):
    """A team: a namespace of its own, and who may run jobs in it."""

    principal_arns: list[PrincipalArn] = []
    """IAM roles and users of the team. They may run, read and stop the team's jobs, and nothing else."""
    nodes: dict[Name, Annotated[int, Field(ge=0)]] = {}
    """Nodes of each GPU group that are the team's own; it borrows what others leave idle. A group that is not named: none of its own."""
    max_jobs: int = Field(default=50, ge=1, le=10_000)
    """PyTorchJobs in the namespace at once, finished ones included."""


class HuggingFaceSettings(Strict):
    """The token that jobs reach the Hugging Face hub with, as ``HF_TOKEN``."""

    token: SecretStr | None = Field(default=None, min_length=1)
    """The token itself: ``pulumi config set --secret --path hugging_face.token``."""
    secret_arn: Arn | None = None
    """A secret of AWS Secrets Manager that holds the token, alone or as ``token`` in a JSON object."""
    existing: bool = False
    """Whether the Secret ``hugging-face`` is in the jobs' namespaces already."""

    @model_validator(mode="after")
    def _one_source(self) -> HuggingFaceSettings:
        given = [name for name in ("token", "secret_arn", "existing") if getattr(self, name)]
        if len(given) > 1:
            raise ValueError(f"{given[0]}: is set, and {given[1]} too; accepted: one of them")
        return self

    @property
    def given(self) -> bool:
        """Whether there is a token."""
        return self.token is not None or self.secret_arn is not None or self.existing
