"""A container's environment, command and arguments, as the kubelet computes them."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

Object = dict[str, Any]
Lookup = Callable[[str, str], Object | None]
"""Kind (``ConfigMap`` or ``Secret``) and name -> the object in the pod's namespace, or None."""

_REFERENCE = re.compile(r"\$\$|\$\(([^)]*)\)")
_SUFFIXES: dict[str, Decimal | int] = {
    "": 1, "m": Decimal("0.001"), "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50,
}  # fmt: skip


class ConfigurationError(ValueError):
    """A container cannot be made as it is described (CreateContainerConfigError)."""


def expand(text: str, values: Mapping[str, str]) -> str:
    """Replace ``$(NAME)``; ``$$`` stands for ``$``; a reference to an unknown name stays as it is."""

    def replace(match: re.Match[str]) -> str:
        if match.group(0) == "$$":
            return "$"
        return values.get(match.group(1), match.group(0))

    return _REFERENCE.sub(replace, text)


def quantity(text: str | int | float) -> Decimal:
    """A Kubernetes quantity as a number: ``500m`` is 0.5, ``2Ki`` is 2048. Raises ConfigurationError."""
    match = re.fullmatch(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([a-zA-Z]*)", str(text))
    if not match or match.group(2) not in _SUFFIXES:
        raise ConfigurationError(f"{text!r} is no quantity")
    return Decimal(match.group(1)) * Decimal(_SUFFIXES[match.group(2)])


def field_value(pod: Object, path: str) -> str:
    """A downward-API field as text. Raises ConfigurationError for one that is not supported."""
    metadata, spec, status = pod["metadata"], pod["spec"], pod.get("status", {})
    simple = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", "default"),
        "status.podIP": status.get("podIP", ""),
        "status.podIPs": status.get("podIP", ""),
        "status.hostIP": status.get("hostIP", ""),
        "status.hostIPs": status.get("hostIP", ""),
    }
    if path in simple:
        return str(simple[path])
    match = re.fullmatch(r"metadata\.(labels|annotations)(?:\['([^']+)'\])?", path)
    if match:
        values: dict[str, str] = metadata.get(match.group(1)) or {}
        if match.group(2):
            return values.get(match.group(2), "")
        return "\n".join(f'{key}="{values[key]}"' for key in sorted(values))
    raise ConfigurationError(f"fieldPath {path!r} is not supported")


def resource_value(pod: Object, container: Object, reference: Object, node: Mapping[str, str]) -> str:
    """A container's resource as a whole number of ``divisor``, rounded up; the node's where there is no limit."""
    wanted = reference.get("containerName")
    everyone = [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
    owner = next((c for c in everyone if c["name"] == wanted), container)
    kind, _, resource = str(reference["resource"]).partition(".")
    given = (owner.get("resources", {}).get(kind) or {}).get(resource)
    if given is None:
        given = node.get(resource, "0") if kind == "limits" else "0"
    divisor = reference.get("divisor", "1")
    return str(math.ceil(quantity(given) / (quantity(divisor) or 1)))


def decode(value: Object) -> dict[str, bytes]:
    """The content of a ConfigMap or Secret."""
    if value.get("kind") == "Secret" or "type" in value:
        return {key: base64.b64decode(text) for key, text in (value.get("data") or {}).items()}
    content = {key: text.encode() for key, text in (value.get("data") or {}).items()}
    content.update({key: base64.b64decode(text) for key, text in (value.get("binaryData") or {}).items()})
    return content


def build(
    container: Object, pod: Object, base: Mapping[str, str], lookup: Lookup, node: Mapping[str, str]
) -> dict[str, str]:
    """``base`` with the container's ``envFrom`` and ``env``. Raises `ConfigurationError`, naming what is missing."""
    values = dict(base)
    for source in container.get("envFrom", []):
        for kind, key in (("ConfigMap", "configMapRef"), ("Secret", "secretRef")):
            if key in source:
                content = _content(lookup, kind, source[key]["name"], bool(source[key].get("optional")))
                values.update({source.get("prefix", "") + name: data.decode() for name, data in content.items()})
    for variable in container.get("env", []):
        value = _value(variable, container, pod, values, lookup, node)
        if value is not None:
            values[variable["name"]] = value
    return values


def _value(
    variable: Object, container: Object, pod: Object, values: Mapping[str, str], lookup: Lookup, node: Mapping[str, str]
) -> str | None:
    source = variable.get("valueFrom")
    if source is None:
        return expand(variable.get("value") or "", values)
    if "fieldRef" in source:
        return field_value(pod, source["fieldRef"]["fieldPath"])
    if "resourceFieldRef" in source:
        return resource_value(pod, container, source["resourceFieldRef"], node)
    for kind, key in (("ConfigMap", "configMapKeyRef"), ("Secret", "secretKeyRef")):
        if key in source:
            reference = source[key]
            content = _content(lookup, kind, reference["name"], bool(reference.get("optional")))
            if reference["key"] in content:
                return content[reference["key"]].decode()
            if reference.get("optional"):
                return None
            raise ConfigurationError(f"{kind} {reference['name']!r} has no key {reference['key']!r}")
    raise ConfigurationError(f"env {variable['name']}: this kind of valueFrom is not supported")


def _content(lookup: Lookup, kind: str, name: str, optional: bool) -> dict[str, bytes]:
    value = lookup(kind, name)
    if value is None:
        if optional:
            return {}
        raise ConfigurationError(f"{kind.lower()} {name!r} not found")
    return decode({**value, "kind": kind})


def command_line(container: Object, entrypoint: list[str], values: Mapping[str, str]) -> list[str]:
    """Command and arguments; the image's entry point stands in for a missing command."""
    command = [expand(part, values) for part in container.get("command") or []] or list(entrypoint)
    return command + [expand(part, values) for part in container.get("args") or []]
