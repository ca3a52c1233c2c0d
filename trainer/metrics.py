"""What a run tells: JSON rows, the leader's line, a Prometheus endpoint; and the arithmetic behind them."""

from __future__ import annotations

import os
import re
import resource
import sys
from pathlib import Path
from typing import Any

import torch

from eks_fsdp.spec.instances import INSTANCE_TYPES
from eks_fsdp.spec.models import ModelShape
from eks_fsdp.spec.names import TRAINER_METRICS
from eks_fsdp.spec.records import EndRow, EvalRow, StartRow, StepRow

Row = StartRow | StepRow | EvalRow | EndRow


class Reporter:
    """Rank 0's voice. Other ranks have one that is silent."""

    def __init__(self, leads: bool, log_every: int, metrics_port: int, rows: Path | None) -> None:
        """Rows go to stdout and, where ``rows`` is given, are appended to that file too.

        Neither a taken port nor a file that cannot be written to stops training: both are told once.
        """
        self._leads = leads
        self._log_every = log_every
        self._rows = rows
        self._gauges: dict[str, Any] = {}
        if leads and metrics_port:
            from prometheus_client import Gauge, start_http_server

            try:
                start_http_server(metrics_port)
                self._gauges = {key: Gauge(name, text) for key, (name, text) in TRAINER_METRICS.items()}
            except OSError as error:
                self.say(f"metrics_port: cannot listen on {metrics_port}: {error}; there will be no endpoint")

    def row(self, row: Row) -> None:
        """Print a row as one line of JSON, and keep it."""
        if not self._leads:
            return
        line = row.model_dump_json() + "\n"
        # One write for each line: no line of another process gets into it.
        sys.stdout.flush()
        os.write(sys.stdout.fileno(), line.encode())
        if self._rows is not None:
            try:
                self._rows.parent.mkdir(parents=True, exist_ok=True)
                with self._rows.open("a", encoding="utf-8") as file:
                    file.write(line)
            except OSError as error:
                self.say(f"rows are no longer kept in {self._rows}: {error}")
                self._rows = None
        for key, gauge in self._gauges.items():
            value = getattr(row, key, None)
            if isinstance(row, StepRow) and value is not None:
                gauge.set(value)

    def step(self, row: StepRow, steps: int) -> None:
        """Print a step's row and, each ``log_every`` steps, the line for people."""
        self.row(row)
        if row.step % self._log_every == 0 or row.step == steps:
            mfu = "n/a" if row.mfu is None else f"{row.mfu:.1%}"
            self.say(
                f"step {row.step}/{steps}  loss {row.loss:.4f}  grad {row.grad_norm:.3f}  lr {row.learning_rate:.2e}  "
                f"{row.tokens_per_second:,.0f} tok/s  mfu {mfu}  mem {row.peak_memory_bytes / 2**30:.2f} GiB  "
                f"{row.step_seconds:.3f} s"
            )

    def say(self, text: str) -> None:
        """One line on the leader's stderr."""
        if self._leads:
            print(text, file=sys.stderr, flush=True)


def flops_per_token(shape: ModelShape, sequence_length: int) -> float:
    """Model FLOPs of forward and backward for one token: ``6 N + 12 L d S``.

    N parameters, L blocks, d width, S tokens in a sequence; recomputation does not count.
    """
    return 6 * shape.num_parameters + 12 * shape.num_hidden_layers * shape.hidden_size * sequence_length


def peak_flops(device: torch.device) -> float | None:
    """Dense bf16 peak of this rank's GPU in FLOP/s; None on CPU, and for a GPU that is not in the catalogue."""
    if device.type != "cuda":
        return None
    return peak_flops_of(torch.cuda.get_device_name(device))


def peak_flops_of(name: str) -> float | None:
    """The same by the name that CUDA gives the GPU, e.g. ``NVIDIA H100 80GB HBM3``."""
    words = re.split(r"[\s-]+", name)
    if {"PCIe", "NVL"} & set(words):
        return None  # slower than the part of the same name in the catalogue
    peaks = {t.gpu: t.peak_bf16_tflops for t in INSTANCE_TYPES.values()}
    for gpu, tflops in peaks.items():
        if gpu in words:
            return tflops * 1e12
    return None


def peak_memory(device: torch.device) -> int:
    """Bytes: the allocator's maximum on a GPU, the resident set's on CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
