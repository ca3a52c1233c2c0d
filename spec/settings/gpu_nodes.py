"""Settings of GPU node groups."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from eks_fsdp.spec.base import Strict
from eks_fsdp.spec.instances import INSTANCE_TYPES, EfaLayout, InstanceType

from .common import (
    LABEL_KEY,
    LABEL_VALUE,
    Arn,
    KmsKeyArn,
    Labels,
    Moment,
    Name,
    ReservationId,
    SecurityGroupId,
    Tags,
    Zone,
    refuse_own_tags,
    refuse_reserved,
)

CapacityKind = Literal["on-demand", "spot", "odcr", "capacity-block"]


class CapacitySettings(Strict):
    """Where the instances come from."""

    kind: CapacityKind = "on-demand"
    """``odcr``: an On-Demand Capacity Reservation; ``capacity-block``: a Capacity Block for ML."""
    reservation_id: ReservationId | None = None
    """The reservation or block, ``cr-...``."""
    resource_group_arn: Arn | None = None
    """A resource group of reservations, in place of one."""
    starts: Moment | None = None
    """When a capacity block begins. Before that, `desired` is 0, and a scheduled action raises it to `scheduled_nodes`."""
    ends: Moment | None = None
    """When a capacity block ends. EKS drains its nodes 40 minutes earlier."""
    scheduled_nodes: int = Field(default=0, ge=0, le=1024)
    """Nodes that are started when the block begins."""

    @model_validator(mode="after")
    def _names_what_it_uses(self) -> CapacitySettings:
        given = [self.reservation_id, self.resource_group_arn]
        if self.kind in ("on-demand", "spot") and any(given):
            raise ValueError(f"kind: {self.kind!r} uses no reservation; accepted with one: odcr, capacity-block")
        if self.kind == "odcr" and sum(value is not None for value in given) != 1:
            raise ValueError("reservation_id: kind 'odcr' needs exactly one of reservation_id and resource_group_arn")
        if self.kind == "capacity-block" and (self.reservation_id is None or self.resource_group_arn is not None):
            raise ValueError("reservation_id: kind 'capacity-block' needs it, and it alone; accepted: cr-...")
        if self.kind == "capacity-block" and self.ends is None:
            raise ValueError("ends: missing; accepted: the block's end, such as 2027-01-31T11:30:00Z")
        if self.kind != "capacity-block" and (self.starts or self.ends or self.scheduled_nodes):
            raise ValueError(f"starts: goes with kind 'capacity-block' only, and kind is {self.kind!r}")
        if self.starts and self.ends and self.starts >= self.ends:
            raise ValueError(f"ends: {self.ends} is not after starts {self.starts}; accepted: a later time")
        return self

    @property
    def reserved(self) -> bool:
        """Whether the instances come from a reservation or block: no spare one exists there."""
        return self.kind in ("odcr", "capacity-block")


class PlacementGroupSettings(Strict):
    """Whether the instances are placed close to each other."""

    mode: Literal["auto", "none", "existing"] | None = None
    """``auto``: a cluster placement group of the node group's own. None: auto for EFA nodes without a reservation, else none."""
    name: str | None = None
    """Name of an existing placement group."""

    @model_validator(mode="after")
    def _name_goes_with_existing(self) -> PlacementGroupSettings:
        if (self.mode == "existing") != (self.name is not None):
            raise ValueError(f"name: {self.name!r} with mode {self.mode!r}; accepted: a name with mode 'existing' only")
        return self


class AmiSettings(Strict):
    """The nodes' image."""

    type: Literal["AL2023_x86_64_NVIDIA"] = "AL2023_x86_64_NVIDIA"
    """Amazon Linux 2023 with NVIDIA driver, container toolkit and EFA's kernel module."""
    release: str | None = Field(default=None, pattern=r"^1\.\d+\.\d+-\d{8}$")
    """Release of EKS' image, such as ``1.34.2-20260107``; None: the program's own pin."""
    image_id: str | None = Field(default=None, pattern=r"^ami-[0-9a-f]{8,17}$")
    """An image of your own, made from EKS' one; the program then writes the whole of nodeadm's NodeConfig."""

    @model_validator(mode="after")
    def _one_source(self) -> AmiSettings:
        if self.release and self.image_id:
            raise ValueError(f"release: {self.release!r} and image_id {self.image_id!r}; accepted: one of them")
        return self


class TaintSettings(Strict):
    """One taint beside the GPU's own."""

    key: str = Field(max_length=63, pattern=LABEL_KEY)
    """Key of the taint."""
    value: str = Field(default="", max_length=63, pattern=LABEL_VALUE)
    """Value of the taint."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = "NoSchedule"
    """What it does to pods that do not tolerate it."""


class GpuNodeGroupSettings(Strict):
    """One group of GPU nodes in one availability zone."""

    name: Name
    """Becomes part of the node group's and launch template's names."""
    instance_type: str
    """A type of the catalogue (`spec.instances`)."""
    alternatives: list[str] = []
    """More types that do as well, with as many GPUs and EFA interfaces; on-demand and spot only."""
    zone: Zone
    """Availability zone by name or id: EFA traffic cannot cross zones."""
    desired: int = Field(default=0, ge=0, le=1024)
    """Nodes now. Changing it touches this node group alone."""
    min: int = Field(default=0, ge=0, le=1024)
    """Lower bound of the Auto Scaling group."""
    max: int = Field(default=16, ge=1, le=1024)
    """Upper bound of the Auto Scaling group."""
    idle: int = Field(default=0, ge=0, le=1024)
    """Nodes to which sweeps and the idle guard return the group."""
    capacity: CapacitySettings = CapacitySettings()
    """Where the instances come from."""
    placement_group: PlacementGroupSettings = PlacementGroupSettings()
    """Whether the instances are placed close to each other."""
    ami: AmiSettings = AmiSettings()
    """The nodes' image."""
    efa: EfaLayout = "auto"
    """Layout of the EFA interfaces. ``classic``: one on each network card, the first with the node's address; ``efa-only-dense``: the
    node's address on an interface of its own. auto: classic where the first card has EFA, none where the type has none."""
    nvme: Literal["raid0", "mount", "none"] = "raid0"
    """Local disks as one array for kubelet, images and emptyDirs; each mounted below ``/mnt/k8s-disks``; or left alone."""
    root_volume_gib: int = Field(default=500, ge=50, le=16_384)
    """Size of the encrypted gp3 root volume in GiB."""
    kms_key_arn: KmsKeyArn | None = None
    """Key of the root volume; None: the account's default key for EBS."""
    hugepages: int | None = Field(default=None, ge=0, le=262_144)
    """Huge pages of 2 MiB on each node; None: those that EFA's driver takes."""
    max_pods: int | None = Field(default=None, ge=10, le=737)
    """The kubelet's limit; None: as many as addresses allow."""
    labels: Labels = {}
    """Kubernetes labels beside the program's own."""
    taints: list[TaintSettings] = []
    """Taints beside ``nvidia.com/gpu``; jobs of the group tolerate them."""
    security_groups: list[SecurityGroupId] = []
    """More security groups on every interface."""
    node_repair: bool = True
    """Whether EKS replaces a node whose GPUs, network or kubelet have failed."""
    max_unavailable_percentage: int = Field(default=100, ge=1, le=100)
    """Share of the nodes that an update replaces at once. A job is over with the first of its nodes."""
    tags: Tags = {}
    """AWS tags beside the program's own."""
    allow_disruption: bool = False
    """Whether an update may roll or replace the group while a job has pods on it."""

    @model_validator(mode="after")
    def _known_and_ordered(self) -> GpuNodeGroupSettings:
        for setting, value in [
            ("instance_type", self.instance_type),
            *(("alternatives", a) for a in self.alternatives),
        ]:
            if value not in INSTANCE_TYPES:
                raise ValueError(
                    f"{setting}: {value!r} is not in the catalogue; accepted: {', '.join(sorted(INSTANCE_TYPES))}"
                )
        if not self.min <= self.desired <= self.max:
            raise ValueError(f"desired: {self.desired} is outside min {self.min} to max {self.max}")
        if self.idle > self.max:
            raise ValueError(f"idle: {self.idle} is more than max {self.max}; accepted: at most that")
        refuse_reserved(self.labels)
        refuse_own_tags(self.tags)
        return self

    @model_validator(mode="after")
    def _has_the_layout(self) -> GpuNodeGroupSettings:
        try:
            self.instance.interfaces(self.efa)
        except ValueError as error:
            family, others = self.instance_type.partition(".")[0], ""
            if not self.instance.efa_interfaces:
                types = [t for t in INSTANCE_TYPES.values() if t.efa_interfaces and t.name.startswith(f"{family}.")]
                others = f", or a type with EFA: {', '.join(t.name for t in types)}"
            fits = "auto, efa-only-dense" if self.instance.efa_interfaces else "auto, none"
            raise ValueError(f"efa: {self.efa!r}: {error}; accepted: {fits}{others}") from None
        most = self.instance.max_pods(self.efa, prefix_delegation=True)
        if self.max_pods is not None and self.max_pods > most:
            raise ValueError(
                f"max_pods: {self.max_pods} is more than a {self.instance_type} with this layout has addresses for, with "
                f"prefixes at that; accepted: at most {most}"
            )
        return self

    @property
    def instance(self) -> InstanceType:
        """The catalogue's entry."""
        return INSTANCE_TYPES[self.instance_type]

    @property
    def instance_types(self) -> list[str]:
        """All types that a node may have, the preferred one first."""
        return [self.instance_type, *self.alternatives]

    @property
    def uses_efa(self) -> bool:
        """Whether the nodes have EFA interfaces."""
        return self.efa != "none" and self.instance.efa_interfaces > 0
