"""A custom resource definition's own schema, as strict as the API server with ``fieldValidation=Strict``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

CRDS = Path(__file__).parents[2] / "build/training-operator/base/crds"
"""What `make toolchain` makes."""


def validator(file: str) -> Any:
    """A validator of the resource that ``file`` defines."""
    path = CRDS / file
    if not path.exists():
        pytest.skip("build/training-operator is not there: make toolchain")
    versions = yaml.load(path.read_text(), Loader=yaml.CSafeLoader)["spec"]["versions"]
    schema = next(v["schema"]["openAPIV3Schema"] for v in versions if v["storage"])
    # The object's own metadata is the API server's: a definition leaves it open.
    schema["properties"]["metadata"] = {"type": "object"}
    return jsonschema.Draft4Validator(_strict(schema))


def _strict(schema: Any) -> Any:
    """Fields that a definition does not name are dropped by the API server; here they are refused."""
    if isinstance(schema, list):
        return [_strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _strict(value) for key, value in schema.items()}
    if schema.get("x-kubernetes-int-or-string"):
        found["type"] = ["integer", "string"]
        found.pop("anyOf", None)
    open_ = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object" and not open_:
        found["additionalProperties"] = False
    return found
