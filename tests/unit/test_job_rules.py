"""What is refused of jobs, tokens and mounts, and that no refusal shows a token."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from pydantic import SecretStr

from eks_fsdp.launcher.errors import UserError
from eks_fsdp.launcher.stack import settings_of, with_settings
from eks_fsdp.spec.base import SettingsError
from eks_fsdp.spec.rules.jobs import checkpoint_seconds
from eks_fsdp.spec.settings import HuggingFaceSettings, Settings

PLANTED = "hf_" + "PlantedTokenOfTests" * 2
GROUP: dict[str, Any] = {"name": "p5", "instance_type": "p5.48xlarge", "zone": "us-west-2a", "desired": 2, "max": 4}
JOB: dict[str, Any] = {"nodes": 2, "processes_per_node": 1, "transport": "gloo"}


def settings(job: dict[str, Any] | None = None, **values: Any) -> Settings:
    return Settings.parse({"gpu_nodes": [GROUP], "jobs": {"first": {**JOB, **(job or {})}}, **values})


def refusal(job: dict[str, Any] | None = None, **values: Any) -> str:
    with pytest.raises(SettingsError) as error:
        settings(job, **values)
    return str(error.value)


# Rules


@pytest.mark.parametrize("variable", ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY"])
def test_a_secret_in_a_jobs_environment_is_refused_and_not_shown(variable: str) -> None:
    message = refusal({"env": {variable: PLANTED}})
    assert f"jobs.first.env.{variable}: " in message
    assert PLANTED not in message


def test_a_token_under_another_name_is_refused_too() -> None:
    assert "jobs.first.env.MY_KEY: " in refusal({"env": {"MY_KEY": PLANTED}})


def test_what_the_operator_tells_torchrun_is_left_to_it() -> None:
    # A flag or variable that contradicts it wins silently, and the job waits for nodes that never come.
    assert "jobs.first.env.PET_NNODES: '4'" in refusal({"env": {"PET_NNODES": "4"}})


@pytest.mark.parametrize("label", ["kueue.x-k8s.io/queue-name", "eksfsdp/team", "training.kubeflow.org/job-name"])
def test_a_label_that_speaks_for_the_platform_is_refused(label: str) -> None:
    assert f"jobs.first.labels: {label!r}" in refusal({"labels": {label: "x"}})


def test_more_ranks_than_gpus_are_for_gloo_alone() -> None:
    assert settings({"processes_per_node": 16, "trainer": {"global_batch_size": 32}})
    message = refusal({"processes_per_node": 16, "transport": "tcp", "trainer": {"global_batch_size": 32}})
    assert "jobs.first.processes_per_node: 16 is more than the 8 GPUs of p5.48xlarge" in message


@pytest.mark.parametrize("path", ["/mnt/checkpoints", "/mnt", "/scratch/x", "/dev/shm", "/etc/eks-fsdp/"])
def test_no_bucket_covers_what_a_pod_has_anyway(path: str) -> None:
    message = refusal(storage={"s3_mounts": {"models": {"bucket": "models", "path": path}}})
    assert f"storage.s3_mounts.models.path: {path!r} would cover" in message


def test_a_grace_period_that_no_checkpoint_fits_in_is_refused() -> None:
    job = {"trainer": {"model": "llama2-70b", "checkpoint": {"directory": "/mnt/checkpoints/first"}}}
    message = refusal(job, storage={"mode": "fsx"})
    assert "jobs.first.grace_seconds: 120 is too short to save 828 GB of llama2-70b to 1200 GiB" in message
    assert settings({**job, "grace_seconds": 1800}, storage={"mode": "fsx", "capacity_gib": 4800})
    assert settings(job, storage={"mode": "fsx", "capacity_gib": 2400 * 8})
    # 828 GB at 500 MB/s for each of 1.17 TiB.
    assert checkpoint_seconds("llama2-70b", 1200, 125) == pytest.approx(1413, abs=2)
    assert checkpoint_seconds("llama2-70b", 1200, 1000) == pytest.approx(1413 / 2, abs=1)


# Tokens


@pytest.mark.parametrize(
    "value",
    [
        PLANTED,
        [PLANTED],
        {"token": [PLANTED]},
        {"token": {"x": PLANTED}},
        {"secret_arn": PLANTED},
        {"tokn": PLANTED},
        {"token": PLANTED, "existing": PLANTED},
        {"token": PLANTED, "secret_arn": "arn:aws:secretsmanager:us-west-2:123456789012:secret:x"},
    ],
    ids=str,
)
def test_no_refusal_shows_what_stands_in_a_tokens_place(value: Any) -> None:
    message = refusal(hugging_face=value)
    assert "hugging_face" in message
    assert PLANTED not in message


def test_nothing_is_shown_of_a_key_that_pulumi_decrypted() -> None:
    with pytest.raises(SettingsError) as error:
        Settings.from_config({"eks-fsdp:region": "[1]", "eks-fsdp:ephemeral": PLANTED}, ["eks-fsdp:ephemeral"])
    assert "ephemeral" in str(error.value)
    assert PLANTED not in str(error.value)
    with pytest.raises(SettingsError, match="maybe"):
        Settings.from_config({"eks-fsdp:ephemeral": "maybe"})


def test_a_token_is_shown_by_no_text_of_the_settings() -> None:
    made = settings(hugging_face={"token": PLANTED})
    assert made.hugging_face.token is not None
    assert made.hugging_face.token.get_secret_value() == PLANTED
    for text in (repr(made), str(made), made.model_dump_json(), json.dumps(made.model_dump(mode="json"))):
        assert PLANTED not in text


def test_a_token_in_plain_text_is_refused() -> None:
    config = {"eks-fsdp:hugging_face": json.dumps({"token": PLANTED})}
    with pytest.raises(SettingsError, match=r"hugging_face\.token: is in plain text") as error:
        Settings.from_config(config)
    assert PLANTED not in str(error.value)
    assert Settings.from_config(config, ["eks-fsdp:hugging_face"]).hugging_face.given


def test_there_is_one_source_of_the_token() -> None:
    assert "token: is set, and existing too" in refusal(hugging_face={"token": "x", "existing": True})


def test_a_stack_beside_the_platforms_has_the_secret_and_not_the_token() -> None:
    beside = settings(hugging_face={"token": PLANTED}).on_existing_cluster("/tmp/kubeconfig", {})
    assert beside.hugging_face == HuggingFaceSettings(existing=True)


# The launcher's copies of stack files


FILE = f"""
encryptionsalt: v1:salt
config:
  eks-fsdp:gpu_nodes: {json.dumps([GROUP])}
  eks-fsdp:hugging_face:
    token:
      secure: v1:cipher
"""


def test_the_launcher_reads_a_stack_with_an_encrypted_token_and_copies_the_cipher() -> None:
    content = yaml.safe_load(FILE)
    made = settings_of(content, "Pulumi.x.yaml")
    assert isinstance(made.hugging_face.token, SecretStr)
    copied = with_settings(content, made.model_copy(update={"owner": "other"}))
    assert copied["config"]["eks-fsdp:hugging_face"] == {"token": {"secure": "v1:cipher"}}
    beside = with_settings(content, made.on_existing_cluster("/tmp/kubeconfig", {}))
    assert beside["config"]["eks-fsdp:hugging_face"] == {"existing": True}


def test_the_launcher_refuses_what_it_cannot_read() -> None:
    with pytest.raises(UserError, match="eks-fsdp:owner is encrypted as a whole"):
        settings_of({"config": {"eks-fsdp:owner": {"secure": "v1:cipher"}}}, "Pulumi.x.yaml")
    with pytest.raises(UserError, match="in plain text") as error:
        settings_of({"config": {"eks-fsdp:hugging_face": {"token": PLANTED}}}, "Pulumi.x.yaml")
    assert PLANTED not in str(error.value)
