"""Settings: what a stack file may say, validated at every depth before any resource is declared."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from .base import SettingsError, Strict
from .instances import INSTANCE_TYPES, InstanceType
from .names import PROGRAM_NAME, RENDEZVOUS_ETCD_V3
from .trainer import TrainerConfig
from .versions import KUBERNETES_VERSION, TRAINING_OPERATOR_MANIFESTS

Name = Annotated[str, Field(pattern=r"^[a-z]([-a-z0-9]{0,30}[a-z0-9])?$")]
"""A DNS label of at most 32 characters: it becomes part of Kubernetes and AWS names."""

Labels = dict[
    Annotated[
        str,
        Field(max_length=63, pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"),
    ],
    Annotated[str, Field(max_length=63, pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$")],
]
"""Kubernetes labels that EKS takes too: it counts a key's prefix among its 63 characters."""

_RESERVED_DOMAIN = re.compile(r"(^|\.)(kubernetes\.io|k8s\.io|eks\.amazonaws\.com)/")

EFA_KUBERNETES_MINOR = 33
"""From 1.33 on, the security group that EKS makes lets its members send to each other by group, as EFA needs."""


def refuse_reserved(labels: Labels) -> None:
    """Raises `ValueError` for a label that no kubelet may give its node: the nodes would start, and never join."""
    for key in labels:
        if _RESERVED_DOMAIN.search(key):
            raise ValueError(
                f"labels: {key!r} is reserved, and nodes with it never join; accepted: a domain of your own"
            )


class NetworkSettings(Strict):
    """The VPC."""

    cidr: str = "10.0.0.0/16"
    """IPv4 range of the VPC."""
    zones: list[str] = ["us-west-2a", "us-west-2b"]
    """Availability zones, at least two (the control plane needs them); the GPU groups' zones are among them."""

    @model_validator(mode="after")
    def _usable(self) -> NetworkSettings:
        try:
            network = ipaddress.IPv4Network(self.cidr)
        except ValueError as error:
            raise ValueError(f"cidr: {self.cidr!r} is not an IPv4 network ({error}); accepted: 10.0.0.0/16") from None
        if not 16 <= network.prefixlen <= 20:
            raise ValueError(f"cidr: {self.cidr!r} has prefix length {network.prefixlen}; accepted: /16 to /20")
        if len(set(self.zones)) != len(self.zones) or not 2 <= len(self.zones) <= 4:
            raise ValueError(f"zones: {self.zones!r}; accepted: 2 to 4 different availability zones")
        return self


class ClusterSettings(Strict):
    """The EKS cluster, or the one to use."""

    mode: Literal["create", "existing"] = "create"
    """``existing``: no network, control plane or node groups; `kubeconfig` is needed."""
    kubernetes_version: str = Field(default=KUBERNETES_VERSION, pattern=r"^1\.\d+$")
    """Minor version of the control plane."""
    kubeconfig: str | None = None
    """Path of the kubeconfig of an existing cluster."""

    @model_validator(mode="after")
    def _kubeconfig_goes_with_existing(self) -> ClusterSettings:
        if self.mode == "existing" and not self.kubeconfig:
            raise ValueError("kubeconfig: missing, and cluster.mode is 'existing'; accepted: the path of a kubeconfig")
        if self.mode == "create" and self.kubeconfig:
            raise ValueError(f"kubeconfig: {self.kubeconfig!r} goes with cluster.mode 'existing' only")
        return self


class SystemNodeSettings(Strict):
    """The managed node group for all that is not training."""

    instance_type: str = "m6i.xlarge"
    """Any EC2 type without GPUs."""
    desired: int = Field(default=2, ge=1, le=20)
    """Nodes."""
    labels: Labels = {}
    """Kubernetes labels beside the program's own."""

    @model_validator(mode="after")
    def _can_join(self) -> SystemNodeSettings:
        refuse_reserved(self.labels)
        return self


class GpuNodeGroupSettings(Strict):
    """One group of GPU nodes in one availability zone."""

    name: Name
    """Becomes part of the node group's and launch template's names."""
    instance_type: str
    """A type of the catalogue (`spec.instances`)."""
    zone: str
    """Availability zone: EFA traffic cannot cross zones."""
    desired: int = Field(default=0, ge=0, le=1024)
    """Nodes now. Changing it touches this node group alone."""
    min: int = Field(default=0, ge=0, le=1024)
    """Lower bound of the Auto Scaling group."""
    max: int = Field(default=16, ge=1, le=1024)
    """Upper bound of the Auto Scaling group."""
    idle: int = Field(default=0, ge=0, le=1024)
    """Nodes to which sweeps return the group."""
    root_volume_gib: int = Field(default=500, ge=50, le=16_384)
    """Size of the encrypted gp3 root volume in GiB."""
    labels: Labels = {}
    """Kubernetes labels beside the program's own."""

    @model_validator(mode="after")
    def _known_and_ordered(self) -> GpuNodeGroupSettings:
        if self.instance_type not in INSTANCE_TYPES:
            raise ValueError(
                f"instance_type: {self.instance_type!r} is not in the catalogue; accepted: {', '.join(sorted(INSTANCE_TYPES))}"
            )
        if not self.min <= self.desired <= self.max:
            raise ValueError(f"desired: {self.desired} is outside min {self.min} to max {self.max}")
        refuse_reserved(self.labels)
        return self

    @property
    def instance(self) -> InstanceType:
        """The catalogue's entry."""
        return INSTANCE_TYPES[self.instance_type]


class PartSettings(Strict):
    """One part of the platform inside the cluster."""

    mode: Literal["install", "existing", "none"] = "install"
    """``existing``: it is there already and is used; ``none``: it is neither installed nor used."""


class TrainingOperatorSettings(PartSettings):
    """The Kubeflow training operator."""

    manifests: str = TRAINING_OPERATOR_MANIFESTS
    """Its kustomization: a URL with a ``ref`` (git and the network are needed), or a folder, relative to the program's."""


class DevicePluginSettings(Strict):
    """The daemons that make GPUs and EFA interfaces schedulable."""

    nvidia: PartSettings = PartSettings()
    """NVIDIA device plugin."""
    efa: PartSettings = PartSettings()
    """EFA device plugin."""


class StorageSettings(Strict):
    """The file system that checkpoints are kept on."""

    mode: Literal["fsx", "existing", "none"] = "none"
    """``fsx``: a new FSx for Lustre file system; ``existing``: the claim `claim` is there already; ``none``: no checkpoints."""
    capacity_gib: int = Field(default=1200, ge=1200)
    """Size of a new file system in GiB: 1200 or a multiple of 2400."""
    claim: Name = "checkpoints"
    """Name of the PersistentVolumeClaim in the jobs' namespace."""

    @model_validator(mode="after")
    def _sizes_that_fsx_offers(self) -> StorageSettings:
        if self.capacity_gib != 1200 and self.capacity_gib % 2400:
            raise ValueError(f"capacity_gib: {self.capacity_gib} is not offered; accepted: 1200, or a multiple of 2400")
        return self


class ImageSettings(Strict):
    """Where the trainer's image comes from."""

    repository: str | None = None
    """Repository without a tag; None: the ECR repository that the program makes."""
    tag: str = Field(default="0.1.0", pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$")
    """Tag of the image; never ``latest``."""

    @model_validator(mode="after")
    def _pinned(self) -> ImageSettings:
        if self.tag == "latest":
            raise ValueError("tag: 'latest' is not a version; accepted: an immutable tag")
        return self


class JobSettings(Strict):
    """One PyTorchJob."""

    nodes: int = Field(ge=1, le=1024)
    """Workers; each has a node of its own."""
    group: str | None = None
    """Name of the GPU group; None: the only one."""
    run: str = Field(default="1", pattern=r"^[a-z0-9]([-a-z0-9]{0,14}[a-z0-9])?$")
    """Change it to run the same job once more."""
    processes_per_node: int | None = Field(default=None, ge=1, le=64)
    """Ranks on each node; None: one for each GPU."""
    transport: Literal["efa", "tcp", "gloo"] = "efa"
    """What the ranks must talk over; a run over anything else is no valid point of a chart. ``gloo`` is for simulated nodes."""
    rendezvous: Literal["etcd-v3", "c10d"] = "etcd-v3"
    """torchrun's rendezvous backend."""
    max_restarts: int = Field(default=0, ge=0, le=100)
    """Restarts by torchrun within a pod, before the kubelet restarts the container."""
    backoff_limit: int = Field(default=3, ge=0, le=100)
    """Container restarts after which the job has failed."""
    deadline_minutes: int = Field(default=24 * 60, ge=1)
    """Minutes after which the job is ended, whatever it does."""
    image: str | None = None
    """The user's own image with its tag or digest; None: the trainer's."""
    env: dict[str, str] = {}
    """Environment beside the program's own."""
    labels: Labels = {}
    """Labels of the PyTorchJob beside the program's own."""
    trainer: TrainerConfig = TrainerConfig()
    """Configuration of the training program."""


class Settings(Strict):
    """A stack, whole."""

    region: str = "us-west-2"
    """AWS region."""
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
    etcd: PartSettings = PartSettings()
    """etcd for rendezvous."""
    training_operator: TrainingOperatorSettings = TrainingOperatorSettings()
    """Kubeflow training operator with the PyTorchJob resource."""
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
    jobs: dict[Name, JobSettings] = {}
    """PyTorchJobs by name. An unchanged job is left alone; a changed one is a new job."""

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Settings:
        names = [group.name for group in self.gpu_nodes]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"gpu_nodes: the name {name!r} is used twice; accepted: one name for each group")
        for index, group in enumerate(self.gpu_nodes):
            if self.cluster.mode == "create" and group.zone not in self.network.zones:
                raise ValueError(
                    f"gpu_nodes[{index}].zone: {group.zone!r} has no subnet; accepted: {', '.join(self.network.zones)}"
                )
        self._check_cluster()
        for name, job in self.jobs.items():
            self._check_job(name, job)
        return self

    def _check_cluster(self) -> None:
        minor = int(self.cluster.kubernetes_version.partition(".")[2])
        efa = any(group.instance.efa_interfaces for group in self.gpu_nodes)
        if self.cluster.mode == "create" and efa and minor < EFA_KUBERNETES_MINOR:
            raise ValueError(
                f"cluster.kubernetes_version: {self.cluster.kubernetes_version!r} with EFA nodes; before "
                f"1.{EFA_KUBERNETES_MINOR} the cluster's own security group does not let EFA traffic out; "
                f"accepted: 1.{EFA_KUBERNETES_MINOR} or later"
            )
        if self.cluster.mode == "existing" and self.storage.mode == "fsx":
            raise ValueError(
                "storage.mode: 'fsx' makes a file system in the program's own network, and cluster.mode is 'existing'; "
                "accepted: existing, none"
            )

    def _check_job(self, name: str, job: JobSettings) -> None:
        group = self.group_of(name)
        if job.nodes > group.max:
            raise ValueError(
                f"jobs.{name}.nodes: {job.nodes} is more than group {group.name!r} may have (max {group.max})"
            )
        ranks = job.nodes * (job.processes_per_node or group.instance.gpus)
        try:
            job.trainer.accumulation(ranks)
        except ValueError as error:
            raise ValueError(f"jobs.{name}.trainer.{error}") from None
        if job.rendezvous == RENDEZVOUS_ETCD_V3 and self.etcd.mode == "none":
            raise ValueError(f"jobs.{name}.rendezvous: 'etcd-v3' needs etcd, and etcd.mode is 'none'; accepted: c10d")
        if job.transport == "efa" and not group.instance.efa_interfaces:
            raise ValueError(f"jobs.{name}.transport: 'efa', and {group.instance_type} has no EFA; accepted: tcp")
        if job.trainer.checkpoint.directory and self.storage.mode == "none":
            raise ValueError(
                f"jobs.{name}.trainer.checkpoint.directory: {job.trainer.checkpoint.directory!r} needs storage, "
                "and storage.mode is 'none'; accepted: fsx, existing"
            )

    def group_of(self, job: str) -> GpuNodeGroupSettings:
        """The GPU group that ``job`` runs on. Raises `ValueError` where that is not one group."""
        wanted = self.jobs[job].group
        groups = [group for group in self.gpu_nodes if wanted in (None, group.name)]
        if len(groups) != 1:
            names = ", ".join(group.name for group in self.gpu_nodes) or "none is declared"
            raise ValueError(f"jobs.{job}.group: {wanted!r} does not name one group of gpu_nodes; accepted: {names}")
        return groups[0]

    @classmethod
    def from_config(cls, config: Mapping[str, str]) -> Settings:
        """Settings from Pulumi's configuration, ``{"eks-fsdp:gpu_nodes": "<JSON>", ...}``.

        Keys of other namespaces are other providers' and are left alone. Raises `SettingsError`.
        """
        values: dict[str, Any] = {}
        prefix = f"{PROGRAM_NAME}:"
        for key, text in config.items():
            if key.startswith(prefix):
                name = key.removeprefix(prefix)
                field = cls.model_fields.get(name)
                # Text stays text where text is wanted: an owner may be called 42.
                values[name] = text if field is not None and field.annotation is str else _value(text)
        return cls.parse(values)

    def on_existing_cluster(self, kubeconfig: str, jobs: Mapping[str, JobSettings]) -> Settings:
        """The same stack's view of jobs alone: what the platform made is there already."""
        there = PartSettings(mode="existing")

        def used(part: PartSettings) -> PartSettings:
            return part if part.mode == "none" else there

        storage = self.storage if self.storage.mode == "none" else self.storage.model_copy(update={"mode": "existing"})
        changed = self.model_copy(
            update={
                "cluster": ClusterSettings(
                    mode="existing", kubeconfig=kubeconfig, kubernetes_version=self.cluster.kubernetes_version
                ),
                "device_plugins": DevicePluginSettings(
                    nvidia=used(self.device_plugins.nvidia), efa=used(self.device_plugins.efa)
                ),
                "etcd": used(self.etcd),
                "training_operator": self.training_operator.model_copy(
                    update={"mode": used(self.training_operator).mode}
                ),
                "monitoring": used(self.monitoring),
                "namespace": there,
                "storage": storage,
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
    "ClusterSettings",
    "DevicePluginSettings",
    "GpuNodeGroupSettings",
    "ImageSettings",
    "JobSettings",
    "Labels",
    "NetworkSettings",
    "PartSettings",
    "Settings",
    "SettingsError",
    "StorageSettings",
    "SystemNodeSettings",
    "TrainingOperatorSettings",
]
