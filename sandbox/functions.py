"""Runs an AWS Lambda function's code for the stand-in account: unpacked, in a process of its own, against the account.

As a script (``python functions.py FOLDER HANDLER SECONDS RESULT``, the event on standard input) it is that process.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MARGIN_SECONDS = 10.0
"""For the start of the interpreter, beyond the function's own time."""


@dataclass(frozen=True)
class Outcome:
    """What a call came to."""

    payload: str
    """JSON: what the function returned, or ``{"errorType", "errorMessage", "stackTrace"}``."""
    failed: bool
    log: str
    """What it printed."""


def call(code: bytes, handler: str, event: bytes, variables: Mapping[str, str], timeout: float) -> Outcome:
    """Call ``handler`` of the zip archive ``code``. ``variables``: the whole environment beside PATH."""
    with tempfile.TemporaryDirectory() as folder:
        zipfile.ZipFile(io.BytesIO(code)).extractall(f"{folder}/code")
        result = Path(folder, "result.json")
        try:
            done = subprocess.run(
                [sys.executable, "-I", __file__, f"{folder}/code", handler, str(timeout), str(result)],
                input=event or b"{}",
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={"PATH": os.defpath, **variables},
                timeout=timeout + MARGIN_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            message = {"errorType": "Sandbox.Timedout", "errorMessage": f"Task timed out after {timeout:.2f} seconds"}
            return Outcome(json.dumps(message), True, (error.output or b"").decode(errors="replace"))
        log = done.stdout.decode(errors="replace")
        if not result.exists():
            message = {"errorType": "Runtime.ExitError", "errorMessage": f"exit code {done.returncode}"}
            return Outcome(json.dumps(message), True, log)
        return Outcome(result.read_text(), done.returncode != 0, log)


class Context:
    """What AWS Lambda gives a function beside the event, as far as functions here use it."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def get_remaining_time_in_millis(self) -> int:
        """Until the function is ended."""
        return int((self._end - time.monotonic()) * 1000)


def main() -> int:
    """The function's process; its exit code is 1 where the function raised."""
    folder, handler, seconds, result = sys.argv[1:]
    sys.path.insert(0, folder)
    module, _, name = handler.rpartition(".")
    answer: Any
    try:
        answer = getattr(importlib.import_module(module), name)(json.load(sys.stdin), Context(float(seconds)))
        code = 0
    except Exception as error:  # noqa: BLE001  whatever the function raises is its answer
        trace = traceback.format_exc().splitlines()
        answer = {"errorType": type(error).__name__, "errorMessage": str(error), "stackTrace": trace}
        code = 1
    Path(result).write_text(json.dumps(answer))
    return code


if __name__ == "__main__":
    sys.exit(main())
