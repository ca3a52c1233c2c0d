"""The bare program of `preview.py`: declares the resources of resources.json one by one, with both SDKs loaded."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pulumi
import pulumi_aws as aws
import pulumi_kubernetes as k8s


def load(token: str) -> None:
    """Load the SDK's class of a type, as a program that is written by hand does: ``aws.ec2.Vpc``, ``k8s.apps.v1.Deployment``."""
    package, module, name = token.split(":")
    place: Any = aws if package == "aws" else k8s
    group, version = module.split("/")
    path = [group] if package == "aws" else [group.split(".")[0], version]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for part in [*path, name]:
            # A custom resource has no class of its own.
            place = getattr(place, part, None)


def main() -> None:
    """Declare all of them."""
    providers: dict[str, pulumi.ProviderResource] = {}
    for told in json.loads(Path(__file__).with_name("resources.json").read_text()):
        token, name, inputs = told["type"], told["name"], told["inputs"]
        if token == "pulumi:providers:aws":
            providers[told["urn"]] = aws.Provider(name, region=inputs["region"])
        elif token == "pulumi:providers:kubernetes":
            providers[told["urn"]] = k8s.Provider(name, kubeconfig=inputs["kubeconfig"])
        elif told["custom"]:
            load(token)
            opts = pulumi.ResourceOptions(provider=providers.get(told["provider"]))
            pulumi.CustomResource(token, name, inputs, opts)
        else:
            pulumi.ComponentResource(token, name)


main()
