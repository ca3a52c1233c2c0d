"""What a rule sees of a resource: plain values, in which what a preview cannot know yet is `UNKNOWN`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pulumi_policy import PolicyResource, ResourceValidationArgs
from pulumi_policy.proxy import UnknownValueError


class Unknown:
    """A value that only the update itself will know."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Final = Unknown()


@dataclass(frozen=True, kw_only=True)
class Resource:
    """One resource as a rule sees it."""

    type: str
    """Type token, such as ``aws:ec2/launchTemplate:LaunchTemplate``."""
    name: str
    """Name in the program."""
    urn: str
    props: Mapping[str, Any]
    """Inputs where one resource is looked at, outputs where the whole stack is."""
    depends: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """URNs of the resources that each property comes from."""

    def get(self, path: str, default: Any = None) -> Any:
        """The value at a dotted path; `UNKNOWN` where the path leads through one."""
        value: Any = self.props
        for key in path.split("."):
            if value is UNKNOWN:
                return UNKNOWN
            value = value.get(key) if isinstance(value, Mapping) else None
        return default if value is None else value

    def items(self, path: str) -> list[Mapping[str, Any]]:
        """The objects of a list at a path; those that are known."""
        found = self.get(path, [])
        return [item for item in found if isinstance(item, Mapping)] if isinstance(found, list) else []


def plain(value: Any) -> Any:
    """A property without the SDK's proxies, which raise where a value is unknown."""
    if isinstance(value, Mapping):
        return {key: _at(value, key) for key in value}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_at(value, index) for index in range(len(value))]
    return value


def _at(container: Any, key: Any) -> Any:
    try:
        return plain(container[key])
    except UnknownValueError:
        return UNKNOWN


def of_resource(args: ResourceValidationArgs) -> Resource:
    """The one resource that a policy is asked about."""
    return Resource(type=args.resource_type, name=args.name, urn=args.urn, props=plain(args.props))


def of_stack(resources: Iterable[PolicyResource], wanted: tuple[str, ...]) -> list[Resource]:
    """The resources of a stack whose type begins with one of ``wanted``."""
    return [
        Resource(
            type=resource.resource_type,
            name=resource.name,
            urn=resource.urn,
            props=plain(resource.props),
            depends={
                name: frozenset(found.urn for found in sources)
                for name, sources in resource.property_dependencies.items()
            },
        )
        for resource in resources
        if resource.resource_type.startswith(wanted)
    ]


def identifier(resource: Resource) -> Any:
    """AWS' id of a resource, as the end of its ARN says it; `UNKNOWN` before it is made."""
    arn = resource.get("arn", UNKNOWN)
    return arn.rpartition("/")[2] if isinstance(arn, str) else UNKNOWN


def is_true(value: Any) -> bool:
    """Whether a property is true, as a boolean or, as some of AWS' are, as text."""
    return str(value).lower() == "true"


def walk(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value at any depth with its path, such as ``spec.containers[0].image``; keys that are texts too."""
    yield path, value
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from walk(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from walk(item, f"{path}[{index}]")
