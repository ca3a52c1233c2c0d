"""How the Kubernetes API of an EKS cluster is reached: a kubeconfig without any secret in it."""

from __future__ import annotations

import pulumi
import pulumi_kubernetes as k8s

from eks_fsdp.spec.kubeconfig import exec_kubeconfig as exec_kubeconfig


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
