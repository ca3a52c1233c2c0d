"""The pack: every rule with its name, what it is for, and what it may be told."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pulumi_policy import (
    EnforcementLevel,
    Policy,
    PolicyConfigSchema,
    PolicyPack,
    ReportViolation,
    ResourceValidationArgs,
    ResourceValidationPolicy,
    StackValidationArgs,
    StackValidationPolicy,
)

from . import network, nodes, pods, tokens
from .view import Resource, of_resource, of_stack

ResourceRule = Callable[[Resource], Iterable[str]]
StackRule = Callable[[Sequence[Resource]], Iterable[network.Problem]]
AWS, KUBERNETES = "aws:", "kubernetes:"
ALLOWED: dict[str, Any] = {
    "type": "array",
    "items": {"type": "string"},
    "description": "namespace/name of what may be.",
}
ALLOW_GLOO: dict[str, Any] = {"type": "boolean", "description": "Whether the cluster's nodes are simulated."}


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule on one resource."""

    name: str
    check: ResourceRule
    types: tuple[str, ...]
    """Beginnings of the type tokens that it looks at."""
    config: Mapping[str, Any] | None = None
    """What it may be told, as JSON schema by name."""
    excused: Callable[[Resource, Mapping[str, Any]], bool] = lambda resource, config: False
    """Whether it was told to let the resource pass."""

    def policy(self) -> ResourceValidationPolicy:
        """As the engine wants it."""

        def validate(args: ResourceValidationArgs, report: ReportViolation) -> None:
            if not args.resource_type.startswith(self.types):
                return
            resource = of_resource(args)
            for problem in self.check(resource):
                if not self.excused(resource, args.get_config()):
                    report(f"{args.name}: {problem}", None)

        schema = PolicyConfigSchema(properties=dict(self.config)) if self.config else None
        return ResourceValidationPolicy(
            name=self.name, description=_description(self.check), validate=validate, config_schema=schema
        )


@dataclass(frozen=True, kw_only=True)
class StackWideRule:
    """A rule on the resources of a stack together."""

    name: str
    check: StackRule
    types: tuple[str, ...]
    """Beginnings of the type tokens that it looks at."""

    def policy(self) -> StackValidationPolicy:
        """As the engine wants it."""

        def validate(args: StackValidationArgs, report: ReportViolation) -> None:
            for urn, problem in self.check(of_stack(args.resources, self.types)):
                report(f"{urn.rpartition('::')[2]}: {problem}", urn)

        return StackValidationPolicy(name=self.name, description=_description(self.check), validate=validate)


def _description(check: Callable[..., Any]) -> str:
    return " ".join((check.__doc__ or "").partition("\n\n")[0].split())


RULES: tuple[Rule | StackWideRule, ...] = (
    StackWideRule(name="efa-group-open-to-itself", check=network.efa_groups, types=network.EFA_TYPES),
    Rule(name="no-public-address", check=network.no_public_address, types=(AWS, "eks:")),
    Rule(name="not-open-to-the-world", check=network.not_open_to_world, types=(AWS,)),
    Rule(name="imdsv2", check=nodes.imdsv2, types=(AWS,)),
    Rule(name="encrypted", check=nodes.encrypted, types=(AWS, KUBERNETES)),
    Rule(name="pinned-images", check=pods.pinned_images, types=(AWS, KUBERNETES)),
    StackWideRule(name="gpu-pods-ask-for-efa", check=pods.gpu_pods_ask_for_efa, types=pods.EFA_TYPES),
    Rule(name="owner-and-expiry", check=nodes.tagged, types=(AWS,)),
    Rule(name="no-tokens", check=tokens.no_tokens, types=("",)),
    Rule(
        name="no-load-balancer",
        check=pods.no_load_balancer,
        types=(KUBERNETES,),
        config={"allowed": ALLOWED},
        excused=lambda resource, config: pods.object_name(resource) in config.get("allowed", ()),
    ),
    Rule(
        name="no-gloo",
        check=pods.no_gloo,
        types=(KUBERNETES,),
        config={"allow": ALLOW_GLOO},
        excused=lambda resource, config: bool(config.get("allow")),
    ),
)
"""All of them, mandatory."""


def policies() -> list[Policy]:
    """The rules as the engine wants them."""
    return [rule.policy() for rule in RULES]


def policy_pack() -> PolicyPack:
    """Serve the pack to the engine that started this program; returns when that ends."""
    return PolicyPack(name="eks-fsdp", enforcement_level=EnforcementLevel.MANDATORY, policies=policies())
