"""EKS: clusters, node groups, add-ons, access entries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from botocore.exceptions import ClientError

from eks_fsdp.sandbox.refusals import scaling_problem
from eks_fsdp.spec.versions import KUBERNETES_VERSION

from .compute import instance_described
from .kinds import Call, Context, Failure, Kind, Update, arn_tagger, identity, is_gone, tag_map
from .wire import has_unknown

_LOG_TYPES = ("api", "audit", "authenticator", "controllerManager", "scheduler")
_TAGGER = arn_tagger("resourceArn", "tags", "tagKeys", as_list=False)


def _read(operation: str, result: str, **keys: int) -> Callable[[Context], Any]:
    """A reader whose parameters are parts of the id, split at colons, or at ``#`` where there is one."""

    def read(context: Context) -> Mapping[str, Any] | None:
        parts = _parts(context)
        try:
            answer = getattr(context.client, operation)(**{key: parts[index] for key, index in keys.items()})
        except ClientError as error:
            if is_gone(error):
                return None
            raise
        return dict(answer[result])

    return read


def _parts(context: Context) -> list[str]:
    return context.id.split("#") if "#" in context.id else context.id.split(":", 1)


def _part(index: int) -> Callable[[Context], str]:
    return lambda context: _parts(context)[index]


def _logging(context: Context) -> Any:
    wanted = context.inputs.get("enabledClusterLogTypes")
    if wanted is None:
        return None
    off = [kind for kind in _LOG_TYPES if kind not in wanted]
    groups = [{"types": list(wanted), "enabled": True}, {"types": off, "enabled": False}]
    return {"clusterLogging": [group for group in groups if group["types"]]}


def _version_check(context: Context) -> Iterable[Failure]:
    version = context.inputs.get("version")
    if version and not has_unknown(version) and str(version) != KUBERNETES_VERSION:
        yield "version", f"unsupported Kubernetes version {version!r}; accepted in the sandbox: {KUBERNETES_VERSION}"


def _update_access(context: Context) -> None:
    config = {"authenticationMode": context.inputs["accessConfig"]["authenticationMode"]}
    context.client.update_cluster_config(name=context.id, accessConfig=config)


def _update_endpoint(context: Context) -> None:
    known = ("endpointPublicAccess", "endpointPrivateAccess", "publicAccessCidrs", "subnetIds", "securityGroupIds")
    config = {key: value for key, value in context.inputs["vpcConfig"].items() if key in known}
    context.client.update_cluster_config(name=context.id, resourcesVpcConfig=config)


def _replaced_access(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterable[str]:
    key = "bootstrapClusterCreatorAdminPermissions"
    before, after = old.get("accessConfig") or {}, new.get("accessConfig") or {}
    if before.get(key, True) != after.get(key, True):
        yield "accessConfig"


CLUSTER = Kind(
    token="aws:eks/cluster:Cluster",
    service="eks",
    create=Call(
        "create_cluster",
        {
            "name": "name",
            "roleArn": "roleArn",
            "version": "version",
            "resourcesVpcConfig": "vpcConfig",
            "accessConfig": "accessConfig",
            "kubernetesNetworkConfig": "kubernetesNetworkConfig",
            "encryptionConfig": "encryptionConfig",
            "logging": _logging,
            "upgradePolicy": "upgradePolicy",
            "zonalShiftConfig": "zonalShiftConfig",
            "computeConfig": "computeConfig",
            "storageConfig": "storageConfig",
            "remoteNetworkConfig": "remoteNetworkConfig",
            "bootstrapSelfManagedAddons": "bootstrapSelfManagedAddons",
            "deletionProtection": "deletionProtection",
        },
        tags="tags",
    ),
    id="cluster.name",
    read=_read("describe_cluster", "cluster", name=0),
    observed={
        "name": "name",
        "arn": "arn",
        "roleArn": "roleArn",
        "version": "version",
        "endpoint": "endpoint",
        "status": "status",
        "platformVersion": "platformVersion",
        "createdAt": lambda c: c["createdAt"].isoformat(),
        "certificateAuthority": "certificateAuthority",
        "identities": lambda c: [{"oidcs": [{"issuer": c["identity"]["oidc"]["issuer"]}]}],
        "vpcConfig": "resourcesVpcConfig",
        "accessConfig": "accessConfig",
        "kubernetesNetworkConfig": "kubernetesNetworkConfig",
        "tags": tag_map,
    },
    delete=Call("delete_cluster", {"name": identity}),
    updates=(
        Update(("accessConfig",), _update_access),
        Update(("vpcConfig",), _update_endpoint),
        Update(("enabledClusterLogTypes",), Call("update_cluster_config", {"name": identity, "logging": _logging})),
        Update(
            ("upgradePolicy", "deletionProtection", "zonalShiftConfig"),
            Call(
                "update_cluster_config",
                {
                    "name": identity,
                    "upgradePolicy": "upgradePolicy",
                    "deletionProtection": "deletionProtection",
                    "zonalShiftConfig": "zonalShiftConfig",
                },
            ),
        ),
    ),
    replaces=frozenset(
        {"name", "roleArn", "kubernetesNetworkConfig", "encryptionConfig", "bootstrapSelfManagedAddons", "version"}
    ),
    replace_if=_replaced_access,
    ignored=frozenset({"defaultAddonsToRemoves", "forceUpdateVersion"}),
    auto_name="name",
    name_limit=100,
    delete_before_replace=True,
    checks=(_version_check,),
    tagged=_TAGGER,
)


def _scaling_check(context: Context) -> Iterable[Failure]:
    scaling = context.inputs.get("scalingConfig")
    if isinstance(scaling, Mapping) and not has_unknown(dict(scaling)):
        problem = scaling_problem(scaling)
        if problem:
            yield "scalingConfig", problem


def _types_check(context: Context) -> Iterable[Failure]:
    for index, name in enumerate(context.inputs.get("instanceTypes") or []):
        if not has_unknown(name) and instance_described(context.clients, name) is None:
            yield f"instanceTypes[{index}]", f"EC2 has no instance type {name!r}"


def _changed_template(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterable[str]:
    before, after = old.get("launchTemplate") or {}, new.get("launchTemplate") or {}
    if bool(before) != bool(after) or any(before.get(key) != after.get(key) for key in ("id", "name")):
        yield "launchTemplate"


def _label_changes(context: Context) -> Any:
    old, new = dict(context.old.get("labels") or {}), dict(context.inputs.get("labels") or {})
    changes = {
        "addOrUpdateLabels": {key: value for key, value in new.items() if old.get(key) != value},
        "removeLabels": [key for key in old if key not in new],
    }
    return {key: value for key, value in changes.items() if value} or None


def _taint_changes(context: Context) -> Any:
    old, new = list(context.old.get("taints") or []), list(context.inputs.get("taints") or [])
    kept = {(taint["key"], taint["effect"]) for taint in new}
    changes = {
        "addOrUpdateTaints": [taint for taint in new if taint not in old],
        "removeTaints": [taint for taint in old if (taint["key"], taint["effect"]) not in kept],
    }
    return {key: value for key, value in changes.items() if value} or None


def _new_version(context: Context) -> None:
    params = {"clusterName": _parts(context)[0], "nodegroupName": _parts(context)[1]}
    template = context.inputs.get("launchTemplate")
    if template and context.changed("launchTemplate"):
        wanted = {"id": template["id"]} if template.get("id") else {"name": template["name"]}
        context.client.update_nodegroup_version(
            **params, launchTemplate={**wanted, "version": str(template["version"])}
        )
    if context.changed("version", "releaseVersion"):
        more = {key: context.inputs[key] for key in ("version", "releaseVersion") if context.inputs.get(key)}
        context.client.update_nodegroup_version(**params, **more)


def _template_seen(description: Mapping[str, Any]) -> dict[str, Any] | None:
    template = description.get("launchTemplate")
    return dict(template) if template else None


def _resources(description: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = description.get("resources") or {}
    groups = [{"name": group["name"]} for group in found.get("autoScalingGroups", [])]
    return [{"autoscalingGroups": groups, "remoteAccessSecurityGroupId": found.get("remoteAccessSecurityGroup", "")}]


NODE_GROUP = Kind(
    token="aws:eks/nodeGroup:NodeGroup",
    service="eks",
    create=Call(
        "create_nodegroup",
        {
            "clusterName": "clusterName",
            "nodegroupName": "nodeGroupName",
            "nodeRole": "nodeRoleArn",
            "subnets": "subnetIds",
            "scalingConfig": "scalingConfig",
            "instanceTypes": "instanceTypes",
            "amiType": "amiType",
            "capacityType": "capacityType",
            "diskSize": "diskSize",
            "labels": "labels",
            "taints": "taints",
            "launchTemplate": "launchTemplate",
            "updateConfig": "updateConfig",
            "remoteAccess": "remoteAccess",
            "nodeRepairConfig": "nodeRepairConfig",
            "version": "version",
            "releaseVersion": "releaseVersion",
        },
        tags="tags",
    ),
    id=lambda context: f"{context.inputs['clusterName']}:{context.inputs['nodeGroupName']}",
    read=_read("describe_nodegroup", "nodegroup", clusterName=0, nodegroupName=1),
    observed={
        "clusterName": "clusterName",
        "nodeGroupName": "nodegroupName",
        "arn": "nodegroupArn",
        "status": "status",
        "nodeRoleArn": "nodeRole",
        "subnetIds": "subnets",
        "scalingConfig": "scalingConfig",
        "instanceTypes": "instanceTypes",
        "amiType": "amiType",
        "capacityType": "capacityType",
        "diskSize": "diskSize",
        "labels": "labels",
        "taints": "taints",
        "updateConfig": "updateConfig",
        "launchTemplate": _template_seen,
        "version": "version",
        "releaseVersion": "releaseVersion",
        "resources": _resources,
        "tags": tag_map,
    },
    delete=Call("delete_nodegroup", {"clusterName": _part(0), "nodegroupName": _part(1)}),
    updates=(
        Update(("launchTemplate", "version", "releaseVersion"), _new_version),
        Update(
            ("scalingConfig", "labels", "taints", "updateConfig", "nodeRepairConfig"),
            Call(
                "update_nodegroup_config",
                {
                    "clusterName": _part(0),
                    "nodegroupName": _part(1),
                    "scalingConfig": "scalingConfig",
                    "labels": _label_changes,
                    "taints": _taint_changes,
                    "updateConfig": "updateConfig",
                    "nodeRepairConfig": "nodeRepairConfig",
                },
            ),
        ),
    ),
    replaces=frozenset(
        {
            "clusterName",
            "nodeGroupName",
            "nodeGroupNamePrefix",
            "nodeRoleArn",
            "subnetIds",
            "instanceTypes",
            "amiType",
            "capacityType",
            "diskSize",
            "remoteAccess",
        }
    ),
    replace_if=_changed_template,
    ignored=frozenset({"forceUpdateVersion"}),
    auto_name="nodeGroupName",
    name_limit=63,
    # The Auto Scaling group stays the same one.
    volatile=frozenset({"releaseVersion"}),
    checks=(_scaling_check, _types_check),
    tagged=_TAGGER,
)

ADDON = Kind(
    token="aws:eks/addon:Addon",
    service="eks",
    create=Call(
        "create_addon",
        {
            "clusterName": "clusterName",
            "addonName": "addonName",
            "addonVersion": "addonVersion",
            "configurationValues": "configurationValues",
            "serviceAccountRoleArn": "serviceAccountRoleArn",
            "resolveConflicts": "resolveConflictsOnCreate",
        },
        tags="tags",
    ),
    id=lambda context: f"{context.inputs['clusterName']}:{context.inputs['addonName']}",
    read=_read("describe_addon", "addon", clusterName=0, addonName=1),
    observed={
        "arn": "addonArn",
        "addonVersion": "addonVersion",
        "configurationValues": "configurationValues",
        "serviceAccountRoleArn": "serviceAccountRoleArn",
        "createdAt": lambda a: a["createdAt"].isoformat(),
        "modifiedAt": lambda a: a["modifiedAt"].isoformat(),
        "tags": tag_map,
    },
    delete=Call("delete_addon", {"clusterName": _part(0), "addonName": _part(1)}),
    updates=(
        Update(
            ("addonVersion", "configurationValues", "serviceAccountRoleArn"),
            Call(
                "update_addon",
                {
                    "clusterName": _part(0),
                    "addonName": _part(1),
                    "addonVersion": "addonVersion",
                    "configurationValues": "configurationValues",
                    "serviceAccountRoleArn": "serviceAccountRoleArn",
                    "resolveConflicts": "resolveConflictsOnUpdate",
                },
            ),
        ),
    ),
    replaces=frozenset({"clusterName", "addonName"}),
    ignored=frozenset({"resolveConflictsOnCreate", "resolveConflictsOnUpdate", "preserve"}),
    volatile=frozenset({"modifiedAt"}),
    tagged=_TAGGER,
)

ACCESS_ENTRY = Kind(
    token="aws:eks/accessEntry:AccessEntry",
    service="eks",
    create=Call(
        "create_access_entry",
        {
            "clusterName": "clusterName",
            "principalArn": "principalArn",
            "kubernetesGroups": "kubernetesGroups",
            "type": "type",
            "username": "userName",
        },
        tags="tags",
    ),
    id=lambda context: f"{context.inputs['clusterName']}:{context.inputs['principalArn']}",
    read=_read("describe_access_entry", "accessEntry", clusterName=0, principalArn=1),
    observed={
        "accessEntryArn": "accessEntryArn",
        "arn": "accessEntryArn",
        "createdAt": lambda e: e["createdAt"].isoformat(),
        "modifiedAt": lambda e: e["modifiedAt"].isoformat(),
        "kubernetesGroups": "kubernetesGroups",
        "type": "type",
        "userName": "username",
        "tags": tag_map,
    },
    delete=Call("delete_access_entry", {"clusterName": _part(0), "principalArn": _part(1)}),
    updates=(
        Update(
            ("kubernetesGroups", "userName"),
            Call(
                "update_access_entry",
                {
                    "clusterName": _part(0),
                    "principalArn": _part(1),
                    "kubernetesGroups": "kubernetesGroups",
                    "username": "userName",
                },
            ),
        ),
    ),
    replaces=frozenset({"clusterName", "principalArn", "type"}),
    volatile=frozenset({"modifiedAt"}),
    tagged=_TAGGER,
)


def _read_policy(context: Context) -> Mapping[str, Any] | None:
    cluster, principal, policy = _parts(context)
    try:
        found = context.client.list_associated_access_policies(clusterName=cluster, principalArn=principal)
    except ClientError as error:
        if is_gone(error):
            return None
        raise
    return next((dict(p) for p in found["associatedAccessPolicies"] if p["policyArn"] == policy), None)


_ASSOCIATE = Call(
    "associate_access_policy",
    {
        "clusterName": "clusterName",
        "principalArn": "principalArn",
        "policyArn": "policyArn",
        "accessScope": "accessScope",
    },
)

ACCESS_POLICY_ASSOCIATION = Kind(
    token="aws:eks/accessPolicyAssociation:AccessPolicyAssociation",
    service="eks",
    create=_ASSOCIATE,
    id=lambda context: "#".join(str(context.inputs[key]) for key in ("clusterName", "principalArn", "policyArn")),
    read=_read_policy,
    observed={
        "accessScope": "accessScope",
        "associatedAt": lambda p: p["associatedAt"].isoformat(),
        "modifiedAt": lambda p: p["modifiedAt"].isoformat(),
    },
    delete=Call(
        "disassociate_access_policy",
        {"clusterName": _part(0), "principalArn": _part(1), "policyArn": _part(2)},
    ),
    updates=(Update(("accessScope",), _ASSOCIATE),),
    replaces=frozenset({"clusterName", "principalArn", "policyArn"}),
)

KINDS = (CLUSTER, NODE_GROUP, ADDON, ACCESS_ENTRY, ACCESS_POLICY_ASSOCIATION)
