"""GPU groups on the real engine: what rolls them is refused while a job runs, and what does not touches little."""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pulumi
import pytest
from pulumi import automation

from eks_fsdp.components.gpu_nodes import GpuNodeGroup, GpuNodeGroupArgs
from eks_fsdp.sandbox.account import account_client
from eks_fsdp.spec.settings import GpuNodeGroupSettings

from .conftest import Inline, Stand

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import pulumi_aws as aws

    _ = (aws.ec2.Vpc, aws.eks.NodeGroup, aws.iam.Role, aws.autoscaling.Tag)

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]


class Api:
    """As much of a Kubernetes API as is asked before nodes are replaced: nodes and pods, without a login."""

    def __init__(self) -> None:
        self.pods: list[tuple[str, str, str, str]] = []
        """Namespace, job, node and phase."""
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                url = urlsplit(self.path)
                query = {key: values[0] for key, values in parse_qs(url.query).items()}
                body = json.dumps(api.answer(url.path, query)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, path: str, query: dict[str, str]) -> dict[str, Any]:
        if path == "/api/v1/nodes":
            assert query["labelSelector"] == "eksfsdp/gpu-group=p5"
            items: list[dict[str, Any]] = [{"metadata": {"name": f"node-{i}"}} for i in range(2)]
            return {"kind": "NodeList", "apiVersion": "v1", "metadata": {}, "items": items}
        assert path == "/api/v1/pods"
        assert query["labelSelector"] == "eksfsdp/job"
        over = [part.removeprefix("status.phase!=") for part in query["fieldSelector"].split(",")]
        items = [
            {
                "metadata": {"name": "w", "namespace": namespace, "labels": {"eksfsdp/job": job}},
                "spec": {"nodeName": node, "containers": [{"name": "pytorch"}]},
                "status": {"phase": phase},
            }
            for namespace, job, node, phase in self.pods
            if phase not in over
        ]
        return {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}

    def kubeconfig(self) -> str:
        cluster = {"server": f"http://127.0.0.1:{self.server.server_port}"}
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "c", "cluster": cluster}],
                "users": [{"name": "c", "user": {}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
                "current-context": "c",
            }
        )


@pytest.fixture
def api() -> Iterator[Api]:
    made = Api()
    yield made
    made.server.shutdown()
    made.server.server_close()


class World:
    """A cluster in the stand-in account, and a program with one GPU group on it."""

    def __init__(self, stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ec2, self.eks, self.scaling, iam = (
            account_client(stand.ports["account_url"], service) for service in ("ec2", "eks", "autoscaling", "iam")
        )
        ec2: Any = self.ec2
        vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
        self.subnets = {
            zone: ec2.create_subnet(VpcId=vpc, CidrBlock=f"10.0.{i}.0/24", AvailabilityZone=zone)["Subnet"]["SubnetId"]
            for i, zone in enumerate(("us-west-2a", "us-west-2b"))
        }
        self.security = ec2.create_security_group(GroupName="efa", Description="efa", VpcId=vpc)["GroupId"]
        client: Any = iam
        self.role = client.create_role(RoleName=f"nodes-{vpc}", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
        eks: Any = self.eks
        eks.create_cluster(name="c", roleArn=self.role, resourcesVpcConfig={"subnetIds": list(self.subnets.values())})
        self.group: dict[str, Any] = {"name": "p5", "instance_type": "p5.48xlarge", "zone": "us-west-2a", "max": 4}
        self.tags = {"eksfsdp:owner": "first", "eksfsdp:stack": "test"}
        self.kubeconfig = ""
        self.now = datetime.now(UTC)
        self.stack = Inline(stand, self._program, monkeypatch)

    def _program(self) -> None:
        made = GpuNodeGroup(
            "gpu",
            GpuNodeGroupArgs(
                group=GpuNodeGroupSettings.parse(self.group),
                cluster_name="c",
                kubernetes_version="1.34",
                node_role_arn=self.role,
                subnet_id=self.subnets[self.group["zone"]],
                security_group_ids=[self.security],
                tags=self.tags,
                now=self.now,
                kubeconfig=pulumi.Output.secret(self.kubeconfig),
            ),
        )
        pulumi.export("group", made.node_group_name)

    def refused(self, *words: str, verb: str = "preview") -> None:
        """The program as it stands now is refused at ``verb`` with these words."""
        with pytest.raises(automation.CommandError) as error:
            getattr(self.stack, verb)()
        shown = str(error.value)
        assert all(word in shown for word in words), shown
        assert "Traceback" not in shown

    def described(self) -> dict[str, Any]:
        eks: Any = self.eks
        (name,) = eks.list_nodegroups(clusterName="c")["nodegroups"]
        return dict(eks.describe_nodegroup(clusterName="c", nodegroupName=name)["nodegroup"])


@pytest.fixture
def world(shared_stand: Stand, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(shared_stand, monkeypatch)
    yield made
    # There is one control plane at a time.
    made.stack.stack.destroy()
    eks: Any = made.eks
    eks.delete_cluster(name="c")


def test_what_rolls_a_group_is_refused_while_a_job_runs_on_it(world: World, api: Api) -> None:
    world.kubeconfig = api.kubeconfig()
    world.group["desired"] = 2
    total = world.stack.up()["create"]
    first = world.described()
    api.pods = [("training", "llama", "node-1", "Running"), ("training", "elsewhere", "node-9", "Running")]

    # The count is one update of the node group, whoever runs on it.
    world.group["desired"] = 4
    assert world.stack.up() == {"same": total - 1, "update": 1}

    # A new owner makes no new version of the template, for which EKS would replace every node.
    world.tags = {**world.tags, "eksfsdp:owner": "second"}
    assert set(world.stack.up()) == {"same", "update"}
    assert world.described()["launchTemplate"] == first["launchTemplate"]
    scaling: Any = world.scaling
    (owner,) = [tag for tag in scaling.describe_tags()["Tags"] if tag["Key"] == "eksfsdp:owner"]
    assert (owner["Value"], owner["PropagateAtLaunch"]) == ("second", True)
    world.group["root_volume_gib"] = 300
    told = ("'p5'", "root_volume_gib", "training/llama", "allow_disruption")
    world.refused(*told)
    world.refused(*told, verb="up")
    assert world.described()["launchTemplate"] == first["launchTemplate"], "nothing was done"

    world.group |= {"root_volume_gib": 500, "ami": {"release": "1.34.9-20260810"}}
    world.refused("ami.release", "training/llama")

    # Another zone means another group: this too is seen before the old one is touched.
    world.group |= {"ami": {}, "zone": "us-west-2b"}
    world.refused("zone", "training/llama")

    world.group |= {"zone": "us-west-2a", "root_volume_gib": 300, "allow_disruption": True}
    assert world.stack.preview()["update"] == 2
    world.group["allow_disruption"] = False
    api.pods = [("training", "llama", "node-1", "Succeeded")]
    assert world.stack.up()["update"] == 2
    assert world.described()["launchTemplate"]["version"] == "2"


def test_whether_a_job_runs_must_be_known_to_roll_a_group(world: World, api: Api) -> None:
    world.kubeconfig = api.kubeconfig()
    world.stack.up()
    api.server.shutdown()
    api.server.server_close()
    world.group["root_volume_gib"] = 300
    assert world.stack.preview()["update"] == 2, "a preview without a way to the cluster warns"
    world.refused("whether a job runs", "allow_disruption", verb="up")
    world.group["allow_disruption"] = True
    world.stack.up()
    # The state holds no hook that would stop the destroy after the test, which runs no program.


def test_a_reserved_group_is_not_deleted_from_under_a_job_to_make_way_for_its_successor(world: World, api: Api) -> None:
    world.kubeconfig = api.kubeconfig()
    ec2: Any = world.ec2
    reserved = {
        zone: ec2.create_capacity_reservation(
            InstanceType="p5.48xlarge", InstancePlatform="Linux/UNIX", AvailabilityZone=zone, InstanceCount=2
        )["CapacityReservation"]["CapacityReservationId"]
        for zone in world.subnets
    }

    def free() -> list[int]:
        found = ec2.describe_capacity_reservations(CapacityReservationIds=list(reserved.values()))
        return [item["AvailableInstanceCount"] for item in found["CapacityReservations"]]

    def choose(zone: str) -> None:
        world.group |= {"zone": zone, "desired": 2, "capacity": {"kind": "odcr", "reservation_id": reserved[zone]}}

    choose("us-west-2a")
    world.stack.up()
    assert world.described()["updateConfig"]["updateStrategy"] == "MINIMAL"
    assert (world.described()["health"]["issues"], free()) == ([], [0, 2])
    api.pods = [("training", "llama", "node-1", "Running")]
    choose("us-west-2b")
    world.refused("zone", "capacity", "training/llama", verb="up")
    assert free() == [0, 2], "the group is still there"
    api.pods = []
    assert world.stack.up()["replace"] == 2, "the group, and the tag of its Auto Scaling group"
    assert free() == [2, 0]


def test_a_block_that_has_not_begun_starts_its_nodes_by_itself(world: World, api: Api) -> None:
    world.kubeconfig = api.kubeconfig()
    ec2: Any = world.ec2
    offering = ec2.describe_capacity_block_offerings(
        InstanceType="p5.48xlarge", InstanceCount=2, CapacityDurationHours=48
    )["CapacityBlockOfferings"][0]
    block = ec2.purchase_capacity_block(
        CapacityBlockOfferingId=offering["CapacityBlockOfferingId"], InstancePlatform="Linux/UNIX"
    )["CapacityReservation"]
    assert block["State"] == "scheduled"
    world.group["capacity"] = {
        "kind": "capacity-block",
        "reservation_id": block["CapacityReservationId"],
        "starts": block["StartDate"].isoformat(),
        "ends": block["EndDate"].isoformat(),
        "scheduled_nodes": 2,
    }
    world.stack.up()
    scaling: Any = world.scaling
    actions = scaling.describe_scheduled_actions()["ScheduledUpdateGroupActions"]
    assert sorted((a["StartTime"], a["DesiredCapacity"], a["MaxSize"]) for a in actions) == [
        (block["StartDate"], 2, 4),
        (block["EndDate"] - timedelta(minutes=60), 0, 4),
    ]
    assert world.described()["capacityType"] == "CAPACITY_BLOCK"
    # The schedule sets the size, and an update does not take it back.
    eks: Any = world.eks
    name = world.described()["nodegroupName"]
    sizes = {"minSize": 0, "maxSize": 4, "desiredSize": 2}
    eks.update_nodegroup_config(clusterName="c", nodegroupName=name, scalingConfig=sizes)
    world.stack.refresh()
    world.now = block["StartDate"] + timedelta(minutes=1)
    changes = world.stack.up()
    assert world.described()["scalingConfig"]["desiredSize"] == 2
    assert changes.get("delete") == 1, "what has run is no longer declared"
