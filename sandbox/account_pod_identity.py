"""EKS Pod Identity of the stand-in account, which moto lacks."""

from __future__ import annotations

import json
import re
import uuid
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

from moto.core.exceptions import ServiceException
from moto.core.responses import ActionResult
from moto.iam.models import iam_backends

from .account_eks_parts import EKSParts, refuse

PATHS = (
    "{0}/clusters/(?P<name>[^/]+)/pod-identity-associations$",
    "{0}/clusters/(?P<name>[^/]+)/pod-identity-associations/(?P<associationId>[^/]+)$",
)
POD_PRINCIPAL = "pods.eks.amazonaws.com"


class PodIdentities(EKSParts):
    """Requests for pod identity associations. An association goes with its cluster."""

    def create_pod_identity_association(self) -> ActionResult:
        """CreatePodIdentityAssociation. Refuses a second one of a service account, and a role that EKS could not take on."""
        with self.hooks.lock:
            cluster = self._cluster()
            account = {key: self._get_param(key) for key in ("namespace", "serviceAccount")}
            for made in cluster.pod_identities.values():
                if all(made[key] == value for key, value in account.items()):
                    raise refuse(f"Association already exists: {made['associationId']}", "ResourceInUseException")
            self._check_role(self._get_param("roleArn"))
            now, number = datetime.now(UTC), f"a-{uuid.uuid4().hex[:17]}"
            where = f"arn:aws:eks:{self.region}:{self.current_account}:podidentityassociation/{cluster.name}"
            association = {
                "clusterName": cluster.name,
                **account,
                "roleArn": self._get_param("roleArn"),
                "associationArn": f"{where}/{number}",
                "associationId": number,
                "tags": self._get_param("tags") or {},
                "createdAt": now,
                "modifiedAt": now,
                **self._more(),
            }
            cluster.pod_identities[number] = association
        return ActionResult({"association": association})

    def describe_pod_identity_association(self) -> ActionResult:
        """DescribePodIdentityAssociation."""
        return ActionResult({"association": self._association()})

    def list_pod_identity_associations(self) -> ActionResult:
        """ListPodIdentityAssociations, of a namespace or a service account where that is asked for."""
        wanted = {key: self.querystring.get(key, [None])[0] for key in ("namespace", "serviceAccount")}
        short = ("clusterName", "namespace", "serviceAccount", "associationArn", "associationId")
        found = [
            {key: association[key] for key in short}
            for association in self._cluster().pod_identities.values()
            if all(value in (None, association[key]) for key, value in wanted.items())
        ]
        return ActionResult({"associations": found})

    def update_pod_identity_association(self) -> ActionResult:
        """UpdatePodIdentityAssociation."""
        association = self._association()
        with self.hooks.lock:
            role = self._get_param("roleArn")
            if role is not None:
                self._check_role(role)
                association["roleArn"] = role
            association.update(self._more(), modifiedAt=datetime.now(UTC))
        return ActionResult({"association": association})

    def delete_pod_identity_association(self) -> ActionResult:
        """DeletePodIdentityAssociation."""
        association = self._association()
        with self.hooks.lock:
            del self._cluster().pod_identities[association["associationId"]]
        return ActionResult({"association": association})

    def _more(self) -> dict[str, Any]:
        given = {key: self._get_param(key) for key in ("disableSessionTags", "targetRoleArn", "policy")}
        if given["policy"] and not given["disableSessionTags"]:
            raise refuse("disableSessionTags must be true when policy is specified")
        return {key: value for key, value in given.items() if value is not None}

    def _association(self) -> dict[str, Any]:
        cluster, number = self._cluster(), self._get_param("associationId")
        if number not in cluster.pod_identities:
            raise refuse(f"Association not found: {number}", "ResourceNotFoundException")
        association: dict[str, Any] = cluster.pod_identities[number]
        return association

    def _check_role(self, arn: Any) -> None:
        match = re.fullmatch(rf"arn:aws[\w-]*:iam::{self.current_account}:role/(?:.+/)?([^/]+)", str(arn))
        if match is None:
            raise refuse(f"Role {arn} is not in the account of the cluster")
        try:
            role: Any = iam_backends[self.current_account][self.partition].get_role(match[1])
        except ServiceException:
            raise refuse("Role provided in the request does not exist.") from None
        if not _lets_pods_in(unquote(role.assume_role_policy_document)):
            raise refuse(f"The trust policy of {arn} does not let {POD_PRINCIPAL} do sts:AssumeRole and sts:TagSession")


def _lets_pods_in(document: str) -> bool:
    """Whether statements of a trust policy together allow EKS' agent both actions."""
    allowed: set[str] = set()
    for statement in _list(json.loads(document).get("Statement", [])):
        principals = statement.get("Principal", {})
        services = _list(principals.get("Service", [])) if isinstance(principals, dict) else []
        if statement.get("Effect") == "Allow" and POD_PRINCIPAL in services:
            allowed |= set(_list(statement.get("Action", [])))
    return {"sts:AssumeRole", "sts:TagSession"} <= allowed or "sts:*" in allowed


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
