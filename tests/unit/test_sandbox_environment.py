"""A container's environment and command."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from eks_fsdp.sandbox.environment import ConfigurationError, build, command_line, expand, field_value, quantity

POD: dict[str, Any] = {
    "metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {"a": "1", "b": "2"}},
    "spec": {"nodeName": "node", "containers": [{"name": "c", "resources": {"limits": {"cpu": "1500m"}}}]},
    "status": {"podIP": "10.0.0.9", "hostIP": "10.0.0.1"},
}
OBJECTS: dict[tuple[str, str], dict[str, Any]] = {
    ("ConfigMap", "cm"): {"data": {"key": "value"}},
    ("Secret", "s"): {"data": {"password": base64.b64encode(b"hush").decode()}},
}


def lookup(kind: str, name: str) -> dict[str, Any] | None:
    return OBJECTS.get((kind, name))


def built(*env: dict[str, Any], env_from: list[dict[str, Any]] | None = None) -> dict[str, str]:
    container = {"name": "c", "env": list(env), "envFrom": env_from or [], "resources": {"limits": {"cpu": "1500m"}}}
    return build(container, POD, {"BASE": "b"}, lookup, {"memory": "2Gi"})


@pytest.mark.parametrize(
    ("text", "result"),
    [("$(A)-$(B)", "1-$(B)"), ("$$(A)", "$(A)"), ("$A", "$A"), ("$$$(A)", "$1"), ("$(", "$("), ("x$$", "x$")],
)
def test_references_are_replaced_as_the_kubelet_does(text: str, result: str) -> None:
    assert expand(text, {"A": "1"}) == result


def test_values_fields_keys_and_references_to_earlier_ones() -> None:
    values = built(
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "URL", "value": "http://$(IP)/$(BASE)/$(LATER)"},
        {"name": "LATER", "value": "x"},
        {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "s", "key": "password"}}},
        {"name": "CPUS", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
        {"name": "MIB", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
        env_from=[{"prefix": "P_", "configMapRef": {"name": "cm"}}],
    )
    assert values == {
        "BASE": "b",
        "P_key": "value",
        "IP": "10.0.0.9",
        "URL": "http://10.0.0.9/b/$(LATER)",
        "LATER": "x",
        "PASSWORD": "hush",
        "CPUS": "2",
        "MIB": "2048",
    }


def test_what_is_missing_is_named_unless_it_is_optional() -> None:
    reference = {"name": "V", "valueFrom": {"configMapKeyRef": {"name": "none", "key": "k"}}}
    with pytest.raises(ConfigurationError, match="configmap 'none' not found"):
        built(reference)
    reference["valueFrom"]["configMapKeyRef"]["optional"] = True  # type: ignore[index]
    assert "V" not in built(reference)
    with pytest.raises(ConfigurationError, match="no key 'other'"):
        built({"name": "V", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "other"}}})


def test_labels_as_fields() -> None:
    assert field_value(POD, "metadata.labels['a']") == "1"
    assert field_value(POD, "metadata.labels") == 'a="1"\nb="2"'
    with pytest.raises(ConfigurationError, match=r"spec\.nothing"):
        field_value(POD, "spec.nothing")


def test_quantities() -> None:
    assert [str(quantity(text)) for text in ("2", "250m", "1Ki", "3G")] == ["2", "0.250", "1024", "3000000000"]
    with pytest.raises(ConfigurationError, match="no quantity"):
        quantity("many")


def test_the_entry_point_stands_in_for_a_missing_command() -> None:
    assert command_line({"args": ["--x=$(A)"]}, ["/manager"], {"A": "1"}) == ["/manager", "--x=1"]
    assert command_line({"command": ["sh"], "args": ["-c"]}, ["/manager"], {}) == ["sh", "-c"]
