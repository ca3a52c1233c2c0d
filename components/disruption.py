"""Refuses updates that would take GPU nodes from under a running job, at preview and before anything is done."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pulumi
from pulumi.output import Unknown

from eks_fsdp.spec.base import SettingsError
from eks_fsdp.spec.names import GPU_GROUP_LABEL, JOB_LABEL

REQUEST_SECONDS = (3.0, 10.0)
"""Longest wait for a connection to the cluster, and for an answer."""

SETTING_OF: dict[str, str] = {
    "amiType": "ami.type",
    "blockDeviceMappings": "root_volume_gib or kms_key_arn",
    "capacityReservationSpecification": "capacity",
    "capacityType": "capacity.kind",
    "description": "zone, capacity, ami, alternatives or the node role",
    "imageId": "ami.image_id",
    "instanceMarketOptions": "capacity.kind",
    "instanceType": "instance_type",
    "instanceTypes": "instance_type or alternatives",
    "launchTemplate": "the launch template",
    "networkInterfaces": "efa or security_groups",
    "nodeRoleArn": "the node role",
    "placement": "placement_group",
    "releaseVersion": "ami.release",
    "subnetIds": "zone",
    "userData": "nvme, hugepages, max_pods or ami",
    "version": "cluster.kubernetes_version",
}
"""What in the settings an input of a launch template or node group comes from."""

QUIET = frozenset(
    {
        # Of a node group: EKS changes them in place, or they say how an update is done.
        "scalingConfig",
        "labels",
        "updateConfig",
        "nodeRepairConfig",
        "forceUpdateVersion",
        # Of a launch template: no part of a version of it.
        "updateDefaultVersion",
        "defaultVersion",
        # Of both.
        "tags",
        "tagsAll",
        "region",
    }
)
"""Inputs whose change leaves every node as it is."""


class Unreachable(Exception):
    """The cluster did not answer, or refused to."""


def disruptive_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The inputs that differ, without those that leave every node as it is. A value that is not known yet differs.

    But for the version of the same launch template: a preview does not know it whenever anything of the template changes,
    its tags too. Whether there will be a new one is asked of the template's own update, which comes first.
    """
    keys = {key for key in {*old, *new} - QUIET if not key.startswith("__")}
    changed = {key for key in keys if old.get(key) != new.get(key)}
    before, after = old.get("launchTemplate"), new.get("launchTemplate")
    if before and after and before.get("id") == after.get("id") and isinstance(after.get("version"), Unknown):
        changed.discard("launchTemplate")
    return sorted(changed)


def jobs_on(kubeconfig: str, group: str) -> list[str]:
    """Jobs with pods on nodes of ``group``, as ``namespace/job``, sorted. Raises `Unreachable`."""
    # Only an update that would end jobs needs them: importing the client takes half a second.
    import urllib3
    from kubernetes import client, config

    load: Any = config.load_kube_config_from_dict
    loading = client.Configuration()
    # A cluster that is not there is told at once.
    loading.retries = 0
    try:
        settings = json.loads(kubeconfig)
        load(settings, client_configuration=loading)
        with client.ApiClient(loading) as connection:
            api: Any = client.CoreV1Api(connection)
            nodes = api.list_node(label_selector=f"{GPU_GROUP_LABEL}={group}", _request_timeout=REQUEST_SECONDS)
            names = {node.metadata.name for node in nodes.items}
            if not names:
                return []
            pods = api.list_pod_for_all_namespaces(
                label_selector=JOB_LABEL,
                field_selector="status.phase!=Succeeded,status.phase!=Failed",
                _request_timeout=REQUEST_SECONDS,
            )
    except (client.ApiException, config.ConfigException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        raise Unreachable(str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__) from None
    found = {
        (pod.metadata.namespace, pod.metadata.labels[JOB_LABEL]) for pod in pods.items if pod.spec.node_name in names
    }
    return sorted(f"{namespace}/{job}" for namespace, job in found)


def refusal(group: str, changes: list[str], jobs: list[str]) -> str:
    """What the user is told."""
    what = ", ".join(f"{SETTING_OF[key]} ({key})" if key in SETTING_OF else key for key in changes)
    return (
        f"gpu_nodes, group {group!r}: {what or 'the group itself'} would change, for which EKS replaces its nodes, and jobs "
        f"run on them: {', '.join(jobs)}. Wait until they are over or stop them (eks-fsdp stop), or take them down with "
        f"allow_disruption: true on the group"
    )


@dataclass(frozen=True, kw_only=True)
class DisruptionGuard:
    """Watches over one group of GPU nodes. ``kubeconfig``: JSON of the cluster that they are in."""

    name: str
    """Prefix of the hooks' names, which are unique in a program."""
    group: str
    kubeconfig: pulumi.Output[str]

    def hooks(self) -> pulumi.ResourceHookBinding:
        """For the group's launch template and its node group.

        There is none at deletion: an engine that finds one in its state refuses a `destroy` that runs no program.
        """
        always = pulumi.ResourceHookOptions(on_dry_run=True)
        return pulumi.ResourceHookBinding(
            before_create=[pulumi.ResourceHook(f"{self.name}-create", self.created, always)],
            before_update=[pulumi.ResourceHook(f"{self.name}-update", self.updated, always)],
        )

    async def created(self, args: pulumi.ResourceHookArgs) -> None:
        """A group that is made while jobs run on nodes of its name takes the place of theirs."""
        await self._refuse_while_jobs_run([], first=True)

    async def updated(self, args: pulumi.ResourceHookArgs) -> None:
        """An update in place, which may roll the nodes."""
        changes = disruptive_changes(args.old_inputs or {}, args.new_inputs or {})
        if changes:
            await self._refuse_while_jobs_run(changes, first=False)

    async def _refuse_while_jobs_run(self, changes: list[str], *, first: bool) -> None:
        kubeconfig = await self.kubeconfig.future()
        if kubeconfig is None:
            # A preview of a cluster that is not there, or about to change: its up asks it.
            return
        try:
            jobs = await asyncio.to_thread(jobs_on, kubeconfig, self.group)
        except Unreachable as error:
            told = f"gpu_nodes, group {self.group!r}: whether a job runs on its nodes is not known: {error}"
            if first or pulumi.runtime.is_dry_run():
                pulumi.log.warn(told)
                return
            raise SettingsError(
                f"{told}; accepted: a cluster that answers, or allow_disruption: true on the group"
            ) from None
        if jobs:
            raise SettingsError(refusal(self.group, changes, jobs))
