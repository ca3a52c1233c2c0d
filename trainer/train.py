"""One run from start to end."""

from __future__ import annotations

import math
import time
from pathlib import Path

import torch

from eks_fsdp.spec.base import SettingsError
from eks_fsdp.spec.models import MODEL_PRESETS
from eks_fsdp.spec.records import EndRow, EvalRow, StartRow, StepRow
from eks_fsdp.spec.trainer import TrainerConfig

from . import metrics, model, optimizer, parallel, transport
from .checkpoint import Checkpointer, Progress
from .config import Ranks
from .data import Batch, PackedData
from .errors import DONE, STOPPED, TrainingFailed
from .loss import for_backward
from .stop import StopRequest
from .world import World, places, start


def run(config: TrainerConfig, ranks: Ranks) -> int:
    """Train as ``config`` says; returns the exit status. Raises `SettingsError` and `TrainingFailed`."""
    joined = start(ranks)
    try:
        status = Run(config, joined).go()
    except (SettingsError, TrainingFailed):
        # All ranks are here. After any other error they are not, and closing the group could wait for them.
        joined.close()
        raise
    joined.close()
    return status


class Run:
    """The model, the data and how far they are."""

    def __init__(self, config: TrainerConfig, world: World) -> None:
        """Build everything, load the newest checkpoint, and tell what starts."""
        self.config, self.world = config, world
        ranks, shape = world.ranks, MODEL_PRESETS[config.model]
        self.shape = shape
        self.accumulation = config.accumulation(ranks.world_size)
        self.stop = StopRequest()
        directory = config.checkpoint.directory
        rows = Path(directory) / "rows.jsonl" if directory else None
        self.report = metrics.Reporter(world.leads, config.log_every, config.metrics_port, rows)
        self.data = PackedData(config)
        self.model = model.build_on_meta(shape)
        parallel.parallelise(self.model, config, world)
        model.materialise(self.model, shape, torch.device("cpu") if config.cpu_offload else world.device, config.seed)
        self.optimizer = optimizer.build(self.model, config.optimizer)
        self.checkpointer = Checkpointer(directory, config.checkpoint.keep, world) if directory else None
        self.progress = Progress(model=config.model)
        if self.checkpointer:
            found = self.checkpointer.load(self.model, self.optimizer, config.model)
            self.progress = found if found.step else self.progress
        self.saved = self.progress.step
        self.peak_flops = metrics.peak_flops(world.device)
        self._tell_start()

    def _tell_start(self) -> None:
        world, config = self.world, self.config
        nodes, pods = places(world)
        used = transport.detect(world.backend)
        # Agents that leave a round because others do not count it as a restart of their own.
        restarts = int(world.highest(world.ranks.restart_count)[0])
        device = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else "cpu"
        self.report.row(
            StartRow(
                time=time.time(),
                world_size=world.ranks.world_size,
                nodes=nodes,
                pods=pods,
                transport=used,
                restart_count=restarts,
                resumed_from_step=self.progress.step,
                model=config.model,
                parameters=self.shape.num_parameters,
                strategy=config.strategy,
                accumulation=self.accumulation,
                torch_version=torch.__version__,
                device=device,
            )
        )
        resumed = f", resumed from step {self.progress.step}" if self.progress.step else ""
        self.report.say(
            f"{config.model} ({self.shape.num_parameters:,} parameters), {config.strategy}, "
            f"{world.ranks.world_size} ranks on {len(nodes)} nodes over {used}, "
            f"{config.global_batch_size} x {config.data.sequence_length} tokens in {self.accumulation} micro-batches "
            f"per rank and step{resumed}"
        )
        transport.require(used)

    def go(self) -> int:
        """All steps that are left."""
        config = self.config
        self.stop.listen()
        while self.progress.step < config.steps:
            stop = self._step()
            step = self.progress.step
            last = step == config.steps
            if config.eval.every and step % config.eval.every == 0:
                self._evaluate()
            if stop and not last:
                return self._stop_here()
            if last or (config.checkpoint.every and step % config.checkpoint.every == 0):
                self._save()
        self.report.row(EndRow(time=time.time(), steps=self.progress.step, final_loss=self.progress.loss))
        # torchrun's agents wait for each other when their workers have succeeded. A worker that failed after others
        # had left would find nobody to start again with.
        self.world.barrier()
        return DONE

    def _step(self) -> bool:
        """One optimizer step; says whether any rank was asked to stop."""
        config, world, ranks = self.config, self.world, self.world.ranks
        started = time.perf_counter()
        batches = self.data.step(
            self.progress.sequences, ranks.rank, ranks.world_size, config.micro_batch_size, self.accumulation
        )
        data_seconds = time.perf_counter() - started
        tokens, stopping = world.total(sum(batch.tokens for batch in batches), self.stop.requested)
        step = self.progress.step + 1
        rate = optimizer.learning_rate(step, config.steps, config.optimizer)
        optimizer.set_learning_rate(self.optimizer, rate)
        loss = self._gradients(batches, tokens)
        norm = optimizer.clip(self.model.parameters(), config.optimizer.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        grad_norm = norm.item()
        loss_sum = loss.item()
        seconds = time.perf_counter() - started
        mean = world.total(loss_sum)[0] / tokens
        seconds, memory = world.highest(seconds, metrics.peak_memory(world.device))
        if not (math.isfinite(mean) and math.isfinite(grad_norm)):
            raise TrainingFailed(
                f"step {step}: loss {mean}, gradient norm {grad_norm}: not finite. The last checkpoint is of step "
                f"{self.saved}; a lower optimizer.learning_rate or a longer warm-up may help"
            )
        self.progress = Progress(step, self.progress.sequences + config.global_batch_size, mean, config.model)
        rate_of_tokens = tokens / seconds
        self.report.step(
            StepRow(
                step=step,
                time=time.time(),
                loss=mean,
                grad_norm=grad_norm,
                learning_rate=rate,
                tokens=int(tokens),
                step_seconds=seconds,
                data_seconds=data_seconds,
                tokens_per_second=rate_of_tokens,
                mfu=self._mfu(rate_of_tokens),
                peak_memory_bytes=int(memory),
            ),
            config.steps,
        )
        return stopping > 0

    def _gradients(self, batches: list[Batch], tokens: float) -> torch.Tensor:
        """Forward and backward of all micro-batches; returns this rank's sum of losses, a scalar on the device."""
        device = self.world.device
        total = torch.zeros((), dtype=torch.float64, device=device)
        for index, batch in enumerate(batches):
            parallel.mark_last_micro_batch(self.model, index == len(batches) - 1)
            loss_sum = self._loss_sum(batch)
            for_backward(loss_sum, tokens, self.world.ranks.world_size).backward()  # type: ignore[no-untyped-call]
            total += loss_sum.detach()
        return total

    def _loss_sum(self, batch: Batch) -> torch.Tensor:
        inputs = batch.inputs.to(self.world.device, non_blocking=True)
        labels = batch.labels.to(self.world.device, non_blocking=True)
        loss_sum: torch.Tensor = self.model(inputs, labels, self.config.loss_chunk_tokens)
        return loss_sum

    @torch.no_grad()
    def _evaluate(self) -> None:
        config, ranks = self.config, self.world.ranks
        self.model.train(False)
        batches = self.data.evaluation(ranks.rank, ranks.world_size, config.micro_batch_size, config.eval.steps)
        loss_sum = sum(self._loss_sum(batch).item() for batch in batches)
        self.model.train()
        loss_sum, tokens = self.world.total(loss_sum, sum(batch.tokens for batch in batches))
        mean = loss_sum / max(1.0, tokens)
        perplexity = math.exp(min(mean, 700.0))
        self.report.row(EvalRow(step=self.progress.step, loss=mean, perplexity=perplexity, tokens=int(tokens)))
        self.report.say(f"eval at step {self.progress.step}: loss {mean:.4f}, perplexity {perplexity:.2f}")

    def _save(self) -> None:
        if self.checkpointer and self.saved != self.progress.step:
            self.checkpointer.save(self.model, self.optimizer, self.progress)
            self.saved = self.progress.step

    def _stop_here(self) -> int:
        self._save()
        where = "saved" if self.checkpointer else "nothing is saved: checkpoint.directory is not set"
        self.report.say(f"asked to stop: after step {self.progress.step}, {where}")
        self.world.barrier()
        return STOPPED

    def _mfu(self, tokens_per_second: float) -> float | None:
        if self.peak_flops is None:
            return None
        used = tokens_per_second * metrics.flops_per_token(self.shape, self.config.data.sequence_length)
        share = used / (self.peak_flops * self.world.ranks.world_size)
        if share > 1:
            raise TrainingFailed(f"MFU of {share:.0%}: the peak of this GPU in the catalogue cannot be right")
        return share
