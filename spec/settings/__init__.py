"""Settings: what a stack file may say, validated at every depth before any resource is declared."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from pydantic import Field, model_validator

from eks_fsdp.spec.base import SettingsError, Strict
from eks_fsdp.spec.names import PROGRAM_NAME
from eks_fsdp.spec.rules import problems

from .cluster import AccessEntrySettings, AddonSettings, ApiAccessSettings, ClusterSettings, SystemNodeSettings
from .common import AccountId, Labels, Name, PartSettings, Tags, refuse_own_tags
from .gpu_nodes import AmiSettings, CapacitySettings, GpuNodeGroupSettings, PlacementGroupSettings, TaintSettings
from .guard import GuardSettings
from .in_cluster import (
    DevicePluginSettings,
    EtcdSettings,
    HuggingFaceSettings,
    QueueSettings,
    TeamSettings,
    TrainingOperatorSettings,
)
from .jobs import JobSettings
from .network import ExistingNetworkSettings, NetworkSettings
from .storage import DataRepositorySettings, ImageSettings, S3MountSettings, StorageSettings

Part = TypeVar("Part", bound=PartSettings)


class Settings(Strict):
    """A stack, whole."""

    region: str = "us-west-2"
    """AWS region."""
    allowed_account_ids: list[AccountId] = []
    """AWS accounts that this stack may touch; none: whichever the credentials belong to."""
    ephemeral: bool = False
    """Whether the stack lives for hours only, as in CI: nothing of it is kept, and `guard.expiry` is needed."""
    owner: str = Field(default="unowned", max_length=256, pattern=r"^[\p{L}\p{Z}\p{N}_.:/=+\-@]+$")
    """Value of the tag ``eksfsdp:owner`` on every AWS resource."""
    network: NetworkSettings = NetworkSettings()
    """The VPC."""
    cluster: ClusterSettings = ClusterSettings()
    """The EKS cluster."""
    system_nodes: SystemNodeSettings = SystemNodeSettings()
    """Nodes for all that is not training."""
    gpu_nodes: list[GpuNodeGroupSettings] = []
    """Groups of GPU nodes."""
    device_plugins: DevicePluginSettings = DevicePluginSettings()
    """GPUs and EFA interfaces as schedulable resources."""
    etcd: EtcdSettings = EtcdSettings()
    """etcd for rendezvous."""
    training_operator: TrainingOperatorSettings = TrainingOperatorSettings()
    """Kubeflow training operator with the PyTorchJob resource."""
    queue: QueueSettings = QueueSettings()
    """Kueue, which admits a job whole."""
    monitoring: PartSettings = PartSettings()
    """DCGM exporter, Prometheus, Grafana."""
    storage: StorageSettings = StorageSettings()
    """Checkpoints."""
    image: ImageSettings = ImageSettings()
    """The trainer's image."""
    namespace: PartSettings = PartSettings()
    """Whether the jobs' namespace is made."""
    namespace_name: Name = "training"
    """The jobs' namespace."""
    teams: dict[Name, TeamSettings] = {}
    """Teams by name, each with a namespace of that name."""
    hugging_face: HuggingFaceSettings = HuggingFaceSettings()
    """Access to the Hugging Face hub."""
    guard: GuardSettings = GuardSettings()
    """Expiry, idle guard and budget."""
    tags: Tags = {}
    """AWS tags beside the program's own."""
    jobs: dict[Name, JobSettings] = {}
    """PyTorchJobs by name. An unchanged job is left alone; a changed one is a new job."""

    @model_validator(mode="after")
    def _rules(self) -> Settings:
        refuse_own_tags(self.tags)
        if found := problems(self):
            raise ValueError("\n".join(found))
        return self

    def group_of(self, job: str) -> GpuNodeGroupSettings:
        """The GPU group that ``job`` runs on. Raises `ValueError` where that is not one group."""
        wanted = self.jobs[job].group
        groups = [group for group in self.gpu_nodes if wanted in (None, group.name)]
        if len(groups) != 1:
            names = ", ".join(group.name for group in self.gpu_nodes) or "none is declared"
            raise ValueError(f"jobs.{job}.group: {wanted!r} does not name one group of gpu_nodes; accepted: {names}")
        return groups[0]

    @classmethod
    def from_config(cls, config: Mapping[str, str], secret_keys: Collection[str] = ()) -> Settings:
        """Settings from Pulumi's configuration, ``{"eks-fsdp:gpu_nodes": "<JSON>", ...}``.

        Keys of other namespaces are other providers' and are left alone. ``secret_keys``: those that Pulumi decrypted, of
        which no error shows anything. Raises `SettingsError`.
        """
        values: dict[str, Any] = {}
        prefix = f"{PROGRAM_NAME}:"
        for key, text in config.items():
            if key.startswith(prefix):
                name = key.removeprefix(prefix)
                field = cls.model_fields.get(name)
                # Text stays text where text is wanted: an owner may be called 42.
                values[name] = text if field is not None and field.annotation is str else _value(text)
        secret = {key.removeprefix(prefix) for key in secret_keys}
        settings = cls.parse(values, secret=secret)
        if settings.hugging_face.token is not None and "hugging_face" not in secret:
            raise SettingsError(
                "hugging_face.token: is in plain text (and not shown here); accepted: `pulumi config set --secret --path "
                "hugging_face.token`, or hugging_face.secret_arn"
            )
        return settings

    def on_existing_cluster(self, kubeconfig: str, jobs: Mapping[str, JobSettings]) -> Settings:
        """The same stack's view of jobs alone: what the platform made is there already."""
        there = PartSettings(mode="existing")

        def used(part: Part) -> Part:
            return part if part.mode == "none" else part.model_copy(update={"mode": "existing"})

        changed = self.model_copy(
            update={
                "cluster": ClusterSettings(
                    mode="existing", kubeconfig=kubeconfig, kubernetes_version=self.cluster.kubernetes_version
                ),
                "device_plugins": DevicePluginSettings(
                    nvidia=used(self.device_plugins.nvidia), efa=used(self.device_plugins.efa)
                ),
                "etcd": used(self.etcd),
                "training_operator": used(self.training_operator),
                "queue": used(self.queue),
                "network": NetworkSettings(),
                # The Secret in the cluster is enough; a token does not leave the platform's own stack.
                "hugging_face": HuggingFaceSettings(existing=self.hugging_face.given),
                "guard": GuardSettings(),
                "ephemeral": False,
                "monitoring": used(self.monitoring),
                "namespace": there,
                "storage": self.storage.used(),
                "image": self.image.used(),
                "jobs": dict(jobs),
            }
        )
        return Settings.parse(changed.model_dump(mode="json"))


def _value(text: str) -> object:
    """A configuration value: JSON where it is JSON (objects, lists, numbers, booleans), else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


__all__ = [
    "AccessEntrySettings",
    "AddonSettings",
    "AmiSettings",
    "ApiAccessSettings",
    "CapacitySettings",
    "ClusterSettings",
    "DataRepositorySettings",
    "DevicePluginSettings",
    "EtcdSettings",
    "ExistingNetworkSettings",
    "GpuNodeGroupSettings",
    "GuardSettings",
    "HuggingFaceSettings",
    "ImageSettings",
    "JobSettings",
    "Labels",
    "NetworkSettings",
    "PartSettings",
    "PlacementGroupSettings",
    "QueueSettings",
    "S3MountSettings",
    "Settings",
    "SettingsError",
    "StorageSettings",
    "SystemNodeSettings",
    "Tags",
    "TaintSettings",
    "TeamSettings",
    "TrainingOperatorSettings",
]
