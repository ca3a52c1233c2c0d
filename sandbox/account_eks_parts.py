"""Parts of a stand-in cluster that moto lacks: add-ons, access entries, and tags of all that has an ARN."""

from __future__ import annotations

import json
import re
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

from moto.core.responses import ActionResult
from moto.eks.responses import EKSResponse

from eks_fsdp.spec.addons import addon_version
from eks_fsdp.spec.versions import KUBERNETES_VERSION

from .account_errors import Refusal
from .machine_room import MachineRoom

_OLDER_VERSIONS = {
    "vpc-cni": "v1.20.4-eksbuild.1",
    "coredns": "v1.12.4-eksbuild.1",
    "kube-proxy": "v1.34.0-eksbuild.4",
    "eks-pod-identity-agent": "v1.3.9-eksbuild.3",
    "aws-ebs-csi-driver": "v1.51.1-eksbuild.1",
    "aws-efs-csi-driver": "v2.1.13-eksbuild.1",
    "aws-fsx-csi-driver": "v1.7.0-eksbuild.1",
    "aws-mountpoint-s3-csi-driver": "v2.1.0-eksbuild.1",
    "metrics-server": "v0.8.0-eksbuild.2",
    "eks-node-monitoring-agent": "v1.4.1-eksbuild.1",
    "amazon-cloudwatch-observability": "v5.2.3-eksbuild.1",
}
ADDON_VERSIONS = {
    name: tuple(dict.fromkeys((addon_version(name, KUBERNETES_VERSION, {}) or older, older)))
    for name, older in _OLDER_VERSIONS.items()
}
"""Add-ons that the account knows with their versions, the newest first: it is installed where none is asked for."""

ACCESS_POLICIES = (
    "AmazonEKSClusterAdminPolicy",
    "AmazonEKSAdminPolicy",
    "AmazonEKSAdminViewPolicy",
    "AmazonEKSEditPolicy",
    "AmazonEKSViewPolicy",
)

_ACCESS_ENTRIES = re.compile(
    r"^/clusters/(?P<name>[^/]+)/access-entries"
    r"(?:/(?P<principalArn>arn:[^/]+/.+?))?(?P<policies>/access-policies(?:/(?P<policyArn>.+))?)?$"
)


@dataclass
class Hooks:
    """What EKS of the account needs of the sandbox around it."""

    machine_room: MachineRoom
    """Where control planes and nodes are."""
    host: str = "127.0.0.1"
    """Where control planes are reached from outside."""
    port: int = 0
    """TCP port of the same."""
    lock: threading.RLock = field(default_factory=threading.RLock)
    """Held while moto's state is read or changed; never while the machine room is asked."""

    def cluster_changed(self, name: str, kubeconfig: dict[str, Any] | None) -> None:
        """Called with the new cluster's kubeconfig, and with None once it is gone."""


@dataclass
class _Current:
    hooks: Hooks | None = None


CURRENT = _Current()
"""The account of this process: moto's state is the process's too."""


def refuse(message: str, code: str = "InvalidParameterException") -> Refusal:
    """An error of the API."""
    return Refusal(code, message)


class EKSParts(EKSResponse):
    """Requests for what belongs to a cluster."""

    @property
    def hooks(self) -> Hooks:
        """Of the account that this process serves."""
        if CURRENT.hooks is None:
            raise refuse("the account has not been started", "ServerException")
        return CURRENT.hooks

    def _get_action_from_method_and_request_uri(self, request: Any) -> str:
        match = _ACCESS_ENTRIES.match(unquote(request.path))
        if not match:
            return super()._get_action_from_method_and_request_uri(request)
        self.uri_match = {key: value for key, value in match.groupdict().items() if value is not None}
        if match["policyArn"]:
            return "DisassociateAccessPolicy"
        if match["policies"]:
            return {"POST": "AssociateAccessPolicy", "GET": "ListAssociatedAccessPolicies"}[request.method]
        if match["principalArn"]:
            methods = {"POST": "UpdateAccessEntry", "GET": "DescribeAccessEntry", "DELETE": "DeleteAccessEntry"}
            return methods[request.method]
        return {"POST": "CreateAccessEntry", "GET": "ListAccessEntries"}[request.method]

    def list_nodegroups(self) -> Any:
        """ListNodegroups, which refuses a cluster that does not exist."""
        self._cluster()
        return super().list_nodegroups()

    # Add-ons

    def create_addon(self) -> ActionResult:
        """CreateAddon."""
        with self.hooks.lock:
            cluster = self._cluster()
            name = self._get_param("addonName")
            if name in cluster.addons:
                raise refuse("Addon already exists.", "ResourceInUseException")
            version = self._addon_version(name, self._get_param("addonVersion"))
            self._check_configuration(self._get_param("configurationValues"))
            now = datetime.now(UTC)
            addon = {
                "addonName": name,
                "clusterName": cluster.name,
                "status": "ACTIVE",
                "addonVersion": version,
                "health": {"issues": []},
                "addonArn": f"arn:aws:eks:{self.region}:{self.current_account}:addon/{cluster.name}/{name}/{uuid.uuid4()}",
                "createdAt": now,
                "modifiedAt": now,
                "serviceAccountRoleArn": self._get_param("serviceAccountRoleArn"),
                "configurationValues": self._get_param("configurationValues"),
                "tags": self._get_param("tags") or {},
            }
            cluster.addons[name] = addon
        return ActionResult({"addon": addon})

    def _addon_version(self, name: str, version: str | None) -> str:
        if name not in ADDON_VERSIONS:
            raise refuse(
                f"Addon {name} specified is not supported in {KUBERNETES_VERSION} kubernetes version; "
                f"this stand-in knows {', '.join(ADDON_VERSIONS)}"
            )
        if version not in (None, *ADDON_VERSIONS[name]):
            raise refuse(
                f"Addon version specified is not supported: {name} {version}; "
                f"this stand-in knows {', '.join(ADDON_VERSIONS[name])}"
            )
        return version or ADDON_VERSIONS[name][0]

    @staticmethod
    def _check_configuration(text: str | None) -> None:
        if text is None:
            return
        try:
            value = json.loads(text)
        except ValueError as error:
            raise refuse(f"ConfigurationValue is not in valid JSON: {error}") from None
        if not isinstance(value, dict):
            raise refuse("ConfigurationValue is no JSON object")

    def describe_addon(self) -> ActionResult:
        """DescribeAddon."""
        return ActionResult({"addon": self._addon()})

    def list_addons(self) -> ActionResult:
        """ListAddons."""
        return ActionResult({"addons": sorted(self._cluster().addons)})

    def update_addon(self) -> ActionResult:
        """UpdateAddon."""
        addon = self._addon()
        self._check_configuration(self._get_param("configurationValues"))
        with self.hooks.lock:
            if self._get_param("addonVersion"):
                addon["addonVersion"] = self._addon_version(addon["addonName"], self._get_param("addonVersion"))
            for key in ("serviceAccountRoleArn", "configurationValues"):
                if self._get_param(key) is not None:
                    addon[key] = self._get_param(key)
            addon["modifiedAt"] = datetime.now(UTC)
        return ActionResult({"update": update_answer("AddonUpdate")})

    def delete_addon(self) -> ActionResult:
        """DeleteAddon."""
        addon = self._addon()
        with self.hooks.lock:
            del self._cluster().addons[addon["addonName"]]
        return ActionResult({"addon": {**addon, "status": "DELETING"}})

    def describe_addon_versions(self) -> ActionResult:
        """DescribeAddonVersions, for the control plane's Kubernetes."""
        wanted = self.querystring.get("addonName", [None])[0]
        if self.querystring.get("kubernetesVersion", [KUBERNETES_VERSION])[0] != KUBERNETES_VERSION:
            return ActionResult({"addons": []})
        addons = [
            {
                "addonName": name,
                "type": "networking" if name in ("vpc-cni", "coredns", "kube-proxy") else "storage",
                "owner": "aws",
                "publisher": "eks",
                "addonVersions": [
                    {
                        "addonVersion": version,
                        "architecture": ["amd64", "arm64"],
                        "compatibilities": [{"clusterVersion": KUBERNETES_VERSION, "defaultVersion": place == 0}],
                    }
                    for place, version in enumerate(versions)
                ],
            }
            for name, versions in ADDON_VERSIONS.items()
            if wanted in (None, name)
        ]
        return ActionResult({"addons": addons})

    # Access entries

    def create_access_entry(self) -> ActionResult:
        """CreateAccessEntry."""
        with self.hooks.lock:
            cluster = self._cluster()
            if cluster.access_config["authenticationMode"] == "CONFIG_MAP":
                raise refuse(
                    "The cluster's authentication mode must be set to one of [API, API_AND_CONFIG_MAP] to perform this "
                    "operation.",
                    "InvalidRequestException",
                )
            arn = self._get_param("principalArn")
            if not re.match(r"^arn:aws[\w-]*:(iam|sts)::\d{12}:", str(arn)):
                raise refuse(f"The principalArn parameter format is not valid: {arn}")
            if arn in cluster.access_entries:
                raise refuse(
                    "The specified access entry resource is already in use on this cluster.", "ResourceInUseException"
                )
            values = {key: self._get_param(key) for key in ("type", "username", "kubernetesGroups", "tags")}
            entry = self._new_entry(cluster, arn, values)
        return ActionResult({"accessEntry": entry})

    def _new_entry(self, cluster: Any, arn: str, values: Mapping[str, Any]) -> dict[str, Any]:
        now = datetime.now(UTC)
        kind, principal = arn.split(":")[5].split("/", 1)
        where = f"{self.region}:{self.current_account}:access-entry/{cluster.name}/{kind}/{self.current_account}"
        entry: dict[str, Any] = {
            "clusterName": cluster.name,
            "principalArn": arn,
            "kubernetesGroups": values.get("kubernetesGroups") or [],
            "accessEntryArn": f"arn:aws:eks:{where}/{principal}/{uuid.uuid4()}",
            "createdAt": now,
            "modifiedAt": now,
            "tags": values.get("tags") or {},
            "username": values.get("username") or arn,
            "type": values.get("type") or "STANDARD",
            "policies": {},
        }
        cluster.access_entries[arn] = entry
        return entry

    def describe_access_entry(self) -> ActionResult:
        """DescribeAccessEntry."""
        return ActionResult({"accessEntry": self._entry()})

    def list_access_entries(self) -> ActionResult:
        """ListAccessEntries."""
        return ActionResult({"accessEntries": sorted(self._cluster().access_entries)})

    def update_access_entry(self) -> ActionResult:
        """UpdateAccessEntry."""
        entry = self._entry()
        with self.hooks.lock:
            for key in ("kubernetesGroups", "username"):
                if self._get_param(key) is not None:
                    entry[key] = self._get_param(key)
        return ActionResult({"accessEntry": entry})

    def delete_access_entry(self) -> ActionResult:
        """DeleteAccessEntry."""
        entry = self._entry()
        with self.hooks.lock:
            del self._cluster().access_entries[entry["principalArn"]]
        return ActionResult({})

    def associate_access_policy(self) -> ActionResult:
        """AssociateAccessPolicy."""
        entry = self._entry()
        arn, scope = str(self._get_param("policyArn")), self._get_param("accessScope")
        if arn.rpartition("/")[2] not in ACCESS_POLICIES:
            raise refuse(f"The policyArn parameter format is not valid: {arn}; accepted: {', '.join(ACCESS_POLICIES)}")
        if scope.get("type") == "namespace" and not scope.get("namespaces"):
            raise refuse("The namespaces of accessScope are missing, and its type is namespace")
        with self.hooks.lock:
            entry["policies"][arn] = scope
        return ActionResult({**self._names(entry), "associatedAccessPolicy": _policy(arn, scope)})

    def list_associated_access_policies(self) -> ActionResult:
        """ListAssociatedAccessPolicies."""
        entry = self._entry()
        found = [_policy(arn, scope) for arn, scope in entry["policies"].items()]
        return ActionResult({**self._names(entry), "associatedAccessPolicies": found})

    def disassociate_access_policy(self) -> ActionResult:
        """DisassociateAccessPolicy."""
        entry = self._entry()
        with self.hooks.lock:
            if entry["policies"].pop(self._get_param("policyArn"), None) is None:
                raise refuse("The specified policyArn is not associated.", "ResourceNotFoundException")
        return ActionResult({})

    @staticmethod
    def _names(entry: Mapping[str, Any]) -> dict[str, Any]:
        return {"clusterName": entry["clusterName"], "principalArn": entry["principalArn"]}

    # Tags of all that has an ARN

    def tag_resource(self) -> ActionResult:
        """TagResource."""
        self._tags().update(self._get_param("tags"))
        return ActionResult({})

    def untag_resource(self) -> ActionResult:
        """UntagResource."""
        tags = self._tags()
        for key in self.querystring.get("tagKeys", []):
            tags.pop(key, None)
        return ActionResult({})

    def list_tags_for_resource(self) -> ActionResult:
        """ListTagsForResource."""
        return ActionResult({"tags": self._tags()})

    def _tags(self) -> dict[str, str]:
        arn = self._extract_arn_from_path()
        for cluster in self.eks_backend.clusters.values():
            things: list[Any] = [cluster, *cluster.nodegroups.values()]
            for thing in things:
                if thing.arn == arn:
                    tagged: dict[str, str] = thing.tags
                    return tagged
            extra: Any = cluster
            for values in (*extra.addons.values(), *extra.access_entries.values(), *extra.pod_identities.values()):
                if arn in (values.get("addonArn"), values.get("accessEntryArn"), values.get("associationArn")):
                    tags: dict[str, str] = values["tags"]
                    return tags
        raise refuse(f"Resource was not found: {arn}", "NotFoundException")

    def _cluster(self) -> Any:
        return self.eks_backend.describe_cluster(self._get_param("name"))

    def _addon(self) -> dict[str, Any]:
        cluster, name = self._cluster(), self._get_param("addonName")
        if name not in cluster.addons:
            raise refuse(f"No addon: {name} found in cluster: {cluster.name}", "ResourceNotFoundException")
        addon: dict[str, Any] = cluster.addons[name]
        return addon

    def _entry(self) -> dict[str, Any]:
        cluster, arn = self._cluster(), self._get_param("principalArn")
        if arn not in cluster.access_entries:
            raise refuse("The specified principalArn could not be found.", "ResourceNotFoundException")
        entry: dict[str, Any] = cluster.access_entries[arn]
        return entry


def update_answer(kind: str) -> dict[str, Any]:
    return {
        "id": str(uuid.uuid4()),
        "status": "Successful",
        "type": kind,
        "params": [],
        "createdAt": datetime.now(UTC),
        "errors": [],
    }


def _policy(arn: str, scope: Mapping[str, Any]) -> dict[str, Any]:
    now = datetime.now(UTC)
    return {"policyArn": arn, "accessScope": scope, "associatedAt": now, "modifiedAt": now}
