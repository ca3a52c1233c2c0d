"""Programs that use the library, in an environment that has the base install alone, previewed and brought up."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import yaml

from .conftest import POLICIES, ROOT, Sandbox, foreign_cluster, own_network

pytestmark = pytest.mark.engine
EXAMPLES = ROOT / "examples"
EXTRAS = ("torch", "transformers", "boto3", "botocore", "moto", "typer", "rich", "matplotlib", "eks_fsdp.sandbox")
"""What comes with the extras alone."""
BLOCKER = f"""
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name in {EXTRAS!r}:
            raise ModuleNotFoundError(f"{{name}} is not part of the base install", name=name)

sys.meta_path.insert(0, Refuse())
"""


@pytest.fixture(scope="module")
def base_install(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment in which nothing of the extras can be imported."""
    folder = tmp_path_factory.mktemp("base") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60)
    packages = next(folder.glob("lib/python*/site-packages"))
    here = [str(ROOT / "src"), sysconfig.get_path("purelib"), *(p for p in sys.path if p.endswith("site-packages"))]
    (packages / "blocker.py").write_text(BLOCKER)
    (packages / "base.pth").write_text("\n".join([*dict.fromkeys(here), "import blocker"]) + "\n")
    tried = (
        "import sys, eks_fsdp.components.platform\n"
        "try:\n import torch\n"
        "except ImportError: sys.exit('torch' in sys.modules)\n"
        "sys.exit(1)"
    )
    subprocess.run([folder / "bin" / "python", "-W", "ignore", "-c", tried], check=True, timeout=60)
    return folder


def bring_up(name: str, sandbox: Sandbox, folder: Path, venv: Path, **config: str) -> dict[str, Any]:
    """Preview and update an example under the policies; its outputs."""
    place = folder / name
    shutil.copytree(EXAMPLES / name, place)
    project = yaml.safe_load((place / "Pulumi.yaml").read_text())
    assert project["runtime"]["options"] == {"virtualenv": ".venv"}
    (place / ".venv").symlink_to(venv)

    def pulumi(*arguments: str) -> str:
        more = {"PULUMI_BACKEND_URL": f"file://{place}"}
        return sandbox.run("pulumi", *arguments, "--non-interactive", "--color=never", cwd=place, more=more)

    pulumi("stack", "init", "dev")
    for key, value in config.items():
        pulumi("config", "set", key, value)
    pulumi("up", "--yes", "--policy-pack", str(POLICIES))
    outputs: dict[str, Any] = json.loads(pulumi("stack", "output", "--json"))
    return outputs


def test_programs_on_a_cluster_of_somebody_elses(empty_sandbox: Sandbox, tmp_path: Path, base_install: Path) -> None:
    cluster = foreign_cluster(empty_sandbox)
    crd = ROOT / "build" / "training-operator" / "base" / "crds" / "kubeflow.org_pytorchjobs.yaml"
    empty_sandbox.run("kubectl", "apply", "--server-side", "-f", str(crd))
    image = "registry.example.com/own@sha256:" + "0" * 64
    made = bring_up(
        "own-cluster",
        empty_sandbox,
        tmp_path,
        base_install,
        cluster_name=cluster.name,
        kubeconfig=cluster.kubeconfig,
        vpc_id=cluster.vpc,
        subnet_id=cluster.subnets[0],
        cluster_security_group=cluster.security_group,
        node_role_arn=cluster.node_role,
        image=image,
    )
    groups = empty_sandbox.account("eks").list_nodegroups(clusterName=cluster.name)["nodegroups"]
    assert groups == [made["node_group"].rpartition(":")[2]]
    own = bring_up("own-image", empty_sandbox, tmp_path, base_install, kubeconfig=cluster.kubeconfig, image=image)
    jobs = json.loads(empty_sandbox.run("kubectl", "get", "pytorchjobs", "-o", "json"))["items"]
    assert {job["metadata"]["name"] for job in jobs} == {made["job"], own["job"]}
    containers = [job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0] for job in jobs]
    assert {container["image"] for container in containers} == {image}


def test_the_platform_in_a_vpc_of_somebody_elses(empty_sandbox: Sandbox, tmp_path: Path, base_install: Path) -> None:
    vpc, subnets = own_network(empty_sandbox)
    before = {found["VpcId"] for found in empty_sandbox.account("ec2").describe_vpcs()["Vpcs"]}
    bring_up(
        "own-vpc",
        empty_sandbox,
        tmp_path,
        base_install,
        vpc_id=vpc,
        private_subnet_a=subnets[0],
        private_subnet_b=subnets[1],
        operator_manifests=str(ROOT / "build" / "training-operator" / "base"),
    )
    assert {found["VpcId"] for found in empty_sandbox.account("ec2").describe_vpcs()["Vpcs"]} == before
