"""Roles, policies, instance profiles, OpenID Connect providers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from botocore.exceptions import ClientError

from .kinds import Call, Context, Failure, Kind, Update, identity, is_gone, tag_list, tag_map
from .wire import has_unknown


def _reader(operation: str, parameter: str, result: str | None) -> Callable[[Context], Any]:
    def read(context: Context) -> Mapping[str, Any] | None:
        try:
            answer = getattr(context.client, operation)(**{parameter: context.id})
        except ClientError as error:
            if is_gone(error):
                return None
            raise
        return dict(answer[result] if result else answer)

    return read


def _tagger(noun: str, parameter: str) -> Callable[[Context, Mapping[str, str], list[str]], None]:
    def tag(context: Context, add: Mapping[str, str], remove: list[str]) -> None:
        if remove:
            getattr(context.client, f"untag_{noun}")(**{parameter: context.id, "TagKeys": remove})
        if add:
            getattr(context.client, f"tag_{noun}")(**{parameter: context.id, "Tags": tag_list(add)})

    return tag


def _document(property_name: str) -> Callable[[Context], Iterable[Failure]]:
    def check(context: Context) -> Iterable[Failure]:
        text = context.inputs.get(property_name)
        if text is None or has_unknown(text):
            return
        try:
            document = json.loads(text)
        except (TypeError, ValueError) as error:
            yield property_name, f"is not JSON ({error})"
            return
        if not isinstance(document, dict) or "Statement" not in document:
            yield property_name, "is not a policy document: it has no Statement"

    return check


def _document_source(property_name: str) -> Callable[[Context], Any]:
    """The document as text; the program may give an object."""

    def source(context: Context) -> Any:
        value = context.inputs.get(property_name)
        return json.dumps(value) if isinstance(value, Mapping) else value

    return source


def _attach_all(context: Context) -> None:
    old, new = set(context.old.get("managedPolicyArns") or []), set(context.inputs.get("managedPolicyArns") or [])
    for arn in old - new:
        context.client.detach_role_policy(RoleName=context.id, PolicyArn=arn)
    for arn in sorted(new - old):
        context.client.attach_role_policy(RoleName=context.id, PolicyArn=arn)


def _inline(context: Context) -> None:
    old = {policy["name"] for policy in context.old.get("inlinePolicies") or [] if policy.get("name")}
    new = {
        policy["name"]: policy["policy"] for policy in context.inputs.get("inlinePolicies") or [] if policy.get("name")
    }
    for name in old - set(new):
        context.client.delete_role_policy(RoleName=context.id, PolicyName=name)
    for name, document in new.items():
        context.client.put_role_policy(RoleName=context.id, PolicyName=name, PolicyDocument=document)


def _detach_all(context: Context) -> None:
    """What the role's own inputs attached; what other resources attached, they detach first."""
    for arn in context.state.get("managedPolicyArns") or []:
        context.client.detach_role_policy(RoleName=context.id, PolicyArn=arn)
    for policy in context.client.list_role_policies(RoleName=context.id)["PolicyNames"]:
        context.client.delete_role_policy(RoleName=context.id, PolicyName=policy)
    if context.state.get("forceDetachPolicies"):
        for item in context.client.list_attached_role_policies(RoleName=context.id)["AttachedPolicies"]:
            context.client.detach_role_policy(RoleName=context.id, PolicyArn=item["PolicyArn"])


ROLE = Kind(
    token="aws:iam/role:Role",
    service="iam",
    create=Call(
        "create_role",
        {
            "RoleName": "name",
            "AssumeRolePolicyDocument": _document_source("assumeRolePolicy"),
            "Description": "description",
            "MaxSessionDuration": "maxSessionDuration",
            "Path": "path",
            "PermissionsBoundary": "permissionsBoundary",
        },
        tags="Tags",
    ),
    id="Role.RoleName",
    read=_reader("get_role", "RoleName", "Role"),
    observed={
        "name": "RoleName",
        "arn": "Arn",
        "uniqueId": "RoleId",
        "createDate": lambda role: role["CreateDate"].isoformat(),
        "path": "Path",
        "description": "Description",
        "maxSessionDuration": "MaxSessionDuration",
        "tags": tag_map,
    },
    before_delete=(_detach_all,),
    delete=Call("delete_role", {"RoleName": identity}),
    updates=(
        Update(("managedPolicyArns",), _attach_all, at_creation=True),
        Update(("inlinePolicies",), _inline, at_creation=True),
        Update(
            ("assumeRolePolicy",),
            Call(
                "update_assume_role_policy",
                {"RoleName": identity, "PolicyDocument": _document_source("assumeRolePolicy")},
            ),
        ),
        Update(
            ("description", "maxSessionDuration"),
            Call(
                "update_role",
                {"RoleName": identity, "Description": "description", "MaxSessionDuration": "maxSessionDuration"},
            ),
        ),
    ),
    replaces=frozenset({"name", "namePrefix", "path", "permissionsBoundary"}),
    ignored=frozenset({"forceDetachPolicies"}),
    auto_name="name",
    name_limit=64,
    checks=(_document("assumeRolePolicy"),),
    tagged=_tagger("role", "RoleName"),
)


def _read_attachment(context: Context) -> Mapping[str, Any] | None:
    source = {**context.state, **context.inputs}
    try:
        found = context.client.list_attached_role_policies(RoleName=source["role"])["AttachedPolicies"]
    except ClientError as error:
        if is_gone(error):
            return None
        raise
    return next((dict(item) for item in found if item["PolicyArn"] == source["policyArn"]), None)


ROLE_POLICY_ATTACHMENT = Kind(
    token="aws:iam/rolePolicyAttachment:RolePolicyAttachment",
    service="iam",
    create=Call("attach_role_policy", {"RoleName": "role", "PolicyArn": "policyArn"}),
    id=lambda context: f"{context.inputs['role']}/{context.inputs['policyArn']}",
    read=_read_attachment,
    delete=Call(
        "detach_role_policy",
        {"RoleName": lambda c: c.state["role"], "PolicyArn": lambda c: c.state["policyArn"]},
    ),
    replaces=frozenset({"role", "policyArn"}),
    delete_before_replace=True,
)


def _read_inline(context: Context) -> Mapping[str, Any] | None:
    role, _, name = context.id.partition(":")
    try:
        return dict(context.client.get_role_policy(RoleName=role, PolicyName=name))
    except ClientError as error:
        if is_gone(error):
            return None
        raise


_PUT = Call(
    "put_role_policy",
    {"RoleName": "role", "PolicyName": "name", "PolicyDocument": _document_source("policy")},
)

ROLE_POLICY = Kind(
    token="aws:iam/rolePolicy:RolePolicy",
    service="iam",
    create=_PUT,
    id=lambda context: f"{context.inputs['role']}:{context.inputs['name']}",
    read=_read_inline,
    delete=Call("delete_role_policy", {"RoleName": lambda c: c.state["role"], "PolicyName": lambda c: c.state["name"]}),
    updates=(Update(("policy",), _PUT),),
    replaces=frozenset({"role", "name", "namePrefix"}),
    auto_name="name",
    name_limit=128,
    checks=(_document("policy"),),
)


def _new_policy_version(context: Context) -> None:
    for version in context.client.list_policy_versions(PolicyArn=context.id)["Versions"]:
        if not version["IsDefaultVersion"]:
            context.client.delete_policy_version(PolicyArn=context.id, VersionId=version["VersionId"])
    document = _document_source("policy")(context)
    context.client.create_policy_version(PolicyArn=context.id, PolicyDocument=document, SetAsDefault=True)


def _drop_versions(context: Context) -> None:
    for version in context.client.list_policy_versions(PolicyArn=context.id)["Versions"]:
        if not version["IsDefaultVersion"]:
            context.client.delete_policy_version(PolicyArn=context.id, VersionId=version["VersionId"])


POLICY = Kind(
    token="aws:iam/policy:Policy",
    service="iam",
    create=Call(
        "create_policy",
        {
            "PolicyName": "name",
            "PolicyDocument": _document_source("policy"),
            "Path": "path",
            "Description": "description",
        },
        tags="Tags",
    ),
    id="Policy.Arn",
    read=_reader("get_policy", "PolicyArn", "Policy"),
    observed={"name": "PolicyName", "arn": "Arn", "policyId": "PolicyId", "path": "Path", "tags": tag_map},
    before_delete=(_drop_versions,),
    delete=Call("delete_policy", {"PolicyArn": identity}),
    updates=(Update(("policy",), _new_policy_version),),
    replaces=frozenset({"name", "namePrefix", "path", "description"}),
    auto_name="name",
    name_limit=128,
    checks=(_document("policy"),),
    tagged=_tagger("policy", "PolicyArn"),
)


def _set_role(context: Context) -> None:
    if context.old.get("role"):
        context.client.remove_role_from_instance_profile(InstanceProfileName=context.id, RoleName=context.old["role"])
    if context.inputs.get("role"):
        context.client.add_role_to_instance_profile(InstanceProfileName=context.id, RoleName=context.inputs["role"])


def _remove_role(context: Context) -> None:
    if context.state.get("role"):
        context.client.remove_role_from_instance_profile(InstanceProfileName=context.id, RoleName=context.state["role"])


INSTANCE_PROFILE = Kind(
    token="aws:iam/instanceProfile:InstanceProfile",
    service="iam",
    create=Call("create_instance_profile", {"InstanceProfileName": "name", "Path": "path"}, tags="Tags"),
    id="InstanceProfile.InstanceProfileName",
    read=_reader("get_instance_profile", "InstanceProfileName", "InstanceProfile"),
    observed={
        "name": "InstanceProfileName",
        "arn": "Arn",
        "uniqueId": "InstanceProfileId",
        "path": "Path",
        "role": "Roles[0].RoleName",
        "tags": tag_map,
    },
    before_delete=(_remove_role,),
    delete=Call("delete_instance_profile", {"InstanceProfileName": identity}),
    updates=(Update(("role",), _set_role, at_creation=True),),
    replaces=frozenset({"name", "namePrefix", "path"}),
    auto_name="name",
    name_limit=128,
    tagged=_tagger("instance_profile", "InstanceProfileName"),
)

OPEN_ID_CONNECT_PROVIDER = Kind(
    token="aws:iam/openIdConnectProvider:OpenIdConnectProvider",
    service="iam",
    create=Call(
        "create_open_id_connect_provider",
        {"Url": "url", "ClientIDList": "clientIdLists", "ThumbprintList": "thumbprintLists"},
        tags="Tags",
    ),
    id="OpenIDConnectProviderArn",
    read=_reader("get_open_id_connect_provider", "OpenIDConnectProviderArn", None),
    observed={
        "thumbprintLists": "ThumbprintList",
        "clientIdLists": "ClientIDList",
        "tags": tag_map,
    },
    delete=Call("delete_open_id_connect_provider", {"OpenIDConnectProviderArn": identity}),
    replaces=frozenset({"url", "clientIdLists"}),
    updates=(
        Update(
            ("thumbprintLists",),
            Call(
                "update_open_id_connect_provider_thumbprint",
                {"OpenIDConnectProviderArn": identity, "ThumbprintList": "thumbprintLists"},
            ),
        ),
    ),
    arn="{id}",
    tagged=_tagger("open_id_connect_provider", "OpenIDConnectProviderArn"),
)

KINDS = (ROLE, ROLE_POLICY_ATTACHMENT, ROLE_POLICY, POLICY, INSTANCE_PROFILE, OPEN_ID_CONNECT_PROVIDER)
