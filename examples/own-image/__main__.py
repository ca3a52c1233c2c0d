"""A training job with an image of your own on a cluster that has the training operator."""

import pulumi
import pulumi_kubernetes as k8s

from eks_fsdp.components.training_job import JobPlan, TrainingJob, TrainingJobArgs
from eks_fsdp.spec.instances import INSTANCE_TYPES
from eks_fsdp.spec.names import INSTANCE_TYPE_LABEL
from eks_fsdp.spec.settings import JobSettings
from eks_fsdp.spec.trainer import TrainerConfig

config = pulumi.Config()
instance = INSTANCE_TYPES["p4de.24xlarge"]
image = config.require("image")
plan = JobPlan(
    job="own",
    settings=JobSettings(
        nodes=2,
        # etcd-v3 needs the handler that comes with eks-fsdp[trainer]; c10d is in every torchrun.
        rendezvous="c10d",
        max_restarts=2,
        env={"PYTHONPATH": "/workspace"},
        trainer=TrainerConfig(model="llama2-7b", steps=1000, global_batch_size=32, micro_batch_size=1),
    ),
    instance=instance,
    namespace="default",
    service_account="default",
    node_selector={INSTANCE_TYPE_LABEL: instance.name},
    image_version=image,
)
cluster = k8s.Provider("cluster", kubeconfig=config.require("kubeconfig"), enable_server_side_apply=True)
job = TrainingJob("job", TrainingJobArgs(plan=plan, image=image), pulumi.ResourceOptions(providers=[cluster]))
pulumi.export("job", job.resource_name)
