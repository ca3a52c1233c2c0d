"""Pulumi.yaml, the sandbox's stack file and how configuration reaches the program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pulumi
import pytest
import yaml
from pulumi.runtime.config import set_all_config

from eks_fsdp.components.configuration import load_settings, refusals_as_run_errors
from eks_fsdp.spec.base import SettingsError
from eks_fsdp.spec.names import PROGRAM_NAME
from eks_fsdp.spec.pulumi_project import config_section, to_yaml
from eks_fsdp.spec.settings import Settings
from eks_fsdp.spec.versions import PULUMI_CLI_VERSION

ROOT = Path(__file__).parents[2]


def project() -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / "Pulumi.yaml").read_text()))


def test_the_projects_configuration_is_that_of_the_settings() -> None:
    told = "copy the output of python -m eks_fsdp.spec.pulumi_project into Pulumi.yaml"
    assert (ROOT / "Pulumi.yaml").read_text().endswith(to_yaml()), told
    assert project()["config"] == config_section()


def test_every_setting_has_a_description_and_a_default() -> None:
    for name, declared in config_section().items():
        assert declared["description"], name
        assert declared["default"] is not None, name
        assert declared["type"] in ("string", "integer", "boolean", "array", "object")


def test_the_defaults_of_the_project_are_those_of_the_settings() -> None:
    config = {
        f"{PROGRAM_NAME}:{name}": declared["default"]
        if isinstance(declared["default"], str)
        else json.dumps(declared["default"])
        for name, declared in config_section().items()
    }
    assert Settings.from_config(config) == Settings()


def test_the_project_asks_for_the_cli_that_the_sandbox_has() -> None:
    assert project()["requiredPulumiVersion"] == f">={PULUMI_CLI_VERSION}"
    assert project()["name"] == PROGRAM_NAME
    # Providers named here would hijack real runs.
    assert "plugins" not in project()


@pytest.mark.parametrize("file", sorted((ROOT / "stacks").glob("Pulumi.*.yaml")), ids=lambda file: file.name)
def test_every_stack_file_is_accepted(file: Path) -> None:
    config = yaml.safe_load(file.read_text())["config"]
    assert all(key.startswith(f"{PROGRAM_NAME}:") for key in config)
    Settings.from_config({key: v if isinstance(v, str) else json.dumps(v) for key, v in config.items()})


@pytest.fixture
def configure() -> Any:
    yield set_all_config
    set_all_config({})


def test_what_the_engine_hands_over_becomes_settings(configure: Any) -> None:
    zones = '{"zones": ["us-east-1a", "us-east-1b"]}'
    plain = {f"{PROGRAM_NAME}:region": "us-east-1", f"{PROGRAM_NAME}:network": zones}
    configure({**plain, f"{PROGRAM_NAME}:etcd": '{"mode": "none"}', "aws:profile": "x"})
    assert (load_settings().region, load_settings().etcd.mode) == ("us-east-1", "none")


def test_a_misspelt_key_is_an_error_without_a_traceback(configure: Any) -> None:
    configure({f"{PROGRAM_NAME}:gpu_node": "[]"})
    wanted = r"gpu_node: unknown key\. did you mean 'gpu_nodes'\?"
    with pytest.raises(pulumi.RunError, match=wanted) as caught, refusals_as_run_errors():
        load_settings()
    assert caught.value.__suppress_context__


def test_text_stays_text_where_text_is_wanted() -> None:
    assert Settings.from_config({f"{PROGRAM_NAME}:owner": "42"}).owner == "42"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {
                "cluster": {"kubernetes_version": "1.32"},
                "gpu_nodes": [{"name": "p5", "instance_type": "p5.48xlarge", "zone": "us-west-2a"}],
            },
            r"cluster\.kubernetes_version: '1\.32' with EFA nodes.*accepted: 1\.33",
        ),
        (
            {"cluster": {"mode": "existing", "kubeconfig": "x"}, "storage": {"mode": "fsx"}},
            r"storage\.mode: 'fsx'.*accepted: existing, none",
        ),
    ],
)
def test_what_cannot_work_together_is_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        Settings.parse(values)
