"""The terminal: one line that lives while something is under way, and plain lines where there is no terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from eks_fsdp.spec.records import Restarts

from .runfolder import seconds_text
from .tracker import Progress

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)


class Line(Protocol):
    """Shows what is under way."""

    def __call__(self, text: str) -> None:
        """Show ``text`` in place of what was shown before."""


@contextmanager
def live_line(title: str, *, repeat_seconds: float = 15.0) -> Iterator[Line]:
    """A spinner with a text that changes. Without a terminal: a plain line when its first words change, or after a while."""
    if not console.is_terminal:
        console.print(f"{title} …")
        shown, at = "", time.monotonic()

        def plain(text: str) -> None:
            nonlocal shown, at
            head = text.split(" ", 1)[0]
            if head != shown.split(" ", 1)[0] or (text != shown and time.monotonic() - at > repeat_seconds):
                console.print(f"  {text}", soft_wrap=True)
                shown, at = text, time.monotonic()

        yield plain
        return
    spinner = Spinner("dots", text=Text(title), style="cyan")
    began = time.monotonic()
    with Live(spinner, console=console, transient=True, refresh_per_second=8):

        def lively(text: str) -> None:
            passed = seconds_text(time.monotonic() - began)
            spinner.update(
                text=Text.assemble((title, "bold"), ("  " + passed + "  ", "dim"), text, overflow="ellipsis")
            )

        lively("")
        yield lively


def progress_text(progress: Progress, nodes: str = "") -> str:
    """One look at a job in one line. ``nodes``: which groups lack nodes, told while pods wait for them."""
    if progress.queued:
        text = f"Queued  {progress.queued}"
    elif progress.waiting and progress.running < progress.nodes_asked:
        text = "Pending  " + "; ".join(filter(None, (nodes, progress.reason)))
    else:
        text = f"{progress.phase}  {progress.running}/{progress.nodes_asked} pods"
        if progress.step:
            text += f"  step {progress.step}" + (f"/{progress.steps}" if progress.steps else "")
        if progress.loss is not None:
            text += f"  loss {progress.loss:.4f}"
        if progress.tokens_per_second is not None:
            text += f"  {progress.tokens_per_second:,.0f} tokens/s"
    if told := restarts_text(progress.restarts):
        text += f"  restarts: {told}"
    if progress.trouble:
        text += f"  [{progress.trouble}]"
    return text


def restarts_text(restarts: Restarts) -> str:
    """Restarts that there were, each kind apart; empty where there was none."""
    kinds = {
        "rendezvous round": restarts.rendezvous_rounds,
        "container": restarts.container_restarts,
        "pod": restarts.pod_recreations,
    }
    return ", ".join(f"{count} {kind}{'s' if count > 1 else ''}" for kind, count in kinds.items() if count)


def fail(message: str) -> None:
    """One clear message on stderr."""
    head, *rest = message.splitlines() or [""]
    errors.print(Text.assemble(("error: ", "bold red"), head), soft_wrap=True)
    for line in rest:
        errors.print(Text(line), soft_wrap=True)
