"""Calls a schedule's target at once: in the sandbox no clock is waited for."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Clients = Callable[[str], Any]


@dataclass(frozen=True)
class Fired:
    """A call of a schedule's function."""

    schedule: str
    """``group/name``."""
    failed: bool
    answer: Any
    log: str


def schedules(client: Clients) -> list[str]:
    """All schedules of the account, ``group/name``."""
    found = client("scheduler").list_schedules()["Schedules"]
    return sorted(f"{schedule['GroupName']}/{schedule['Name']}" for schedule in found)


def fire(client: Clients, wanted: str) -> Fired:
    """Call the target of the one schedule with ``wanted`` in its name. Raises `LookupError`, which names those there are."""
    known = schedules(client)
    matching = [name for name in known if wanted in name.split("/")[1]]
    if len(matching) != 1:
        raise LookupError(
            f"{wanted!r} is in the name of {len(matching)} schedules; there is: {', '.join(known) or 'none'}"
        )
    group, name = matching[0].split("/")
    target = client("scheduler").get_schedule(GroupName=group, Name=name)["Target"]
    called = client("lambda").invoke(FunctionName=target["Arn"], Payload=target.get("Input", "{}"), LogType="Tail")
    return Fired(
        schedule=matching[0],
        failed="FunctionError" in called,
        answer=json.loads(called["Payload"].read() or "null"),
        log=base64.b64decode(called.get("LogResult", "")).decode(),
    )
