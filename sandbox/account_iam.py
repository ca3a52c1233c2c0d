"""IAM of the stand-in account: the simulation of policies, which moto lacks."""

from __future__ import annotations

from typing import Any

from moto.core.exceptions import ServiceException
from moto.core.responses import ActionResult
from moto.iam.access_control import IAMPolicy, PermissionResult
from moto.iam.responses import IamResponse

from .account_errors import Refusal

ADMINISTRATOR = "user/moto"
"""The sandbox's own credentials, as GetCallerIdentity names them. They may do everything."""


class SandboxIAMResponse(IamResponse):
    """moto's IAM with SimulatePrincipalPolicy: actions only, on all resources and without conditions."""

    def simulate_principal_policy(self) -> ActionResult:
        """SimulatePrincipalPolicy of a role or user that exists, or of the sandbox's own credentials."""
        source = str(self._get_param("PolicySourceArn"))
        policies = self._policies(source)
        results = [
            {
                "EvalActionName": action,
                "EvalResourceName": "*",
                "EvalDecision": "allowed" if policies is None else _decision(policies, action),
                "MatchedStatements": [],
                "MissingContextValues": [],
            }
            for action in self._get_param("ActionNames", [])
        ]
        return ActionResult({"EvaluationResults": results, "IsTruncated": False})

    def _policies(self, source: str) -> list[IAMPolicy] | None:
        """The documents of a principal; None for the administrator."""
        principal = source.split(":", 5)[-1]
        if principal == ADMINISTRATOR:
            return None
        kind, _, name = principal.partition("/")
        name = name.rsplit("/", 1)[-1]
        backend: Any = self.backend
        try:
            owner = backend.get_role(name) if kind == "role" else backend.get_user(name)
        except ServiceException:
            raise Refusal("NoSuchEntity", f"The {kind} with name {name} cannot be found.") from None
        inline = owner.policies
        # A role's are documents by name, a user's are too.
        documents = [IAMPolicy(text) for text in inline.values()]
        return [*documents, *(IAMPolicy(policy) for policy in owner.managed_policies.values())]


def _decision(policies: list[IAMPolicy], action: str) -> str:
    found = [policy.is_action_permitted(action) for policy in policies]
    if PermissionResult.DENIED in found:
        return "explicitDeny"
    return "allowed" if PermissionResult.PERMITTED in found else "implicitDeny"
