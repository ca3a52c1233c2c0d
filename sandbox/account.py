"""The stand-in AWS account: moto behind HTTP on 127.0.0.1, extended, with a machine room behind its EKS."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

import boto3
import moto.autoscaling.urls
import moto.backends
import moto.codebuild.urls
import moto.ec2.urls
import moto.eks.urls
import moto.fsx.urls
import moto.resourcegroups.urls
import moto.ssm.urls
from botocore.client import BaseClient
from botocore.config import Config
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

from .account_autoscaling import SCALING, SandboxAutoScalingResponse
from .account_capacity import CAPACITY
from .account_codebuild import SandboxCodeBuildResponse
from .account_ec2 import PLACEMENT_GROUPS, SandboxEC2Response, SandboxSSMResponse
from .account_eks import SandboxEKSResponse, kubeconfig
from .account_eks_parts import CURRENT, Hooks
from .account_fsx import DATA_REPOSITORIES, SandboxFSxResponse
from .account_guard import is_invocation, route_guard
from .account_pod_identity import PATHS as POD_IDENTITY_PATHS
from .account_queries import route_queries
from .account_resource_groups import PATHS as RESOURCE_GROUP_PATHS
from .account_resource_groups import SandboxResourceGroupsResponse
from .layout import ACCESS_KEY, ACCOUNT_ID, REGION, SECRET_KEY
from .machine_room import MachineRoom

_EKS_PATHS = (
    "{0}/clusters/(?P<name>[^/]+)/addons$",
    "{0}/clusters/(?P<name>[^/]+)/addons/(?P<addonName>[^/]+)$",
    "{0}/clusters/(?P<name>[^/]+)/addons/(?P<addonName>[^/]+)/update$",
    "{0}/clusters/(?P<name>[^/]+)/node-groups/(?P<nodegroupName>[^/]+)/update-version$",
    "{0}/clusters/(?P<name>[^/]+)/access-entries$",
    "{0}/clusters/(?P<name>[^/]+)/access-entries/(?P<rest>.+)$",
    "{0}/addons/supported-versions$",
    "{0}/cluster-versions$",
    *POD_IDENTITY_PATHS,
)
_WARM = (
    "sts",
    "ec2",
    "iam",
    "eks",
    "ecr",
    "ssm",
    "fsx",
    "resource-groups",
    "s3",
    "logs",
    "codebuild",
    "lambda",
    "scheduler",
    "budgets",
)
"""Services whose models are loaded before the account says that it is ready."""


def extend_moto() -> None:
    """Route moto's services to the extended response classes. Harmless when done twice."""
    moto.ec2.urls.url_paths["{0}/"] = SandboxEC2Response.dispatch
    moto.ssm.urls.url_paths["{0}/$"] = SandboxSSMResponse.dispatch
    moto.fsx.urls.url_paths["{0}/$"] = SandboxFSxResponse.dispatch
    moto.codebuild.urls.url_paths["{0}/$"] = SandboxCodeBuildResponse.dispatch
    moto.autoscaling.urls.url_paths["{0}/$"] = SandboxAutoScalingResponse.dispatch
    for path in RESOURCE_GROUP_PATHS:
        moto.resourcegroups.urls.url_paths[path] = SandboxResourceGroupsResponse.dispatch
    for path in (*moto.eks.urls.url_paths, *_EKS_PATHS):
        moto.eks.urls.url_paths[path] = SandboxEKSResponse.dispatch
    route_guard()
    route_queries()


class _Serialised:
    """moto's backends are plain dictionaries: one request at a time, save those that wait for machines or functions."""

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._app = DomainDispatcherApplication(create_backend_app)

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if "/eks/aws4_request" in environ.get("HTTP_AUTHORIZATION", "") or is_invocation(environ):
            waits: Iterable[bytes] = self._app(environ, start_response)
            return waits
        with self._lock:
            answer: Iterable[bytes] = self._app(environ, start_response)
            return answer


class _ClusterHooks(Hooks):
    callback: Callable[[str, dict[str, Any] | None], None] | None = None

    def cluster_changed(self, name: str, kubeconfig: dict[str, Any] | None) -> None:
        if self.callback is not None:
            self.callback(name, kubeconfig)


class Account:
    """One account in one region. moto's state belongs to the process: start one account in a process."""

    def __init__(
        self,
        machine_room: MachineRoom,
        cluster_port: int,
        cluster_changed: Callable[[str, dict[str, Any] | None], None] | None = None,
        region: str = REGION,
    ) -> None:
        self.region = region
        self._hooks = _ClusterHooks(machine_room, port=cluster_port)
        self._hooks.callback = cluster_changed
        self._server: Any = None
        self._thread: threading.Thread | None = None
        self._clients: dict[tuple[str, str], BaseClient] = {}
        self._clients_lock = threading.Lock()
        self.url = ""

    def start(self) -> str:
        """Start serving, empty. Returns the URL."""
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        # AWS' own policies are there to be attached, as in a real account.
        os.environ.setdefault("MOTO_IAM_LOAD_MANAGED_POLICIES", "true")
        extend_moto()
        for service in _WARM:
            backends: Any = moto.backends.get_backend(service)  # type: ignore[call-overload]
            backends[ACCOUNT_ID]["aws" if service in ("iam", "sts", "s3", "budgets") else self.region].reset()
        PLACEMENT_GROUPS.reset()
        DATA_REPOSITORIES.reset()
        CAPACITY.reset()
        SCALING.reset()
        CURRENT.hooks = self._hooks
        app = _Serialised(self._hooks.lock)
        server: Any = make_server("127.0.0.1", 0, app, threaded=True, request_handler=MotoRequestHandler)
        # A request that waits for machines does not hold the end of the daemon.
        server.daemon_threads = True
        self._server = server
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="account", daemon=True)
        self._thread.start()
        return self.url

    def stop(self) -> None:
        """Stop serving."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join(timeout=5)

    def client(self, service: str, region: str = "") -> BaseClient:
        """A boto3 client of this account; made once for each service and region."""
        key = (service, region or self.region)
        with self._clients_lock:
            if key not in self._clients:
                self._clients[key] = account_client(self.url, *key)
            return self._clients[key]

    def run_schedules(self, now: datetime) -> None:
        """Do what Auto Scaling would have done by ``now``: the account has no clock of its own."""
        from moto.eks.models import eks_backends

        eks: Any = self.client("eks")
        for action in SCALING.due(now):
            for cluster in eks_backends[ACCOUNT_ID][self.region].clusters.values():
                for name, group in cluster.nodegroups.items():
                    made: Any = group.resources
                    if made["autoScalingGroups"][0]["name"] == action["AutoScalingGroupName"]:
                        wanted = {"minSize": "MinSize", "maxSize": "MaxSize", "desiredSize": "DesiredCapacity"}
                        sizes = {key: action[source] for key, source in wanted.items() if source in action}
                        eks.update_nodegroup_config(clusterName=cluster.name, nodegroupName=name, scalingConfig=sizes)

    def kubeconfig(self, cluster: str) -> dict[str, Any]:
        """The kubeconfig of a cluster that exists. Raises `KeyError`."""
        from moto.eks.models import eks_backends

        found: Any = eks_backends[ACCOUNT_ID][self.region].clusters[cluster]
        return kubeconfig(cluster, found.endpoint, found.certificate_authority["data"], found.admin_token)

    def cluster_token(self, cluster: str) -> str:
        """The administrator's token of a cluster that exists. Raises `KeyError`."""
        return str(self.kubeconfig(cluster)["users"][0]["user"]["token"])


def account_client(url: str, service: str, region: str = REGION) -> BaseClient:
    """A boto3 client that talks to the account at ``url``.

    No retries: a refusal is an answer. The read timeout is over the longest wait for a control plane.
    """
    config = Config(retries={"total_max_attempts": 1}, read_timeout=180, connect_timeout=5, max_pool_connections=32)
    return boto3.session.Session().client(  # type: ignore[no-any-return,call-overload]
        service,
        region_name=region,
        endpoint_url=url,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        config=config,
    )


def leftovers(client: Callable[[str], Any]) -> list[str]:
    """Everything in the account that a program has made, as ``kind id (name)``; empty where the account is empty."""
    found: list[str] = []
    ec2 = client("ec2")

    def add(kind: str, identifier: str, tags: Iterable[dict[str, str]] = ()) -> None:
        name = next((tag["Value"] for tag in tags or () if tag["Key"] == "Name"), "")
        found.append(f"{kind} {identifier}" + (f" ({name})" if name else ""))

    default_vpcs = {vpc["VpcId"] for vpc in ec2.describe_vpcs()["Vpcs"] if vpc["IsDefault"]}
    for vpc in ec2.describe_vpcs()["Vpcs"]:
        if vpc["VpcId"] not in default_vpcs:
            add("VPC", vpc["VpcId"], vpc.get("Tags", ()))
    for kind, operation, key, identifier in (
        ("subnet", "describe_subnets", "Subnets", "SubnetId"),
        ("security group", "describe_security_groups", "SecurityGroups", "GroupId"),
        ("route table", "describe_route_tables", "RouteTables", "RouteTableId"),
        ("network interface", "describe_network_interfaces", "NetworkInterfaces", "NetworkInterfaceId"),
        ("VPC endpoint", "describe_vpc_endpoints", "VpcEndpoints", "VpcEndpointId"),
    ):
        for item in getattr(ec2, operation)()[key]:
            if item.get("VpcId") not in default_vpcs and item.get("State") != "deleted":
                add(kind, item[identifier], item.get("Tags", ()))
    for gateway in ec2.describe_internet_gateways()["InternetGateways"]:
        if not {a["VpcId"] for a in gateway.get("Attachments", ())} & default_vpcs:
            add("internet gateway", gateway["InternetGatewayId"], gateway.get("Tags", ()))
    for gateway in ec2.describe_nat_gateways()["NatGateways"]:
        if gateway["State"] != "deleted":
            add("NAT gateway", gateway["NatGatewayId"], gateway.get("Tags", ()))
    for address in ec2.describe_addresses()["Addresses"]:
        add("elastic IP", address["AllocationId"], address.get("Tags", ()))
    for volume in ec2.describe_volumes()["Volumes"]:
        add("EBS volume", volume["VolumeId"], volume.get("Tags", ()))
    for template in ec2.describe_launch_templates(MaxResults=200)["LaunchTemplates"]:
        add("launch template", f"{template['LaunchTemplateId']} {template['LaunchTemplateName']}")
    for group in ec2.describe_placement_groups()["PlacementGroups"]:
        add("placement group", group["GroupName"])
    for action in client("autoscaling").describe_scheduled_actions()["ScheduledUpdateGroupActions"]:
        add("scheduled action", action["ScheduledActionName"])
    for reserved in ec2.describe_capacity_reservations()["CapacityReservations"]:
        # A block is bought by hand, and cannot be given back.
        if reserved["State"] == "active" and reserved["ReservationType"] != "capacity-block":
            add("capacity reservation", reserved["CapacityReservationId"], reserved.get("Tags", ()))
    for reservation in ec2.describe_instances()["Reservations"]:
        for instance in reservation["Instances"]:
            if instance["State"]["Name"] != "terminated":
                add("instance", instance["InstanceId"], instance.get("Tags", ()))
    eks = client("eks")
    for cluster in eks.list_clusters()["clusters"]:
        add("EKS cluster", cluster)
        for name in eks.list_nodegroups(clusterName=cluster)["nodegroups"]:
            add("node group", f"{cluster}/{name}")
        for name in eks.list_addons(clusterName=cluster)["addons"]:
            add("add-on", f"{cluster}/{name}")
    iam = client("iam")
    for role in iam.list_roles()["Roles"]:
        add("IAM role", role["RoleName"])
    for policy in iam.list_policies(Scope="Local")["Policies"]:
        add("IAM policy", policy["PolicyName"])
    for profile in iam.list_instance_profiles()["InstanceProfiles"]:
        add("instance profile", profile["InstanceProfileName"])
    for provider in iam.list_open_id_connect_providers()["OpenIDConnectProviderList"]:
        add("OpenID Connect provider", provider["Arn"])
    for repository in client("ecr").describe_repositories()["repositories"]:
        add("ECR repository", repository["repositoryName"])
    for system in client("fsx").describe_file_systems()["FileSystems"]:
        add("FSx file system", system["FileSystemId"])
    for project in client("codebuild").list_projects()["projects"]:
        add("CodeBuild project", project)
    for group in client("logs").describe_log_groups()["logGroups"]:
        add("log group", group["logGroupName"])
    for function in client("lambda").list_functions()["Functions"]:
        add("Lambda function", function["FunctionName"])
    for schedules in client("scheduler").list_schedule_groups()["ScheduleGroups"]:
        if schedules["Name"] != "default":
            add("schedule group", schedules["Name"])
    for schedule in client("scheduler").list_schedules()["Schedules"]:
        add("schedule", f"{schedule['GroupName']}/{schedule['Name']}")
    for budget in client("budgets").describe_budgets(AccountId=ACCOUNT_ID)["Budgets"]:
        add("budget", budget["BudgetName"])
    for bucket in client("s3").list_buckets()["Buckets"]:
        add("bucket", bucket["Name"])
    return found
