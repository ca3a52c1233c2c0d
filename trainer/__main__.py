"""The command: ``torchrun -m eks_fsdp.trainer --config FILE``, or ``python -m eks_fsdp.trainer`` for one process."""

from __future__ import annotations

import os
import sys

from eks_fsdp.spec.base import SettingsError

from .errors import FAILED, REFUSED, TrainingFailed


def main(arguments: list[str] | None = None) -> int:
    """Run; returns the exit status (see `errors`)."""
    from .config import Ranks, check, load

    try:
        config = load(sys.argv[1:] if arguments is None else arguments)
        ranks = Ranks.from_environment()
        check(config, ranks)
    except SettingsError as error:
        return _tell("refused", error, REFUSED)
    from .train import run

    try:
        return run(config, ranks)
    except SettingsError as error:
        return _tell("refused", error, REFUSED)
    except TrainingFailed as error:
        return _tell("failed", error, FAILED)


def _tell(what: str, error: Exception, status: int) -> int:
    # Every rank comes to the same conclusion; one for each node says so.
    if os.environ.get("LOCAL_RANK", "0") == "0":
        for line in str(error).splitlines():
            print(f"eks_fsdp.trainer: {what}: {line}", file=sys.stderr, flush=True)
    return status


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Everything is saved, and the process group is closed: taking down the interpreter with torch in it would cost a
    # second of CPU in each rank.
    os._exit(code)
