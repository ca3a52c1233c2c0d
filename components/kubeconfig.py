"""How the Kubernetes API of an EKS cluster is reached: a kubeconfig without any secret in it."""

from __future__ import annotations

import json

import pulumi
import pulumi_kubernetes as k8s


def exec_kubeconfig(name: str, endpoint: str, ca_data: str, region: str) -> str:
    """JSON of a kubeconfig that signs in by the AWS CLI, with whatever credentials AWS' tools find.

    ``ca_data`` is the cluster's certificate authority in base64. A token in its place would be valid for 15 minutes.
    """
    sign_in = {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "command": "aws",
        "args": ["--region", region, "eks", "get-token", "--cluster-name", name, "--output", "json"],
        "interactiveMode": "Never",
    }
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": {"server": endpoint, "certificate-authority-data": ca_data}}],
            "users": [{"name": name, "user": {"exec": sign_in}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            "current-context": name,
        }
    )


def cluster_provider(
    name: str,
    kubeconfig: pulumi.Input[str],
    opts: pulumi.ResourceOptions,
    identifier: pulumi.Input[str] | None = None,
) -> k8s.Provider:
    """The provider of everything in a cluster.

    ``identifier`` is the cluster's own: with it a new endpoint or kubeconfig is an update of the provider, and without
    it all in the cluster would be replaced.
    """
    return k8s.Provider(
        name,
        kubeconfig=kubeconfig,
        cluster_identifier=identifier,
        enable_server_side_apply=True,
        enable_config_map_mutable=True,
        enable_secret_mutable=True,
        opts=opts,
    )
