"""What can be said of the trainer without ranks: data, schedule, weights, flags, arithmetic."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import torch
from torch import nn

from eks_fsdp.spec.base import SettingsError
from eks_fsdp.spec.models import MODEL_PRESETS
from eks_fsdp.spec.records import StepRow
from eks_fsdp.spec.trainer import OptimizerConfig, TrainerConfig
from eks_fsdp.trainer import config, data, metrics, model, optimizer, transport
from eks_fsdp.trainer.__main__ import main
from eks_fsdp.trainer.errors import TrainingFailed
from eks_fsdp.trainer.loss import for_backward, token_loss_sum

from .conftest import free_port

DEBUG = MODEL_PRESETS["llama-debug"]


# Data


def test_packing_makes_every_token_but_the_first_a_label_exactly_once() -> None:
    stream = data.tokenize(["one", "", "héllo"])
    assert stream.tolist() == [*b"one", 256, *"héllo".encode(), 256]
    inputs, labels = data.pack(stream, 4)
    kept = labels[labels != data.IGNORED]
    assert kept.tolist() == stream[1:].tolist()
    assert inputs.flatten()[: len(kept)].tolist() == stream[:-1].tolist()
    assert inputs.shape == labels.shape == (3, 4)


@pytest.mark.parametrize("length", [8, 128, 1000])
def test_no_token_of_the_real_text_is_lost(length: int) -> None:
    stream = data.tokenize(data.documents())
    assert len(stream) > 450_000
    _, labels = data.pack(stream, length)
    assert torch.equal(labels[labels != data.IGNORED], stream[1:])


def test_an_epoch_holds_each_sequence_once_and_epochs_differ() -> None:
    packed = data.PackedData(TrainerConfig())
    size = packed.training_sequences
    first, second = packed.training_ids(0, size), packed.training_ids(size, size)
    assert sorted(first) == sorted(second)
    assert len(set(first)) == size
    assert first != second
    assert packed.training_ids(size - 2, 4) == first[-2:] + second[:2]
    # Evaluation and training never share one.
    assert size + packed.held_out_sequences == -(-(len(data.tokenize(data.documents())) - 1) // 128)


@pytest.mark.parametrize(("world", "micro"), [(1, 1), (1, 12), (2, 3), (4, 1), (3, 4)])
def test_a_step_is_the_same_set_of_sequences_for_every_layout(world: int, micro: int) -> None:
    packed = data.PackedData(TrainerConfig())
    batches = [b for rank in range(world) for b in packed.step(36, rank, world, micro, 12 // (world * micro))]
    seen = torch.cat([batch.inputs for batch in batches]).tolist()
    expected = [packed._inputs[i].tolist() for i in packed.training_ids(36, 12)]
    assert sorted(seen) == sorted(expected)


def test_evaluation_has_the_same_number_of_batches_on_every_rank() -> None:
    packed = data.PackedData(TrainerConfig(), texts=["abcdefgh" * 400])
    counts = [[b.tokens for b in packed.evaluation(rank, 4, 1, 2)] for rank in range(4)]
    assert packed.held_out_sequences == 1
    assert counts == [[128, 0], [0, 0], [0, 0], [0, 0]]


def test_too_little_text_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"data\.sequence_length: .* into 0 sequences"):
        data.PackedData(TrainerConfig(), texts=[])


# Loss, schedule, weights


def test_loss_weighs_every_token_the_same_however_batches_are_cut() -> None:
    torch.manual_seed(0)
    hidden, labels = torch.randn(2, 6, 5, requires_grad=True), torch.randint(0, 9, (2, 6))
    labels[0, 1:] = data.IGNORED
    head = nn.Linear(5, 9, bias=False)
    nn.functional.cross_entropy(head(hidden).flatten(0, 1), labels.flatten()).backward()
    assert hidden.grad is not None
    assert head.weight.grad is not None
    whole = [hidden.grad, head.weight.grad]
    hidden.grad = head.weight.grad = None
    for part in range(2):  # two ranks' micro-batches; FSDP would average the two gradients
        loss = token_loss_sum(hidden[part : part + 1], labels[part : part + 1], head, chunk_tokens=4)
        (for_backward(loss, 7.0, world_size=2) / 2).backward()
    torch.testing.assert_close([hidden.grad, head.weight.grad], whole)


def test_no_tensor_is_as_large_as_all_logits() -> None:
    """2,048 tokens in chunks of 64 over a vocabulary of 4,096: whole logits would be 2,048 x 4,096 in float32."""
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            for value in result if isinstance(result, tuple | list) else (result,):
                largest = max(largest, value.numel() if isinstance(value, torch.Tensor) else 0)
            return result

    head = nn.Linear(16, 4096, bias=False)
    hidden, labels = torch.randn(1, 2048, 16, requires_grad=True), torch.randint(0, 4096, (1, 2048))
    with Watch():
        token_loss_sum(hidden, labels, head, chunk_tokens=64).backward()  # type: ignore[no-untyped-call]
    assert largest == 64 * 4096


@pytest.mark.parametrize(
    ("settings", "ranks", "per_node", "shards"),
    [
        ({"strategy": "FULL_SHARD"}, 16, 8, 16),
        ({"strategy": "SHARD_GRAD_OP"}, 16, 8, 16),
        ({"strategy": "NO_SHARD"}, 16, 8, 1),
        ({"strategy": "HYBRID_SHARD"}, 16, 8, 8),
        ({"strategy": "HYBRID_SHARD"}, 4, 8, 4),
        ({"strategy": "HYBRID_SHARD_ZERO2", "shard_group": 4}, 16, 8, 4),
        ({"strategy": "FULL_SHARD", "reshard_after_forward": 8}, 16, 8, 16),
    ],
)
def test_how_many_ranks_share_one_set_of_shards(
    settings: dict[str, Any], ranks: int, per_node: int, shards: int
) -> None:
    assert TrainerConfig.parse(settings).shards(ranks, per_node) == shards


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (
            {"strategy": "HYBRID_SHARD", "shard_group": 3},
            r"shard_group: 3 does not divide 8 ranks; accepted: 1, 2, 4, 8",
        ),
        ({"strategy": "FULL_SHARD", "reshard_after_forward": 8}, r"reshard_after_forward: 8 .* accepted: 2, 4"),
        ({"strategy": "FULL_SHARD", "reshard_after_forward": 3}, r"reshard_after_forward: 3 .* accepted: 2, 4"),
    ],
)
def test_groups_that_do_not_divide_are_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        TrainerConfig.parse(settings).shards(8, 8)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (
            {"shard_group": 2},
            "shard_group: 2 with strategy 'FULL_SHARD'; accepted with HYBRID_SHARD, HYBRID_SHARD_ZERO2",
        ),
        ({"strategy": "NO_SHARD", "reshard_after_forward": 2}, "reshard_after_forward: 2, and 'NO_SHARD' does not"),
        ({"activation_checkpointing": "every-0"}, "activation_checkpointing: "),
    ],
)
def test_settings_of_other_strategies_are_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        TrainerConfig.parse(settings)


def test_schedule() -> None:
    c = OptimizerConfig(learning_rate=1.0, warmup_steps=4, min_learning_rate_ratio=0.1)
    rates = [optimizer.learning_rate(step, 24, c) for step in range(1, 25)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[13] == pytest.approx(0.55)
    assert rates[-1] == pytest.approx(0.1)
    assert rates[3:] == sorted(rates[3:], reverse=True)
    assert optimizer.learning_rate(1, 1, OptimizerConfig(learning_rate=1.0, warmup_steps=0)) == pytest.approx(0.1)


def test_weight_decay_is_for_matrices() -> None:
    groups = optimizer.build(nn.Linear(3, 2), OptimizerConfig(weight_decay=0.3)).param_groups
    assert [(len(group["params"]), group["weight_decay"]) for group in groups] == [(1, 0.3), (1, 0.0)]


def test_rows_of_a_matrix_do_not_depend_on_how_it_is_cut() -> None:
    whole = torch.empty(40, 100_000)
    model.fill_normal(whole, 0, "1/w")
    for first, last in ((0, 13), (13, 14), (14, 40), (40, 40)):
        part = torch.empty(last - first, 100_000)
        model.fill_normal(part, first, "1/w")
        assert torch.equal(part, whole[first:last])
    assert float(whole.std()) == pytest.approx(0.02, rel=0.01)
    other = torch.empty(1, 100_000)
    model.fill_normal(other, 0, "2/w")
    assert not torch.equal(other, whole[:1])


def test_weights_are_checked_after_materialisation() -> None:
    llama = model.build_on_meta(DEBUG)
    assert sum(p.numel() for p in llama.parameters()) == DEBUG.num_parameters
    with pytest.raises(TrainingFailed, match="no memory"):
        model.verify(llama, DEBUG)
    model.materialise(llama, DEBUG, torch.device("cpu"), seed=1)
    frequencies = llama.model.rotary_emb.inv_freq
    assert frequencies[0] == 1.0
    with torch.no_grad():
        frequencies[0] = 2.0
    with pytest.raises(TrainingFailed, match="inv_freq"):
        model.verify(llama, DEBUG)
    with torch.no_grad():
        llama.lm_head.weight.fill_(1.0)
    with pytest.raises(TrainingFailed, match=r"lm_head\.weight: constant"):
        model.verify(llama, DEBUG)


# Arithmetic and reports


@pytest.mark.parametrize(
    ("preset", "flops", "tokens_per_second", "gpu", "mfu"),
    [
        ("llama2-7b", 4.687e10, 9600, "NVIDIA H100 80GB HBM3", 0.455),
        ("llama2-13b", 8.816e10, 4850, "NVIDIA H100 80GB HBM3", 0.432),
        ("llama2-7b", 4.687e10, 4550, "NVIDIA A100-SXM4-80GB", 0.684),
        ("llama2-70b", 4.461e11, 890, "NVIDIA H100 80GB HBM3", 0.401),
    ],
)
def test_mfu_reproduces_published_numbers(
    preset: str, flops: float, tokens_per_second: float, gpu: str, mfu: float
) -> None:
    per_token = metrics.flops_per_token(MODEL_PRESETS[preset], 4096)
    assert per_token == pytest.approx(flops, rel=1e-3)
    peak = metrics.peak_flops_of(gpu)
    assert peak is not None
    assert per_token * tokens_per_second / peak == pytest.approx(mfu, abs=1e-3)


def test_peak_is_unknown_for_parts_that_aws_does_not_have() -> None:
    assert metrics.peak_flops_of("NVIDIA H100 PCIe") is None
    assert metrics.peak_flops_of("NVIDIA GeForce RTX 4090") is None
    assert metrics.peak_flops(torch.device("cpu")) is None


def test_rows_go_to_stdout_to_the_file_and_to_prometheus(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    report = metrics.Reporter(leads=True, log_every=2, metrics_port=port, rows=tmp_path / "a" / "rows.jsonl")
    for step in (1, 2):
        row = StepRow(
            step=step,
            time=0.0,
            loss=1.5,
            grad_norm=1.0,
            learning_rate=1e-3,
            tokens=10,
            step_seconds=0.1,
            data_seconds=0.0,
            tokens_per_second=100.0,
            mfu=None,
            peak_memory_bytes=2**30,
        )
        report.step(row, steps=4)
    out, err = capfd.readouterr()
    assert [json.loads(line)["step"] for line in out.splitlines()] == [1, 2]
    assert (tmp_path / "a" / "rows.jsonl").read_text() == out
    assert err.splitlines() == [
        "step 2/4  loss 1.5000  grad 1.000  lr 1.00e-03  100 tok/s  mfu n/a  mem 1.00 GiB  0.100 s"
    ]
    with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        assert "eksfsdp_trainer_loss 1.5" in answer.read().decode()
    metrics.Reporter(leads=True, log_every=1, metrics_port=port, rows=None)
    assert "there will be no endpoint" in capfd.readouterr().err


def test_ranks_other_than_the_first_are_silent(capfd: pytest.CaptureFixture[str]) -> None:
    metrics.Reporter(leads=False, log_every=1, metrics_port=1, rows=None).say("x")
    assert capfd.readouterr() == ("", "")


def test_transport_is_what_the_process_holds(tmp_path: Path) -> None:
    maps, descriptors = tmp_path / "maps", tmp_path / "fd"
    descriptors.mkdir()
    maps.write_text(
        "7f00 r-xp /opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so\n7f01 r-xp /opt/amazon/efa/lib/libfabric.so.1\n"
    )
    assert transport.detect("gloo", tmp_path) == "gloo"
    assert transport.detect("nccl", tmp_path) == "tcp"
    (descriptors / "9").symlink_to("/dev/infiniband/uverbs0")
    assert transport.detect("nccl", tmp_path) == "efa"
    maps.write_text("7f00 r-xp /usr/lib/libnccl.so.2\n")
    assert transport.detect("nccl", tmp_path) == "tcp"


def test_efa_that_is_not_used_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(transport.VARIABLE, "efa")
    transport.require("efa")
    with pytest.raises(TrainingFailed, match="aws-ofi-nccl"):
        transport.require("tcp")


# Configuration


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps({"steps": 7, "optimizer": {"learning_rate": 0.5, "warmup_steps": 1}}))
    flags = ["--config", str(path), "--optimizer.learning_rate", "1e-3", "--strategy=NO_SHARD"]
    loaded = config.load([*flags, "--optimizer.betas", "[0.8, 0.9]", "--global-batch-size", "4"])
    assert (loaded.steps, loaded.strategy, loaded.global_batch_size) == (7, "NO_SHARD", 4)
    assert (loaded.optimizer.learning_rate, loaded.optimizer.warmup_steps) == (1e-3, 1)
    assert loaded.optimizer.betas == (0.8, 0.9)


def test_yaml_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("steps: 7\noptimizer:\n  learning_rate: 1e-3\n")
    assert config.load(["--config", str(path)]).optimizer.learning_rate == 1e-3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "llama9"], "llama2-7b"),
        (["--optimizer.lerning_rate", "1"], "optimizer.lerning_rate: unknown key. did you mean 'learning_rate'?"),
        (["--steps", "0"], "steps: "),
        (["--steps"], "--steps: has no value"),
        (["steps=3"], "not a flag"),
        (["--steps.x", "1"], "steps"),
        (["--config", "/does/not/exist.json"], "No such file"),
        (["--micro_batch_size", "3"], "global_batch_size: 8 is not a multiple"),
        (["--data.sequence_length", "4096"], "data.sequence_length: 4096 is longer than the 2048 positions"),
    ],
)
def test_what_is_wrong_is_refused_by_name(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in (("a.json", "[1]"), ("b.json", "{"), ("c.yaml", "a: [")):
        (tmp_path / name).write_text(text)
        assert main(["--config", str(tmp_path / name)]) == 2
        assert name in capsys.readouterr().err


@pytest.mark.parametrize(("declared", "message"), [("infiniband", "accepted: efa, tcp, gloo"), ("efa", "no GPU here")])
def test_transport_that_cannot_be_is_refused(
    declared: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(transport.VARIABLE, declared)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main([]) == 2
    assert message in capsys.readouterr().err


def test_missing_handler_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_RDZV_BACKEND", "etcd-v3")
    config.check(TrainerConfig(), config.Ranks(torchrun=True))
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [])
    with pytest.raises(SettingsError, match="PET_RDZV_BACKEND"):
        config.check(TrainerConfig(), config.Ranks(torchrun=True))
    config.check(TrainerConfig(), config.Ranks())


def test_learning_rate_never_leaves_its_bounds() -> None:
    c = OptimizerConfig()
    for step in range(1, 200):
        assert 0 < optimizer.learning_rate(step, 100, c) <= c.learning_rate
        assert math.isfinite(optimizer.learning_rate(step, 100, c))
