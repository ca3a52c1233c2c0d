"""The whole platform of a stack, from `Settings`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pulumi
import pulumi_aws as aws
import pulumi_kubernetes as k8s

from eks_fsdp.spec.base import SettingsError
from eks_fsdp.spec.names import GPU_GROUP_LABEL, SYSTEM_NAMESPACE, TAG_OWNER, TAG_STACK, TRAINER_METRICS_PORT
from eks_fsdp.spec.prices import price_lines
from eks_fsdp.spec.rules.guard import within_reach
from eks_fsdp.spec.settings import JobSettings, Settings
from eks_fsdp.spec.versions import TRAINER_REPOSITORY

from .budget import StackBudget, StackBudgetArgs
from .cluster import SYSTEM_NODES, Cluster, ClusterArgs
from .device_plugins import DevicePlugins, DevicePluginsArgs
from .etcd import Etcd, EtcdArgs
from .gpu_nodes import GpuNodeGroup, GpuNodeGroupArgs
from .guard import CostGuard, CostGuardArgs, as_of, expired_warning, expiry_tag, moments
from .idle_guard import GuardedGroup, IdleGuard, IdleGuardArgs
from .image import ImageRepository, ImageRepositoryArgs, repository_name
from .monitoring import Monitoring, MonitoringArgs
from .network import EfaSecurityGroup, EfaSecurityGroupArgs, Network, NetworkArgs
from .objects import Manifest, declare
from .storage import Storage, StorageArgs
from .training_job import JobPlan, TrainingJob, TrainingJobArgs
from .training_operator import TrainingOperator, TrainingOperatorArgs, check_manifests


def aws_tags(owner: str, stack: str, more: Mapping[str, str]) -> dict[str, str]:
    """The tags of every AWS resource: who pays, which stack it goes with, and the user's own.

    None of them changes by itself: they are in launch templates, where a change makes new nodes. See `guard.expiry_tag`.
    """
    return {**more, TAG_OWNER: owner, TAG_STACK: stack}


def namespace(name: str) -> Manifest:
    """A namespace."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def job_plan(settings: Settings, job: str) -> JobPlan:
    """What ``job`` runs, where and on what. Raises `SettingsError` where its image is not known."""
    wanted = settings.jobs[job]
    group = settings.group_of(job)
    trainer = wanted.trainer
    if settings.monitoring.mode != "none" and not trainer.metrics_port:
        trainer = trainer.model_copy(update={"metrics_port": TRAINER_METRICS_PORT})
    return JobPlan(
        job=job,
        settings=wanted.model_copy(update={"trainer": trainer}),
        instance=group.instance,
        namespace=settings.namespace_name,
        node_selector={GPU_GROUP_LABEL: group.name},
        image_version=image_version(settings, job, wanted),
        claim=None if settings.storage.mode == "none" else settings.storage.claim,
    )


def image_version(settings: Settings, name: str, job: JobSettings) -> str:
    """The image of a job as far as the settings tell it: all of it but the address of the stack's own registry."""
    if job.image:
        return job.image
    if not settings.image.repository and settings.cluster.mode == "existing":
        raise SettingsError(
            f"jobs.{name}.image: not set, nor is image.repository, and cluster.mode 'existing' makes no repository; "
            "accepted: an image with its tag"
        )
    return f"{settings.image.repository or TRAINER_REPOSITORY}:{settings.image.tag}"


BEGINNING = datetime.min.replace(tzinfo=UTC)
"""Before all times."""


@dataclass(frozen=True, kw_only=True)
class TrainingPlatformArgs:
    """Inputs of `TrainingPlatform`."""

    settings: Settings
    """What the stack file says."""
    stack: str
    """Name of the stack: a tag of every AWS resource, and part of the registry's name."""
    now: datetime = BEGINNING
    """The time of this update: what the settings say of a time before it is over. By default, nothing is."""
    work_dir: Path = Path()
    """What relative paths in the settings are relative to; the program's own folder by default."""


@dataclass(kw_only=True)
class _InCluster:
    """How things in the cluster are declared."""

    provider: k8s.Provider
    deleted_with: pulumi.Resource | None
    """What they end with, so that a teardown does not delete them one by one."""
    nodes: list[pulumi.Resource] = field(default_factory=list)
    """What must be there before anything can run."""
    node_selector: Mapping[str, str]
    """Labels of the nodes for all that is not training."""


class TrainingPlatform(pulumi.ComponentResource):
    """Network, cluster, GPU nodes, what runs in the cluster, and the jobs; or on an existing cluster the latter two."""

    outputs: dict[str, Any]
    """The stack's outputs by name."""

    def __init__(self, name: str, args: TrainingPlatformArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("eksfsdp:platform:TrainingPlatform", name, None, opts)
        self._prefix = name
        self._args = args
        self._settings = as_of(args.settings, args.now)
        self._tags = aws_tags(args.settings.owner, args.stack, args.settings.tags)
        self._expiry = expiry_tag(args.settings.guard)
        self._tell()
        # All of them before anything is declared: what is refused here has made nothing.
        plans = {job: job_plan(self._settings, job) for job in self._settings.jobs}
        if self._settings.training_operator.mode == "install":
            check_manifests(self._settings.training_operator.manifests, args.work_dir)
        self.outputs = {
            "namespace": self._settings.namespace_name,
            "gpu_node_groups": [
                {"name": group.name, "instance_type": group.instance_type, "desired": group.desired}
                for group in self._settings.gpu_nodes
            ],
            "jobs": {
                job: {"resource": plan.resource_name, "nodes": plan.settings.nodes} for job, plan in plans.items()
            },
        }
        create = self._settings.cluster.mode == "create"
        before = self._on_aws() if create else self._in_cluster(self._existing_cluster())
        image = self.outputs.get("image")
        for job, plan in plans.items():
            TrainingJob(
                f"{name}-job-{job}",
                TrainingJobArgs(plan=plan, image=plan.settings.image or image or plan.image_version, depends_on=before),
                pulumi.ResourceOptions(parent=self, providers=[self._cluster_provider]),
            )
        self.register_outputs(self.outputs)

    def _tell(self) -> None:
        """What is refused as of now, and what this update costs. Raises `SettingsError`."""
        if problems := list(within_reach(self._args.settings, self._args.now)):
            raise SettingsError("\n".join(problems))
        if warning := expired_warning(self._args.settings, self._args.now):
            pulumi.log.warn(warning, self)
        if pulumi.runtime.is_dry_run() and self._settings.cluster.mode == "create":
            for line in price_lines(self._settings):
                pulumi.log.info(line, self)

    def _on_aws(self) -> list[pulumi.Resource]:
        """Everything on AWS, and what goes into the cluster; returns what a job needs."""
        settings, name = self._settings, self._prefix
        provider = aws.Provider(f"{name}-aws", region=settings.region, opts=pulumi.ResourceOptions(parent=self))
        child = pulumi.ResourceOptions(parent=self, providers=[provider])
        network = Network(
            f"{name}-network",
            NetworkArgs(
                cidr=settings.network.cidr, zones=settings.network.zones, region=settings.region, tags=self._tags
            ),
            child,
        )
        cluster = Cluster(
            f"{name}-cluster",
            ClusterArgs(
                kubernetes_version=settings.cluster.kubernetes_version,
                vpc_id=network.vpc_id,
                public_subnet_ids=network.public_subnet_ids,
                private_subnet_ids=list(network.private_subnet_ids.values()),
                system_nodes=settings.system_nodes,
                tags=self._tags,
                changing_tags=self._expiry,
            ),
            # Nodes reach AWS' services through the network's routes: without those they never join.
            pulumi.ResourceOptions(parent=self, providers=[provider], depends_on=[network]),
        )
        efa = EfaSecurityGroup(f"{name}-efa", EfaSecurityGroupArgs(vpc_id=network.vpc_id, tags=self._tags), child)
        guards = self._expiry_guard(cluster, child)
        groups = [
            GpuNodeGroup(
                f"{name}-gpu-{group.name}",
                GpuNodeGroupArgs(
                    group=group,
                    cluster_name=cluster.cluster_name,
                    kubernetes_version=settings.cluster.kubernetes_version,
                    node_role_arn=cluster.node_role_arn,
                    subnet_id=network.private_subnet_ids[group.zone],
                    security_group_ids=[cluster.security_group_id, efa.security_group_id],
                    tags=self._tags,
                    changing_tags=self._expiry,
                    depends_on=guards,
                ),
                child,
            )
            for group in settings.gpu_nodes
        ]
        self.outputs |= {"kubeconfig": cluster.kubeconfig, "cluster_name": cluster.cluster_name}
        if not settings.image.repository:
            repository = ImageRepository(
                f"{name}-image",
                ImageRepositoryArgs(repository=repository_name(self._args.stack, TRAINER_REPOSITORY), tags=self._tags),
                child,
            )
            self.outputs["image"] = repository.url.apply(lambda url: f"{url}:{settings.image.tag}")
        else:
            self.outputs["image"] = f"{settings.image.repository}:{settings.image.tag}"
        inside = _InCluster(
            provider=cluster.provider,
            deleted_with=cluster.control_plane,
            nodes=[cluster.system_nodes],
            node_selector=SYSTEM_NODES,
        )
        before = [*self._in_cluster(inside), *groups]
        if settings.storage.mode == "fsx":
            zone = settings.gpu_nodes[0].zone if settings.gpu_nodes else settings.network.zones[0]
            storage = Storage(
                f"{name}-storage",
                StorageArgs(
                    capacity_gib=settings.storage.capacity_gib,
                    claim=settings.storage.claim,
                    namespace=settings.namespace_name,
                    cluster_name=cluster.cluster_name,
                    subnet_id=network.private_subnet_ids[zone],
                    security_group_ids=[cluster.security_group_id],
                    tags={**self._tags, **self._expiry},
                    deleted_with=cluster.control_plane,
                    depends_on=[cluster.system_nodes, *self._namespaces],
                ),
                pulumi.ResourceOptions(parent=self, providers=[provider, cluster.provider]),
            )
            before.append(storage)
        self._guards(provider, cluster, groups)
        return before

    def _expiry_guard(self, cluster: Cluster, child: pulumi.ResourceOptions) -> list[pulumi.Resource]:
        """What ends GPU nodes at the expiry, if there is one: no node starts before its end is set."""
        guard = self._settings.guard
        if guard.expiry is None:
            return []
        args = CostGuardArgs(
            cluster_name=cluster.cluster_name,
            stack=self._args.stack,
            due=moments(guard, self._args.now),
            tags=self._tags,
        )
        return [CostGuard(f"{self._prefix}-guard", args, child)]

    def _guards(self, provider: aws.Provider, cluster: Cluster, groups: list[GpuNodeGroup]) -> None:
        """What ends GPU nodes that nobody uses, and tells what the stack costs."""
        child = pulumi.ResourceOptions(parent=self, providers=[provider])
        settings, guard, name = self._settings, self._settings.guard, self._prefix
        if guard.budget_usd is not None and guard.budget_email is not None:
            budget = StackBudgetArgs(
                stack=self._args.stack, monthly_usd=guard.budget_usd, email=guard.budget_email, tags=self._tags
            )
            StackBudget(f"{name}-budget", budget, child)
        if guard.idle_minutes and groups:
            idle = IdleGuardArgs(
                cluster_name=cluster.cluster_name,
                groups=[
                    GuardedGroup(
                        group=wanted.name,
                        node_group=made.node_group_name,
                        node_group_arn=made.node_group_arn,
                        idle=max(wanted.idle, wanted.min),
                    )
                    for wanted, made in zip(settings.gpu_nodes, groups, strict=True)
                ],
                idle_minutes=guard.idle_minutes,
                region=settings.region,
                node_selector=SYSTEM_NODES,
                tags=self._tags,
                deleted_with=cluster.control_plane,
                depends_on=[*self._system, cluster.system_nodes],
            )
            IdleGuard(
                f"{name}-idle",
                idle,
                pulumi.ResourceOptions(parent=self, providers=[provider, cluster.provider]),
            )

    def _existing_cluster(self) -> _InCluster:
        """A provider for the cluster of the settings' kubeconfig."""
        settings = self._settings.cluster
        provider = k8s.Provider(
            f"{self._prefix}-kubernetes",
            kubeconfig=settings.kubeconfig,
            enable_server_side_apply=True,
            enable_config_map_mutable=True,
            enable_secret_mutable=True,
            opts=pulumi.ResourceOptions(parent=self),
        )
        if self._settings.image.repository:
            self.outputs["image"] = f"{self._settings.image.repository}:{self._settings.image.tag}"
        return _InCluster(provider=provider, deleted_with=None, node_selector={})

    def _in_cluster(self, inside: _InCluster) -> list[pulumi.Resource]:
        """What runs in the cluster, as far as it is to be installed; returns what a job needs."""
        settings, name = self._settings, self._prefix
        self._cluster_provider = inside.provider
        child = pulumi.ResourceOptions(parent=self, providers=[inside.provider], deleted_with=inside.deleted_with)
        own = pulumi.ResourceOptions(parent=self, provider=inside.provider, deleted_with=inside.deleted_with)
        nvidia, efa = (part.mode == "install" for part in (settings.device_plugins.nvidia, settings.device_plugins.efa))
        etcd, monitoring = (part.mode == "install" for part in (settings.etcd, settings.monitoring))
        idle = settings.cluster.mode == "create" and settings.guard.idle_minutes > 0 and bool(settings.gpu_nodes)
        self._system = system = list[pulumi.Resource]()
        if nvidia or efa or etcd or monitoring or idle:
            system.append(declare(f"{name}-namespace-system", namespace(SYSTEM_NAMESPACE), own))
        self._namespaces: list[pulumi.Resource] = []
        if settings.namespace.mode == "install":
            self._namespaces.append(declare(f"{name}-namespace-jobs", namespace(settings.namespace_name), own))
        needed: list[pulumi.Resource] = [*self._namespaces]
        somewhere = [*system, *inside.nodes]
        if nvidia or efa:
            plugins = DevicePluginsArgs(nvidia=nvidia, efa=efa, depends_on=system)
            needed.append(DevicePlugins(f"{name}-devices", plugins, child))
        if etcd:
            server = EtcdArgs(node_selector=inside.node_selector, depends_on=somewhere)
            needed.append(Etcd(f"{name}-etcd", server, child))
        if settings.training_operator.mode == "install":
            operator = TrainingOperatorArgs(
                manifests=settings.training_operator.manifests,
                work_dir=self._args.work_dir,
                depends_on=inside.nodes,
            )
            needed.append(TrainingOperator(f"{name}-operator", operator, child))
        if monitoring:
            measured = MonitoringArgs(node_selector=inside.node_selector, depends_on=somewhere)
            Monitoring(f"{name}-monitoring", measured, child)
        return needed
