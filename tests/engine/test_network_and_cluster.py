"""Network and cluster on the real engine: every shape that the settings know, changed in place, and gone without a trace."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import pulumi
import pytest

from eks_fsdp.components.access import access_entries
from eks_fsdp.components.cluster import Cluster, ClusterArgs
from eks_fsdp.components.network import Network, NetworkArgs
from eks_fsdp.sandbox.account import account_client
from eks_fsdp.spec.settings import AddonSettings, SystemNodeSettings, TeamSettings

from .conftest import Inline, Stand

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import pulumi_aws as aws
    import pulumi_eks as eks

    _ = (
        aws.ec2.Vpc,
        aws.eks.Addon,
        aws.iam.Role,
        aws.cloudwatch.LogGroup,
        aws.vpc.SecurityGroupIngressRule,
        eks.Cluster,
    )

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]
TAGS = {"eksfsdp:owner": "o", "eksfsdp:stack": "s"}
ROLE = "arn:aws:iam::123456789012:role/trainers"
KEY = "arn:aws:kms:us-west-2:123456789012:key/1"


class Wanted:
    """What the program below changes between runs."""

    nat: Any = "single"
    caller = "52.94.76.1/32"
    versions: dict[str, str] = {}
    logs: tuple[str, ...] = ("api",)


def _program(wanted: Wanted) -> None:
    network = Network(
        "n",
        NetworkArgs(
            cidr="10.0.0.0/20",
            zones=["us-west-2a", "usw2-az1"],
            region="us-west-2",
            nat=wanted.nat,
            endpoints=["ecr", "sts"],
            pod_cidr="100.64.0.0/16",
            flow_logs=True,
            tags=TAGS,
        ),
    )
    cluster = Cluster(
        "c",
        ClusterArgs(
            cluster_name="eks-1",
            kubernetes_version="1.34",
            region="us-west-2",
            vpc_id=network.vpc_id,
            control_plane_subnet_ids=network.intra_subnet_ids,
            node_subnet_ids=list(network.private_subnet_ids.values()),
            pod_subnet_ids={"us-west-2a": network.pod_subnet_ids["us-west-2a"]},
            system_nodes=SystemNodeSettings(desired=1),
            allowed_cidrs=["198.51.100.0/24", wanted.caller],
            access=access_entries({}, {"red": TeamSettings(principal_arns=[ROLE])}),
            kms_key_arn=KEY,
            logs=wanted.logs,
            addons=AddonSettings(cloudwatch=True, versions=wanted.versions),
            fsx=True,
            tags=TAGS,
        ),
        pulumi.ResourceOptions(depends_on=[network]),
    )
    pulumi.export("kubeconfig", cluster.kubeconfig)


def test_the_life_of_network_and_cluster(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = Wanted()
    stack = Inline(stand, lambda: _program(wanted), monkeypatch)
    client: Any = account_client(stand.ports["account_url"], "eks")
    try:
        made = stack.up()
        total = made["create"]
        assert stack.refresh() == {"same": total}
        _as_asked(client)
        config = json.loads(stack.outputs()["kubeconfig"])
        assert config["users"][0]["user"]["exec"]["command"] == "aws"

        # The next runner's address takes the place of this one's, and touches nothing else.
        wanted.caller = "52.94.76.2/32"
        assert stack.up() == {"same": total - 1, "update": 1}
        allowed = client.describe_cluster(name="eks-1")["cluster"]["resourcesVpcConfig"]["publicAccessCidrs"]
        assert allowed == ["198.51.100.0/24", "52.94.76.2/32"]

        # Another NAT gateway, and one add-on after the other: nothing that is there is replaced.
        wanted.nat, wanted.versions = "per-zone", {"vpc-cni": "v1.20.4-eksbuild.1"}
        changed = stack.up()
        assert set(changed) <= {"same", "create", "update", "replace"}
        # Associations alone: the stand-in makes them anew, as it knows no ReplaceRouteTableAssociation.
        assert changed.get("replace", 0) == 2
        assert (
            client.describe_addon(clusterName="eks-1", addonName="vpc-cni")["addon"]["addonVersion"]
            == "v1.20.4-eksbuild.1"
        )
    finally:
        stack.stack.destroy()
    assert stand.left() == []


def _as_asked(client: Any) -> None:
    """What the account was told of the cluster."""
    plane = client.describe_cluster(name="eks-1")["cluster"]
    assert plane["accessConfig"]["authenticationMode"] == "API"
    assert plane["encryptionConfig"] == [{"resources": ["secrets"], "provider": {"keyArn": KEY}}]
    entry = client.describe_access_entry(clusterName="eks-1", principalArn=ROLE)["accessEntry"]
    assert entry["kubernetesGroups"] == ["eksfsdp:team:red"]
    values = json.loads(client.describe_addon(clusterName="eks-1", addonName="vpc-cni")["addon"]["configurationValues"])
    pods = values["eniConfig"]["subnets"]["us-west-2a"]
    assert pods["id"].startswith("subnet-")
    assert pods["securityGroups"] == [plane["resourcesVpcConfig"]["clusterSecurityGroupId"]]
    accounts = {a["serviceAccount"] for a in client.list_pod_identity_associations(clusterName="eks-1")["associations"]}
    assert accounts == {"ebs-csi-controller-sa", "cloudwatch-agent"}


PROGRAM = """
import pulumi, pulumi_aws as aws
provider = aws.Provider("p", region="us-west-2", allowed_account_ids=["999999999999"])
aws.ec2.Vpc("vpc", cidr_block="10.0.0.0/16", opts=pulumi.ResourceOptions(provider=provider))
"""


def test_another_accounts_credentials_touch_nothing(stand: Stand, tmp_path: Path) -> None:
    runtime = {"name": "python", "options": {"virtualenv": sys.prefix}}
    (tmp_path / "Pulumi.yaml").write_text(json.dumps({"name": "other", "runtime": runtime}))
    (tmp_path / "__main__.py").write_text(PROGRAM)
    stand.pulumi(tmp_path, "stack", "init", "dev")
    told = stand.pulumi(tmp_path, "up", "--yes", "--skip-preview", fails=True)
    assert "AWS account ID not allowed: 123456789012" in told
    assert stand.left() == []
