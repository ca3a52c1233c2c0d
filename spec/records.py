"""Versioned schemas of what a run leaves behind: step rows, run records, sweep points."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .base import Strict
from .settings import JobSettings

ROW_SCHEMA = 1
RECORD_SCHEMA = 1
EVENT_KEY = "eksfsdp"
"""Every JSON line of the trainer has this key; its value is the kind of the line: ``start``, ``step``, ``eval``, ``end``."""
CHECK_KEY = "eksfsdp-check"
"""The same for the lines of `trainer.check_nodes`: ``devices``, ``reduce``."""


class StartRow(Strict):
    """Printed once by rank 0 of each rendezvous round, before the first step."""

    eksfsdp: Literal["start"] = "start"
    schema_version: int = ROW_SCHEMA
    time: float
    """Unix seconds."""
    world_size: int
    """Ranks in the process group."""
    nodes: list[str]
    """Distinct values of NODE_NAME over the ranks, sorted."""
    pods: list[str]
    """Distinct host names over the ranks, sorted."""
    transport: Literal["efa", "tcp", "gloo"]
    """What the process group really uses."""
    restart_count: int
    """torchrun's TORCHELASTIC_RESTART_COUNT of this round, the highest of all agents'."""
    resumed_from_step: int
    """0 where nothing was loaded."""
    model: str
    parameters: int
    strategy: str
    accumulation: int
    torch_version: str
    device: str
    """``cpu``, or the name that CUDA gives the GPU."""


class StepRow(Strict):
    """One optimizer step, printed by rank 0."""

    eksfsdp: Literal["step"] = "step"
    schema_version: int = ROW_SCHEMA
    step: int
    """1 for the first."""
    time: float
    """Unix seconds at the end of the step."""
    loss: float
    """Mean over all the tokens of the global batch."""
    grad_norm: float
    learning_rate: float
    tokens: int
    """Label tokens of the global batch."""
    step_seconds: float
    """Slowest rank's wall time of the step."""
    data_seconds: float
    """Of these, waiting for data on rank 0."""
    tokens_per_second: float
    mfu: float | None
    """Model FLOPs utilisation by ``6 N + 12 L d S`` over dense bf16 peak; null on CPU."""
    peak_memory_bytes: int
    """Highest of all ranks: CUDA max_memory_allocated, or on CPU the resident set's maximum."""


class EvalRow(Strict):
    """One evaluation."""

    eksfsdp: Literal["eval"] = "eval"
    schema_version: int = ROW_SCHEMA
    step: int
    loss: float
    perplexity: float
    tokens: int


class EndRow(Strict):
    """Printed by rank 0 after the last step."""

    eksfsdp: Literal["end"] = "end"
    schema_version: int = ROW_SCHEMA
    time: float
    steps: int
    final_loss: float


class Restarts(Strict):
    """What restarted during a run, counted apart."""

    rendezvous_rounds: int = 0
    """Rounds of torchrun beyond the first."""
    container_restarts: int = 0
    """Sum of the pods' restartCount."""
    pod_recreations: int = 0
    """Pods of one replica index beyond the first."""

    @property
    def total(self) -> int:
        """All kinds together."""
        return self.rendezvous_rounds + self.container_restarts + self.pod_recreations


class RunRecord(Strict):
    """All that is known of one run, gathered through the Kubernetes API alone."""

    schema_version: int = RECORD_SCHEMA
    job: str
    """Name of the PyTorchJob."""
    run: str
    nodes_asked: int
    gpus_per_node: int
    processes_per_node: int
    transport: str
    """Declared in settings."""
    instance_types: list[str] = []
    """Distinct instance-type labels of the nodes that pods were placed on."""
    nodes_seen: list[str] = []
    """Names of the nodes that pods were placed on."""
    simulated: bool = False
    """Any of the nodes carries the label ``eksfsdp/simulated``."""
    condition: Literal["Succeeded", "Failed", "Stopped", "Unknown"] = "Unknown"
    message: str = ""
    restarts: Restarts = Restarts()
    started: float | None = None
    """Unix seconds when the job was created."""
    finished: float | None = None
    settings: JobSettings | None = None
    """The job's settings as they were submitted; None where the launcher did not submit it."""
    unread_rows: int = 0
    """Lines that claimed to be rows and were none of this schema."""
    starts: list[StartRow] = []
    steps: list[StepRow] = []
    evals: list[EvalRow] = []
    end: EndRow | None = None


class SweepPoint(Strict):
    """One point of a scaling chart."""

    nodes: int
    gpus: int
    """GPUs asked of the scheduler."""
    processes: int
    """Ranks."""
    accepted: bool
    reasons: list[str] = []
    """Why the point is refused; empty where it is accepted."""
    tokens_per_second: float | None = None
    """Median over the measured steps."""
    step_seconds_median: float | None = None
    step_seconds_p95: float | None = None
    peak_memory_bytes: int | None = None
    """Highest of any process."""
    efficiency: float | None = None
    """T(N) / (N / N0 x T(N0))."""
    measured_steps: int = 0
    """Steps after the warm-up."""
    job: str = ""
    restarts: Restarts = Restarts()
    losses: list[float] = []


class SweepReport(Strict):
    """What ``report`` writes as JSON."""

    schema_version: int = RECORD_SCHEMA
    name: str
    mode: Literal["strong", "weak"]
    baseline_nodes: int
    simulated: bool
    instance_type: str
    model: str
    strategy: str
    global_batch_size: int
    sequence_length: int
    max_loss_difference: float | None = Field(default=None)
    """Largest difference of any step's loss between accepted points."""
    points: list[SweepPoint]
