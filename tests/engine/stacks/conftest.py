"""Sandboxes in which whole stacks are previewed and brought up, and programs that are no part of this repository."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
CLI = [sys.executable, "-m", "eks_fsdp.launcher.cli"]
POLICIES = ROOT / "policies"


@dataclass
class Sandbox:
    """A live sandbox and the environment in which pulumi and kubectl use it."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    used: bool = False
    """Whether a test may have left something in it."""

    def start(self) -> None:
        """Start it, empty."""
        subprocess.run([*CLI, "sandbox", "up", "--dir", str(self.folder)], check=True, timeout=120)
        told = subprocess.run(
            [*CLI, "sandbox", "env", "--dir", str(self.folder)], check=True, timeout=60, capture_output=True, text=True
        )
        shell = ["bash", "-c", 'eval "$1"; env -0', "bash", told.stdout]
        printed = subprocess.run(shell, check=True, capture_output=True, text=True).stdout
        self.environment = {
            **os.environ,
            **dict(item.split("=", 1) for item in printed.split("\0") if re.match(r"\w+=", item)),
        }

    def stop(self) -> None:
        """End it with all that is in it."""
        subprocess.run([*CLI, "sandbox", "down", "--dir", str(self.folder)], check=True, timeout=60)

    def renew(self) -> None:
        """Empty it: a third of the time that destroying a stack takes."""
        self.stop()
        self.start()

    def run(
        self,
        *command: str,
        cwd: Path = ROOT,
        fails: bool = False,
        more: Mapping[str, str] | None = None,
        text: str = "",
        without: tuple[str, ...] = (),
    ) -> str:
        """What the command prints on both streams. ``without``: variables that it does not get, by how they begin."""
        inherited = {name: value for name, value in self.environment.items() if not name.startswith(without)}
        done = subprocess.run(
            command,
            cwd=cwd,
            env={**inherited, **(more or {})},
            input=text,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        assert (done.returncode != 0) is fails, f"{' '.join(command)} exited {done.returncode}\n{done.stdout}"
        return done.stdout

    def account(self, service: str) -> Any:
        """A boto3 client of the stand-in account."""
        from eks_fsdp.sandbox.account import account_client

        return account_client(self.environment["AWS_ENDPOINT_URL"], service)


@pytest.fixture(scope="session")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    found = Sandbox(tmp_path_factory.mktemp("stacks") / "sandbox")
    found.start()
    try:
        yield found
    finally:
        found.stop()


@pytest.fixture
def empty_sandbox(sandbox: Sandbox) -> Sandbox:
    """The session's sandbox with nothing in it."""
    if sandbox.used:
        sandbox.renew()
    sandbox.used = True
    return sandbox


@dataclass(frozen=True)
class ForeignCluster:
    """An EKS cluster that no program of ours has made, with its surroundings."""

    name: str
    kubeconfig: str
    """Path."""
    vpc: str
    subnets: list[str]
    """Private, in us-west-2a and us-west-2b."""
    endpoint: str
    certificate_authority: str
    security_group: str
    node_role: str
    """ARN."""


def own_network(sandbox: Sandbox) -> tuple[str, list[str]]:
    """A VPC by hand: its id, and those of two subnets in us-west-2a and us-west-2b."""
    ec2 = sandbox.account("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnets = [
        ec2.create_subnet(VpcId=vpc, CidrBlock=f"10.0.{32 * i}.0/19", AvailabilityZone=f"us-west-2{zone}")["Subnet"]
        for i, zone in enumerate("ab")
    ]
    return vpc, [subnet["SubnetId"] for subnet in subnets]


def foreign_cluster(sandbox: Sandbox, name: str = "own", version: str = "1.34") -> ForeignCluster:
    """Make one, as somebody else would: by the API alone."""
    vpc, subnets = own_network(sandbox)
    role = sandbox.account("iam").create_role(RoleName="own-nodes", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
    made = sandbox.account("eks").create_cluster(
        name=name,
        version=version,
        roleArn=role,
        resourcesVpcConfig={"subnetIds": subnets},
        accessConfig={"authenticationMode": "API"},
    )["cluster"]
    return ForeignCluster(
        name=name,
        kubeconfig=sandbox.environment["KUBECONFIG"],
        vpc=vpc,
        subnets=subnets,
        endpoint=made["endpoint"],
        certificate_authority=made["certificateAuthority"]["data"],
        security_group=made["resourcesVpcConfig"]["clusterSecurityGroupId"],
        node_role=role,
    )


@dataclass(frozen=True)
class Stack:
    """A stack of the checkout's program, with its files in a folder of its own: no tracked file is touched."""

    sandbox: Sandbox
    folder: Path
    name: str

    def pulumi(self, *arguments: str, fails: bool = False, text: str = "") -> str:
        """Run the command line; what it prints."""
        return self.sandbox.run(
            "pulumi",
            *arguments,
            "--non-interactive",
            "--color=never",
            cwd=self.folder,
            fails=fails,
            text=text,
            # A backend of its own: names of stacks are tags, and a test may need one that another test has too.
            more={"PULUMI_BACKEND_URL": f"file://{self.folder}/backend"},
            without=("AWS_", "KUBECONFIG"),
        )

    @property
    def file(self) -> Path:
        """The stack's file."""
        return self.folder / f"Pulumi.{self.name}.yaml"

    def configure(self, **config: Any) -> None:
        """Set these values in place of what is there."""
        content = yaml.safe_load(self.file.read_text())
        content["config"] |= {f"eks-fsdp:{key}": value for key, value in config.items()}
        self.file.write_text(yaml.safe_dump(content, sort_keys=False))

    def resources(self) -> list[dict[str, Any]]:
        """Of the state."""
        return list(json.loads(self.pulumi("stack", "export"))["deployment"]["resources"])


MakeStack = Callable[..., Stack]


@pytest.fixture
def make_stack(sandbox: Sandbox, tmp_path: Path) -> MakeStack:
    """``make_stack(name, config)``: stack ``name`` of ``stacks/`` with these values in place of the file's own."""

    def make(name: str, config: Mapping[str, Any] | None = None) -> Stack:
        folder = tmp_path / name
        (folder / "backend").mkdir(parents=True)
        project = yaml.safe_load((ROOT / "Pulumi.yaml").read_text())
        project |= {"main": str(ROOT), "stackConfigDir": "."}
        project["runtime"]["options"]["virtualenv"] = sys.prefix
        (folder / "Pulumi.yaml").write_text(yaml.safe_dump(project, sort_keys=False))
        stack = Stack(sandbox, folder, name)
        shutil.copy(ROOT / "stacks" / stack.file.name, stack.file)
        stack.configure(**(config or {}))
        stack.pulumi("stack", "init", name)
        return stack

    return make
