"""How the Kubernetes API of an EKS cluster is reached: a kubeconfig without any secret in it."""

from __future__ import annotations

import json


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
