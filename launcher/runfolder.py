"""What a run or sweep leaves on disk: its plan, its records, its pods' logs."""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from eks_fsdp.spec.base import Strict
from eks_fsdp.spec.records import RunRecord

from .errors import UserError

PLAN = "sweep.json"
RECORDS = "records"
OWN = (PLAN, RECORDS, "logs", "pulumi", "scaling.json", "scaling.csv", "scaling.html", "scaling.png")
"""All that the launcher writes into a run folder."""
M = TypeVar("M", bound=BaseModel)


class SweepPlan(Strict):
    """What a sweep set out to do."""

    name: str
    id: str
    """Value of the label ``eksfsdp/sweep`` on its jobs, and of their run."""
    stack: str
    job: str
    """The template's name."""
    mode: Literal["strong", "weak"]
    nodes: list[int]
    warmup: int
    """Steps left out of the statistics."""
    created: float
    """Unix seconds."""


def open_folder(out: Path, *, overwrite: bool) -> None:
    """Make the folder; a sweep that is in it already is refused, or removed where told. Raises `UserError`."""
    try:
        if (out / PLAN).exists() or (out / RECORDS).exists():
            if not overwrite:
                raise UserError(f"{out} holds a sweep already: choose another --out, or pass --overwrite")
            for name in OWN:
                path = out / name
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
        (out / RECORDS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out}: {error.strerror}") from None


@contextmanager
def gone_if_refused(out: Path) -> Iterator[None]:
    """Where the block fails, a folder that was not there before it goes again: it would hold nothing of use."""
    new = not out.exists()
    try:
        yield
    except BaseException:
        if new:
            shutil.rmtree(out, ignore_errors=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all. Raises `UserError`, such as for a full disk."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UserError(f"{path}: {error.strerror}") from None


def write_plan(out: Path, plan: SweepPlan) -> None:
    """Write the plan."""
    write_text(out / PLAN, plan.model_dump_json(indent=2) + "\n")


def write_record(out: Path, number: int, record: RunRecord) -> Path:
    """Write one run's record. A loss that is no number stays so (JSON as Python reads and writes it)."""
    path = out / RECORDS / f"{number:02d}-{record.job}.json"
    write_text(path, json.dumps(record.model_dump(), indent=1, allow_nan=True) + "\n")
    return path


def _parse(model: type[M], file: Path) -> M:
    """A file's content. Raises `UserError` with the file's name and the first of what is wrong."""
    try:
        return model.model_validate(json.loads(file.read_text()))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"{file}: not as a sweep writes it: {where}: {first['msg']}") from None
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"{file}: not JSON: {error}") from None


def read_sweep(out: Path) -> tuple[SweepPlan, list[RunRecord]]:
    """The plan and the records in it. Raises `UserError`."""
    if not (out / PLAN).is_file():
        raise UserError(f"{out}: no {PLAN} here, so no sweep to report on")
    plan = _parse(SweepPlan, out / PLAN)
    records = [_parse(RunRecord, file) for file in sorted((out / RECORDS).glob("*.json"))]
    if not records:
        raise UserError(f"{out}: the sweep has no record yet")
    return plan, records


def default_folder(kind: str, stack: str) -> Path:
    """``.out/<stack>-<kind>-<time>``."""
    return Path(".out") / f"{stack}-{kind}-{time.strftime('%Y%m%d-%H%M%S')}"


def write_kubeconfig(path: Path, kubeconfig: dict[str, Any]) -> None:
    """Write a kubeconfig that only the user may read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_text(yaml.safe_dump(kubeconfig))


def seconds_text(seconds: float) -> str:
    """``75`` as ``1:15``."""
    whole = max(0, math.floor(seconds))
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"
