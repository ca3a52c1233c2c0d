"""The ``config`` section of Pulumi.yaml, from `Settings`: ``python -m eks_fsdp.spec.pulumi_project`` prints it as YAML."""

from __future__ import annotations

import json
from typing import Any, get_args, get_origin

from .settings import Settings

Declaration = dict[str, Any]


def config_section() -> dict[str, Declaration]:
    """One declaration for each top-level setting, in the engine's words: string, integer, boolean, array or object.

    The engine checks no deeper than that; `Settings` does. Objects and lists default to empty ones: what is in them by
    default is told by `Settings` alone.
    """
    section: dict[str, Declaration] = {}
    for name, field in Settings.model_fields.items():
        declared = _type(field.annotation)
        declared["description"] = " ".join((field.description or "").split())
        default = field.get_default(call_default_factory=True)
        declared["default"] = {"array": [], "object": {}}.get(declared["type"], default)
        section[name] = declared
    return section


def _type(annotation: Any) -> Declaration:
    if origin := get_origin(annotation):
        if origin is list:
            return {"type": "array", "items": _type(get_args(annotation)[0])}
        if origin is dict:
            return {"type": "object"}
        return _type(get_args(annotation)[0])
    return {"type": {str: "string", int: "integer", bool: "boolean"}.get(annotation, "object")}


def to_yaml() -> str:
    """The section as YAML. Every value is written as JSON, which YAML contains."""
    lines = ["config:"]
    for name, declared in config_section().items():
        lines.append(f"  {name}:")
        lines += [f"    {key}: {_scalar(value)}" for key, value in declared.items()]
    return "\n".join(lines) + "\n"


def _scalar(value: object) -> str:
    text = json.dumps(value)
    plain = isinstance(value, str) and value.replace("-", "").isalnum() and value[0].isalpha()
    return str(value) if plain else text


if __name__ == "__main__":
    print(to_yaml(), end="")
