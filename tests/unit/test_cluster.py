"""The cluster: add-ons, access, the way to its API, and what is refused."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from datetime import UTC, date, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pulumi
import pytest

from eks_fsdp.components.access import AccessEntry, Grant, access_entries, entry_name
from eks_fsdp.components.addons import PodNetwork, addons_after_nodes, addons_before_nodes, cni_configuration
from eks_fsdp.components.caller_address import STANDS_IN, NoAddress, allowed_cidrs, caller_address
from eks_fsdp.components.cluster import SYSTEM_NODES, Cluster, ClusterArgs, eks_name
from eks_fsdp.components.kubeconfig import exec_kubeconfig
from eks_fsdp.components.platform import TrainingPlatform, TrainingPlatformArgs
from eks_fsdp.sandbox.account import Account
from eks_fsdp.sandbox.layout import Layout
from eks_fsdp.sandbox.user_environment import install_commands
from eks_fsdp.spec.addons import release
from eks_fsdp.spec.base import SettingsError
from eks_fsdp.spec.rules.cluster import support_ended
from eks_fsdp.spec.settings import AccessEntrySettings, AddonSettings, Settings, SystemNodeSettings, TeamSettings
from eks_fsdp.spec.versions import ADDON_VERSIONS, KUBERNETES_VERSION

from .conftest import Declare, Declared
from .machine_room_double import FakeMachineRoom

TAGS = {"eksfsdp:owner": "o", "eksfsdp:stack": "s", "other": "x"}
NOW = datetime(2026, 12, 1, tzinfo=UTC)
ROLE = "arn:aws:iam::123456789012:role/deep/trainers"


def refused(**values: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        Settings.parse(values)
    return str(caught.value)


# Versions


def test_a_kubernetes_version_that_eks_no_longer_offers_is_refused_with_those_that_it_does() -> None:
    told = refused(cluster={"kubernetes_version": "1.31"})
    assert (
        "cluster.kubernetes_version: '1.31' is no longer offered by EKS; accepted: 1.32 (standard support until" in told
    )
    late = Settings.parse({"cluster": {"kubernetes_version": "1.33"}})
    assert list(support_ended(late, date(2027, 7, 29))) == []
    (problem,) = support_ended(late, date(2027, 7, 30))
    assert "since 2027-07-29; accepted: 1.34" in problem


def test_every_add_on_has_a_version_for_the_programs_kubernetes() -> None:
    for pin in ADDON_VERSIONS.values():
        release(pin if isinstance(pin, str) else pin[KUBERNETES_VERSION])
    told = refused(cluster={"kubernetes_version": "1.41"})
    assert (
        "cluster.addons.versions.kube-proxy: missing, and the program has no version of its own for Kubernetes 1.41"
        in told
    )
    versions = {"kube-proxy": "v1.41.0-eksbuild.1", "coredns": "v1.20.0-eksbuild.1"}
    Settings.parse({"cluster": {"kubernetes_version": "1.41", "addons": {"versions": versions}}})


def test_add_ons_that_are_not_known_are_refused_with_the_nearest_name() -> None:
    assert "did you mean 'vpc-cni'?" in refused(cluster={"addons": {"versions": {"vpc-cnl": "v1.22.4-eksbuild.3"}}})
    assert "'1.22' is not an add-on's version" in refused(cluster={"addons": {"versions": {"vpc-cni": "1.22"}}})


def test_a_cni_too_old_for_efa_only_interfaces_is_refused() -> None:
    group = {"name": "g", "instance_type": "p5.48xlarge", "zone": "us-west-2a"}
    old = {"addons": {"versions": {"vpc-cni": "v1.18.4-eksbuild.9"}}}
    told = refused(cluster=old, gpu_nodes=[group])
    assert "cluster.addons.versions.vpc-cni: 'v1.18.4-eksbuild.9' is too old for the EFA-only interfaces" in told
    # One interface with an address, and none without: any version does.
    Settings.parse({"cluster": old, "gpu_nodes": [{**group, "instance_type": "g5.8xlarge"}]})
    new = {"addons": {"versions": {"vpc-cni": "v1.18.5-eksbuild.1"}}}
    Settings.parse({"cluster": new, "gpu_nodes": [group]})


# Add-ons


def test_the_configuration_of_add_ons(golden: Any) -> None:
    pods = PodNetwork(subnet_ids={"us-west-2a": "subnet-1", "us-west-2b": "subnet-2"}, security_group_ids=["sg-1"])
    settings = AddonSettings(cloudwatch=True)
    early = addons_before_nodes(settings, "1.34", tags=TAGS, region="us-west-2", pods=pods)
    late = addons_after_nodes(settings, "1.34", tags=TAGS, node_selector=SYSTEM_NODES, fsx=True)
    shown = {a.name: {"version": a.version, "configuration": a.configuration, "rights": vars(a.rights) if a.rights else None}
             for a in (*early, *late)}  # fmt: skip
    golden("addons.json", json.dumps(shown, indent=2) + "\n")


def test_the_cni_without_prefix_delegation_and_with_zones_by_id() -> None:
    plain = cni_configuration(AddonSettings(prefix_delegation=False), TAGS, "us-west-2", None)
    assert plain["env"] == {
        "ADDITIONAL_ENI_TAGS": '{"eksfsdp:owner": "o", "eksfsdp:stack": "s"}',
        "ENABLE_PREFIX_DELEGATION": "false",
        "MINIMUM_IP_TARGET": "20",
        "WARM_IP_TARGET": "2",
    }
    pods = PodNetwork(subnet_ids={"usw2-az1": "subnet-1"}, security_group_ids=[])
    by_id = cni_configuration(AddonSettings(), TAGS, "us-west-2", pods)
    assert by_id["env"]["ENI_CONFIG_LABEL_DEF"] == "topology.k8s.aws/zone-id"


# Access


def test_one_entry_for_each_principal_with_all_that_it_may_do() -> None:
    access = {
        "ops": AccessEntrySettings(principal_arn=ROLE, policy="view"),
        "more": AccessEntrySettings(principal_arn=ROLE, policy="edit", namespaces=["b"]),
        "again": AccessEntrySettings(principal_arn=ROLE, policy="edit", namespaces=["a"]),
    }
    teams = {"red": TeamSettings(principal_arns=[ROLE]), "blue": TeamSettings(principal_arns=[ROLE])}
    policy = "arn:aws:eks::aws:cluster-access-policy/"
    assert access_entries(access, teams) == {
        entry_name(ROLE): AccessEntry(
            principal_arn=ROLE,
            groups=("eksfsdp:team:red", "eksfsdp:team:blue"),
            grants={
                "view": Grant(policy_arn=f"{policy}AmazonEKSViewPolicy"),
                "edit": Grant(policy_arn=f"{policy}AmazonEKSEditPolicy", namespaces=("a", "b")),
            },
        )
    }
    assert entry_name(ROLE).startswith("role-trainers-")


def test_a_policy_for_the_whole_cluster_is_not_narrowed_by_a_second_entry() -> None:
    narrow = AccessEntrySettings(principal_arn=ROLE, policy="edit", namespaces=["a"])
    wide = AccessEntrySettings(principal_arn=ROLE, policy="edit")
    for order in ({"1": narrow, "2": wide}, {"1": wide, "2": narrow}):
        (entry,) = access_entries(order, {}).values()
        assert entry.grants["edit"].namespaces == ()


# The way to the API


class Page:
    """A page that tells an address."""

    def __init__(self) -> None:
        self.answer = "52.94.76.1\n"
        page = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(page.answer.encode())

            def log_message(self, *args: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    page = Page()
    thread = threading.Thread(target=page.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield page
    finally:
        page.server.shutdown()
        thread.join()
        page.server.server_close()


def api(url: str, **more: Any) -> Settings:
    return Settings.parse({"cluster": {"api_access": {"caller_ip_url": url, **more}}})


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_the_callers_address_is_added_and_replaces_the_one_before(page: Page) -> None:
    settings = api(page.url, allowed_cidrs=["198.51.100.0/24"])
    assert allowed_cidrs(settings, preview=False) == ["198.51.100.0/24", "52.94.76.1/32"]
    # The next job of a hosted runner comes from elsewhere.
    page.answer = "52.94.76.2"
    assert allowed_cidrs(settings, preview=False) == ["198.51.100.0/24", "52.94.76.2/32"]
    assert allowed_cidrs(api(page.url, allowed_cidrs=["52.94.76.2/32"]), preview=True) == ["52.94.76.2/32"]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("2001:db8::1", "EKS takes IPv4 ranges"),
        ("10.1.2.3", "no address of the internet"),
        ("<html>sign in</html>", "the answer is no address: '<html>sign in</html>'"),
    ],
)
def test_an_answer_that_is_no_address_of_the_internet_is_refused(page: Page, answer: str, why: str) -> None:
    page.answer = answer
    with pytest.raises(NoAddress, match=why):
        caller_address(page.url)


def test_without_an_answer_an_update_ends_and_a_preview_goes_on(monkeypatch: pytest.MonkeyPatch, page: Page) -> None:
    warned: list[str] = []
    monkeypatch.setattr(pulumi.log, "warn", warned.append)
    url = f"http://127.0.0.1:{closed_port()}/"
    with pytest.raises(
        SettingsError, match=r"cluster\.api_access\.caller_ip: 'auto', and http.* accepted: another page"
    ):
        allowed_cidrs(api(url), preview=False)
    assert allowed_cidrs(api(url, allowed_cidrs=["198.51.100.0/24"]), preview=True) == ["198.51.100.0/24"]
    # Never nothing: EKS would take that for the whole internet.
    assert allowed_cidrs(api(url), preview=True) == [STANDS_IN]
    assert len(warned) == 2


def test_nobody_is_asked_where_no_address_is_wanted() -> None:
    url = "http://127.0.0.1:1/"
    assert allowed_cidrs(api(url, public=False), preview=False) == []
    assert allowed_cidrs(api(url, caller_ip="none", allowed_cidrs=["198.51.100.0/24"]), preview=False) == [
        "198.51.100.0/24"
    ]


def test_the_sandboxs_aws_command_signs_in_to_the_live_cluster(tmp_path: Path) -> None:
    layout = Layout.of(tmp_path)
    layout.create()
    binaries = tmp_path / "binaries"
    binaries.mkdir()
    for name in ("pulumi", "kubectl", "pulumi-resource-kubernetes"):
        (binaries / name).touch()
    install_commands(layout, binaries)
    user = json.loads(exec_kubeconfig("eks-1", "https://x", "Q0E=", "us-west-2"))["users"][0]["user"]["exec"]

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [layout.bin / "aws", *arguments],
            env={"PATH": str(layout.bin)},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    assert "no cluster is there" in run(*user["args"]).stderr
    config = {"current-context": "eks-1", "users": [{"user": {"token": "t"}}]}
    layout.kubeconfig.write_text(json.dumps(config))
    signed = json.loads(run(*user["args"]).stdout)
    assert (signed["apiVersion"], signed["status"]["token"]) == (user["apiVersion"], "t")
    assert "there is no cluster 'other'" in run("eks", "get-token", "--cluster-name", "other").stderr
    assert "it knows `aws eks get-token` alone" in run("s3", "ls").stderr
    # Where the AWS CLI is installed, the rest is its own.
    real = tmp_path / "real"
    real.mkdir()
    (real / "aws").write_text("#!/bin/sh\necho real $1\n")
    (real / "aws").chmod(0o755)
    path = os.pathsep.join([str(layout.bin), str(real)])
    done = subprocess.run([layout.bin / "aws", "s3"], env={"PATH": path}, capture_output=True, text=True, check=True)
    assert done.stdout == "real s3\n"


# What is declared


def declare_cluster(declare_program: Declare, **values: Any) -> dict[tuple[str, str], Declared]:
    args = {
        "kubernetes_version": "1.34",
        "region": "us-west-2",
        "vpc_id": "vpc-01234567",
        "control_plane_subnet_ids": ["subnet-1", "subnet-2"],
        "node_subnet_ids": ["subnet-3", "subnet-4"],
        "system_nodes": SystemNodeSettings(),
        "allowed_cidrs": ["198.51.100.0/24"],
        "tags": TAGS,
        **values,
    }
    return {(r.type.rpartition(":")[2], r.name): r for r in declare_program(lambda: Cluster("c", ClusterArgs(**args)))}


def test_the_control_plane(declare_program: Declare) -> None:
    made = declare_cluster(
        declare_program,
        cluster_name="eks-1",
        access=access_entries({}, {"red": TeamSettings(principal_arns=[ROLE])}),
        kms_key_arn="arn:aws:kms:us-west-2:123456789012:key/1",
        logs=["api"],
        log_retention_days=7,
    )
    plane, logs = made["Cluster", "c-eks"], made["LogGroup", "c-logs"]
    assert plane.inputs["endpointPrivateAccess"] is True
    assert plane.inputs["publicAccessCidrs"] == ["198.51.100.0/24"]
    assert plane.inputs["encryptionConfigKeyArn"] == "arn:aws:kms:us-west-2:123456789012:key/1"
    assert plane.inputs["subnetIds"] == ["subnet-1", "subnet-2"]
    (entry,) = plane.inputs["accessEntries"].values()
    assert (entry["principalArn"], entry["kubernetesGroups"]) == (ROLE, ["eksfsdp:team:red"])
    assert (logs.inputs["name"], logs.inputs["retentionInDays"]) == ("/aws/eks/eks-1/cluster", 7)
    assert logs.urn in plane.depends_on


def test_without_a_public_endpoint_and_logs(declare_program: Declare) -> None:
    made = declare_cluster(declare_program, public_endpoint=False, allowed_cidrs=[])
    plane = made["Cluster", "c-eks"].inputs
    assert plane["endpointPublicAccess"] is False
    assert not {"publicAccessCidrs", "encryptionConfigKeyArn", "enabledClusterLogTypes", "accessEntries"} & set(plane)
    assert ("LogGroup", "c-logs") not in made
    with pytest.raises(ValueError, match="EKS takes for the whole internet"):
        declare_cluster(declare_program, allowed_cidrs=[])


def test_nodes_wait_for_network_and_identity_and_the_rest_waits_for_nodes(declare_program: Declare) -> None:
    made = declare_cluster(declare_program, fsx=True)
    nodes = made["ManagedNodeGroup", "c-system"]
    early = {made["Addon", f"c-node-addons-{n}"].urn for n in ("vpc-cni", "kube-proxy", "eks-pod-identity-agent")}
    assert early <= set(nodes.depends_on)
    for name in ("coredns", "aws-ebs-csi-driver", "aws-fsx-csi-driver", "eks-node-monitoring-agent"):
        addon = made["Addon", f"c-addons-{name}"]
        assert nodes.urn in addon.depends_on
        assert addon.deleted_with == made["Cluster", "c-eks"].urn
    rights = made["PodIdentityAssociation", "c-addons-aws-ebs-csi-driver-association"]
    assert rights.urn in made["Addon", "c-addons-aws-ebs-csi-driver"].depends_on
    assert ("Addon", "c-addons-amazon-cloudwatch-observability") not in made


def test_system_nodes_are_tagged_down_to_their_volumes(declare_program: Declare) -> None:
    made = declare_cluster(declare_program)
    template = made["LaunchTemplate", "c-system"].inputs
    assert {s["resourceType"] for s in template["tagSpecifications"]} == {"instance", "volume", "network-interface"}
    assert all(s["tags"].items() >= TAGS.items() for s in template["tagSpecifications"])
    assert template["metadataOptions"]["httpTokens"] == "required"
    assert template["metadataOptions"]["httpPutResponseHopLimit"] == 2
    assert template["blockDeviceMappings"][0]["ebs"]["encrypted"] == "true"
    group = made["ManagedNodeGroup", "c-system"].inputs
    assert (group["version"], group["subnetIds"]) == ("1.34", ["subnet-3", "subnet-4"])


def test_the_kubeconfig_holds_no_secret() -> None:
    config = json.loads(exec_kubeconfig("c", "https://x", "Q0E=", "eu-west-1"))
    user = config["users"][0]["user"]
    assert user.keys() == {"exec"}
    assert user["exec"]["args"] == [
        "--region", "eu-west-1", "eks", "get-token", "--cluster-name", "c", "--output", "json",
    ]  # fmt: skip
    assert eks_name("eks-fsdp-org.dev/1") == "eks-fsdp-org-dev-1"


def test_the_users_own_network_is_used_as_it_is(declare_program: Declare) -> None:
    own = {
        "vpc_id": "vpc-01234567",
        "private_subnets": {"us-west-2a": "subnet-0123456789", "us-west-2b": "subnet-1123456789"},
        "efa_security_group": "sg-0123456789",
    }
    group = {"name": "g", "instance_type": "p5.48xlarge", "zone": "us-west-2b"}
    access = {"api_access": {"caller_ip": "none", "allowed_cidrs": ["198.51.100.0/24"]}}
    values = {
        "network": {"existing": own},
        "gpu_nodes": [group],
        "cluster": access,
        "allowed_account_ids": ["123456789012"],
    }
    args = TrainingPlatformArgs(settings=Settings.parse(values), stack="unit", now=NOW)
    made = {(r.type.rpartition(":")[2], r.name): r for r in declare_program(lambda: TrainingPlatform("p", args))}
    assert not {kind for kind, _ in made} & {"Vpc", "Subnet", "EfaSecurityGroup", "SecurityGroup", "NatGateway"}
    assert made["NodeGroup", "p-gpu-g-nodes"].inputs["subnetIds"] == ["subnet-1123456789"]
    interfaces = made["LaunchTemplate", "p-gpu-g-template"].inputs["networkInterfaces"]
    assert all(i["securityGroups"] == ["sg-cluster", "sg-0123456789"] for i in interfaces)
    assert made["Cluster", "p-cluster-eks"].inputs["subnetIds"] == ["subnet-0123456789", "subnet-1123456789"]
    assert made["aws", "p-aws"].inputs["allowedAccountIds"] == '["123456789012"]'


def test_an_existing_cluster_by_name_is_asked_of_eks(declare_program: Declare) -> None:
    off = {"mode": "none"}
    values = {
        "cluster": {"mode": "existing", "name": "theirs"},
        "image": {"repository": "registry.example/trainer"},
        "monitoring": off,
        "etcd": off,
        "training_operator": off,
        "queue": off,
    }
    args = TrainingPlatformArgs(settings=Settings.parse(values), stack="unit", now=NOW)
    made = {(r.type.rpartition(":")[2], r.name): r for r in declare_program(lambda: TrainingPlatform("p", args))}
    provider = made["kubernetes", "p-kubernetes"].inputs
    assert provider["clusterIdentifier"] == "arn:aws:eks:us-west-2:123456789012:cluster/theirs"
    assert json.loads(provider["kubeconfig"])["clusters"][0]["cluster"]["server"] == "https://theirs"
    assert not [name for kind, name in made if kind in ("Cluster", "Network", "NodeGroup")]
    seen = made["TrainingPlatform", "p"].outputs
    assert seen["cluster_name"] == "theirs"


def test_what_has_a_volume_of_aws_goes_before_the_cluster(declare_program: Declare) -> None:
    access = {"api_access": {"caller_ip": "none", "allowed_cidrs": ["198.51.100.0/24"]}}
    for persistent in (False, True):
        values = {"cluster": access, "etcd": {"persistent": persistent}, "monitoring": {"mode": "none"}}
        args = TrainingPlatformArgs(settings=Settings.parse(values), stack="unit", now=NOW)
        made = {r.name: r for r in declare_program(lambda args=args: TrainingPlatform("p", args))}  # type: ignore[misc]
        # A part inherits it from its component.
        ends_with = {made[name].deleted_with for name in ("p-etcd", "p-etcd-server")} - {""}
        assert ends_with == (set() if persistent else {made["p-cluster-eks"].urn})


# The account


def test_the_account_makes_the_log_group_that_is_missing_and_keeps_it() -> None:
    account = Account(FakeMachineRoom(), cluster_port=6443)
    account.start()
    try:
        ec2: Any = account.client("ec2")
        eks: Any = account.client("eks")
        logs: Any = account.client("logs")
        vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
        subnets = [
            ec2.create_subnet(VpcId=vpc, CidrBlock=f"10.0.{i}.0/24", AvailabilityZone=f"us-west-2{z}")["Subnet"][
                "SubnetId"
            ]
            for i, z in enumerate("ab")
        ]
        kept = {"clusterLogging": [{"types": ["api"], "enabled": True}]}
        role = "arn:aws:iam::123456789012:role/x"
        eks.create_cluster(name="c", roleArn=role, resourcesVpcConfig={"subnetIds": subnets}, logging=kept)
        eks.delete_cluster(name="c")
        assert [g["logGroupName"] for g in logs.describe_log_groups()["logGroups"]] == ["/aws/eks/c/cluster"]
    finally:
        account.stop()
