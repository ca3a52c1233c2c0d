"""What AWS says of node groups that do not get their nodes, and what to do: for `status`, and beside every run."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from rich.text import Text

from eks_fsdp.spec.names import GPU_GROUP_LABEL, NODE_GROUP_LABEL
from eks_fsdp.spec.rules.guard import has_expired

from . import objects
from .aws import Aws, AwsError
from .kube import ApiError, Cluster, Object
from .live import console

if TYPE_CHECKING:
    from eks_fsdp.spec.settings import GpuNodeGroupSettings

    from .stack import Platform

POLL_SECONDS = 20.0
"""Between two looks: a trouble is shown within a minute of AWS' telling it."""
RECENT = timedelta(minutes=60)
"""How long a failed start of an instance is worth showing."""
MAX_ACTIVITIES = 20

REMEDIES: dict[str, str] = {
    "InsufficientInstanceCapacity": (
        "AWS has none of this type in this zone now. Reserve: `eks-fsdp capacity`; or another zone or region. "
        "Auto Scaling keeps trying."
    ),
    "ReservationCapacityExceeded": "the reservation has no free instance: see `eks-fsdp capacity`, or lower desired",
    "VcpuLimitExceeded": "raise the account's vCPU quota: `eks-fsdp preflight` names it, with the command",
    "MaxSpotInstanceCountExceeded": "raise the account's Spot quota: `eks-fsdp preflight` names it",
    "InstanceLimitExceeded": "raise the account's vCPU quota: `eks-fsdp preflight` names it, with the command",
    "InsufficientFreeAddresses": "the subnet is full: fewer nodes, a larger subnet, or efa: efa-only-dense",
    "AsgInstanceLaunchFailures": "read the message; most often it is missing capacity (`eks-fsdp capacity`) or a quota",
    "NodeCreationFailure": (
        "instances start and do not join: the private subnet needs a route to AWS' services (NAT or endpoints), and the "
        "node role its policies"
    ),
    "Ec2SubnetInvalidConfiguration": "EFA nodes need a private subnet: they get no public address",
    "Ec2LaunchTemplateInvalidConfiguration": "`pulumi refresh`, then `pulumi up`: the template is not the program's",
    "Ec2LaunchTemplateNotFound": "somebody deleted the launch template: `pulumi refresh`, then `pulumi up`",
    "Ec2LaunchTemplateVersionMismatch": "somebody changed the Auto Scaling group's template: `pulumi refresh`, then `pulumi up`",
    "Ec2InstanceTypeDoesNotExist": "the region lacks this type: `eks-fsdp preflight` says where it is offered",
    "AutoScalingGroupNotFound": "somebody deleted the Auto Scaling group: `pulumi up --replace` the node group",
    "IamNodeRoleNotFound": "somebody deleted the nodes' role: `pulumi refresh`, then `pulumi up`",
    "IamInstanceProfileNotFound": "somebody deleted the nodes' instance profile: recreate the node group",
    "AccessDenied": "the nodes may not join: their role needs an access entry of type EC2_LINUX",
    "UnauthorizedOperation": "who made the group may not start instances, or may not use the KMS key or the reservation",
    "ClusterUnreachable": "the nodes do not reach the API server: check the private endpoint and security groups",
    "AmiIdNotFound": "the image is not there: check gpu_nodes[].ami",
    "PodEvictionFailure": "a pod does not let its node go: a PodDisruptionBudget, or a finalizer",
    "InternalFailure": "EKS' own trouble: wait, then ask AWS support with the message",
}
"""What to do, by EKS' issue code or EC2's error code."""

_CODES: tuple[tuple[str, str], ...] = (
    (r"do not have sufficient \S+ capacity|InsufficientInstanceCapacity", "InsufficientInstanceCapacity"),
    (r"ReservationCapacityExceeded|reservation does not have sufficient", "ReservationCapacityExceeded"),
    (r"VcpuLimitExceeded|vCPU capacity than your current vCPU limit", "VcpuLimitExceeded"),
    (r"MaxSpotInstanceCountExceeded|Max spot instance count exceeded", "MaxSpotInstanceCountExceeded"),
    (r"InsufficientFreeAddressesInSubnet|not enough free addresses", "InsufficientFreeAddresses"),
    (r"UnauthorizedOperation|not authorized to perform|Client\.InvalidKMSKey", "UnauthorizedOperation"),
)
"""EC2 tells its code inside a sentence."""


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """One thing that AWS says keeps nodes away."""

    group: str
    """The GPU group, or the node group that is none of ours."""
    code: str
    message: str
    when: datetime | None = None
    """Of the newest failed start; None: EKS does not say when."""

    @property
    def do(self) -> str:
        """What to do."""
        return REMEDIES.get(self.code, "see the node group in the EKS console")


def code_in(message: str, default: str) -> str:
    """EC2's error code, where a sentence tells or implies one that is known."""
    return next((code for pattern, code in _CODES if re.search(pattern, message, re.IGNORECASE)), default)


def troubles_of(node_group: Mapping[str, Any], activities: Iterable[Mapping[str, Any]], now: datetime) -> list[Trouble]:
    """What a node group's health and its Auto Scaling group's activities say. One trouble for each cause.

    Failures before the newest start that went well are over.
    """
    name = str((node_group.get("labels") or {}).get(GPU_GROUP_LABEL) or node_group["nodegroupName"])
    found: dict[str, Trouble] = {}
    for activity in activities:
        # Newest first.
        status = activity.get("StatusCode")
        if status == "Successful" and str(activity.get("Description", "")).startswith("Launching"):
            break
        began = activity.get("StartTime")
        if status != "Failed" or (began is not None and now - began > RECENT):
            continue
        message = str(activity.get("StatusMessage") or activity.get("Description") or "no message")
        code = code_in(message, "AsgInstanceLaunchFailures")
        found.setdefault(code, Trouble(group=name, code=code, message=message, when=began))
    for issue in (node_group.get("health") or {}).get("issues") or []:
        message = str(issue.get("message") or "no message")
        code = code_in(message, str(issue.get("code") or "Unknown"))
        found.setdefault(code, Trouble(group=name, code=code, message=message))
    return list(found.values())


@dataclass(frozen=True, kw_only=True)
class NodeGroups:
    """What AWS says of a cluster's node groups."""

    troubles: list[Trouble] = field(default_factory=list)
    desired: dict[str, int] = field(default_factory=dict)
    """Nodes that AWS keeps, by GPU group; node groups that are none of ours are left out."""


def ask_node_groups(aws: Aws, cluster: str, now: datetime | None = None) -> NodeGroups:
    """Every trouble of a cluster's node groups, and the sizes of the GPU groups. Raises `AwsError`."""
    seen = NodeGroups()
    for name in aws.all("eks", "list_nodegroups", "nodegroups", clusterName=cluster):
        group = aws.ask("eks", "describe_nodegroup", clusterName=cluster, nodegroupName=name)["nodegroup"]
        activities: list[Any] = []
        for scaling in (group.get("resources") or {}).get("autoScalingGroups") or []:
            try:
                activities += aws.ask(
                    "autoscaling",
                    "describe_scaling_activities",
                    AutoScalingGroupName=scaling["name"],
                    MaxRecords=MAX_ACTIVITIES,
                )["Activities"]
            except AwsError as error:
                # EKS' own issues are worth showing alone.
                if not error.denied and error.code != "ValidationError":
                    raise
        seen.troubles.extend(troubles_of(group, activities, now or datetime.now(UTC)))
        ours = (group.get("labels") or {}).get(GPU_GROUP_LABEL)
        size = (group.get("scalingConfig") or {}).get("desiredSize")
        # While a group is replaced, the old one and the new one have the same label.
        if ours and size is not None and group.get("status") != "DELETING":
            seen.desired[ours] = seen.desired.get(ours, 0) + int(size)
    return seen


def size_differences(desired: Mapping[str, int], declared: Mapping[str, int]) -> list[str]:
    """A line for each group whose size in AWS is not the one that was last deployed."""
    lines: list[str] = []
    for name, count in declared.items():
        now = desired.get(name, count)
        if now < count:
            lines.append(
                f"{name}: {now} in AWS, {count} declared (idle guard, expiry or schedule); "
                "`pulumi up --refresh` brings them back"
            )
        elif now > count:
            lines.append(f"{name}: {now} in AWS, {count} declared (a capacity block's schedule, or a change by hand)")
    return lines


def ready_counts(nodes: Sequence[Object]) -> dict[str, int]:
    """Ready nodes by group."""
    counts: dict[str, int] = {}
    for node in nodes:
        labels = objects.labels_of(node)
        name = labels.get(GPU_GROUP_LABEL) or labels.get(NODE_GROUP_LABEL, "–")
        counts[name] = counts.get(name, 0) + objects.is_ready(node)
    return counts


def nodes_text(ready: Mapping[str, int], expected: Mapping[str, int]) -> str:
    """``p5 4/4 Ready`` for each group of which nodes are expected."""
    return ", ".join(f"{name} {ready.get(name, 0)}/{count} Ready" for name, count in expected.items() if count)


def ready_text(ready: Mapping[str, int], expected: Mapping[str, int]) -> str:
    """``p5 3/4 nodes Ready`` for each group that lacks some; empty where none does."""
    return ", ".join(
        f"{name} {ready.get(name, 0)}/{count} nodes Ready"
        for name, count in expected.items()
        if ready.get(name, 0) < count
    )


class HealthWatch:
    """Looks at nodes and node groups in the background while something waits for them. A context manager."""

    def __init__(
        self,
        cluster: Cluster,
        expected: Mapping[str, int],
        aws: Aws | None,
        cluster_name: str | None,
        tell: Callable[[Trouble], None],
        *,
        say: Callable[[str], None] = lambda text: None,
        own_groups: bool = True,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self.expected = dict(expected)
        """Nodes by group: those that were last deployed, until AWS says otherwise."""
        self._declared = dict(expected)
        self._own_groups = own_groups
        """Whether the groups are the stack's: `pulumi up` changes nothing of others."""
        self._asked_for: set[str] = set()
        """Groups of whose size the launcher itself decides: AWS follows."""
        self._cluster = cluster
        self._aws = aws if cluster_name else None
        self._name = cluster_name or ""
        self._tell = tell
        self._say = say
        self._complete: bool | None = None
        """Whether all expected nodes were Ready when that was last said."""
        self._poll = poll_seconds
        self._ready: dict[str, int] | None = None
        self._told: set[tuple[str, str]] = set()
        self._differences: list[str] = []
        """What was said of sizes."""
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)

    def __enter__(self) -> HealthWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        # A request under way has a limit of its own; nobody waits for it.
        self._thread.join(timeout=0.5)

    def expect(self, group: str, nodes: int) -> None:
        """From now on, this group should have so many nodes."""
        self._asked_for.add(group)
        self.expected[group] = nodes

    @property
    def text(self) -> str:
        """Groups that lack nodes, for the line that lives; empty where none does, or before the first look."""
        return "" if self._ready is None else ready_text(self._ready, self.expected)

    def _run(self) -> None:
        while not self._end.is_set():
            self.look()
            self._end.wait(self._poll)

    def look(self) -> None:
        """One look. What cannot be asked is left as it was."""
        # First, as it says how many nodes are to be expected.
        self._look_at_aws()
        try:
            self._ready = ready_counts(self._cluster.nodes())
        except ApiError as error:
            if error.status in (401, 403):
                self._ready = None
        self._say_nodes()

    def _look_at_aws(self) -> None:
        if self._aws is None:
            return
        try:
            seen = ask_node_groups(self._aws, self._name)
        except AwsError as error:
            if error.no_credentials or error.denied:
                self._aws = None
            return
        ours = {group: size for group, size in seen.desired.items() if group not in self._asked_for}
        self.expected |= {group: size for group, size in ours.items() if group in self._declared}
        differences = size_differences(ours, self._declared) if self._own_groups else []
        now = {(trouble.group, trouble.code) for trouble in seen.troubles}
        if not self._end.is_set():
            for line in differences:
                if line not in self._differences:
                    self._say(line)
            for trouble in seen.troubles:
                if (trouble.group, trouble.code) not in self._told:
                    self._tell(trouble)
        # One that is over and comes back is told again.
        self._told, self._differences = now, differences

    def _say_nodes(self) -> None:
        """Once at first, and then whenever the last node has come or the first is lacking."""
        if self._ready is None or self._end.is_set():
            return
        complete = not self.text
        if complete != self._complete and (told := nodes_text(self._ready, self.expected)):
            self._complete = complete
            self._say(told)


def cluster_name_of(platform: Platform) -> str | None:
    """The cluster's name in EKS; None where it is known by a kubeconfig alone."""
    name = platform.outputs.get("cluster_name") or platform.settings.cluster.name
    return str(name) if name else None


def health_beside(platform: Platform, cluster: Cluster) -> HealthWatch:
    """A watch over a stack's GPU groups that prints each new trouble where it is seen."""
    return HealthWatch(
        cluster,
        expected_nodes(platform.outputs),
        Aws(platform.settings.region, attempts=1),
        cluster_name_of(platform),
        print_trouble,
        say=lambda text: console.print(Text(f"Nodes: {text}", "dim"), soft_wrap=True),
        own_groups=platform.settings.cluster.mode == "create",
    )


def expected_nodes(outputs: Mapping[str, Any]) -> dict[str, int]:
    """The nodes that were last deployed of each GPU group: what is to be expected as long as AWS is not asked."""
    return {str(group["name"]): int(group["desired"]) for group in outputs.get("gpu_node_groups") or []}


def too_few_nodes(
    platform: Platform, cluster: Cluster, group: GpuNodeGroupSettings, needed: int, aws: Aws | None, now: datetime
) -> str | None:
    """What to tell of a group that has fewer than ``needed`` nodes and is not about to get them; None: nothing.

    The cluster is asked first, which needs no rights in AWS. ``aws`` None: it cannot be asked.
    """
    try:
        there: int | None = sum(
            labels.get(GPU_GROUP_LABEL) == group.name for labels in map(objects.labels_of, cluster.nodes())
        )
    except ApiError:
        there = None
    if there is not None and there >= needed:
        return None
    have, name = there, cluster_name_of(platform)
    if aws is not None and name is not None:
        try:
            have = max(there or 0, ask_node_groups(aws, name, now).desired.get(group.name, 0))
        except AwsError:
            # The nodes alone tell.
            have = there
    if have is None or have >= needed:
        return None
    settings, stack = platform.settings, platform.stack
    told = f"group {group.name} has {have} of {needed} nodes: "
    if settings.cluster.mode == "existing":
        return f"{told}its cluster is not this stack's; the job waits until somebody gives it more"
    if has_expired(settings, now):
        return f"{told}guard.expiry {settings.guard.expiry} has passed; renew it, then pulumi up --refresh -s {stack}"
    if max(group.desired, group.capacity.scheduled_nodes) < needed:
        return f"{told}raise desired of gpu_nodes {group.name} ({group.desired}), then pulumi up --refresh -s {stack}"
    if group.desired < needed:
        return f"{told}they start with the capacity block, at {group.capacity.starts}"
    return f"{told}pulumi up --refresh -s {stack}"


def print_trouble(trouble: Trouble) -> None:
    """What AWS says, and what to do."""
    console.print(
        Text.assemble((f"{trouble.group}  ", "bold"), (trouble.code, "red"), f"  {trouble.message}"), soft_wrap=True
    )
    console.print(Text.assemble(("  do  ", "yellow"), trouble.do), soft_wrap=True)
