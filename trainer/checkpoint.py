"""Sharded checkpoints: each rank writes its part, and the file ``COMMITTED`` comes last.

``<directory>/step-00000012/`` holds torch.distributed.checkpoint's files and the marker, which also holds what does
not depend on the rank: the step and the position in the data. A folder without marker is a save that was cut off: it
is never loaded, and goes when the next save has succeeded.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eks_fsdp.spec.base import SettingsError

from .errors import TrainingFailed

if TYPE_CHECKING:
    import torch
    from torch import nn

    from .world import World

MARKER = "COMMITTED"


@dataclasses.dataclass(frozen=True)
class Progress:
    """What a checkpoint knows besides tensors; the same on every rank and for every number of ranks."""

    step: int = 0
    """Optimizer steps that are done."""
    sequences: int = 0
    """Training sequences that were consumed: the position in the data."""
    loss: float = float("nan")
    """Of the last step."""
    model: str = ""
    """The preset."""


class Checkpointer:
    """Saves to and loads from one directory on storage that all ranks share."""

    def __init__(self, directory: str, keep: int, world: World) -> None:
        """``keep`` completed checkpoints stay."""
        self._directory = Path(directory)
        self._keep = keep
        self._world = world

    def load(self, model: nn.Module, optimizer: torch.optim.Optimizer, name: str) -> Progress:
        """Load the newest complete checkpoint into both; `Progress()` where there is none.

        Raises `SettingsError` where it is of another model than ``name``.
        """
        # A directory that cannot be written to is better known now than at the first save.
        self._on_leader(f"write to {self._directory}", self._try_directory)
        # One rank looks, so that all load the same even while another job prunes.
        found: tuple[str, Progress] | str | None = self._world.from_leader(
            self._newest() if self._world.leads else None
        )
        if found is None:
            return Progress()
        if isinstance(found, str):
            raise TrainingFailed(found)
        folder, progress = found
        if progress.model != name:
            raise SettingsError(
                f"model: {name!r}, and the checkpoint {folder} is of {progress.model!r}; accepted: that model, or "
                "another checkpoint.directory"
            )
        from torch.distributed.checkpoint.api import CheckpointException
        from torch.distributed.checkpoint.state_dict import set_state_dict
        from torch.distributed.checkpoint.state_dict_loader import load

        state = _state(model, optimizer)
        try:
            load(state, checkpoint_id=folder)
        except CheckpointException as error:
            raise TrainingFailed(f"checkpoint {folder} cannot be loaded: {_causes(error.failures)}") from error
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        return progress

    def save(self, model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress) -> None:
        """Save, commit, then remove what is no longer kept. Raises `TrainingFailed`, on all ranks, where it fails."""
        from torch.distributed.checkpoint.api import CheckpointException
        from torch.distributed.checkpoint.state_dict_saver import save

        folder = self._directory / f"step-{progress.step:08d}"
        self._on_leader(f"prepare {folder}", lambda: self._clear(folder))
        try:
            save(_state(model, optimizer), checkpoint_id=str(folder))
        except CheckpointException as error:
            # All ranks have this one. A rank that was killed shows as another error, and is a crash.
            raise TrainingFailed(f"checkpoint {folder} could not be saved: {_causes(error.failures)}") from error
        self._on_leader(f"commit {folder}", lambda: _commit(folder, progress))
        self._on_leader(f"prune {self._directory}", lambda: self._prune(folder))

    def _on_leader(self, what: str, act: Any) -> None:
        # A failure on one rank must be a failure on all: the others would wait for it in the next collective.
        problem = None
        if self._world.leads:
            try:
                act()
            except OSError as error:
                problem = f"checkpoint: cannot {what}: {error}"
        problem = self._world.from_leader(problem)
        if problem:
            raise TrainingFailed(problem)

    def _newest(self) -> tuple[str, Progress] | str | None:
        try:
            folders = sorted(self._directory.glob("step-*"), reverse=True)
            for folder in folders:
                try:
                    text = (folder / MARKER).read_text(encoding="utf-8")
                except FileNotFoundError:
                    print(f"checkpoint {folder} is incomplete: skipped", file=sys.stderr, flush=True)
                    continue
                return str(folder), Progress(**json.loads(text))
        except (OSError, ValueError, TypeError) as error:
            return f"checkpoint.directory: {str(self._directory)!r} cannot be read: {error}"
        return None

    def _try_directory(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        trial = self._directory / "writable"
        trial.write_text("", encoding="utf-8")
        trial.unlink()

    def _clear(self, folder: Path) -> None:
        if folder.exists():
            _remove(folder)

    def _prune(self, newest: Path) -> None:
        older = sorted((f for f in self._directory.glob("step-*") if f.name < newest.name), reverse=True)
        complete = [folder for folder in older if (folder / MARKER).exists()]
        stay = set(complete[: self._keep - 1])
        for folder in older:
            if folder not in stay:
                _remove(folder)


def _state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state}


def _causes(failures: dict[int, Any]) -> str:
    # Each failure is an exception with its trace; often the same on all ranks.
    told: dict[str, list[int]] = {}
    for rank, failure in sorted(failures.items()):
        error = failure[0] if isinstance(failure, tuple) else failure
        told.setdefault(f"{type(error).__name__}: {error}", []).append(rank)
    return "; ".join(f"{cause} (rank {', '.join(map(str, ranks))})" for cause, ranks in told.items())


def _commit(folder: Path, progress: Progress) -> None:
    with open(folder / MARKER, "w", encoding="utf-8") as file:
        json.dump(dataclasses.asdict(progress), file)
        file.flush()
        os.fsync(file.fileno())


def _remove(folder: Path) -> None:
    # The marker first: a removal that is cut off must not leave a folder that looks complete.
    (folder / MARKER).unlink(missing_ok=True)
    shutil.rmtree(folder)
