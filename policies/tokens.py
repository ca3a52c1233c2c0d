"""The rule that no secret stands in plain text in an input."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable

from .view import Resource, walk

PATTERNS: dict[str, re.Pattern[str]] = {
    "a Hugging Face token": re.compile(r"\bhf_[A-Za-z0-9]{20,}"),
    "an AWS access key": re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    "a GitHub token": re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{40,})"),
    "a private key": re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
    "a Weights & Biases key": re.compile(r"WANDB_API_KEY\W{1,4}[0-9a-f]{40}\b"),
    "a Slack token": re.compile(r"\bxox[abprs]-[A-Za-z0-9-]{10,}"),
}
"""What each secret looks like."""
_HOMES: dict[str, tuple[str, ...]] = {
    "kubernetes:core/v1:Secret": ("data", "stringData"),
    "aws:secretsmanager/secretVersion:SecretVersion": ("secretString", "secretBinary"),
    "pulumi:providers:kubernetes": ("kubeconfig",),
}
"""Inputs that are made for secrets: Pulumi encrypts them in its state, and not everybody who sees the stack sees them."""
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]{40,}={0,2}")
_LIMIT = 65_536
"""Characters of the longest text that may be base64: user data has at most 16 KiB."""


def no_tokens(resource: Resource) -> Iterable[str]:
    """No token in plain text: in an environment variable, a command line, a ConfigMap, user data, a tag."""
    homes = _HOMES.get(resource.type, ())
    for key, value in resource.props.items():
        if key in homes or key.startswith("__"):
            continue
        for path, text in walk(value, key):
            if isinstance(text, str) and (what := found_in(text)):
                yield f"{path} holds {what}; accepted: a Kubernetes Secret or AWS Secrets Manager, and a reference to it"


def found_in(text: str) -> str | None:
    """What kind of secret ``text`` holds, in plain or base64; None: none that is known."""
    for candidate in (text, _decoded(text)):
        for what, pattern in PATTERNS.items():
            if candidate and pattern.search(candidate):
                return what
    return None


def _decoded(text: str) -> str | None:
    if len(text) > _LIMIT or not _BASE64.fullmatch(text):
        return None
    try:
        return base64.b64decode(text, validate=False).decode("utf-8", "replace")
    except (ValueError, binascii.Error):
        return None
