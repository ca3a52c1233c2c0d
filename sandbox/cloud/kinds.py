"""What a resource type is to the stand-in: the API calls behind it, as data."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jmespath  # type: ignore[import-untyped]
from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError
from botocore.parsers import ResponseParserError
from botocore.validate import ParamValidator

from .shapes import Untranslatable, api_value, member_name

_GONE = re.compile(r"NotFound|NoSuch|Unknown$|NotExist|does not exist", re.IGNORECASE)
API_ERRORS = (BotoCoreError, ClientError, ResponseParserError)
"""All that a request may raise; the last is the account's own failure, which no API model describes."""
Failure = tuple[str, str]
"""Property (as the program writes it) and reason."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """One operation on one resource."""

    clients: Callable[[str], Any]
    """boto3 clients of the account by service."""
    service: str
    region: str
    account: str
    inputs: Mapping[str, Any]
    """The resource's (new) inputs."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """The resource's tags and the provider's default tags together."""
    old: Mapping[str, Any] = field(default_factory=dict)
    """Inputs before an update."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """Outputs before an update, read or delete."""
    id: str = ""

    @property
    def client(self) -> Any:
        """The client of the resource's own service."""
        return self.clients(self.service)

    def changed(self, *properties: str) -> bool:
        """Whether any of these inputs differs from before."""
        return any(self.inputs.get(name) != self.old.get(name) for name in properties)


Source = str | Callable[[Context], Any]
"""Where a parameter comes from: an input's name, or a function. A parameter whose source gives None is left out."""


@dataclass(frozen=True)
class Value:
    """A constant as a parameter's source."""

    value: Any

    def __call__(self, context: Context) -> Any:
        return self.value


def identity(context: Context) -> str:
    """The resource's id as a parameter's source."""
    return context.id


@dataclass(frozen=True)
class Call:
    """One API request."""

    operation: str
    """Method of the boto3 client."""
    params: Mapping[str, Source] = field(default_factory=dict)
    """The API's parameter (dotted for nested ones) and its source."""
    tags: str | None = None
    """How tags are given: ``spec:<resource type>`` (EC2), or the name of a parameter."""

    def request(self, context: Context, names: Mapping[str, str]) -> dict[str, Any]:
        """The request's parameters. Raises `Untranslatable`."""
        shape = self.model(context.client).input_shape
        params: dict[str, Any] = {}
        for target, source in self.params.items():
            path = source if isinstance(source, str) else target
            value = context.inputs.get(source) if isinstance(source, str) else source(context)
            if value is None:
                continue
            *outer, last = target.split(".")
            place, where = params, shape
            for part in outer:
                place, where = place.setdefault(part, {}), where.members[part]
            place[last] = api_value(where.members[last], value, path, names) if isinstance(source, str) else value
        if self.tags and context.tags:
            if self.tags.startswith("spec:"):
                kind = self.tags.removeprefix("spec:")
                params["TagSpecifications"] = [{"ResourceType": kind, "Tags": tag_list(context.tags)}]
            else:
                params[self.tags] = api_value(shape.members[self.tags], dict(context.tags), "tags", names)
        return params

    def __call__(self, context: Context, names: Mapping[str, str]) -> dict[str, Any]:
        """Send it."""
        return dict(getattr(context.client, self.operation)(**self.request(context, names)) or {})

    def model(self, client: Any) -> Any:
        """botocore's model of the operation."""
        return client.meta.service_model.operation_model(client.meta.method_to_api_mapping[self.operation])


Step = Call | Callable[[Context], Any]


@dataclass(frozen=True)
class Update:
    """What is done when one of some inputs changes, and after creation where one of them is set."""

    on: tuple[str, ...]
    step: Step
    at_creation: bool = False


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One resource type."""

    token: str
    service: str
    create: Call
    id: Source
    """jmespath into the answer of `create`, or a function of the context."""
    read: Callable[[Context], Mapping[str, Any] | None]
    """The API's description; None where it is gone."""
    observed: Mapping[str, str | Callable[[Mapping[str, Any]], Any]] = field(default_factory=dict)
    """Property and where it stands in the description (jmespath or a function). What is an input too shows drift."""
    computed: Callable[[Context, Mapping[str, Any]], Mapping[str, Any]] | None = None
    """More outputs that need more requests."""
    computed_names: tuple[str, ...] = ()
    """Outputs of `computed`."""
    delete: Step | None
    before_delete: tuple[Step, ...] = ()
    updates: tuple[Update, ...] = ()
    replaces: frozenset[str] = frozenset()
    """Inputs of which a change makes a new resource."""
    replace_if: Callable[[Mapping[str, Any], Mapping[str, Any]], Iterable[str]] | None = None
    """More inputs that replace, from old and new inputs."""
    delete_before_replace: bool = False
    maps: frozenset[str] = frozenset({"tags", "labels"})
    """Inputs whose keys are the program's own: a key that is not there is drift."""
    ignored: frozenset[str] = frozenset()
    """Inputs that steer the provider and are no part of a request."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Members of the API for property paths that do not match by themselves."""
    arn: str | None = None
    """Template of the ARN, where the API does not say it."""
    auto_name: str | None = None
    """Input that gets a name made of the resource's where it is not given."""
    name_limit: int = 255
    volatile: frozenset[str] = frozenset()
    """Outputs that an update may change."""
    volatile_on: frozenset[str] = frozenset()
    """Inputs of which a change does so; empty: any."""
    checks: tuple[Callable[[Context], Iterable[Failure]], ...] = ()
    """Refusals beyond the API's model; run at preview too, when all inputs may not be known."""
    tagged: Callable[[Context, Mapping[str, str], list[str]], None] | None = None
    """Sets and removes tags of a resource that exists."""

    @property
    def properties(self) -> frozenset[str]:
        """Every input that the stand-in can do something with."""
        known = set(self.ignored) | set(self.replaces) | {"region"}
        known |= {source for source in self.create.params.values() if isinstance(source, str)}
        for update in self.updates:
            known |= set(update.on)
        if self.tagged or self.create.tags:
            known |= {"tags", "tagsAll"}
        if self.auto_name:
            known.add(self.auto_name)
        return frozenset(known)

    @property
    def output_names(self) -> frozenset[str]:
        """Every output beyond the inputs."""
        names = {*self.observed, *self.computed_names, "region"}
        names |= {"arn"} if self.arn else set()
        return frozenset(names | ({"tagsAll"} if self.tagged else set()))

    def check(self, context: Context, complete: bool) -> list[Failure]:
        """Why these inputs are refused; ``complete``: all of them are known."""
        known = self.properties
        failures = [
            (
                name,
                f"the sandbox's stand-in of {self.token} does not cover {name!r}; it covers {', '.join(sorted(known))}",
            )
            for name in context.inputs
            if name not in known and not name.startswith("__")
        ]
        for test in self.checks:
            failures += test(context)
        if failures:
            return failures
        try:
            request = self.create.request(context, self.names)
        except Untranslatable as error:
            return [(error.path, error.message)]
        if complete:
            report = ParamValidator().validate(request, self.create.model(context.client).input_shape)
            if report.has_errors():
                return [(self._blame(report.generate_report()), report.generate_report())]
        return []

    def _blame(self, report: str) -> str:
        """The property that a report of botocore speaks of, or nothing."""
        for target, source in self.create.params.items():
            if isinstance(source, str) and re.search(rf"\b{target.rpartition('.')[2]}\b", report):
                return source
        return ""

    def outputs(self, context: Context, described: Mapping[str, Any]) -> dict[str, Any]:
        """All outputs of a resource that exists."""
        values: dict[str, Any] = {key: value for key, value in context.inputs.items() if not key.startswith("__")}
        # What the program said stays as it said it; what it left open is what the API says.
        for key, seen in self.observe(described).items():
            said = values.get(key)
            if said is None:
                values[key] = seen
            elif isinstance(said, Mapping) and isinstance(seen, Mapping) and key not in self.maps:
                values[key] = {**seen, **said}
        if self.arn:
            values["arn"] = self.arn.format(region=context.region, account=context.account, id=context.id, **values)
        if self.computed:
            values.update(self.computed(context, described))
        if self.tagged:
            values["tagsAll"] = dict(context.tags)
        values["region"] = context.region
        return values

    def drifted(
        self, inputs: Mapping[str, Any], described: Mapping[str, Any], default_tags: Mapping[str, str]
    ) -> dict[str, Any]:
        """Inputs as the API shows them, for those that differ from ``inputs``."""
        drift: dict[str, Any] = {}
        for key, seen in self.observe(described).items():
            said = inputs.get(key)
            if said is None:
                continue
            if key == "tags":
                seen = {k: v for k, v in seen.items() if k in said or default_tags.get(k) != v}
            if not _same(said, seen, exact=key in self.maps):
                drift[key] = {**said, **seen} if isinstance(said, Mapping) and key not in self.maps else seen
        return drift

    def observe(self, described: Mapping[str, Any]) -> dict[str, Any]:
        """`observed` of a description; what is not there is left out."""
        values = {
            key: path(described) if callable(path) else jmespath.search(path, described)
            for key, path in self.observed.items()
        }
        return {key: value for key, value in values.items() if value is not None}


def _same(said: Any, seen: Any, exact: bool) -> bool:
    """Whether the API shows what the program said: spelling of scalars and order of lists are no difference."""
    if isinstance(said, Mapping):
        if not isinstance(seen, Mapping) or (exact and set(said) != set(seen)):
            return False
        return all(
            _same(value, seen.get(key), exact) for key, value in said.items() if value is not None and key in seen
        )
    if isinstance(said, list) and isinstance(seen, list):
        if len(said) != len(seen):
            return False
        rest = list(seen)
        for item in said:
            match = next((i for i, other in enumerate(rest) if _same(item, other, exact)), None)
            if match is None:
                return False
            del rest[match]
        return True
    return str(said).lower() == str(seen).lower()


def is_gone(error: Exception) -> bool:
    """Whether an API error says that the thing does not exist."""
    if not isinstance(error, ClientError):
        return False
    details = error.response.get("Error", {})
    return bool(_GONE.search(details.get("Code", "")))


def api_message(error: Exception) -> str:
    """An API error in one line."""
    if isinstance(error, ClientError):
        details = error.response.get("Error", {})
        return f"{error.operation_name}: {details.get('Code')}: {details.get('Message')}"
    if isinstance(error, ResponseParserError):
        return "the stand-in account failed on this request; its own log is logs/daemon.log of the sandbox's folder"
    if isinstance(error, ParamValidationError):
        return str(error).replace("\n", " ")
    return str(error) or type(error).__name__


def tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Tags as most of the API wants them."""
    return [{"Key": key, "Value": str(value)} for key, value in tags.items()]


def tag_map(description: Mapping[str, Any]) -> dict[str, str]:
    """The tags of a description, without AWS's own; an empty map where it has none."""
    found = description.get("Tags", description.get("tags")) or []
    pairs = found.items() if isinstance(found, Mapping) else ((tag["Key"], tag["Value"]) for tag in found)
    return {key: value for key, value in pairs if not key.startswith("aws:")}


def describer(operation: str, parameter: str, result: str, single: bool = False) -> Callable[[Context], Any]:
    """A reader by id: ``operation(parameter=[id])`` and the first of ``result``, or ``result`` itself if ``single``."""

    def read(context: Context) -> Mapping[str, Any] | None:
        value: Any = context.id if single else [context.id]
        try:
            answer = getattr(context.client, operation)(**{parameter: value})[result]
        except ClientError as error:
            if is_gone(error):
                return None
            raise
        if single:
            return dict(answer)
        return dict(answer[0]) if answer else None

    return read


def ec2_tagger(context: Context, add: Mapping[str, str], remove: list[str]) -> None:
    """Tags of an EC2 resource, by its id."""
    if remove:
        context.client.delete_tags(Resources=[context.id], Tags=[{"Key": key} for key in remove])
    if add:
        context.client.create_tags(Resources=[context.id], Tags=tag_list(add))


def arn_tagger(resource: str, tags: str, keys: str, as_list: bool = True) -> Callable[..., None]:
    """A tagger by ARN: the names of TagResource's and UntagResource's parameters."""

    def tag(context: Context, add: Mapping[str, str], remove: list[str]) -> None:
        arn = context.state["arn"]
        if remove:
            context.client.untag_resource(**{resource: arn, keys: remove})
        if add:
            context.client.tag_resource(**{resource: arn, tags: tag_list(add) if as_list else dict(add)})

    return tag


__all__ = [
    "API_ERRORS",
    "Call",
    "Context",
    "Failure",
    "Kind",
    "Update",
    "Value",
    "api_message",
    "arn_tagger",
    "describer",
    "ec2_tagger",
    "identity",
    "is_gone",
    "member_name",
    "tag_list",
    "tag_map",
]
