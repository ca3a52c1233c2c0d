"""The stand-in `eks` provider: Construct of eks:index:Cluster and eks:index:ManagedNodeGroup.

The children are of the same kinds as those of the real component and go to whatever `aws` provider the program has.
They are declared by their tokens, as importing the AWS SDK would cost the daemon a quarter of a gigabyte.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc.aio
import pulumi
from google.protobuf import empty_pb2, json_format
from pulumi.errors import InputPropertyError
from pulumi.output import _OutputData
from pulumi.provider.provider import ConstructResult, Provider
from pulumi.provider.server import ProviderServicer
from pulumi.resource import DependencyResource
from pulumi.runtime.proto import provider_pb2_grpc, resource_pb2

from .account_eks import kubeconfig
from .cloud.provider import VERSION as AWS_VERSION
from .cloud.wire import UNKNOWN, has_unknown, to_struct
from .layout import ACCOUNT_ID

VERSION = "4.4.0"
"""Of the SDK whose components are stood in for."""

_CLUSTER_INPUTS = frozenset(
    {
        "accessEntries",
        "authenticationMode",
        "bootstrapSelfManagedAddons",
        "clusterSecurityGroup",
        "clusterSecurityGroupTags",
        "clusterTags",
        "corednsAddonOptions",
        "createInstanceRole",
        "createOidcProvider",
        "deletionProtection",
        "enableConfigMapMutable",
        "enabledClusterLogTypes",
        "encryptionConfigKeyArn",
        "endpointPrivateAccess",
        "endpointPublicAccess",
        "instanceRole",
        "instanceRoles",
        "ipFamily",
        "kubeProxyAddonOptions",
        "kubernetesServiceIpAddressRange",
        "name",
        "nodeAssociatePublicIpAddress",
        "nodeSecurityGroupTags",
        "privateSubnetIds",
        "publicAccessCidrs",
        "publicSubnetIds",
        "serviceRole",
        "skipDefaultNodeGroup",
        "skipDefaultSecurityGroups",
        "subnetIds",
        "tags",
        "upgradePolicy",
        "useDefaultVpcCni",
        "version",
        "vpcCniOptions",
        "vpcId",
    }
)
_NODE_GROUP_INPUTS = frozenset(
    {
        "amiType",
        "capacityType",
        "cluster",
        "clusterName",
        "diskSize",
        "forceUpdateVersion",
        "ignoreScalingChanges",
        "instanceTypes",
        "labels",
        "launchTemplate",
        "nodeGroupName",
        "nodeGroupNamePrefix",
        "nodeRole",
        "nodeRoleArn",
        "releaseVersion",
        "remoteAccess",
        "scalingConfig",
        "subnetIds",
        "tags",
        "taints",
        "version",
    }
)
Inputs = Mapping[str, Any]


class Child(pulumi.CustomResource):
    """A resource of the `aws` provider by its token."""

    def __init__(
        self, token: str, name: str, props: Inputs, outputs: Sequence[str], opts: pulumi.ResourceOptions
    ) -> None:
        options = pulumi.ResourceOptions.merge(pulumi.ResourceOptions(version=AWS_VERSION), opts)
        given = {key: value for key, value in props.items() if value is not None}
        super().__init__(token, name, {**dict.fromkeys(outputs), **given}, options)

    def output(self, name: str) -> pulumi.Output[Any]:
        """An output that was asked for, or an input."""
        value: pulumi.Output[Any] = pulumi.get(self, name)
        return value


def _covered(inputs: Inputs, known: frozenset[str], token: str) -> None:
    for name in inputs:
        if name not in known:
            raise InputPropertyError(
                name, f"the sandbox's stand-in of {token} does not cover it; it covers {', '.join(sorted(known))}"
            )


def _options(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


class ClusterComponent(pulumi.ComponentResource):
    """eks:index:Cluster: a control plane with its role, security groups, add-ons and access entries."""

    def __init__(self, name: str, inputs: Inputs, opts: pulumi.ResourceOptions, token: Callable[[str], str]) -> None:
        _covered(inputs, _CLUSTER_INPUTS, "eks:index:Cluster")
        if not inputs.get("skipDefaultNodeGroup"):
            raise InputPropertyError(
                "skipDefaultNodeGroup", "the sandbox's stand-in has no self-managed default node group; accepted: true"
            )
        if not inputs.get("vpcId"):
            raise InputPropertyError("vpcId", "is needed: the sandbox's stand-in does not use the default VPC")
        super().__init__("eks:index:Cluster", name, {}, opts)
        self._name = name
        self._inputs = inputs
        self._tags = inputs.get("tags")
        self._child = pulumi.ResourceOptions(parent=self)
        self.state: dict[str, Any] = {}
        role_arn, role = self._service_role()
        groups = {} if inputs.get("skipDefaultSecurityGroups") else self._security_groups()
        if inputs.get("clusterSecurityGroup") is not None:
            groups["cluster"] = inputs["clusterSecurityGroup"]
        cluster = self._control_plane(role_arn, groups.get("cluster"))
        if "cluster" in groups and "node" in groups:
            self._rules(groups["cluster"], groups["node"])
        self._addons(cluster)
        self._access(cluster)
        config = pulumi.Output.all(
            cluster.output("name"), cluster.output("endpoint"), cluster.output("certificateAuthority")
        ).apply(lambda parts: kubeconfig(parts[0], parts[1], parts[2]["data"], token(parts[0])))
        config = pulumi.Output.secret(config)
        subnets = self._subnets()
        issuer = cluster.output("identities").apply(lambda found: found[0]["oidcs"][0]["issuer"])
        provider_arn = self._oidc_provider(issuer)
        self.state = {
            "eksCluster": cluster,
            "kubeconfig": config,
            "kubeconfigJson": config.apply(json.dumps),
            "instanceRoles": inputs.get("instanceRoles") or [],
            "clusterSecurityGroup": groups.get("cluster"),
            "clusterSecurityGroupId": groups["cluster"].id if "cluster" in groups else "",
            "nodeSecurityGroup": groups.get("node"),
            "nodeSecurityGroupId": groups["node"].id if "node" in groups else "",
            "clusterIngressRuleId": "",
            "defaultNodeGroupAsgName": "",
            "fargateProfileId": "",
            "fargateProfileStatus": "",
            "autoModeNodeRoleName": "",
            "oidcIssuer": issuer.apply(lambda url: str(url).removeprefix("https://")),
            "oidcProviderUrl": issuer,
            "oidcProviderArn": provider_arn,
            "core": {
                "cluster": cluster,
                "vpcId": inputs["vpcId"],
                "subnetIds": subnets,
                "endpoint": cluster.output("endpoint"),
                "clusterIamRole": role,
                "instanceRoles": inputs.get("instanceRoles") or [],
                "nodeGroupOptions": {},
                "publicSubnetIds": inputs.get("publicSubnetIds"),
                "privateSubnetIds": inputs.get("privateSubnetIds"),
                "tags": inputs.get("tags"),
            },
        }
        self.state = {key: value for key, value in self.state.items() if value is not None}
        self.state["core"] = {key: value for key, value in self.state["core"].items() if value is not None}
        self.register_outputs(self.state)

    def _subnets(self) -> Any:
        if self._inputs.get("subnetIds"):
            return self._inputs["subnetIds"]
        public, private = self._inputs.get("publicSubnetIds"), self._inputs.get("privateSubnetIds")
        return pulumi.Output.all(public or [], private or []).apply(lambda lists: [*lists[0], *lists[1]])

    def _service_role(self) -> tuple[pulumi.Output[str], Any]:
        given = self._inputs.get("serviceRole")
        if given is not None:
            # A role of the program arrives as its id, which is its name.
            name = pulumi.Output.from_input(given)
            return name.apply(lambda text: f"arn:aws:iam::{ACCOUNT_ID}:role/{text}"), None
        statement = {
            "Action": ["sts:AssumeRole", "sts:TagSession"],
            "Effect": "Allow",
            "Principal": {"Service": "eks.amazonaws.com"},
        }
        role = Child(
            "aws:iam/role:Role",
            f"{self._name}-eksRole-role",
            {
                "assumeRolePolicy": json.dumps({"Version": "2012-10-17", "Statement": [statement]}),
                "description": "Allows EKS to manage clusters on your behalf.",
                "tags": self._tags,
            },
            ("arn", "name"),
            self._child,
        )
        attachment = Child(
            "aws:iam/rolePolicyAttachment:RolePolicyAttachment",
            f"{self._name}-eksRole-cluster",
            {"role": role.output("name"), "policyArn": "arn:aws:iam::aws:policy/AmazonEKSClusterPolicy"},
            (),
            self._child,
        )
        arn = pulumi.Output.all(role.output("arn"), attachment.id).apply(lambda both: str(both[0]))
        return arn, role

    def _security_groups(self) -> dict[str, Any]:
        groups = {}
        for key, what, extra in (
            ("cluster", "eksClusterSecurityGroup", self._inputs.get("clusterSecurityGroupTags")),
            ("node", "nodeSecurityGroup", self._inputs.get("nodeSecurityGroupTags")),
        ):
            tags = pulumi.Output.all(self._tags or {}, extra or {}).apply(lambda both: {**both[0], **both[1]})
            groups[key] = Child(
                "aws:ec2/securityGroup:SecurityGroup",
                f"{self._name}-{what}",
                {"vpcId": self._inputs["vpcId"], "revokeRulesOnDelete": True, "tags": tags},
                (),
                self._child,
            )
        return groups

    def _rules(self, cluster: Child, node: Child) -> None:
        everywhere: dict[str, Any] = {"cidrBlocks": ["0.0.0.0/0"], "protocol": "-1", "fromPort": 0, "toPort": 0}
        rules: dict[str, tuple[Any, dict[str, Any]]] = {
            "eksClusterInternetEgressRule": (cluster, {"type": "egress", **everywhere}),
            "eksClusterIngressRule": (
                cluster,
                {
                    "type": "ingress",
                    "protocol": "tcp",
                    "fromPort": 443,
                    "toPort": 443,
                    "sourceSecurityGroupId": node.id,
                },
            ),
            "eksNodeInternetEgressRule": (node, {"type": "egress", **everywhere}),
            "eksNodeIngressRule": (
                node,
                {"type": "ingress", "protocol": "-1", "fromPort": 0, "toPort": 0, "self": True},
            ),
            "eksNodeClusterIngressRule": (
                node,
                {
                    "type": "ingress",
                    "protocol": "tcp",
                    "fromPort": 1025,
                    "toPort": 65535,
                    "sourceSecurityGroupId": cluster.id,
                },
            ),
        }
        for what, (group, props) in rules.items():
            Child(
                "aws:ec2/securityGroupRule:SecurityGroupRule",
                f"{self._name}-{what}",
                {"securityGroupId": group.id, **props},
                (),
                self._child,
            )

    def _control_plane(self, role_arn: pulumi.Output[str], group: Any) -> Child:
        inputs, name = self._inputs, f"{self._name}-eksCluster"
        network = {
            "ipFamily": inputs.get("ipFamily"),
            "serviceIpv4Cidr": inputs.get("kubernetesServiceIpAddressRange"),
        }
        network = {key: value for key, value in network.items() if value is not None}
        vpc = {
            "subnetIds": self._subnets(),
            "securityGroupIds": [group.id] if isinstance(group, pulumi.CustomResource) else None,
            "endpointPublicAccess": inputs.get("endpointPublicAccess"),
            "endpointPrivateAccess": inputs.get("endpointPrivateAccess"),
            "publicAccessCidrs": inputs.get("publicAccessCidrs"),
        }
        key = inputs.get("encryptionConfigKeyArn")
        mode = inputs.get("authenticationMode")
        tags = pulumi.Output.all(self._tags or {}, inputs.get("clusterTags") or {}).apply(
            lambda both: {"Name": name, **both[0], **both[1]}
        )
        return Child(
            "aws:eks/cluster:Cluster",
            name,
            {
                "name": inputs.get("name"),
                "roleArn": role_arn,
                "version": inputs.get("version"),
                "vpcConfig": {field: value for field, value in vpc.items() if value is not None},
                "accessConfig": {"authenticationMode": mode} if mode is not None else None,
                "enabledClusterLogTypes": inputs.get("enabledClusterLogTypes"),
                "kubernetesNetworkConfig": network or None,
                "encryptionConfig": {"provider": {"keyArn": key}, "resources": ["secrets"]} if key else None,
                "upgradePolicy": inputs.get("upgradePolicy"),
                "bootstrapSelfManagedAddons": inputs.get("bootstrapSelfManagedAddons"),
                "deletionProtection": inputs.get("deletionProtection"),
                "tags": tags,
            },
            ("name", "arn", "endpoint", "certificateAuthority", "identities"),
            # As the real component: it is a property of the creation alone.
            pulumi.ResourceOptions(parent=self, ignore_changes=["bootstrapSelfManagedAddons"]),
        )

    def _addons(self, cluster: Child) -> None:
        wanted = {
            "vpc-cni": None if self._inputs.get("useDefaultVpcCni") else _options(self._inputs.get("vpcCniOptions")),
            "kube-proxy": _options(self._inputs.get("kubeProxyAddonOptions")),
            "coredns": _options(self._inputs.get("corednsAddonOptions")),
        }
        for addon, options in wanted.items():
            if options is None or options.get("enabled") is False:
                continue
            Child(
                "aws:eks/addon:Addon",
                f"{self._name}-{addon}",
                {
                    "clusterName": cluster.output("name"),
                    "addonName": addon,
                    "addonVersion": options.get("version") or options.get("addonVersion"),
                    "resolveConflictsOnCreate": options.get("resolveConflictsOnCreate") or "OVERWRITE",
                    "resolveConflictsOnUpdate": options.get("resolveConflictsOnUpdate") or "OVERWRITE",
                    "tags": self._tags,
                },
                (),
                self._child,
            )

    def _access(self, cluster: Child) -> None:
        for key, entry in _options(self._inputs.get("accessEntries")).items():
            made = Child(
                "aws:eks/accessEntry:AccessEntry",
                f"{self._name}-{key}",
                {
                    "clusterName": cluster.output("name"),
                    "principalArn": entry["principalArn"],
                    "kubernetesGroups": entry.get("kubernetesGroups"),
                    "type": entry.get("type"),
                    "userName": entry.get("username"),
                    "tags": entry.get("tags") or self._tags,
                },
                (),
                self._child,
            )
            for policy, association in _options(entry.get("accessPolicies")).items():
                Child(
                    "aws:eks/accessPolicyAssociation:AccessPolicyAssociation",
                    f"{self._name}-{key}-{policy}",
                    {
                        "clusterName": cluster.output("name"),
                        "principalArn": made.output("principalArn"),
                        "policyArn": association["policyArn"],
                        "accessScope": association["accessScope"],
                    },
                    (),
                    pulumi.ResourceOptions(parent=self, depends_on=[made]),
                )

    def _oidc_provider(self, issuer: pulumi.Output[str]) -> Any:
        if not self._inputs.get("createOidcProvider"):
            return ""
        provider = Child(
            "aws:iam/openIdConnectProvider:OpenIdConnectProvider",
            f"{self._name}-oidcProvider",
            {
                "url": issuer,
                "clientIdLists": ["sts.amazonaws.com"],
                "thumbprintLists": ["9e99a48a9960b14926bb7f3b02e22da2b0ab7280"],
                "tags": self._tags,
            },
            ("arn",),
            self._child,
        )
        return provider.output("arn")


class NodeGroupComponent(pulumi.ComponentResource):
    """eks:index:ManagedNodeGroup: a node group of a cluster."""

    def __init__(self, name: str, inputs: Inputs, opts: pulumi.ResourceOptions, cluster: Mapping[str, Any]) -> None:
        """``cluster``: name and subnets of the cluster, as outputs or values."""
        _covered(inputs, _NODE_GROUP_INPUTS, "eks:index:ManagedNodeGroup")
        role_arn = inputs.get("nodeRoleArn")
        if role_arn is None and inputs.get("nodeRole") is not None:
            role_arn = pulumi.Output.from_input(inputs["nodeRole"]).apply(
                lambda text: f"arn:aws:iam::{ACCOUNT_ID}:role/{text}"
            )
        if role_arn is None:
            raise InputPropertyError("nodeRoleArn", "is needed, or nodeRole: the role that the nodes take on")
        super().__init__("eks:index:ManagedNodeGroup", name, {}, opts)
        ignored = ["scalingConfig.desiredSize"] if inputs.get("ignoreScalingChanges") else []
        copied = _NODE_GROUP_INPUTS - {"cluster", "ignoreScalingChanges", "nodeRole"}
        default_scaling = {"minSize": 1, "maxSize": 2, "desiredSize": 2}
        group = Child(
            "aws:eks/nodeGroup:NodeGroup",
            name,
            {
                **{key: inputs.get(key) for key in copied},
                "clusterName": inputs.get("clusterName") or cluster["name"],
                "nodeRoleArn": role_arn,
                "subnetIds": inputs.get("subnetIds") or cluster.get("subnetIds"),
                "scalingConfig": inputs.get("scalingConfig") or default_scaling,
            },
            ("arn", "nodeGroupName", "resources", "status"),
            pulumi.ResourceOptions(parent=self, ignore_changes=ignored),
        )
        self.state = {"nodeGroup": group, "placementGroupName": ""}
        self.register_outputs(self.state)


class EksProvider(Provider):
    """Builds the components."""

    def __init__(self, token: Callable[[str], str]) -> None:
        """``token(cluster)``: the administrator's token of a cluster that exists."""
        super().__init__(VERSION, "{}")
        self._token = token

    def construct(
        self, name: str, resource_type: str, inputs: Inputs, options: pulumi.ResourceOptions | None = None
    ) -> ConstructResult:
        """See the base class."""
        opts = options or pulumi.ResourceOptions()
        component: ClusterComponent | NodeGroupComponent
        if resource_type == "eks:index:Cluster":
            component = ClusterComponent(name, inputs, opts, self._token)
        elif resource_type == "eks:index:ManagedNodeGroup":
            component = NodeGroupComponent(name, inputs, opts, _cluster_facts(inputs.get("cluster")))
        else:
            raise InputPropertyError(
                "",
                f"the sandbox's stand-in of EKS does not cover {resource_type}; "
                "it covers eks:index:Cluster and eks:index:ManagedNodeGroup",
            )
        return ConstructResult(component.urn, component.state)


def _cluster_facts(cluster: Any) -> dict[str, Any]:
    """Name and subnets of the ``cluster`` input: core data, or an eks:index:Cluster, which arrives as its URN."""
    if cluster is None:
        return {}
    if isinstance(cluster, Mapping):
        return {"name": cluster["cluster"], "subnetIds": cluster.get("subnetIds")}
    found = pulumi.Output.from_input(cluster).apply(_cluster_state)
    return {"name": found.apply(lambda pair: pair[0]), "subnetIds": found.apply(lambda pair: pair[1])}


def _cluster_state(urn: Any) -> Any:
    """(name, subnet ids) of an eks:index:Cluster by its URN, as an output that depends on the control plane inside.

    Asked of the engine directly: the SDK's own call turns the reference to the control plane into its id, and without
    its URN nothing would say that node groups go before it.
    """
    monitor: Any = pulumi.runtime.settings.get_monitor()
    request = resource_pb2.ResourceInvokeRequest(
        tok="pulumi:pulumi:getResource", args=to_struct({"urn": str(urn)}), acceptResources=True
    )

    async def ask() -> Any:
        answer = await asyncio.get_running_loop().run_in_executor(None, lambda: monitor.Invoke(request))
        return json_format.MessageToDict(getattr(answer, "return"))["state"]

    future: asyncio.Future[Any] = asyncio.ensure_future(ask())

    async def data() -> Any:
        state = await future
        reference = state["eksCluster"]
        unknown = reference.get("id") in (None, "", UNKNOWN)
        # New subnets of a cluster that is there are no reason not to know its name.
        subnets = state["core"]["subnetIds"]
        return _OutputData(
            resources={DependencyResource(reference["urn"])},
            value=None if unknown else (reference["id"], None if has_unknown(subnets) else subnets),
            is_known=not unknown,
            is_secret=False,
        )

    return pulumi.Output._from_data(asyncio.ensure_future(data()))


class EksServicer(ProviderServicer):
    """The SDK's servicer with what attaching needs."""

    def __init__(self, provider: EksProvider) -> None:
        super().__init__(provider, [], engine_address="")

    async def Attach(self, request: Any, context: Any) -> Any:
        """The engine says where it is."""
        self.engine_address = request.address
        return empty_pb2.Empty()

    async def Construct(self, request: Any, context: Any) -> Any:
        """As the SDK's, but a refusal of ours is shown without a traceback."""
        try:
            return await self._construct(request, context)
        except InputPropertyError as error:
            message = f"{request.type} {request.name}: {error.property_path}: {error.reason}"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, message)
            raise

    async def CheckConfig(self, request: Any, context: Any) -> Any:
        """Any configuration is accepted: there is none."""
        return pulumi.runtime.proto.CheckResponse(inputs=request.news)

    async def DiffConfig(self, request: Any, context: Any) -> Any:
        """Nothing of the configuration matters."""
        return pulumi.runtime.proto.DiffResponse()


class EksServer:
    """The servicer in an event loop of its own thread, on 127.0.0.1."""

    def __init__(self, provider: EksProvider) -> None:
        self._provider = provider
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="eks", daemon=True)
        self._server: Any = None

    def start(self) -> int:
        """Start serving. Returns the port."""
        self._thread.start()
        return asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(timeout=30)

    async def _start(self) -> int:
        self._server = grpc.aio.server(
            options=[("grpc.max_receive_message_length", 400 * 1024 * 1024), ("grpc.so_reuseport", 0)]
        )
        provider_pb2_grpc.add_ResourceProviderServicer_to_server(EksServicer(self._provider), self._server)
        port = int(self._server.add_insecure_port("127.0.0.1:0"))
        await self._server.start()
        return port

    def stop(self) -> None:
        """Stop serving."""
        if self._server is not None:
            asyncio.run_coroutine_threadsafe(self._server.stop(0), self._loop).result(timeout=5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)
