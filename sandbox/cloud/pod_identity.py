"""EKS Pod Identity: which role the pods of a service account have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from botocore.exceptions import ClientError

from .kinds import Call, Context, Kind, Update, arn_tagger, identity, is_gone, tag_map


def _cluster(context: Context) -> Any:
    return context.inputs.get("clusterName") or context.state.get("clusterName")


def _read(context: Context) -> Mapping[str, Any] | None:
    """Refresh gives the id alone where the state was imported: the cluster's name is then in neither."""
    try:
        answer = context.client.describe_pod_identity_association(
            clusterName=_cluster(context), associationId=context.id
        )
    except ClientError as error:
        if is_gone(error):
            return None
        raise
    return dict(answer["association"])


_KEY = {"clusterName": _cluster, "associationId": identity}
_CHANGES = {
    "roleArn": "roleArn",
    "disableSessionTags": "disableSessionTags",
    "targetRoleArn": "targetRoleArn",
    "policy": "policy",
}

POD_IDENTITY_ASSOCIATION = Kind(
    token="aws:eks/podIdentityAssociation:PodIdentityAssociation",
    service="eks",
    create=Call(
        "create_pod_identity_association",
        {"clusterName": "clusterName", "namespace": "namespace", "serviceAccount": "serviceAccount", **_CHANGES},
        tags="tags",
    ),
    id="association.associationId",
    read=_read,
    observed={
        "associationArn": "associationArn",
        "arn": "associationArn",
        "associationId": "associationId",
        "externalId": "externalId",
        "clusterName": "clusterName",
        "namespace": "namespace",
        "serviceAccount": "serviceAccount",
        "roleArn": "roleArn",
        "tags": tag_map,
    },
    delete=Call("delete_pod_identity_association", _KEY),
    updates=(Update(tuple(_CHANGES), Call("update_pod_identity_association", {**_KEY, **_CHANGES})),),
    replaces=frozenset({"clusterName", "namespace", "serviceAccount"}),
    # One service account has one association: the old one goes before the new one comes.
    delete_before_replace=True,
    tagged=arn_tagger("resourceArn", "tags", "tagKeys", as_list=False),
)

KINDS = (POD_IDENTITY_ASSOCIATION,)
