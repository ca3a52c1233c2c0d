"""A training job: the PyTorchJob that the operator turns into pods, and the trainer's configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulumi
import pulumi_kubernetes as k8s

from eks_fsdp.spec.instances import InstanceType
from eks_fsdp.spec.names import (
    CHECKPOINT_MOUNT,
    EFA_RESOURCE,
    ETCD_CLIENT_PORT,
    GPU_RESOURCE,
    JOB_LABEL,
    NETWORK_LAYER_LABELS,
    QUEUE_LABEL,
    RENDEZVOUS_ETCD_V3,
    RUN_LABEL,
    TRAINER_CONFIG_PATH,
    TRAINER_MODULE,
)
from eks_fsdp.spec.settings import JobSettings

from .etcd import ETCD_HOST
from .objects import GPU_TOLERATION, Manifest, digest

NAME_LIMIT = 51
"""Characters of a job's name: a pod's is longer by ``-worker-1023``, and 63 is what a host name may have."""
GRACE_SECONDS = 120
"""Between SIGTERM and SIGKILL: the trainer saves a checkpoint in between."""
_CPU_SHARE, _MEMORY_SHARE = 0.9, 0.85
"""Of a node's total, what a job asks for. The rest is the kubelet's, the daemons', and EFA's huge pages (up to 42 GiB of
2 TiB on p5, 21 GiB of 1.1 TiB on p4de)."""


@dataclass(frozen=True, kw_only=True)
class JobPlan:
    """What a job is made of, all of it known before anything is declared, but the image's address."""

    job: str
    """Name of the job in the settings."""
    settings: JobSettings
    instance: InstanceType
    """Type of the nodes. A worker takes a whole one."""
    namespace: str
    node_selector: Mapping[str, str]
    """Labels of the nodes."""
    image_version: str
    """What tells one image from another: a tag, or the user's own image."""
    claim: str | None = None
    """PersistentVolumeClaim that is mounted at `CHECKPOINT_MOUNT`."""
    queue: str | None = None
    """LocalQueue that admits the job; None: it starts at once."""
    queue_topology: str | None = None
    """What the queue chooses nodes by: ``nodes`` or ``network``."""
    etcd_host: str = ETCD_HOST
    etcd_port: int = ETCD_CLIENT_PORT

    @property
    def resource_name(self) -> str:
        """Job, run, and a hash of all that is rendered: the same name is the same job, and a changed job is a new one."""
        rendered = json.dumps(self.pytorch_job("", self.image_version), sort_keys=True)
        tail = f"-{self.settings.run}-{digest(rendered, self.trainer_json())}"
        return self.job[: NAME_LIMIT - len(tail)].rstrip("-") + tail

    @property
    def processes_per_node(self) -> int:
        """Ranks on each node."""
        return self.settings.processes_per_node or self.instance.gpus

    @property
    def labels(self) -> dict[str, str]:
        """On the job and on its pods; the program's own win."""
        return {**self.settings.labels, JOB_LABEL: self.job, RUN_LABEL: self.settings.run}

    def placement(self) -> dict[str, str]:
        """Annotations of the pods: how close to each other the queue is to place them."""
        wanted = self.settings.topology
        if self.queue is None or self.queue_topology != "network" or wanted == "none":
            return {}
        # Where that is too narrow and not required, Kueue goes up layer by layer.
        return {f"kueue.x-k8s.io/podset-{wanted}-topology": NETWORK_LAYER_LABELS[-1]}

    def trainer_json(self) -> str:
        """The configuration file of the training program."""
        return self.settings.trainer.model_dump_json(indent=2) + "\n"

    def environment(self) -> list[Manifest]:
        """Of the container. The user's values win; the operator adds torchrun's own (``PET_*``)."""
        from_pod = {"PET_LOCAL_ADDR": "status.podIP", "NODE_NAME": "spec.nodeName", "POD_NAME": "metadata.name"}
        values = {
            "EKS_FSDP_TRANSPORT": self.settings.transport,
            # The pod's one interface. Left to itself, NCCL may take a link of the CNI on some nodes.
            "GLOO_SOCKET_IFNAME": "eth0",
            "NCCL_SOCKET_IFNAME": "eth0",
            **_TRANSPORT_ENVIRONMENT[self.settings.transport],
            **self.settings.env,
        }
        return [
            *(
                {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
                for name, path in from_pod.items()
                if name not in self.settings.env
            ),
            *({"name": name, "value": value} for name, value in values.items()),
        ]

    def devices(self) -> dict[str, str]:
        """Requests and limits: every GPU and EFA interface of the node, so that nobody else is placed on it."""
        devices = {GPU_RESOURCE: str(self.instance.gpus)}
        if self.instance.efa_interfaces:
            # Without this request libfabric falls back to TCP, whatever the environment says.
            devices[EFA_RESOURCE] = str(self.instance.efa_interfaces)
        return devices

    def pod(self, name: str, image: object) -> Manifest:
        """Spec of a worker's pod."""
        folder, _, file = TRAINER_CONFIG_PATH.rpartition("/")
        mounts = [{"name": "config", "mountPath": folder}, {"name": "shm", "mountPath": "/dev/shm"}]
        volumes: list[Manifest] = [
            {"name": "config", "configMap": {"name": name, "items": [{"key": file, "path": file}]}},
            # Worker processes of data loaders, and NCCL within a node, share memory; a container has 64 MiB by default.
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
        ]
        if self.claim:
            mounts.append({"name": "checkpoints", "mountPath": CHECKPOINT_MOUNT})
            volumes.append({"name": "checkpoints", "persistentVolumeClaim": {"claimName": self.claim}})
        container: Manifest = {
            # The operator sets up the container of this name alone.
            "name": "pytorch",
            "image": image,
            "imagePullPolicy": "IfNotPresent",
            "command": ["torchrun", "-m", TRAINER_MODULE, "--config", TRAINER_CONFIG_PATH],
            "env": self.environment(),
            "resources": {
                "requests": {
                    "cpu": str(int(self.instance.vcpus * _CPU_SHARE)),
                    "memory": f"{int(self.instance.memory_mib * _MEMORY_SHARE)}Mi",
                    **self.devices(),
                },
                "limits": self.devices(),
            },
            "volumeMounts": mounts,
        }
        if self.settings.trainer.metrics_port:
            container["ports"] = [{"name": "metrics", "containerPort": self.settings.trainer.metrics_port}]
        return {
            "automountServiceAccountToken": False,
            "nodeSelector": dict(self.node_selector),
            "tolerations": [GPU_TOLERATION],
            # Also on the pod: pods of a job that has failed are kept for their logs, and must not keep their GPUs busy.
            "activeDeadlineSeconds": self.settings.deadline_minutes * 60,
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "containers": [container],
            "volumes": volumes,
        }

    def pytorch_job(self, name: str, image: object) -> Manifest:
        """The PyTorchJob ``name``, whose pods run ``image``.

        As many workers at least as at most, and no metrics: with either the operator would scale the job by itself.
        """
        settings = self.settings
        pod_metadata: Manifest = {"labels": self.labels}
        if placement := self.placement():
            pod_metadata["annotations"] = placement
        elastic: Manifest = {
            "rdzvBackend": settings.rendezvous,
            # Its own for each job: a closed rendezvous of the same id would refuse every newcomer.
            "rdzvId": name,
            "minReplicas": settings.nodes,
            "maxReplicas": settings.nodes,
            "maxRestarts": settings.max_restarts,
        }
        if settings.rendezvous == RENDEZVOUS_ETCD_V3:
            elastic |= {"rdzvHost": self.etcd_host, "rdzvPort": self.etcd_port}
        return {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": {
                "name": name,
                "namespace": self.namespace,
                # The queue suspends the job as it is made, and resumes it; so neither is declared here. The operator
                # counts activeDeadlineSeconds from then.
                "labels": {**self.labels, **({QUEUE_LABEL: self.queue} if self.queue else {})},
                # Declaring a job does not wait for it to end.
                "annotations": {"pulumi.com/skipAwait": "true"},
            },
            "spec": {
                "nprocPerNode": str(self.processes_per_node),
                "elasticPolicy": elastic,
                "runPolicy": {
                    # "Running" would delete the other pods, logs and all, as soon as the first worker has ended.
                    "cleanPodPolicy": "None",
                    "backoffLimit": settings.backoff_limit,
                    "activeDeadlineSeconds": settings.deadline_minutes * 60,
                },
                "pytorchReplicaSpecs": {
                    "Worker": {
                        "replicas": settings.nodes,
                        "restartPolicy": "OnFailure",
                        "template": {"metadata": pod_metadata, "spec": self.pod(name, image)},
                    }
                },
            },
        }


_TRANSPORT_ENVIRONMENT: dict[str, dict[str, str]] = {
    "efa": {
        "FI_PROVIDER": "efa",
        # Huge pages make fork() fail with ENOMEM in data loaders.
        "FI_EFA_USE_HUGE_PAGE": "0",
        # A plugin that does not load is an error then, instead of TCP.
        "NCCL_NET": "AWS Libfabric",
    },
    "tcp": {"NCCL_NET": "Socket"},
    "gloo": {},
}


@dataclass(frozen=True, kw_only=True)
class TrainingJobArgs:
    """Inputs of `TrainingJob`."""

    plan: JobPlan
    """What to run."""
    image: pulumi.Input[str]
    """Address of the trainer's image."""
    depends_on: Sequence[pulumi.Resource] = ()
    """What must be there before: the operator above all, whose webhook refuses jobs until it is ready."""


class TrainingJob(pulumi.ComponentResource):
    """One run of a job. It outlives its declaration: nothing but ``stop`` and the cluster's end stops a job."""

    resource_name: str
    """Name of the PyTorchJob."""

    def __init__(self, name: str, args: TrainingJobArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("eksfsdp:job:TrainingJob", name, None, opts)
        plan = args.plan
        self.resource_name = plan.resource_name
        manifest = plan.pytorch_job(self.resource_name, args.image)
        config = k8s.core.v1.ConfigMap(
            f"{name}-config-{self.resource_name}",
            metadata={"name": self.resource_name, "namespace": plan.namespace, "labels": plan.labels},
            data={TRAINER_CONFIG_PATH.rpartition("/")[2]: plan.trainer_json()},
            immutable=True,
            # It stays with its job: a restarted container mounts it again.
            opts=pulumi.ResourceOptions(parent=self, retain_on_delete=True, depends_on=list(args.depends_on)),
        )
        k8s.apiextensions.CustomResource(
            f"{name}-{self.resource_name}",
            api_version=manifest["apiVersion"],
            kind=manifest["kind"],
            metadata=manifest["metadata"],
            spec=manifest["spec"],
            opts=pulumi.ResourceOptions(parent=self, retain_on_delete=True, depends_on=[config, *args.depends_on]),
        )
        self.register_outputs({"resource_name": self.resource_name})
