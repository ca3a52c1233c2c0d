"""``eks-fsdp preflight``: what `pulumi up` of a stack would meet, asked beforehand, read-only."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from eks_fsdp.launcher.aws import Aws, AwsError
from eks_fsdp.launcher.errors import UserError
from eks_fsdp.launcher.kube import Cluster, load_kubeconfig, parse_kubeconfig
from eks_fsdp.launcher.live import console, live_line
from eks_fsdp.launcher.stack import Engine, find_checkout, read_settings, stack_file
from eks_fsdp.spec.kubeconfig import exec_kubeconfig
from eks_fsdp.spec.settings import Settings

from . import access, capacity, network, parts
from .check import Check, Context, State, failed, unchecked, why_not
from .cluster import cluster_checks

Question = Callable[[Context], Iterable[Check]]
QUESTIONS: tuple[tuple[str, Question], ...] = (
    ("API access", access.check_actions),
    ("Access entries", access.check_creator),
    ("Zones", capacity.check_zones),
    ("Instance types", capacity.check_offerings),
    ("Catalogue", capacity.check_catalogue),
    ("Reservations", capacity.check_reservations),
    ("Quotas", capacity.check_quotas),
    ("Subnets", parts.check_addresses),
    ("Routes", network.check_routes),
    ("EFA security group", network.check_efa_security_group),
    ("Kubernetes version", parts.check_kubernetes),
    ("Add-ons", parts.check_addons),
    ("Nodes' image", parts.check_ami),
    ("Trainer image", parts.check_image),
    ("Hugging Face token", parts.check_token),
)
"""All that is asked of AWS once the account is known, by the name that a check has which cannot be made."""
ON_EXISTING = (access.check_actions, capacity.check_catalogue, parts.check_image, parts.check_token)
"""Of these, what concerns a cluster whose network and nodes are somebody else's."""
AT_ONCE = 8
_LOOKS: dict[State, tuple[str, str]] = {
    "ok": ("ok", "green"),
    "warning": ("warning", "yellow"),
    "failed": ("FAILED", "bold red"),
    "unchecked": ("not checked", "dim"),
}


def uses_aws(settings: Settings) -> bool:
    """Whether a stack has anything to do with AWS: one on an existing cluster need not."""
    ecr = parts.ECR_ADDRESS.match(settings.image.repository or "") is not None
    named = settings.cluster.name is not None or settings.hugging_face.secret_arn is not None
    return settings.cluster.mode == "create" or named or ecr


def ask_aws(at: Context) -> list[Check]:
    """Every check of the account, in the table's order."""
    existing = at.settings.cluster.mode == "existing"
    questions = [(name, ask) for name, ask in QUESTIONS if not existing or ask in ON_EXISTING]
    checks = list(access.check_account(at))
    if any(check.state == "failed" for check in checks):
        why = "the account could not be asked" if "credentials" in checks[0].seen else "it is the wrong account"
        return [*checks, *(unchecked(name, why) for name, _ in questions)]
    with contextlib.suppress(AwsError):
        # Several checks read it; asked once here, not by each at the same time.
        _ = at.zones
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = pool.map(lambda question: _asked(question[0], question[1], at), questions)
        return [*checks, *(check for answer in answers for check in answer)]


def _asked(name: str, question: Question, at: Context) -> list[Check]:
    """A question's checks; one that says why where AWS refuses to answer or does not."""
    found: list[Check] = []
    try:
        for check in question(at):
            found.append(check)
    except AwsError as error:
        seen, do = why_not(error)
        found.append(unchecked(name, seen, do))
    return found


def preflight(stack: str, *, as_json: bool) -> bool:
    """Check a stack and print what was found. Returns whether nothing failed. Raises `UserError`."""
    checkout = find_checkout()
    settings = read_settings(stack_file(checkout, stack))
    lines: list[str] = []
    with live_line(f"Asking AWS about {stack}") if not as_json else contextlib.nullcontext():
        outputs = _outputs(checkout, stack) if settings.cluster.mode == "create" else {}
        at = Context(stack=stack, settings=settings, aws=Aws(settings.region), now=datetime.now(UTC), outputs=outputs)
        checks = ask_aws(at) if uses_aws(settings) else []
        checks += parts.check_guard(at)
        if settings.cluster.mode == "existing":
            try:
                found, lines = cluster_checks(at, existing_cluster(settings))
                checks += found
            except UserError as error:
                checks.append(failed("Kubernetes API", str(error), "correct cluster.kubeconfig or cluster.name"))
    if as_json:
        # Not through rich: it would wrap.
        print(json.dumps({"stack": stack, "checks": [asdict(c) for c in checks], "settings": lines}, indent=1))
    else:
        show(stack, checks, lines)
    return not any(check.state == "failed" for check in checks)


def _outputs(checkout: Path, stack: str) -> dict[str, Any]:
    """The stack's outputs; empty where it is not up, there is no CLI, or nobody is signed in."""
    with tempfile.TemporaryDirectory(prefix="eks-fsdp-") as folder, contextlib.suppress(UserError):
        engine = Engine(checkout, Path(folder))
        engine.stage(stack, {"config": {}})
        return engine.outputs(stack, secrets=False)
    return {}


def existing_cluster(settings: Settings) -> Cluster:
    """The cluster that the settings name, by kubeconfig or by its name in EKS. Raises `UserError`."""
    if settings.cluster.kubeconfig is not None:
        return Cluster(load_kubeconfig(settings.cluster.kubeconfig), source=settings.cluster.kubeconfig)
    name = str(settings.cluster.name)
    try:
        found = Aws(settings.region).ask("eks", "describe_cluster", name=name)["cluster"]
    except AwsError as error:
        raise UserError(f"cluster.name {name!r}: {error}") from None
    source = f"EKS cluster {name}"
    text = exec_kubeconfig(name, found["endpoint"], found["certificateAuthority"]["data"], settings.region)
    return Cluster(parse_kubeconfig(text, source), source=source)


def show(stack: str, checks: list[Check], lines: list[str]) -> None:
    """Print the table, what to set, and the sum of it."""
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    table.add_column("Check", overflow="fold", max_width=26)
    table.add_column("Result", no_wrap=True)
    table.add_column("Seen, and → what to do", overflow="fold")
    for check in checks:
        word, style = _LOOKS[check.state]
        told = Text.assemble(check.seen, (f"\n→ {check.do}", style if check.state != "ok" else "") if check.do else "")
        table.add_row(check.name, Text(word, style), told)
    console.print(table)
    if lines:
        console.print("Set this in the stack's file:")
        for line in lines:
            console.print(Text(f"  {line}"), soft_wrap=True)
        console.print()
    count = {state: sum(check.state == state for check in checks) for state in _LOOKS}
    sums = [f"{number} {_LOOKS[state][0].lower()}" for state, number in count.items() if number]
    style = "red" if count["failed"] else "green"
    console.print(Text.assemble((f"Stack {stack}: ", "bold"), (", ".join(sums), style)), soft_wrap=True)
