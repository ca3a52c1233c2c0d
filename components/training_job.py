"""A training job: the PyTorchJob that the operator turns into pods, and the trainer's configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pulumi
import pulumi_kubernetes as k8s

from eks_fsdp.spec.instances import InstanceType
from eks_fsdp.spec.names import (
    ETCD_CLIENT_PORT,
    JOB_LABEL,
    JOB_SERVICE_ACCOUNT,
    NETWORK_LAYER_LABELS,
    QUEUE_LABEL,
    RENDEZVOUS_ETCD_V3,
    RUN_LABEL,
    TEAM_LABEL,
    TRAINER_CONFIG_PATH,
    TRAINER_MODULE,
)
from eks_fsdp.spec.settings import JobSettings, TaintSettings

from . import job_resources, job_volumes
from .etcd import ETCD_HOST
from .job_environment import FROM_POD, TOKEN_VARIABLE, job_environment, token_variable
from .job_placement import affinity, tolerations
from .job_security import container_security_context, pod_security_context
from .objects import Manifest, digest

NAME_LIMIT = 51
"""Characters of a job's name: a pod's is longer by ``-worker-1023``, and 63 is what a host name may have."""


@dataclass(frozen=True, kw_only=True)
class JobPlan:
    """What a job is made of, all of it known before anything is declared, but the image's address."""

    job: str
    """Name of the job in the settings."""
    settings: JobSettings
    instance: InstanceType
    """Type of the nodes. A worker takes a whole one."""
    alternatives: Sequence[InstanceType] = ()
    """More types that the nodes may be of: what is asked for fits the smallest."""
    efa: bool = True
    """Whether the nodes' EFA interfaces, where the type has any, are there."""
    hugepages_2mib: int | None = None
    """Huge pages of 2 MiB on each node; None: those that EFA's installer sets aside."""
    namespace: str
    team: str | None = None
    """Team that the job is labelled with."""
    queue: str | None = None
    """Kueue's LocalQueue that admits the job; None: it starts at once."""
    queue_topology: str | None = None
    """What the queue chooses nodes by: ``nodes`` or ``network``."""
    service_account: str = JOB_SERVICE_ACCOUNT
    """Service account of the pods, in their namespace."""
    node_selector: Mapping[str, str]
    """Labels of the nodes."""
    taints: Sequence[TaintSettings] = ()
    """Taints of the nodes beside the GPUs' own."""
    image_version: str
    """What tells one image from another: tag or digest, or the user's own image."""
    claim: str | None = None
    """PersistentVolumeClaim that is mounted at `CHECKPOINT_MOUNT`."""
    s3_mounts: Mapping[str, str] = field(default_factory=dict)
    """Buckets to read, by the name of the mount: the path. The claim ``s3-<name>`` is there already."""
    scratch: job_volumes.Scratch | None = None
    """How the node's local disks are reached; None: they are not."""
    hugging_face: bool = False
    """Whether the namespace has the Secret with the Hugging Face token."""
    region: str | None = None
    """AWS region that the pods' SDKs work in; None: they must be told otherwise."""
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
    def own_image(self) -> bool:
        """Whether the image is the user's, about which nothing is known here."""
        return self.settings.image is not None

    @property
    def labels(self) -> dict[str, str]:
        """On the job and on its pods; the program's own win."""
        team = {TEAM_LABEL: self.team} if self.team else {}
        return {**self.settings.labels, JOB_LABEL: self.job, RUN_LABEL: self.settings.run, **team}

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
        own = self.settings.env
        values = job_environment(self.settings.transport, self.instance, scratch=self.scratch is not None)
        if self.region:
            values["AWS_REGION"] = self.region
        return [
            *(
                {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
                for name, path in FROM_POD.items()
                if name not in own
            ),
            *([token_variable()] if self.hugging_face and TOKEN_VARIABLE not in own else []),
            *({"name": name, "value": value} for name, value in {**values, **own}.items()),
        ]

    def devices(self) -> dict[str, str]:
        """GPUs and EFA interfaces that a worker asks for."""
        return job_resources.devices(self.instance, self.instance.efa_interfaces if self.efa else 0)

    def pod(self, name: str, image: object) -> Manifest:
        """Spec of a worker's pod."""
        settings = self.settings
        cpu, memory = job_resources.cpu_and_memory([self.instance, *self.alternatives], self.hugepages_2mib)
        volumes = [
            job_volumes.config(name),
            job_volumes.shared_memory(job_resources.shared_memory_mib(self.instance.gpus, memory)),
            *([job_volumes.checkpoints(self.claim)] if self.claim else []),
            *([job_volumes.scratch(self.scratch)] if self.scratch else []),
            *job_volumes.s3_mounts(self.s3_mounts),
        ]
        container: Manifest = {
            # The operator sets up the container of this name alone.
            "name": "pytorch",
            "image": image,
            "imagePullPolicy": "IfNotPresent",
            "command": ["torchrun", "-m", TRAINER_MODULE, "--config", TRAINER_CONFIG_PATH],
            "env": self.environment(),
            "securityContext": container_security_context(own_image=self.own_image),
            "resources": job_resources.worker_resources(cpu, memory, self.devices()),
            "volumeMounts": [mount for _, mount in volumes],
        }
        if settings.trainer.metrics_port:
            container["ports"] = [{"name": "metrics", "containerPort": settings.trainer.metrics_port}]
        # A queue that goes by the network names each pod's node itself.
        placed = {} if self.placement() else affinity(settings.topology, name)
        return {
            "serviceAccountName": self.service_account,
            # Rights in AWS come by a token of their own; the job has no business with the Kubernetes API.
            "automountServiceAccountToken": False,
            "securityContext": pod_security_context(own_image=self.own_image),
            "nodeSelector": dict(self.node_selector),
            "tolerations": tolerations(self.taints),
            **({"affinity": placed} if placed else {}),
            # Also on the pod: pods of a job that has failed are kept for their logs, and must not keep their GPUs busy.
            "activeDeadlineSeconds": settings.deadline_minutes * 60,
            "terminationGracePeriodSeconds": settings.grace_seconds,
            **({"initContainers": [job_volumes.open_scratch(image)]} if self.scratch == "first-disk" else {}),
            "containers": [container],
            "volumes": [volume for volume, _ in volumes],
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
