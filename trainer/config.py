"""The configuration from a file and flags, and everything that can be refused before a process group exists."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eks_fsdp.spec.base import SettingsError
from eks_fsdp.spec.models import MODEL_PRESETS
from eks_fsdp.spec.names import RENDEZVOUS_ETCD_V3
from eks_fsdp.spec.trainer import TrainerConfig

from . import data, transport

USAGE = """\
torchrun -m eks_fsdp.trainer [--config FILE] [--dotted.key VALUE ...]

FILE is JSON or YAML; a flag wins over it. Every key of the configuration is a flag, e.g.
  --model llama-debug --optimizer.learning_rate 1e-3 --checkpoint.directory /mnt/checkpoints/a
Exit status: 0 done, 2 configuration refused, 3 training failed for a reason told, 75 stopped by SIGTERM after saving."""


@dataclass(frozen=True)
class Ranks:
    """Where this process stands among the others, from torchrun's environment; alone without it."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    restart_count: int = 0
    """Rounds of torchrun's rendezvous before this one that ended in a restart."""
    torchrun: bool = False

    @classmethod
    def from_environment(cls) -> Ranks:
        """Read RANK, WORLD_SIZE and the rest."""
        if "RANK" not in os.environ:
            return cls()
        return cls(
            rank=int(os.environ["RANK"]),
            world_size=int(os.environ["WORLD_SIZE"]),
            local_rank=int(os.environ.get("LOCAL_RANK", "0")),
            local_world_size=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
            restart_count=int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
            torchrun=True,
        )


def load(arguments: list[str]) -> TrainerConfig:
    """Parse ``--config FILE`` and dotted flags. Raises `SettingsError`."""
    parser = argparse.ArgumentParser(prog="eks_fsdp.trainer", usage=USAGE, add_help=True, allow_abbrev=False)
    parser.add_argument("--config", type=Path)
    known, rest = parser.parse_known_args(arguments)
    values = read_file(known.config) if known.config else {}
    for key, value in flags(rest):
        node = values
        *parents, leaf = key.split(".")
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                raise SettingsError(f"--{key}: {parent!r} holds a value, not keys")
        node[leaf] = value
    return TrainerConfig.parse(values)


def read_file(path: Path) -> dict[str, Any]:
    """The mapping in a JSON or YAML file. Raises `SettingsError`."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"--config: {str(path)!r}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"--config: {str(path)!r} is no text in UTF-8") from None
    try:
        if path.suffix in (".yaml", ".yml"):
            import yaml

            try:
                values = yaml.safe_load(text)
            except yaml.YAMLError as error:
                raise SettingsError(f"--config: {str(path)!r} is no YAML: {error}") from None
        else:
            values = json.loads(text)
    except json.JSONDecodeError as error:
        raise SettingsError(f"--config: {str(path)!r} is no JSON: {error}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise SettingsError(f"--config: {str(path)!r} holds {type(values).__name__}; accepted: a mapping of keys")
    return values


def flags(arguments: list[str]) -> list[tuple[str, Any]]:
    """``["--a.b", "1", "--c=x"]`` as ``[("a.b", 1), ("c", "x")]``: JSON where the value is JSON, else text."""
    found: list[tuple[str, Any]] = []
    rest = iter(arguments)
    for argument in rest:
        if not argument.startswith("--") or argument == "--":
            raise SettingsError(f"{argument!r}: not a flag; accepted: --dotted.key VALUE")
        name, separator, text = argument[2:].partition("=")
        if not separator:
            try:
                text = next(rest)
            except StopIteration:
                raise SettingsError(f"--{name}: has no value") from None
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            value = text
        found.append((name.replace("-", "_"), value))
    return found


def check(config: TrainerConfig, ranks: Ranks) -> None:
    """Refuse what cannot run, in the same way on every rank. Raises `SettingsError`."""
    shape, problems = MODEL_PRESETS[config.model], []
    try:
        config.accumulation(ranks.world_size)
    except ValueError as error:
        problems.append(str(error))
    try:
        config.shards(ranks.world_size, ranks.local_world_size)
    except ValueError as error:
        problems.append(str(error))
    if config.data.sequence_length > shape.max_position_embeddings:
        problems.append(
            f"data.sequence_length: {config.data.sequence_length} is longer than the {shape.max_position_embeddings} "
            f"positions of {config.model}"
        )
    if shape.vocab_size < data.VOCABULARY:
        problems.append(
            f"data.tokenizer: {config.data.tokenizer!r} has {data.VOCABULARY} tokens, and {config.model} only "
            f"{shape.vocab_size}"
        )
    problems += transport.problems()
    problems += _rendezvous_problems(ranks)
    if problems:
        raise SettingsError("\n".join(problems))


def _rendezvous_problems(ranks: Ranks) -> list[str]:
    # torchrun only warns when the entry point of a handler cannot be loaded, and with PET_RDZV_BACKEND it then fails
    # with a message that does not tell why. Here the workers of a job can say it.
    if not ranks.torchrun or os.environ.get("PET_RDZV_BACKEND") != RENDEZVOUS_ETCD_V3:
        return []
    from importlib.metadata import entry_points

    if any(entry.name == RENDEZVOUS_ETCD_V3 for entry in entry_points(group="torchrun.handlers")):
        return []
    return [
        f"PET_RDZV_BACKEND: {RENDEZVOUS_ETCD_V3!r} has no handler here: the distribution eks-fsdp is not installed in "
        "this environment (its entry point is what torchrun looks for)"
    ]
