"""Every version that the platform deploys, in one place. Never ``latest``."""

from __future__ import annotations

KUBERNETES_VERSION = "1.34"
KUBERNETES_PATCH = "1.34.4"
ETCD_VERSION = "3.6.7"
TRAINING_OPERATOR_VERSION = "1.9.4"
PROMETHEUS_VERSION = "3.16.0"
"""The binary's version; the Go module of the same release is v0.316.0."""
GRAFANA_VERSION = "12.3.1"
NVIDIA_DEVICE_PLUGIN_VERSION = "0.18.1"
EFA_DEVICE_PLUGIN_VERSION = "0.5.20"
DCGM_EXPORTER_VERSION = "4.4.2-4.7.0"

ETCD_IMAGE = f"quay.io/coreos/etcd:v{ETCD_VERSION}"
TRAINING_OPERATOR_IMAGE = "ghcr.io/kubeflow/training-v1/training-operator:v1-93c5489"
"""The image that the release's own ``manifests/overlays/standalone`` names; its tags are not the release's."""
TRAINING_OPERATOR_MANIFESTS = (
    f"https://github.com/kubeflow/training-operator//manifests/base?ref=v{TRAINING_OPERATOR_VERSION}"
)
PROMETHEUS_IMAGE = f"quay.io/prometheus/prometheus:v{PROMETHEUS_VERSION}"
GRAFANA_IMAGE = f"docker.io/grafana/grafana:{GRAFANA_VERSION}"
NVIDIA_DEVICE_PLUGIN_IMAGE = f"nvcr.io/nvidia/k8s-device-plugin:v{NVIDIA_DEVICE_PLUGIN_VERSION}"
EFA_DEVICE_PLUGIN_IMAGE = (
    f"602401143452.dkr.ecr.us-west-2.amazonaws.com/eks/aws-efa-k8s-device-plugin:v{EFA_DEVICE_PLUGIN_VERSION}"
)
DCGM_EXPORTER_IMAGE = f"nvcr.io/nvidia/k8s/dcgm-exporter:{DCGM_EXPORTER_VERSION}-ubuntu22.04"
GUARD_IMAGE = "public.ecr.aws/lambda/python:3.13.2026.06.05.14"
"""AWS' own image with Python and boto3: what the idle guard runs in. ``python3.13`` is the expiry function's runtime too."""
TRAINER_REPOSITORY = "eks-fsdp/trainer"
"""Name of the ECR repository of the trainer's image."""

PULUMI_CLI_VERSION = "3.215.0"
"""Oldest CLI that the program runs with, and the one that the sandbox builds: newer ones do not compile with the provider."""
PULUMI_KUBERNETES_VERSION = "4.25.0"
"""Of the SDK and of the provider plugin."""
