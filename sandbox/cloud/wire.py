"""Values on the engine's wire: protobuf structs to Python and back, unknown values included."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import json_format, struct_pb2

UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
"""The engine's stand-in for a value that a preview cannot know."""
DEFAULTS = "__defaults"
"""Key of the names of inputs that the provider filled in."""


def from_struct(struct: struct_pb2.Struct) -> dict[str, Any]:
    """A dictionary; whole numbers become `int`, nulls are dropped."""
    value: dict[str, Any] = _tidy(json_format.MessageToDict(struct))
    return value


def _tidy(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _tidy(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_tidy(item) for item in value]
    return value


def to_struct(value: Mapping[str, Any]) -> struct_pb2.Struct:
    """The protobuf form; keys whose value is None are left out."""
    struct = struct_pb2.Struct()
    struct.update(_without_none(value))
    return struct


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [_without_none(item) for item in value]
    if isinstance(value, (str, bool, int, float)):
        return value
    return str(value)


def has_unknown(value: Any) -> bool:
    """Whether anything in ``value`` is not known yet."""
    if isinstance(value, Mapping):
        return any(has_unknown(item) for item in value.values())
    if isinstance(value, list):
        return any(has_unknown(item) for item in value)
    return bool(value == UNKNOWN)
