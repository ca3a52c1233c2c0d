"""From the program's spelling to the API's, guided by botocore's model of each request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .wire import UNKNOWN


class Untranslatable(ValueError):
    """A value has no place in the API's request. ``path`` is the program's spelling of where it is."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path
        self.message = message


def api_value(shape: Any, value: Any, path: str, names: Mapping[str, str]) -> Any:
    """``value`` as botocore's ``shape`` wants it.

    Members are matched without regard to case and plural; ``names`` gives the API's member for the dotted
    property paths where that is not enough. Unknown values are left out of structures.
    Raises `Untranslatable`.
    """
    kind = shape.type_name
    if kind == "structure":
        return _structure(shape, value, path, names)
    if kind == "list":
        if _is_tag(shape.member) and isinstance(value, Mapping):
            return [{"Key": key, "Value": str(item)} for key, item in value.items()]
        items = value if isinstance(value, list) else [value]
        return [api_value(shape.member, item, f"{path}[{i}]", names) for i, item in enumerate(items) if item != UNKNOWN]
    if kind == "map":
        if not isinstance(value, Mapping):
            raise Untranslatable(path, f"{value!r} is not a map")
        return {key: api_value(shape.value, item, f"{path}.{key}", names) for key, item in value.items()}
    return _scalar(kind, value, path)


def _structure(shape: Any, value: Any, path: str, names: Mapping[str, str]) -> dict[str, Any]:
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, Mapping):
        raise Untranslatable(path, f"{value!r} is not an object")
    result: dict[str, Any] = {}
    for key, item in value.items():
        if item is None or item == UNKNOWN or key.startswith("__"):
            continue
        inner = f"{path}.{key}"
        member = names.get(_plain(inner)) or member_name(shape, key)
        if member is None:
            known = ", ".join(sorted(shape.members))
            raise Untranslatable(inner, f"the API's {shape.name} has nothing of this name; it has {known}")
        result[member] = api_value(shape.members[member], item, inner, names)
    return result


def member_name(shape: Any, key: str) -> str | None:
    """The member of a structure that a property's name means, or None."""
    wanted = _normal(key)
    for member in shape.members:
        if _normal(member) == wanted:
            return str(member)
    return None


def _normal(name: str) -> str:
    """Without case, underscores and plural: ``Ipv6Addresses`` and ``ipv6_address`` are one."""
    text = name.replace("_", "").lower()
    for plural, single in (("ies", "y"), ("sses", "ss"), ("s", "")):
        if text.endswith(plural) and not text.endswith("ss"):
            return text.removesuffix(plural) + single
    return text


def _plain(path: str) -> str:
    """A path without indices."""
    return "".join(part.partition("]")[2] if index else part for index, part in enumerate(path.split("[")))


def _is_tag(shape: Any) -> bool:
    return shape.type_name == "structure" and set(shape.members) == {"Key", "Value"}


def _scalar(kind: str, value: Any, path: str) -> Any:
    if isinstance(value, (Mapping, list)):
        raise Untranslatable(path, f"{value!r} is not a {kind}")
    if kind == "boolean":
        if isinstance(value, bool):
            return value
        if str(value).lower() in ("true", "false"):
            return str(value).lower() == "true"
        raise Untranslatable(path, f"{value!r} is not a boolean")
    if kind in ("integer", "long"):
        try:
            return int(value)
        except ValueError:
            raise Untranslatable(path, f"{value!r} is not a whole number") from None
    if kind in ("float", "double"):
        return float(value)
    if kind == "string":
        return str(value).lower() if isinstance(value, bool) else str(value)
    return value
