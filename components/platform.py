"""The whole platform of a stack, from `Settings`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import pulumi
import pulumi_aws as aws
import pulumi_kubernetes as k8s

from eks_fsdp.spec.addons import addon_version
from eks_fsdp.spec.base import SettingsError
from eks_fsdp.spec.instances import INSTANCE_TYPES
from eks_fsdp.spec.names import (
    GPU_GROUP_LABEL,
    LOCAL_QUEUE,
    PROGRAM_NAME,
    SYSTEM_NAMESPACE,
    TAG_OWNER,
    TAG_STACK,
    TRAINER_METRICS_PORT,
    repository_name,
)
from eks_fsdp.spec.prices import price_lines
from eks_fsdp.spec.rules.addresses import needed
from eks_fsdp.spec.rules.capacity import moments
from eks_fsdp.spec.rules.cluster import extended_support, support_ended
from eks_fsdp.spec.rules.guard import within_reach
from eks_fsdp.spec.settings import GpuNodeGroupSettings, JobSettings, Settings
from eks_fsdp.spec.versions import FSX_CSI, POD_IDENTITY, S3_CSI, TRAINER_REPOSITORY

from .access import access_entries
from .budget import StackBudget, StackBudgetArgs
from .cluster import SYSTEM_NODES, Cluster, ClusterArgs, eks_name
from .device_plugins import DevicePlugins, DevicePluginsArgs
from .etcd import Etcd, EtcdArgs
from .gpu_nodes import GpuNodeGroup, GpuNodeGroupArgs
from .guard import CostGuard, CostGuardArgs, as_of, due, expired_warning, expiry_tag
from .hugging_face import token
from .idle_guard import GuardedGroup, IdleGuard, IdleGuardArgs, idle_nodes
from .image import ImageRepository, ImageRepositoryArgs, unchosen_image
from .image_build import ImageBuild, ImageBuildArgs
from .job_access import JobAccess, JobAccessArgs
from .job_policies import job_policies
from .job_security import pod_security_level
from .job_volumes import Scratch
from .kubeconfig import cluster_provider, exec_kubeconfig
from .monitoring import Monitoring, MonitoringArgs
from .network import EfaSecurityGroup, EfaSecurityGroupArgs, Network, NetworkArgs
from .objects import Manifest, declare
from .queue import Queue, QueueArgs, kustomization, own_nodes
from .s3_mounts import S3Mounts, S3MountsArgs
from .storage import Storage, StorageArgs
from .teams import Team, TeamArgs, job_namespace, job_quota, quota
from .training_job import JobPlan, TrainingJob, TrainingJobArgs
from .training_operator import OPERATOR, TrainingOperator, TrainingOperatorArgs


def aws_tags(owner: str, stack: str, more: Mapping[str, str]) -> dict[str, str]:
    """The tags of every AWS resource: who pays, which stack it goes with, and the user's own.

    None of them changes by itself, as the expiry does: see `guard.expiry_tag`.
    """
    return {**more, TAG_OWNER: owner, TAG_STACK: stack}


def namespace(name: str) -> Manifest:
    """A namespace."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def job_namespaces(settings: Settings) -> list[str]:
    """Every namespace in which jobs may run: the stack's own and the teams'."""
    return [settings.namespace_name, *settings.teams]


def scratch(group: GpuNodeGroupSettings) -> Scratch | None:
    """How the local disks of the group's nodes are reached; None where they have none that is set up."""
    kinds: dict[str, Scratch] = {"raid0": "empty-dir", "mount": "first-disk"}
    return kinds.get(group.nvme) if group.instance.nvme_gb else None


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
        alternatives=[INSTANCE_TYPES[name] for name in group.alternatives],
        efa=group.uses_efa,
        hugepages_2mib=group.hugepages,
        namespace=wanted.team or settings.namespace_name,
        team=wanted.team,
        queue=None if settings.queue.mode == "none" else LOCAL_QUEUE,
        queue_topology=settings.queue.topology_of(efa=group.uses_efa),
        node_selector={GPU_GROUP_LABEL: group.name},
        taints=group.taints,
        image_version=image_version(settings, job, wanted),
        claim=None if settings.storage.mode == "none" else settings.storage.claim,
        s3_mounts={name: mount.path for name, mount in settings.storage.s3_mounts.items()},
        scratch=scratch(group) if wanted.scratch else None,
        hugging_face=settings.hugging_face.given,
        region=settings.region,
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
    return f"{settings.image.repository or TRAINER_REPOSITORY}{settings.image.version}"


def _cluster_address(cluster: Cluster) -> dict[str, pulumi.Output[str]]:
    """What nodes with an image of their own must know, as inputs of their group."""
    made = cluster.control_plane.eks_cluster
    return {
        "endpoint": made.endpoint,
        "certificate_authority": made.certificate_authority.data,
        "service_cidr": made.kubernetes_network_config.service_ipv4_cidr,
    }


@dataclass(frozen=True, kw_only=True)
class TrainingPlatformArgs:
    """Inputs of `TrainingPlatform`."""

    settings: Settings
    """What the stack file says."""
    stack: str
    """Name of the stack: a tag of every AWS resource, and part of the registry's name."""
    now: datetime
    """When the program runs, with its zone. What is refused, and what is scheduled, depends on it."""
    allowed_cidrs: Sequence[str] = ()
    """Ranges that the public endpoint of the API answers, the caller's own address among them; see `caller_address`."""
    work_dir: Path = Path()
    """What relative paths in the settings are relative to; the program's own folder by default."""


@dataclass(kw_only=True)
class _Subnets:
    """Where things are, in the program's own VPC or in the user's."""

    vpc_id: pulumi.Input[str]
    private: Mapping[str, pulumi.Input[str]]
    """By zone."""
    control_plane: Sequence[pulumi.Input[str]]
    pods: Mapping[str, pulumi.Input[str]]
    needed_by_nodes: list[pulumi.Resource]
    """The ways out, without which a node never joins."""


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
    cluster_name: pulumi.Input[str] | None = None
    """The EKS cluster, where it is the program's own: pods get rights in AWS there."""
    aws: aws.Provider | None = None
    """The provider of what is in AWS; None: made where it is needed."""
    pod_identity: list[pulumi.Resource] = field(default_factory=list)
    """What must be there before pods have rights in AWS."""
    ebs_csi: list[pulumi.Resource] = field(default_factory=list)
    """What must be there as long as a claim has a volume on EBS."""


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
        # All of them before anything is declared: what is refused here has made nothing.
        found = [
            *moments(self._settings, args.now),
            *support_ended(args.settings, args.now.date()),
            *within_reach(args.settings, args.now),
        ]
        if found:
            raise SettingsError("\n".join(found))
        self._tell()
        plans = {job: job_plan(self._settings, job) for job in self._settings.jobs}
        if self._settings.training_operator.mode == "install":
            OPERATOR.check(self._settings.training_operator.manifests, args.work_dir)
        if self._settings.queue.mode == "install" and self._settings.queue.manifests:
            kustomization(self._settings.queue, {}).check(self._settings.queue.manifests, args.work_dir)
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
        before = self._on_aws() if create else self._on_existing_cluster()
        image = self.outputs.get("image")
        jobs = [
            TrainingJob(
                f"{name}-job-{job}",
                TrainingJobArgs(plan=plan, image=plan.settings.image or image or plan.image_version, depends_on=before),
                pulumi.ResourceOptions(parent=self, providers=[self._cluster_provider]),
            )
            for job, plan in plans.items()
        ]
        if self._settings.namespace.mode == "install":
            after = pulumi.ResourceOptions.merge(self._own, pulumi.ResourceOptions(depends_on=[*before, *jobs]))
            for team, about in self._settings.teams.items():
                declare(f"{name}-team-{team}-jobs", job_quota(team, about.max_jobs), after)
        self.register_outputs(self.outputs)

    def _tell(self) -> None:
        """What a preview says beside the changes: an end that has come, and what nodes cost."""
        if warning := expired_warning(self._args.settings, self._args.now):
            pulumi.log.warn(warning, self)
        if warning := extended_support(self._args.settings, self._args.now.date()):
            pulumi.log.warn(warning, self)
        if pulumi.runtime.is_dry_run() and self._settings.cluster.mode == "create":
            for line in price_lines(self._settings):
                pulumi.log.info(line, self)

    def _on_aws(self) -> list[pulumi.Resource]:
        """Everything on AWS, and what goes into the cluster; returns what a job needs."""
        settings, name = self._settings, self._prefix
        provider = self._aws_provider
        child = pulumi.ResourceOptions(parent=self, providers=[provider])
        subnets = self._network(child)
        cluster = self._cluster(provider, subnets)
        efa = self._efa_security_group(subnets, child)
        # No node starts before its end is set.
        before_nodes = [*cluster.before_nodes, *self._expiry_guard(cluster, child)]
        groups = [
            GpuNodeGroup(
                f"{name}-gpu-{group.name}",
                GpuNodeGroupArgs(
                    group=group,
                    cluster_name=cluster.cluster_name,
                    kubernetes_version=settings.cluster.kubernetes_version,
                    node_role_arn=cluster.node_role_arn,
                    subnet_id=subnets.private[group.zone],
                    security_group_ids=[cluster.security_group_id, efa],
                    tags=self._tags,
                    changing_tags=self._expiry,
                    now=self._args.now,
                    prefix_delegation=settings.cluster.addons.prefix_delegation,
                    kubeconfig=cluster.kubeconfig,
                    **(_cluster_address(cluster) if group.ami.image_id else {}),
                ),
                pulumi.ResourceOptions(parent=self, providers=[provider], depends_on=before_nodes),
            )
            for group in settings.gpu_nodes
        ]
        self.outputs |= {"kubeconfig": cluster.kubeconfig, "cluster_name": cluster.cluster_name}
        self._image(child)
        inside = _InCluster(
            provider=cluster.provider,
            deleted_with=cluster.control_plane,
            nodes=[cluster.system_nodes],
            node_selector=SYSTEM_NODES,
            cluster_name=cluster.cluster_name,
            aws=provider,
            pod_identity=[cluster.pod_identity],
            ebs_csi=[cluster.ebs_csi],
        )
        before = [*self._in_cluster(inside), *groups]
        before += self._storage(provider, subnets, cluster)
        self._guards(provider, cluster, groups)
        return before

    def _image(self, child: pulumi.ResourceOptions) -> None:
        """The registry of the trainer's image, unless it is the user's own."""
        settings, name = self._settings.image, self._prefix
        if settings.repository:
            self.outputs["image"] = f"{settings.repository}{settings.version}"
            return
        if (told := unchosen_image(self._settings)) is not None:
            pulumi.log.warn(told, self)
        repository = ImageRepository(
            f"{name}-image",
            ImageRepositoryArgs(
                repository=repository_name(self._args.stack, TRAINER_REPOSITORY),
                kms_key_arn=settings.kms_key_arn,
                tags=self._tags,
            ),
            child,
        )
        self.outputs["image_repository"] = repository.url
        self.outputs["image"] = repository.url.apply(lambda url: f"{url}{settings.version}")
        if settings.codebuild:
            build = ImageBuild(
                f"{name}-image-build", ImageBuildArgs(repository_arn=repository.arn, tags=self._tags), child
            )
            self.outputs["image_build"] = {"project": build.project, "bucket": build.bucket}

    def _storage(self, provider: aws.Provider, subnets: _Subnets, cluster: Cluster) -> list[pulumi.Resource]:
        """File system and buckets; returns what a job needs of them."""
        settings, name = self._settings, self._prefix
        both = pulumi.ResourceOptions(parent=self, providers=[provider, cluster.provider])
        before = [cluster.system_nodes, cluster.pod_identity, *self._namespaces]
        needed: list[pulumi.Resource] = []
        if settings.storage.mode == "fsx":
            zone = settings.gpu_nodes[0].zone if settings.gpu_nodes else settings.network.node_zones[0]
            storage = Storage(
                f"{name}-storage",
                StorageArgs(
                    claim=settings.storage.claim,
                    namespaces=job_namespaces(self._settings),
                    file_system_id=settings.storage.file_system_id,
                    capacity_gib=settings.storage.capacity_gib,
                    throughput=settings.storage.throughput,
                    kms_key_arn=settings.storage.kms_key_arn,
                    data_repository=settings.storage.data_repository,
                    retain=settings.storage.retained(settings.ephemeral),
                    vpc_id=subnets.vpc_id,
                    subnet_id=subnets.private[zone],
                    node_security_group_id=cluster.security_group_id,
                    driver=cluster.fsx_csi,
                    node_selector=SYSTEM_NODES,
                    tags=self._tags,
                    changing_tags=self._expiry,
                    deleted_with=cluster.control_plane,
                    depends_on=before,
                ),
                both,
            )
            self.outputs["file_system_id"] = storage.file_system_id
            needed.append(storage)
        if settings.storage.s3_mounts:
            mounts = S3Mounts(
                f"{name}-buckets",
                S3MountsArgs(
                    mounts=settings.storage.s3_mounts,
                    namespaces=job_namespaces(self._settings),
                    region=settings.region,
                    cluster_name=cluster.cluster_name,
                    addon_version=addon_version(
                        S3_CSI, settings.cluster.kubernetes_version, settings.cluster.addons.versions
                    ),
                    tags=self._tags,
                    deleted_with=cluster.control_plane,
                    depends_on=before,
                ),
                both,
            )
            needed.append(mounts)
        return needed

    def _expiry_guard(self, cluster: Cluster, child: pulumi.ResourceOptions) -> list[pulumi.Resource]:
        """What ends GPU nodes at the expiry, if there is one."""
        guard = self._settings.guard
        if guard.expiry is None:
            return []
        args = CostGuardArgs(
            cluster_name=cluster.cluster_name,
            stack=self._args.stack,
            due=due(guard, self._args.now),
            tags=self._tags,
        )
        return [CostGuard(f"{self._prefix}-guard", args, child)]

    def _guards(self, provider: aws.Provider, cluster: Cluster, groups: Sequence[GpuNodeGroup]) -> None:
        """What ends GPU nodes that nobody uses, and tells what the stack costs."""
        settings, guard, name = self._settings, self._settings.guard, self._prefix
        if guard.budget_usd is not None and guard.budget_email is not None:
            StackBudget(
                f"{name}-budget",
                StackBudgetArgs(
                    stack=self._args.stack, monthly_usd=guard.budget_usd, email=guard.budget_email, tags=self._tags
                ),
                pulumi.ResourceOptions(parent=self, providers=[provider]),
            )
        if guard.idle_minutes and groups:
            IdleGuard(
                f"{name}-idle",
                IdleGuardArgs(
                    cluster_name=cluster.cluster_name,
                    groups=[
                        GuardedGroup(
                            group=wanted.name,
                            node_group=made.node_group_name,
                            node_group_arn=made.node_group_arn,
                            idle=idle_nodes(wanted),
                        )
                        for wanted, made in zip(settings.gpu_nodes, groups, strict=True)
                    ],
                    idle_minutes=guard.idle_minutes,
                    region=settings.region,
                    node_selector=SYSTEM_NODES,
                    tags=self._tags,
                    deleted_with=cluster.control_plane,
                    depends_on=[*self._system, cluster.system_nodes, cluster.pod_identity],
                ),
                pulumi.ResourceOptions(parent=self, providers=[provider, cluster.provider]),
            )

    @cached_property
    def _aws_provider(self) -> aws.Provider:
        """The provider of all AWS resources. With another account's credentials it ends before it touches anything."""
        return aws.Provider(
            f"{self._prefix}-aws",
            region=self._settings.region,
            allowed_account_ids=self._settings.allowed_account_ids or None,
            opts=pulumi.ResourceOptions(parent=self),
        )

    def _network(self, child: pulumi.ResourceOptions) -> _Subnets:
        """The program's own VPC, or the user's."""
        settings = self._settings.network
        if settings.existing is not None:
            private = settings.existing.private_subnets
            return _Subnets(
                vpc_id=settings.existing.vpc_id,
                private=private,
                control_plane=list(private.values()),
                pods={},
                needed_by_nodes=[],
            )
        network = Network(
            f"{self._prefix}-network",
            NetworkArgs(
                cidr=settings.cidr,
                zones=settings.zones,
                region=self._settings.region,
                nat=settings.nat,
                endpoints=settings.endpoints,
                pod_cidr=settings.pod_cidr,
                needed_addresses=needed(self._settings),
                flow_logs=settings.flow_logs,
                flow_log_retention_days=self._settings.cluster.log_retention_days,
                tags=self._tags,
            ),
            child,
        )
        return _Subnets(
            vpc_id=network.vpc_id,
            private=network.private_subnet_ids,
            control_plane=network.intra_subnet_ids,
            pods=network.pod_subnet_ids,
            needed_by_nodes=[network],
        )

    def _efa_security_group(self, subnets: _Subnets, child: pulumi.ResourceOptions) -> pulumi.Input[str]:
        """Id of the group of EFA traffic: the user's, or one of the program's own."""
        existing = self._settings.network.existing
        if existing is not None and existing.efa_security_group is not None:
            return existing.efa_security_group
        args = EfaSecurityGroupArgs(vpc_id=subnets.vpc_id, tags=self._tags)
        return EfaSecurityGroup(f"{self._prefix}-efa", args, child).security_group_id

    def _cluster(self, provider: aws.Provider, subnets: _Subnets) -> Cluster:
        settings, name = self._settings.cluster, self._prefix
        storage = pulumi.create_urn(f"{name}-storage", "eksfsdp:storage:Storage", parent=self)
        return Cluster(
            f"{name}-cluster",
            ClusterArgs(
                cluster_name=eks_name(f"{PROGRAM_NAME}-{self._args.stack}"),
                kubernetes_version=settings.kubernetes_version,
                region=self._settings.region,
                vpc_id=subnets.vpc_id,
                control_plane_subnet_ids=subnets.control_plane,
                node_subnet_ids=list(subnets.private.values()),
                pod_subnet_ids=subnets.pods,
                system_nodes=self._settings.system_nodes,
                public_endpoint=settings.api_access.public,
                allowed_cidrs=self._args.allowed_cidrs or settings.api_access.allowed_cidrs,
                access=access_entries(settings.access, self._settings.teams),
                kms_key_arn=settings.kms_key_arn,
                logs=settings.logs,
                log_retention_days=settings.log_retention_days,
                addons=settings.addons,
                fsx=self._settings.storage.mode == "fsx",
                # Until release 0.1 the storage had them.
                addon_aliases={
                    POD_IDENTITY: [pulumi.Alias(name=f"{name}-storage-pod-identity", parent=storage)],
                    FSX_CSI: [pulumi.Alias(name=f"{name}-storage-csi-driver", parent=storage)],
                },
                tags=self._tags,
                changing_tags=self._expiry,
            ),
            pulumi.ResourceOptions(parent=self, providers=[provider], depends_on=subnets.needed_by_nodes),
        )

    def _on_existing_cluster(self) -> list[pulumi.Resource]:
        """What goes into a cluster that is there; returns what a job needs."""
        inside = self._existing_cluster()
        before = self._in_cluster(inside)
        storage = self._settings.storage
        if storage.mode != "fsx":
            return before
        # A file system of the user's own; the cluster has the driver.
        attached = Storage(
            f"{self._prefix}-storage",
            StorageArgs(
                claim=storage.claim,
                namespaces=job_namespaces(self._settings),
                file_system_id=storage.file_system_id,
                capacity_gib=storage.capacity_gib,
                data_repository=storage.data_repository,
                tags=self._tags,
                depends_on=self._namespaces,
            ),
            pulumi.ResourceOptions(parent=self, providers=[self._aws_provider, inside.provider]),
        )
        self.outputs["file_system_id"] = attached.file_system_id
        return [*before, attached]

    def _existing_cluster(self) -> _InCluster:
        """A provider for the cluster of the settings: by its kubeconfig, or by its name in EKS."""
        settings, child = self._settings.cluster, pulumi.ResourceOptions(parent=self)
        kubeconfig: pulumi.Input[str] = settings.kubeconfig or ""
        identifier: pulumi.Input[str] | None = None
        on_aws: aws.Provider | None = None
        if settings.name is not None:
            on_aws = self._aws_provider
            found = aws.eks.get_cluster_output(
                name=settings.name, opts=pulumi.InvokeOutputOptions(parent=self, provider=on_aws)
            )
            region = self._settings.region
            kubeconfig = found.apply(
                lambda c: exec_kubeconfig(c.name, c.endpoint, c.certificate_authorities[0].data, region)
            )
            identifier = found.arn
            self.outputs |= {"kubeconfig": kubeconfig, "cluster_name": settings.name}
        if self._settings.image.repository:
            self.outputs["image"] = f"{self._settings.image.repository}{self._settings.image.version}"
        provider = cluster_provider(f"{self._prefix}-kubernetes", kubeconfig, child, identifier)
        return _InCluster(
            provider=provider, deleted_with=None, node_selector={}, cluster_name=settings.name, aws=on_aws
        )

    def _in_cluster(self, inside: _InCluster) -> list[pulumi.Resource]:
        """What runs in the cluster, as far as it is to be installed; returns what a job needs."""
        settings, name = self._settings, self._prefix
        self._cluster_provider = inside.provider
        child = pulumi.ResourceOptions(parent=self, providers=[inside.provider], deleted_with=inside.deleted_with)
        own = pulumi.ResourceOptions(parent=self, provider=inside.provider, deleted_with=inside.deleted_with)
        self._own = own
        owner = pulumi.ResourceOptions(parent=self, providers=[inside.provider])
        nvidia, efa = (part.mode == "install" for part in (settings.device_plugins.nvidia, settings.device_plugins.efa))
        etcd, monitoring = (part.mode == "install" for part in (settings.etcd, settings.monitoring))
        idle = settings.cluster.mode == "create" and settings.guard.idle_minutes > 0 and bool(settings.gpu_nodes)
        self._system = system = list[pulumi.Resource]()
        if nvidia or efa or etcd or monitoring or idle:
            system.append(declare(f"{name}-namespace-system", namespace(SYSTEM_NAMESPACE), own))
        self._namespaces: list[pulumi.Resource] = []
        if settings.namespace.mode == "install":
            queued = settings.queue.mode != "none"
            level = pod_security_level(settings)
            place = job_namespace(settings.namespace_name, queued=queued, level=level)
            self._namespaces.append(declare(f"{name}-namespace-jobs", place, own))
            limits = pulumi.ResourceOptions.merge(own, pulumi.ResourceOptions(depends_on=self._namespaces))
            declare(f"{name}-quota-jobs", quota(settings.namespace_name), limits)
            for team in settings.teams:
                members = TeamArgs(team=team, queued=queued, level=level)
                self._namespaces.append(Team(f"{name}-team-{team}", members, child))
        needed: list[pulumi.Resource] = [*self._namespaces]
        needed += self._job_access(inside)
        somewhere = [*system, *inside.nodes]
        taints = list({str(taint): taint for group in settings.gpu_nodes for taint in group.taints}.values())
        if nvidia or efa:
            plugins = DevicePluginsArgs(nvidia=nvidia, efa=efa, taints=taints, depends_on=system)
            needed.append(DevicePlugins(f"{name}-devices", plugins, child))
        if etcd:
            server = EtcdArgs(
                node_selector=inside.node_selector,
                persistent=settings.etcd.persistent,
                storage_gib=settings.etcd.storage_gib,
                tags=self._tags,
                deleted_with=inside.deleted_with,
                depends_on=[*somewhere, *(inside.ebs_csi if settings.etcd.persistent else [])],
            )
            # Not with the cluster as a whole: its volume and its budget go first.
            needed.append(Etcd(f"{name}-etcd", server, owner))
        operators: list[pulumi.Resource] = []
        if settings.training_operator.mode == "install":
            operator = TrainingOperatorArgs(
                manifests=settings.training_operator.manifests,
                cpu=settings.training_operator.cpu,
                memory=settings.training_operator.memory,
                work_dir=self._args.work_dir,
                depends_on=inside.nodes,
            )
            operators.append(TrainingOperator(f"{name}-operator", operator, child))
            needed += operators
        if settings.queue.mode == "install":
            teams = {team: about.nodes for team, about in settings.teams.items()}
            queue = QueueArgs(
                settings=settings.queue,
                groups=settings.gpu_nodes,
                nodes=own_nodes(settings.gpu_nodes, teams, settings.namespace_name),
                node_selector=inside.node_selector,
                work_dir=self._args.work_dir,
                # Kueue serves its webhook for jobs, which every job passes, only where it finds their kind.
                depends_on=[*inside.nodes, *operators],
                namespaces=self._namespaces,
            )
            needed.append(Queue(f"{name}-queue", queue, child))
        if monitoring:
            measured = MonitoringArgs(node_selector=inside.node_selector, taints=taints, depends_on=somewhere)
            Monitoring(f"{name}-monitoring", measured, child)
        return needed

    def _job_access(self, inside: _InCluster) -> list[pulumi.Resource]:
        """What jobs have beside their code, in each of their namespaces; returns what a job needs of it."""
        settings, name = self._settings, self._prefix
        make = settings.namespace.mode == "install"
        provider = inside.aws
        if provider is None and settings.hugging_face.secret_arn:
            provider = self._aws_provider
        secret = token(settings.hugging_face, pulumi.InvokeOptions(provider=provider))
        policies: dict[str, list[str]] = {}
        if inside.cluster_name is not None:
            policies = {p: job_policies(settings.storage, settings.region, p) for p in job_namespaces(settings)}
        if not make and secret is None and not any(policies.values()):
            return []
        providers: list[pulumi.ProviderResource] = [inside.provider, *([provider] if provider else [])]
        access = [
            JobAccess(
                f"{name}-access-{place}",
                JobAccessArgs(
                    namespace=place,
                    make_service_account=make,
                    token=secret,
                    cluster_name=inside.cluster_name,
                    policies=policies.get(place, ()),
                    tags=self._tags,
                    deleted_with=inside.deleted_with,
                    depends_on=self._namespaces,
                ),
                pulumi.ResourceOptions(parent=self, providers=providers),
            )
            for place in job_namespaces(settings)
        ]
        return [*access, *(inside.pod_identity if any(policies.values()) else [])]
