"""``eks-fsdp check-nodes``: every node of a group looked at and measured, alone, in pairs, and all together."""

from __future__ import annotations

import json
import secrets
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from eks_fsdp.launcher import objects
from eks_fsdp.launcher.errors import UserError, WaitError
from eks_fsdp.launcher.kube import ApiError, Cluster
from eks_fsdp.launcher.live import console, live_line
from eks_fsdp.launcher.stack import Platform
from eks_fsdp.launcher.view import place
from eks_fsdp.spec.bandwidth import GATES
from eks_fsdp.spec.instances import InstanceType
from eks_fsdp.spec.names import GPU_GROUP_LABEL
from eks_fsdp.spec.settings import GpuNodeGroupSettings

from .plan import Backend, Measure, Verdict, device_faults, fault, figures, judge, node_faults, rounds
from .pods import Pods, Shape, pod_manifest, side_by_side

CORDON_ANNOTATION = "eksfsdp/check-nodes"
"""On a node that this cordoned: why."""
SIZES: dict[Backend, tuple[float, ...]] = {"nccl": (8, 128, 1024), "gloo": (1, 4)}
"""Message sizes in MiB. The last one counts: it is long enough for bandwidth alone to matter."""
SECONDS: dict[Backend, float] = {"nccl": 120.0, "gloo": 30.0}


@dataclass(frozen=True, kw_only=True)
class CheckRequest:
    """What the user asked for."""

    stack: str
    group: str | None = None
    backend: Backend | None = None
    """None: gloo where all of the stack's jobs are declared to use it, else NCCL."""
    only: Sequence[str] = ()
    """Names of the nodes to check; none: all of the group."""
    cordon: bool = False
    pending: float = 300.0
    """Seconds in which the pods must run."""
    as_json: bool = False


@dataclass
class Findings:
    """All that one check has seen."""

    group: str
    instance: InstanceType
    backend: Backend
    nodes: list[str] = field(default_factory=list)
    """Every node of the group."""
    faults: dict[str, list[str]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    """Why a node was not measured."""
    measures: list[Measure] = field(default_factory=list)

    def verdict(self) -> Verdict:
        """Who is to blame."""
        wrong = {m.nodes: why for m in self.measures if (why := fault(m, self.instance, self.backend))}
        return judge(self.nodes, self.faults, wrong)


def check_nodes(request: CheckRequest) -> bool:
    """Check, print, and cordon where asked. Returns whether every node was measured and is sound. Raises `UserError`."""
    with place(request.stack, None) as at:
        assert at.platform is not None
        group = _group(at.platform, request.group)
        found = Findings(group.name, group.instance, request.backend or _backend(at.platform))
        if request.as_json:
            _look(at.cluster, at.platform, group, found, request, lambda text: None)
        else:
            with live_line(f"Checking {group.name}") as show:
                _look(at.cluster, at.platform, group, found, request, show)
        verdict = found.verdict()
        cordoned = _cordon(at.cluster, verdict) if request.cordon else []
    if request.as_json:
        _print_json(found, verdict, cordoned)
    else:
        _print(found, verdict, cordoned, request)
    return not (verdict.bad or verdict.links or verdict.notes or found.skipped)


def _group(platform: Platform, name: str | None) -> GpuNodeGroupSettings:
    groups = [group for group in platform.settings.gpu_nodes if name in (None, group.name)]
    if len(groups) != 1:
        known = ", ".join(group.name for group in platform.settings.gpu_nodes) or "none is declared"
        raise UserError(f"--group {name or '(not given)'}: accepted: one of {known}")
    return groups[0]


def _backend(platform: Platform) -> Backend:
    jobs = platform.settings.jobs.values()
    return "gloo" if jobs and all(job.transport == "gloo" for job in jobs) else "nccl"


def _image(platform: Platform) -> str:
    image = platform.outputs.get("image")
    if not image:
        raise UserError(f"stack {platform.stack!r} has no output 'image': set image.repository, or `pulumi up` first")
    return str(image)


def _look(
    cluster: Cluster,
    platform: Platform,
    group: GpuNodeGroupSettings,
    found: Findings,
    request: CheckRequest,
    show: Callable[[str], None],
) -> None:
    image = _image(platform)
    members = [node for node in cluster.nodes() if objects.labels_of(node).get(GPU_GROUP_LABEL) == group.name]
    if not members:
        raise UserError(f"group {group.name!r} has no node: raise gpu_nodes[].desired first")
    known = sorted(objects.name_of(node) for node in members)
    if unknown := sorted(set(request.only) - set(known)):
        raise UserError(f"--node {unknown[0]}: no node of group {group.name!r}; accepted: {', '.join(known)}")
    members = [node for node in members if not request.only or objects.name_of(node) in request.only]
    for node in sorted(members, key=objects.name_of):
        name = objects.name_of(node)
        found.nodes.append(name)
        found.faults[name] = node_faults(node, group.instance)
        if not objects.is_ready(node):
            cordoned = node.get("spec", {}).get("unschedulable")
            found.skipped[name] = "cordoned" if cordoned else "not Ready"
        elif found.faults[name]:
            # A pod that asks for devices which are not there would wait for ever.
            found.skipped[name] = "not measured"
    check = f"c{secrets.token_hex(3)}"
    pods = Pods(cluster, platform.namespace, check)
    environment = _environment(found.backend)
    wanted = {
        name: pod_manifest(
            f"check-nodes-{check}-{number}",
            name,
            check=check,
            image=image,
            namespace=platform.namespace,
            group=group,
            instance=group.instance,
            environment=environment,
        )
        for number, name in enumerate(found.nodes)
        if name not in found.skipped
    }
    try:
        pods.start(wanted)
        found.skipped |= {node: f"busy: {why}" for node, why in pods.wait(request.pending, show).items()}
        _measure(pods, group, found, show)
    finally:
        show("removing the pods")
        try:
            pods.remove()
        except (ApiError, WaitError) as error:
            names = ", ".join(pods.names.values())
            console.print(Text.assemble(("left behind: ", "yellow"), f"pods {names}: {error}"), soft_wrap=True)


def _environment(backend: Backend) -> dict[str, str]:
    """Of the pods. What NCCL itself finds out is left alone."""
    common = {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "eth0", "FI_EFA_USE_HUGE_PAGE": "0"}
    return {**common, "EKS_FSDP_TRANSPORT": "gloo"} if backend == "gloo" else common


def _measure(pods: Pods, group: GpuNodeGroupSettings, found: Findings, show: Callable[[str], None]) -> None:
    nodes = sorted(pods.addresses)
    if found.backend == "nccl":
        show(f"devices of {len(nodes)} nodes")
        for node, seen in zip(nodes, side_by_side(pods.devices, nodes), strict=True):
            found.faults[node] += [seen] if isinstance(seen, str) else device_faults(seen, group.instance)
    shape = Shape(
        backend=found.backend,
        processes=group.instance.gpus if found.backend == "nccl" else 1,
        mib=SIZES[found.backend],
        seconds=SECONDS[found.backend],
    )
    show(f"{len(nodes)} nodes, each alone")
    found.measures += side_by_side(lambda node: pods.reduce([node], shape), nodes)
    # A node that cannot do it alone would only hold the others up.
    sound = [m.nodes[0] for m in found.measures if not m.error and not found.faults[m.nodes[0]]]
    plan = rounds(sound)
    for number, pairs in enumerate(plan, start=1):
        show(f"pairs, round {number} of {len(plan)}: {len(pairs)} at once")
        found.measures += side_by_side(lambda pair: pods.reduce(pair, shape), pairs)
    # A bad node would spoil the figure of all; what is left is measured.
    left = [node for node in sound if node not in found.verdict().bad]
    if len(left) > 2:
        show(f"all {len(left)} nodes")
        found.measures.append(pods.reduce(left, shape))


def _cordon(cluster: Cluster, verdict: Verdict) -> list[str]:
    """Keep jobs off the bad nodes, and say on them why. Returns their names. Raises `UserError`."""
    for node, why in verdict.bad.items():
        change = {"spec": {"unschedulable": True}, "metadata": {"annotations": {CORDON_ANNOTATION: why[:1000]}}}
        try:
            cluster.merge(f"/api/v1/nodes/{node}", change)
        except ApiError as error:
            raise UserError(f"cordoning {node} ({why}): {error}") from None
    return list(verdict.bad)


def _print_json(found: Findings, verdict: Verdict, cordoned: Sequence[str]) -> None:
    gate = GATES.get(found.instance.name)
    answer: dict[str, Any] = {
        "group": found.group,
        "instance_type": found.instance.name,
        "backend": found.backend,
        "gate": asdict(gate) if gate and found.backend == "nccl" else None,
        "nodes": found.nodes,
        "not_measured": found.skipped,
        "bad": dict(verdict.bad),
        "links": [list(link) for link in verdict.links],
        "notes": list(verdict.notes),
        "cordoned": list(cordoned),
        "measures": [asdict(measure) for measure in found.measures],
    }
    print(json.dumps(answer, indent=1))


def _print(found: Findings, verdict: Verdict, cordoned: Sequence[str], request: CheckRequest) -> None:
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for heading in ("Node", "Result", "Pairs, GB/s"):
        table.add_column(heading, overflow="fold")
    for node in found.nodes:
        speeds = figures(found.measures, node)
        shown = f"{speeds[0]:.1f} – {statistics.median(speeds):.1f} – {speeds[-1]:.1f}" if speeds else "–"
        table.add_row(node, _result(node, found, verdict), shown)
    console.print(table)
    for node in found.nodes:
        if why := "; ".join(filter(None, (verdict.bad.get(node, ""), found.skipped.get(node, "")))):
            console.print(Text.assemble((node, "red" if node in verdict.bad else "yellow"), f"  {why}"), soft_wrap=True)
    if any(m.kind == "pair" and m.gb_per_second is not None for m in found.measures):
        console.print(_legend(found), soft_wrap=True)
    for measure in found.measures:
        if measure.kind == "all" and measure.gb_per_second is not None:
            ranks = len(measure.nodes)
            console.print(
                f"All {ranks} nodes together: [bold]{measure.gb_per_second:.1f} GB/s[/] over {measure.transport}"
            )
    for link in verdict.links:
        console.print(
            Text.assemble(("link  ", "yellow"), f"{link[0]} and {link[1]} fail with each other, and not with others")
        )
    for note in verdict.notes:
        console.print(Text.assemble(("note  ", "yellow"), note), soft_wrap=True)
    for node in cordoned:
        console.print(Text(f"Cordoned {node}; `kubectl uncordon {node}` takes it back.", "yellow"), soft_wrap=True)
    if verdict.bad and not request.cordon:
        console.print("Run it with --cordon to keep jobs off the bad nodes.")


def _result(node: str, found: Findings, verdict: Verdict) -> Text:
    if node in verdict.bad:
        return Text("BAD", "bold red")
    return Text("not measured", "yellow") if node in found.skipped else Text("sound", "green")


def _legend(found: Findings) -> str:
    text = (
        f"Pairs: lowest – median – highest bus bandwidth of a {SIZES[found.backend][-1]:.0f} MiB all-reduce "
        "(nccl-tests' busbw: size/time x 2(n-1)/n)."
    )
    gate = GATES.get(found.instance.name)
    if found.backend == "gloo":
        return text + " Over gloo it says nothing of GPUs or EFA, and nothing is judged by it."
    if gate is None:
        return text + f" No source gives a limit for {found.instance.name}: figures are shown, not judged."
    return text + f" {found.instance.name} must reach {gate.gb_per_second:.0f}: {gate.source}."


__all__ = ["CheckRequest", "Findings", "check_nodes"]
