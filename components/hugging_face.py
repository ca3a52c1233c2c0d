"""The token of the Hugging Face hub on its way from where it is kept to a Kubernetes Secret, never in plain text."""

from __future__ import annotations

import json

import pulumi
import pulumi_aws as aws

from eks_fsdp.spec.base import SettingsError
from eks_fsdp.spec.names import HUGGING_FACE_SECRET
from eks_fsdp.spec.settings import HuggingFaceSettings

from .objects import Manifest

TOKEN_KEYS = ("token", "HF_TOKEN")
"""Keys of a JSON secret under which the token is looked for."""


def token_of(text: str) -> str:
    """The token in a secret of Secrets Manager: all of it, or one of `TOKEN_KEYS` where it is a JSON object.

    Raises `SettingsError`, which shows nothing of the secret.
    """
    if not text.lstrip().startswith("{"):
        token: object = text.strip()
    else:
        try:
            content = json.loads(text)
        except ValueError:
            content = {}
        token = next((content[key] for key in TOKEN_KEYS if key in content), None)
    if not isinstance(token, str) or not token:
        raise SettingsError(
            "hugging_face.secret_arn: the secret holds no token; accepted: the token alone, or a JSON object with the "
            f"key {' or '.join(TOKEN_KEYS)}"
        )
    return token


def token(settings: HuggingFaceSettings, options: pulumi.InvokeOptions) -> pulumi.Output[str] | None:
    """The token as a secret output; None where the settings name no source. ``options``: the provider that asks AWS."""
    if settings.token is not None:
        return pulumi.Output.secret(settings.token.get_secret_value())
    if settings.secret_arn is None:
        return None
    found = aws.secretsmanager.get_secret_version_output(secret_id=settings.secret_arn, opts=options)
    # Marked before anything is done with it: the mark stays on all that is made of it.
    text: pulumi.Output[str] = pulumi.Output.secret(found.secret_string)
    return text.apply(token_of)


def token_secret(namespace: str, token: pulumi.Input[str]) -> Manifest:
    """The Secret that jobs of ``namespace`` get their ``HF_TOKEN`` from."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": HUGGING_FACE_SECRET, "namespace": namespace},
        "type": "Opaque",
        "stringData": {"token": token},
    }
