"""The image table."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from eks_fsdp.sandbox.images import EFA_PLUGIN, GPU_PLUGIN, IDLE, ImageTable, Reference, device_plugin
from eks_fsdp.spec import versions


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("busybox", ("", "busybox", "", "")),
        ("localhost:5000/a/b:1.2", ("localhost:5000", "a/b", "1.2", "")),
        ("quay.io/x/y@sha256:abc", ("quay.io", "x/y", "", "sha256:abc")),
        ("kubeflow/training-operator:v1", ("", "kubeflow/training-operator", "v1", "")),
    ],
)
def test_references(text: str, parts: tuple[str, str, str, str]) -> None:
    read = Reference.parse(text)
    assert (read.registry, read.repository, read.tag, read.digest) == parts


def test_the_platforms_own_images(tmp_path: Path) -> None:
    for name in ("etcd", "training-operator", "kueue", "prometheus"):
        (tmp_path / name).touch()
    table = ImageTable(tmp_path)
    assert table.find(versions.ETCD_IMAGE).entrypoint == ("/usr/local/bin/etcd",)
    assert table.find(versions.TRAINING_OPERATOR_IMAGE).files == {"/manager": tmp_path / "training-operator"}
    assert table.find(versions.KUEUE_IMAGE).files == {"/manager": tmp_path / "kueue"}
    assert table.find(versions.PROMETHEUS_IMAGE).entrypoint == ("/bin/prometheus",)
    assert table.find(versions.GRAFANA_IMAGE) is IDLE
    assert table.find(versions.DCGM_EXPORTER_IMAGE).shows_devices
    assert table.find(versions.NVIDIA_DEVICE_PLUGIN_IMAGE) is IDLE


def test_a_program_is_shown_where_it_really_is(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "bin").mkdir()
    binary = tmp_path / "real" / "etcd"
    binary.touch()
    (tmp_path / "bin" / "etcd").symlink_to(binary)
    assert ImageTable(tmp_path / "bin").find("quay.io/coreos/etcd:v3.6.7").files == {"/usr/local/bin/etcd": binary}


def test_a_program_that_the_toolchain_lacks_is_kept_idle(tmp_path: Path) -> None:
    assert ImageTable(tmp_path).find(versions.PROMETHEUS_IMAGE) is IDLE


def test_the_trainers_image_is_this_environment(tmp_path: Path) -> None:
    image = ImageTable(tmp_path).find(f"123456789012.dkr.ecr.us-west-2.amazonaws.com/{versions.TRAINER_REPOSITORY}:abc")
    assert image.path == (f"{sys.prefix}/bin",)
    assert (Path(image.env["PYTHONPATH"]) / "eks_fsdp" / "spec" / "names.py").exists()


def test_device_plugins() -> None:
    assert device_plugin(versions.NVIDIA_DEVICE_PLUGIN_IMAGE) == GPU_PLUGIN
    assert device_plugin(versions.EFA_DEVICE_PLUGIN_IMAGE) == EFA_PLUGIN
    assert device_plugin("busybox") is None
