"""One p5 node group with EFA, and a training job, on an EKS cluster that is there already."""

from datetime import UTC, datetime

import pulumi
import pulumi_kubernetes as k8s

from eks_fsdp.components.device_plugins import DevicePlugins, DevicePluginsArgs
from eks_fsdp.components.gpu_nodes import GpuNodeGroup, GpuNodeGroupArgs
from eks_fsdp.components.network import EfaSecurityGroup, EfaSecurityGroupArgs
from eks_fsdp.components.training_job import JobPlan, TrainingJob, TrainingJobArgs
from eks_fsdp.spec.names import GPU_GROUP_LABEL, SYSTEM_NAMESPACE, TAG_EXPIRY, TAG_OWNER
from eks_fsdp.spec.settings import GpuNodeGroupSettings, JobSettings
from eks_fsdp.spec.trainer import TrainerConfig

config = pulumi.Config()
tags = {TAG_OWNER: "ml-research", TAG_EXPIRY: "never"}
group = GpuNodeGroupSettings(name="p5", instance_type="p5.48xlarge", zone="us-west-2a", desired=2, max=2)
cluster = k8s.Provider("cluster", kubeconfig=config.require("kubeconfig"), enable_server_side_apply=True)
there = pulumi.ResourceOptions(providers=[cluster])

efa = EfaSecurityGroup("efa", EfaSecurityGroupArgs(vpc_id=config.require("vpc_id"), tags=tags))
nodes = GpuNodeGroup(
    "p5",
    GpuNodeGroupArgs(
        group=group,
        cluster_name=config.require("cluster_name"),
        kubernetes_version="1.34",
        node_role_arn=config.require("node_role_arn"),
        subnet_id=config.require("subnet_id"),
        security_group_ids=[config.require("cluster_security_group"), efa.security_group_id],
        tags=tags,
        now=datetime.now(UTC),
    ),
)
namespace = k8s.core.v1.Namespace(
    "system", metadata={"name": SYSTEM_NAMESPACE}, opts=pulumi.ResourceOptions(provider=cluster)
)
devices = DevicePlugins("devices", DevicePluginsArgs(depends_on=[namespace]), there)

plan = JobPlan(
    job="llama2-7b",
    settings=JobSettings(
        nodes=2,
        rendezvous="c10d",
        trainer=TrainerConfig(model="llama2-7b", steps=100, global_batch_size=32, micro_batch_size=1),
    ),
    instance=group.instance,
    namespace="default",
    service_account="default",
    node_selector={GPU_GROUP_LABEL: group.name},
    image_version=config.require("image"),
)
job = TrainingJob("job", TrainingJobArgs(plan=plan, image=config.require("image"), depends_on=[nodes, devices]), there)
pulumi.export("node_group", nodes.node_group_name)
pulumi.export("job", job.resource_name)
