"""The expiry on the real engine: it fires, and no `up` after it brings a GPU node back until it is renewed."""

from __future__ import annotations

import warnings
from datetime import UTC, datetime, timedelta
from typing import Any

import pulumi
import pytest

from eks_fsdp.components.guard import CostGuard, CostGuardArgs, as_of, due, expiry_tag
from eks_fsdp.sandbox.account import account_client
from eks_fsdp.sandbox.fire import fire, schedules
from eks_fsdp.spec.settings import Settings

from .conftest import Inline, Stand

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import pulumi_aws as aws

    _ = (aws.lambda_.Function, aws.scheduler.Schedule, aws.cloudwatch.LogGroup, aws.budgets.Budget, aws.iam.RolePolicy)

from eks_fsdp.components.budget import StackBudget, StackBudgetArgs
from eks_fsdp.components.gpu_nodes import GpuNodeGroup, GpuNodeGroupArgs

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
ZONES = ("us-west-2a", "us-west-2b")
EXPIRY = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
TRUST = '{"Version": "2012-10-17", "Statement": []}'


class Program:
    """A cluster with one GPU group and its guard, and what changes between its updates."""

    now = EXPIRY - timedelta(hours=1)
    expiry = EXPIRY
    owner = "first"

    def __call__(self) -> None:
        group = {"name": "p5", "instance_type": "p5.48xlarge", "zone": ZONES[0], "desired": 4, "min": 1, "max": 4}
        guard = {"expiry": self.expiry.isoformat(), "delete_after_hours": 6}
        settings = as_of(Settings.parse({"gpu_nodes": [group], "guard": guard}), self.now)
        tags = {"eksfsdp:stack": "s", "eksfsdp:owner": self.owner}
        vpc = aws.ec2.Vpc("vpc", cidr_block="10.0.0.0/16")
        subnets = [
            aws.ec2.Subnet(f"subnet-{zone}", vpc_id=vpc.id, cidr_block=f"10.0.{i}.0/24", availability_zone=zone).id
            for i, zone in enumerate(ZONES)
        ]
        role = aws.iam.Role("nodes", assume_role_policy=TRUST)
        cluster = aws.eks.Cluster("c", role_arn=role.arn, version="1.34", vpc_config={"subnet_ids": subnets})
        GpuNodeGroup(
            "gpu",
            GpuNodeGroupArgs(
                group=settings.gpu_nodes[0],
                cluster_name=cluster.name,
                kubernetes_version="1.34",
                node_role_arn=role.arn,
                subnet_id=subnets[0],
                security_group_ids=[cluster.vpc_config.cluster_security_group_id],
                tags=tags,
                changing_tags=expiry_tag(settings.guard),
                now=self.now,
            ),
        )
        planned = due(settings.guard, self.now)
        CostGuard("guard", CostGuardArgs(cluster_name=cluster.name, stack="s", due=planned, tags=tags))
        StackBudget("budget", StackBudgetArgs(stack="s", monthly_usd=500, email="team@example.com", tags=tags))
        pulumi.export("version", cluster.version)


def nodes(stand: Stand) -> list[int]:
    return [group["desired"] for group in stand.groups().values()]


def test_the_expiry_fires_and_no_update_brings_a_node_back(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program()
    stack = Inline(stand, program, monkeypatch)

    def client(service: str) -> Any:
        return account_client(stand.ports["account_url"], service)

    try:
        total = stack.up()["create"]
        assert nodes(stand) == [4]
        assert len(schedules(client)) == 2
        assert stack.up() == {"same": total}
        assert stack.refresh() == {"same": total}

        # A renewal before the end: the group's tags and two schedules, and neither template nor function.
        program.expiry = EXPIRY + timedelta(days=1)
        assert stack.preview() == {"same": total - 4, "update": 4}
        stack.up()

        fired = fire(client, "guard-scale")
        assert not fired.failed, fired
        assert list(fired.answer["done"].values()) == ["from 4 to 0"]
        assert fired.answer["failed"] == {}
        assert nodes(stand) == [0]

        program.now, program.owner = program.expiry, "second"
        stack.up()
        assert nodes(stand) == [0], "an update for another change"
        program.owner = "third"
        stack.stack.up(refresh=True)
        assert nodes(stand) == [0], "and one that sees what AWS has"
        assert [name.rpartition("/")[2][:12] for name in schedules(client)] == ["guard-delete"]

        program.expiry = program.now + timedelta(days=7)
        stack.up()
        assert nodes(stand) == [4], "until it is renewed"

        deleted = fire(client, "guard-delete").answer["done"]
        assert list(deleted.values()) == ["deleted"]
        assert nodes(stand) == []
        assert fire(client, "guard-delete").answer["done"] == {}
    finally:
        stack.stack.destroy()
    assert stand.left() == []
