"""Names that several rooms must agree on: labels, taints, resources, environment, metric names."""

from __future__ import annotations

import re

GPU_RESOURCE = "nvidia.com/gpu"
EFA_RESOURCE = "vpc.amazonaws.com/efa"
GPU_PRESENT_LABEL = "nvidia.com/gpu.present"
EFA_PRESENT_LABEL = "vpc.amazonaws.com/efa.present"
GPU_TAINT_KEY = "nvidia.com/gpu"

INSTANCE_TYPE_LABEL = "node.kubernetes.io/instance-type"
HOSTNAME_LABEL = "kubernetes.io/hostname"
NAMESPACE_LABEL = "kubernetes.io/metadata.name"
NODE_GROUP_LABEL = "eks.amazonaws.com/nodegroup"
GPU_GROUP_LABEL = "eksfsdp/gpu-group"
ROLE_LABEL = "eksfsdp/role"
SIMULATED_LABEL = "eksfsdp/simulated"
"""On a node that no real machine stands behind. Charts of runs on such nodes say so."""

JOB_LABEL = "eksfsdp/job"
RUN_LABEL = "eksfsdp/run"
SWEEP_LABEL = "eksfsdp/sweep"
OPERATOR_JOB_NAME_LABEL = "training.kubeflow.org/job-name"
OPERATOR_REPLICA_INDEX_LABEL = "training.kubeflow.org/replica-index"

TEAM_LABEL = "eksfsdp/team"
ZONE_ID_LABEL = "topology.k8s.aws/zone-id"
NETWORK_LAYER_LABELS = tuple(f"topology.k8s.aws/network-node-layer-{layer}" for layer in (1, 2, 3))
"""From the top of the network down: nodes with the same value in the last one are closest to each other."""
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""On a job: the LocalQueue of its namespace that admits it."""
LOCAL_QUEUE = "training"
"""Name of the LocalQueue in each of the jobs' namespaces."""
QUEUED_LABEL = "eksfsdp/queued"
"""On a namespace: its jobs start through a queue only."""
TEAM_GROUP_PREFIX = "eksfsdp:team:"
"""Kubernetes group of a team's people, less the team's name."""

SYSTEM_NAMESPACE = "eks-fsdp-system"
OPERATOR_NAMESPACE = "kubeflow"
ETCD_SERVICE = "etcd"
ETCD_CLIENT_PORT = 2379

TRAINER_MODULE = "eks_fsdp.trainer"
TRAINER_CONFIG_PATH = "/etc/eks-fsdp/trainer.json"
CHECKPOINT_MOUNT = "/mnt/checkpoints"
SCRATCH_MOUNT = "/scratch"
JOB_SERVICE_ACCOUNT = "training"
"""Service account of the jobs' pods, in each of their namespaces."""
HUGGING_FACE_SECRET = "hugging-face"
"""Secret with the key ``token``, in each of the jobs' namespaces."""
TRAINER_METRICS_PORT = 9100 + 900
"""Port of the trainer's Prometheus endpoint on rank 0's pod."""
TRAINER_METRICS: dict[str, tuple[str, str]] = {
    "step": ("eksfsdp_trainer_step", "Optimizer steps that are done"),
    "loss": ("eksfsdp_trainer_loss", "Mean loss over the tokens of the last global batch"),
    "grad_norm": ("eksfsdp_trainer_grad_norm", "Global gradient norm before clipping"),
    "learning_rate": ("eksfsdp_trainer_learning_rate", "Learning rate of the last step"),
    "tokens": ("eksfsdp_trainer_step_tokens", "Label tokens of the last global batch"),
    "step_seconds": ("eksfsdp_trainer_step_seconds", "Wall time of the last step on the slowest rank"),
    "data_seconds": ("eksfsdp_trainer_data_seconds", "Of these, waiting for data on rank 0"),
    "tokens_per_second": ("eksfsdp_trainer_tokens_per_second", "Tokens per second of all ranks in the last step"),
    "mfu": ("eksfsdp_trainer_mfu_ratio", "Model FLOPs utilisation of the last step; absent on CPU"),
    "peak_memory_bytes": ("eksfsdp_trainer_peak_memory_bytes", "Highest peak memory of any rank"),
}
"""Gauges of the trainer's endpoint by the field of `spec.records.StepRow` that they show: name and help text."""
RENDEZVOUS_ETCD_V3 = "etcd-v3"
RENDEZVOUS_C10D = "c10d"

PROGRAM_NAME = "eks-fsdp"
"""The Pulumi project, and so the namespace of every configuration key."""

TAG_OWNER = "eksfsdp:owner"
TAG_STACK = "eksfsdp:stack"
TAG_EXPIRY = "eksfsdp:expiry"
"""When the cost guard ends what carries it, in ISO 8601, or ``never``."""
TAG_GPU_GROUP = "eksfsdp:gpu-group"
"""On a node group of GPU nodes alone: its name in the settings. What the cost guard may scale and delete has it."""

IMAGE_BUILD_VARIABLE = "IMAGE"
"""Environment variable of a build in CodeBuild: address and tag of the image to push."""
IMAGE_BASE_VARIABLE = "BASE"
"""The same for the base image, and the Dockerfile's argument."""
IMAGE_DOCKERFILE = "trainer/Dockerfile"
"""Within the build's folder."""


def repository_name(stack: str, image: str) -> str:
    """Name of the repository of ``image`` in ``stack``: ECR takes fewer characters than the name of a stack may have."""
    folder = re.sub(r"[^a-z0-9]+", "-", stack.lower()).strip("-")
    return f"{folder}/{image}" if folder else image
