"""Every version that the platform deploys, in one place. Never ``latest``."""

from __future__ import annotations

from datetime import date

KUBERNETES_VERSION = "1.34"
KUBERNETES_PATCH = "1.34.4"
ETCD_VERSION = "3.6.7"
TRAINING_OPERATOR_VERSION = "1.9.4"
KUEUE_VERSION = "0.17.0"
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
KUEUE_IMAGE = f"registry.k8s.io/kueue/kueue:v{KUEUE_VERSION}"
KUEUE_MANIFESTS = f"https://github.com/kubernetes-sigs/kueue//config/default?ref=v{KUEUE_VERSION}"
PROMETHEUS_IMAGE = f"quay.io/prometheus/prometheus:v{PROMETHEUS_VERSION}"
GRAFANA_IMAGE = f"docker.io/grafana/grafana:{GRAFANA_VERSION}"
NVIDIA_DEVICE_PLUGIN_IMAGE = f"nvcr.io/nvidia/k8s-device-plugin:v{NVIDIA_DEVICE_PLUGIN_VERSION}"
EFA_DEVICE_PLUGIN_IMAGE = (
    f"602401143452.dkr.ecr.us-west-2.amazonaws.com/eks/aws-efa-k8s-device-plugin:v{EFA_DEVICE_PLUGIN_VERSION}"
)
DCGM_EXPORTER_IMAGE = f"nvcr.io/nvidia/k8s/dcgm-exporter:{DCGM_EXPORTER_VERSION}-ubuntu22.04"
AMI_RELEASES: dict[str, str] = {"1.34": "1.34.9-20260801"}
"""Release of EKS' AL2023 NVIDIA image by Kubernetes minor version: driver 580.159.03, EFA 3.1.0. Later ones warn of kernel panics."""
VPC_CNI, KUBE_PROXY, COREDNS, POD_IDENTITY = "vpc-cni", "kube-proxy", "coredns", "eks-pod-identity-agent"
EBS_CSI, FSX_CSI = "aws-ebs-csi-driver", "aws-fsx-csi-driver"
S3_CSI = "aws-mountpoint-s3-csi-driver"
NODE_MONITORING, CLOUDWATCH = "eks-node-monitoring-agent", "amazon-cloudwatch-observability"
ADDON_VERSIONS: dict[str, str | dict[str, str]] = {
    VPC_CNI: "v1.22.4-eksbuild.3",
    KUBE_PROXY: {
        "1.33": "v1.33.10-eksbuild.29",
        "1.34": "v1.34.6-eksbuild.29",
        "1.35": "v1.35.3-eksbuild.29",
        "1.36": "v1.36.0-eksbuild.25",
    },
    COREDNS: {
        "1.33": "v1.12.4-eksbuild.38",
        "1.34": "v1.13.2-eksbuild.11",
        "1.35": "v1.13.2-eksbuild.31",
        "1.36": "v1.14.3-eksbuild.23",
    },
    POD_IDENTITY: "v1.3.10-eksbuild.3",
    EBS_CSI: "v1.66.0-eksbuild.1",
    FSX_CSI: "v1.9.0-eksbuild.1",
    S3_CSI: "v2.3.0-eksbuild.1",
    NODE_MONITORING: "v1.6.1-eksbuild.1",
    CLOUDWATCH: "v6.7.0-eksbuild.1",
}
"""EKS add-ons by name: one version, or one for each Kubernetes version where the add-on follows it. Each was seen in use in 2026."""
VPC_CNI_EFA_ONLY = "v1.18.5"
"""First vpc-cni that leaves EFA-only interfaces alone (EKS user guide, node-efa)."""
KUBERNETES_SUPPORT: dict[str, tuple[date, date]] = {
    "1.32": (date(2026, 3, 23), date(2027, 3, 23)),
    "1.33": (date(2026, 7, 29), date(2027, 7, 29)),
    "1.34": (date(2026, 12, 2), date(2027, 12, 2)),
    "1.35": (date(2027, 3, 27), date(2028, 3, 27)),
}
"""Kubernetes versions that EKS offered when this was written (December 2026), with the ends of standard and of extended support from
its user guide (kubernetes-versions). After the latter EKS makes no cluster of that version. Of later versions EKS itself is asked."""
GUARD_IMAGE = "public.ecr.aws/lambda/python:3.13.2026.06.05.14"
"""AWS' own image with Python and boto3: what the idle guard runs in. ``python3.13`` is the expiry function's runtime too."""
BUSYBOX_IMAGE = "public.ecr.aws/docker/library/busybox:1.37.0"
TRAINER_BASE_IMAGE = "public.ecr.aws/deep-learning-containers/pytorch-training:2.10.0-gpu-py313-cu130-ubuntu22.04-ec2"
"""Base of the trainer's image: the newest AWS Deep Learning Container for EC2 and EKS with EFA in ``/opt/amazon``. AWS patches
what the tag names; ``image build --base REPOSITORY@sha256:...`` fixes it."""
CODEBUILD_IMAGE = "aws/codebuild/amazonlinux-x86_64-standard:5.0"
"""What builds of the trainer's image run in."""
TRAINER_REPOSITORY = "eks-fsdp/trainer"
"""Name of the ECR repository of the trainer's image."""

PULUMI_CLI_VERSION = "3.215.0"
"""Oldest CLI that the program runs with, and the one that the sandbox builds: newer ones do not compile with the provider."""
PULUMI_KUBERNETES_VERSION = "4.25.0"
"""Of the SDK and of the provider plugin."""
