"""The gRPC servicer of the stand-in `aws` provider."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import grpc
import jmespath  # type: ignore[import-untyped]
from botocore.exceptions import ClientError
from google.protobuf import empty_pb2
from pulumi.runtime.proto import plugin_pb2, provider_pb2, provider_pb2_grpc

from . import buckets, build, capacity, compute, eks, guard, iam, logs, network, pod_identity, storage
from .invokes import UnknownInvoke, invoke
from .kinds import API_ERRORS, Call, Context, Kind, Step, api_message, is_gone
from .shapes import Untranslatable
from .wire import DEFAULTS, UNKNOWN, from_struct, has_unknown, to_struct

VERSION = "7.51.1"
"""Of the SDK whose types are covered."""
KINDS: dict[str, Kind] = {
    kind.token: kind
    for part in (network, compute, capacity, iam, eks, logs, pod_identity, storage, buckets, build, guard)
    for kind in part.KINDS
}
"""Every resource type that the stand-in covers, by token."""


@dataclass(frozen=True)
class Config:
    """What one provider instance of a program was configured with."""

    region: str
    default_tags: Mapping[str, str] = field(default_factory=dict)


class Refused(Exception):
    """An operation failed; the message is the user's."""


class AwsProvider(provider_pb2_grpc.ResourceProviderServicer):
    """All instances of the provider in one process: the engine's connections tell them apart."""

    def __init__(self, client: Callable[[str, str], Any], account: str, region: str) -> None:
        """``client(service, region)`` gives boto3 clients of the account."""
        self._client = client
        self._account = account
        self._region = region
        self._configs: dict[str, Config] = {}
        self._last = Config(region)
        self._lock = threading.Lock()

    # Life

    def Attach(self, request: Any, context: Any) -> Any:
        return empty_pb2.Empty()

    def Cancel(self, request: Any, context: Any) -> Any:
        return empty_pb2.Empty()

    def GetPluginInfo(self, request: Any, context: Any) -> Any:
        return plugin_pb2.PluginInfo(version=VERSION)

    def CheckConfig(self, request: Any, context: Any) -> Any:
        return provider_pb2.CheckResponse(inputs=request.news)

    def DiffConfig(self, request: Any, context: Any) -> Any:
        same = from_struct(request.old_inputs or request.olds) == from_struct(request.news)
        changes = provider_pb2.DiffResponse.DIFF_NONE if same else provider_pb2.DiffResponse.DIFF_SOME
        return provider_pb2.DiffResponse(changes=changes)

    def Configure(self, request: Any, context: Any) -> Any:
        args = from_struct(request.args)
        tags = _decoded(args.get("defaultTags")) or {}
        region = args.get("region") or self._region
        config = Config(self._region if region == UNKNOWN else str(region), tags.get("tags") or {})
        self._refuse_account(args, context)
        with self._lock:
            self._configs[context.peer()] = self._last = config
        return provider_pb2.ConfigureResponse(acceptSecrets=False, supportsPreview=True, acceptResources=False)

    def _refuse_account(self, args: Mapping[str, Any], context: Any) -> None:
        """As the real provider does before it touches anything."""
        allowed, forbidden = (_list(args.get(key)) for key in ("allowedAccountIds", "forbiddenAccountIds"))
        if self._account in forbidden or (allowed and self._account not in allowed):
            _fail(context, f"AWS account ID not allowed: {self._account}")

    def _config(self, context: Any) -> Config:
        """Of the connection; of the last one configured, where the engine has connected anew."""
        with self._lock:
            return self._configs.get(context.peer(), self._last)

    # Functions

    def Invoke(self, request: Any, context: Any) -> Any:
        config = self._config(context)
        args = from_struct(request.args)
        region = str(args.get("region") or config.region)
        try:
            answer = invoke(request.tok, args, lambda service: self._client(service, region), region)
        except (UnknownInvoke, KeyError, IndexError, *API_ERRORS) as error:
            _fail(context, f"{request.tok}: {api_message(error)}")
        response = provider_pb2.InvokeResponse()
        getattr(response, "return").CopyFrom(to_struct(answer))
        return response

    # Resources

    def _kind(self, urn: str, context: Any) -> Kind:
        token = urn.split("::")[2].rpartition("$")[2]
        if token not in KINDS:
            _fail(
                context,
                f"the sandbox's stand-in of AWS does not cover the resource type {token}; "
                f"it covers {', '.join(sorted(KINDS))}",
            )
        return KINDS[token]

    def _context(self, kind: Kind, config: Config, inputs: Mapping[str, Any], **more: Any) -> Context:
        region = inputs.get("region")
        region = config.region if not region or region == UNKNOWN else str(region)
        tags = {**config.default_tags, **(inputs["tags"] if isinstance(inputs.get("tags"), Mapping) else {})}
        return Context(
            clients=lambda service: self._client(service, region),
            service=kind.service,
            region=region,
            account=self._account,
            inputs=inputs,
            tags=tags,
            **more,
        )

    def Check(self, request: Any, context: Any) -> Any:
        kind = self._kind(request.urn, context)
        olds, news = from_struct(request.olds), from_struct(request.news)
        inputs = _named(kind, request, olds, news)
        complete = not has_unknown(inputs)
        operation = self._context(kind, self._config(context), inputs)
        try:
            failures = kind.check(operation, complete)
        except API_ERRORS as error:
            _fail(context, api_message(error))
        return provider_pb2.CheckResponse(
            inputs=to_struct(inputs),
            failures=[provider_pb2.CheckFailure(property=name, reason=reason) for name, reason in failures],
        )

    def Diff(self, request: Any, context: Any) -> Any:
        kind = self._kind(request.urn, context)
        news = from_struct(request.news)
        olds = before(request, from_struct(request.olds), news)
        return difference(kind, olds, news, list(request.ignoreChanges))

    def Create(self, request: Any, context: Any) -> Any:
        kind = self._kind(request.urn, context)
        inputs = from_struct(request.properties)
        config = self._config(context)
        operation = self._context(kind, config, inputs)
        if request.preview:
            values: dict[str, Any] = dict.fromkeys(kind.output_names, UNKNOWN)
            values |= {"tagsAll": dict(operation.tags)} if kind.tagged else {}
            shown = {**values, "region": operation.region, **_plain(inputs)}
            for name, member in kind.computed_members:
                if isinstance(shown.get(name), Mapping):
                    shown[name] = {member: UNKNOWN, **shown[name]}
            return provider_pb2.CreateResponse(id="", properties=to_struct(shown))
        made: Context | None = None
        try:
            answer = kind.create(operation, kind.names)
            identifier = kind.id(operation) if callable(kind.id) else jmespath.search(kind.id, answer)
            made = replace(operation, id=str(identifier))
            for update in kind.updates:
                if update.at_creation and any(inputs.get(name) is not None or name in _ALWAYS for name in update.on):
                    _step(update.step, made, kind)
            outputs = self._describe(kind, made)
        except (Untranslatable, Refused, *API_ERRORS) as error:
            undone = self._undo(kind, made)
            _fail(context, f"creating {kind.token}: {api_message(error)}{undone}")
        return provider_pb2.CreateResponse(id=made.id, properties=to_struct(outputs))

    def _undo(self, kind: Kind, made: Context | None) -> str:
        """Take back what a creation left half done, so that a failed `up` leaves nothing that the state does not know."""
        if made is None or kind.delete is None:
            return ""
        try:
            self._delete(kind, replace(made, state=made.inputs))
        except API_ERRORS as error:
            return f"; and it could not be taken back ({made.id} is left): {api_message(error)}"
        return ""

    def _describe(self, kind: Kind, operation: Context) -> dict[str, Any]:
        described = kind.read(operation)
        if described is None:
            raise Refused(f"{kind.token} {operation.id} is not there after it was made")
        return kind.outputs(operation, described)

    def Read(self, request: Any, context: Any) -> Any:
        kind = self._kind(request.urn, context)
        state, inputs = from_struct(request.properties), from_struct(request.inputs)
        config = self._config(context)
        operation = self._context(kind, config, inputs, id=request.id, state=state)
        try:
            described = kind.read(operation)
            if described is None:
                return provider_pb2.ReadResponse(id="")
            if not inputs:
                seen = {key: value for key, value in kind.observe(described).items() if key in kind.properties}
                inputs = seen
            inputs = {**inputs, **kind.drifted(inputs, described, config.default_tags)}
            operation = self._context(kind, config, inputs, id=request.id, state=state)
            outputs = kind.outputs(operation, described)
        except API_ERRORS as error:
            _fail(context, f"reading {kind.token} {request.id}: {api_message(error)}")
        return provider_pb2.ReadResponse(id=request.id, properties=to_struct(outputs), inputs=to_struct(inputs))

    def Update(self, request: Any, context: Any) -> Any:
        kind = self._kind(request.urn, context)
        state, inputs = from_struct(request.olds), from_struct(request.news)
        old = before(request, state, inputs)
        operation = self._context(kind, self._config(context), inputs, id=request.id, state=state, old=old)
        changed = _changes(old, inputs)
        handled = {name for update in kind.updates for name in update.on} | kind.ignored
        handled |= {"tags", "tagsAll"} if kind.tagged else set()
        stuck = sorted(changed - handled)
        if stuck:
            _fail(context, f"updating {kind.token}: the sandbox's stand-in cannot change {', '.join(stuck)} in place")
        if request.preview:
            volatile = kind.volatile if not kind.volatile_on or changed & kind.volatile_on else frozenset[str]()
            # What the API says of an object beside the program's own words stays known.
            both = {
                key: {**state[key], **value}
                for key, value in _plain(inputs).items()
                if isinstance(value, Mapping) and isinstance(state.get(key), Mapping) and key not in kind.maps
            }
            values = {**state, **_plain(inputs), **both}
            values |= {name: UNKNOWN for name in volatile if name not in inputs}
            values |= {"tagsAll": dict(operation.tags)} if kind.tagged else {}
            return provider_pb2.UpdateResponse(properties=to_struct(values))
        try:
            for update in kind.updates:
                if changed & set(update.on):
                    _step(update.step, operation, kind)
            if kind.tagged:
                _retag(kind, operation)
            outputs = self._describe(kind, operation)
        except (Untranslatable, Refused, *API_ERRORS) as error:
            _fail(context, f"updating {kind.token} {request.id}: {api_message(error)}")
        return provider_pb2.UpdateResponse(properties=to_struct(outputs))

    def Delete(self, request: Any, context: Any) -> Any:
        kind = self._kind(request.urn, context)
        state = from_struct(request.properties)
        operation = self._context(
            kind, self._config(context), from_struct(request.old_inputs), id=request.id, state=state
        )
        try:
            self._delete(kind, operation)
        except API_ERRORS as error:
            _fail(context, f"deleting {kind.token} {request.id}: {api_message(error)}")
        return empty_pb2.Empty()

    @staticmethod
    def _delete(kind: Kind, operation: Context) -> None:
        for step in (*kind.before_delete, *([kind.delete] if kind.delete else [])):
            try:
                _step(step, operation, kind)
            except ClientError as error:
                if not is_gone(error):
                    raise


_ALWAYS = frozenset({"ingress", "egress"})
"""Inputs whose update runs after creation even where they are not set: a new security group's rules are made to fit."""


def difference(kind: Kind, olds: Mapping[str, Any], news: Mapping[str, Any], ignore: list[str]) -> Any:
    """The engine's DiffResponse: what changes, and which of it makes a new resource."""
    changed = _changes(olds, news) - set(ignore)
    replaces = changed & kind.replaces
    if kind.replace_if:
        replaces |= set(kind.replace_if(olds, news)) & changed
    response = provider_pb2.DiffResponse(
        changes=provider_pb2.DiffResponse.DIFF_SOME if changed else provider_pb2.DiffResponse.DIFF_NONE,
        diffs=sorted(changed),
        replaces=sorted(replaces),
        deleteBeforeReplace=bool(replaces) and _must_go_first(kind, olds, news),
        hasDetailedDiff=True,
    )
    for name in sorted(changed):
        _detail(response, name, olds.get(name), news.get(name), name in replaces)
    return response


def _must_go_first(kind: Kind, olds: Mapping[str, Any], news: Mapping[str, Any]) -> bool:
    """Two of one name cannot be: where the program fixed the name, the old one goes first."""
    if kind.delete_before_replace:
        return True
    name = kind.auto_name
    return name is not None and olds.get(name) == news.get(name) and name not in (news.get(DEFAULTS) or [])


def _detail(response: Any, path: str, old: Any, new: Any, replaces: bool) -> None:
    """Entries for the leaves that differ, so that a preview shows the one key of a map that changes."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted(set(old) | set(new)):
            if old.get(key) != new.get(key):
                plain = key.replace("_", "").isalnum()
                inner = f"{path}.{key}" if plain else f"{path}[{json.dumps(key)}]"
                _detail(response, inner, old.get(key), new.get(key), replaces)
        return
    kinds = provider_pb2.PropertyDiff
    if old is None:
        kind = kinds.ADD_REPLACE if replaces else kinds.ADD
    elif new is None:
        kind = kinds.DELETE_REPLACE if replaces else kinds.DELETE
    else:
        kind = kinds.UPDATE_REPLACE if replaces else kinds.UPDATE
    response.detailedDiff[path].CopyFrom(kinds(kind=kind, inputDiff=True))


def _changes(olds: Mapping[str, Any], news: Mapping[str, Any]) -> set[str]:
    return {key for key in set(olds) | set(news) if not key.startswith("__") and olds.get(key) != news.get(key)}


def before(request: Any, state: Mapping[str, Any], news: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs before an update. What the program left open and says now as AWS had chosen it is no change."""
    if not request.HasField("old_inputs"):
        return dict(state)
    said = from_struct(request.old_inputs)
    chosen = {key: value for key, value in news.items() if said.get(key) is None and state.get(key) == value}
    return {**said, **chosen}


def _plain(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in inputs.items() if not key.startswith("__")}


def _step(step: Step, operation: Context, kind: Kind) -> None:
    if isinstance(step, Call):
        step(operation, kind.names)
    else:
        step(operation)


def _retag(kind: Kind, operation: Context) -> None:
    before, after = operation.state.get("tagsAll") or operation.old.get("tags") or {}, operation.tags
    add = {key: value for key, value in after.items() if before.get(key) != value}
    remove = [key for key in before if key not in after]
    if kind.tagged and (add or remove):
        kind.tagged(operation, add, remove)


def _named(kind: Kind, request: Any, olds: Mapping[str, Any], news: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs with a name filled in, kept from before where it was filled in before."""
    inputs = {key: value for key, value in news.items() if key != DEFAULTS}
    name = kind.auto_name
    if name is None or inputs.get(name) is not None:
        return inputs
    prefix = inputs.get(f"{name}Prefix")
    if olds.get(name) is not None and name in (olds.get(DEFAULTS) or []) and olds.get(f"{name}Prefix") == prefix:
        inputs[name] = olds[name]
    elif prefix == UNKNOWN:
        inputs[name] = UNKNOWN
    else:
        logical = request.name or request.urn.rpartition("::")[2]
        digits = "".join(random.Random(bytes(request.randomSeed) or None).choices("0123456789abcdef", k=7))
        head = str(prefix) if prefix is not None else f"{logical}-"
        lower = head.lower() if kind.service == "ecr" else head
        inputs[name] = f"{lower[: kind.name_limit - len(digits)]}{digits}"
    inputs[DEFAULTS] = [name]
    return inputs


def _decoded(value: Any) -> Any:
    """A provider's nested configuration, which the engine sends as JSON text."""
    if isinstance(value, str) and value != UNKNOWN:
        try:
            return json.loads(value)
        except ValueError:
            return None
    return value if isinstance(value, Mapping) else None


def _list(value: Any) -> list[str]:
    """A list of a provider's configuration, which the engine sends as JSON text."""
    found = json.loads(value) if isinstance(value, str) and value not in ("", UNKNOWN) else value
    return [str(item) for item in found] if isinstance(found, list) else []


def _fail(context: Any, message: str) -> NoReturn:
    context.abort(grpc.StatusCode.INVALID_ARGUMENT, message)
    raise AssertionError("abort raises")


def serve(provider: AwsProvider) -> tuple[grpc.Server, int]:
    """Serve on 127.0.0.1. Returns the server and its port."""
    server = grpc.server(
        ThreadPoolExecutor(max_workers=64, thread_name_prefix="aws"),
        options=[("grpc.max_receive_message_length", 400 * 1024 * 1024), ("grpc.so_reuseport", 0)],
    )
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(provider, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, port
