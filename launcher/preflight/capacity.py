"""Zones, instance types, reservations and quotas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from eks_fsdp.launcher.aws import AwsError
from eks_fsdp.spec.instances import INSTANCE_TYPES
from eks_fsdp.spec.names import TAG_STACK
from eks_fsdp.spec.quotas import Quota, wanted_vcpus
from eks_fsdp.spec.rules.capacity import reservation_problems
from eks_fsdp.spec.settings import CapacitySettings

from .check import Check, Context, failed, ok, unchecked, warning, why_not


def check_zones(at: Context) -> Iterable[Check]:
    """The region answers, and has every zone that the settings name."""
    name = f"Zones of {at.settings.region}"
    wanted = {zone: f"network.zones[{index}]" for index, zone in enumerate(at.settings.network.node_zones)}
    wanted |= {group.zone: f"gpu_nodes[{index}].zone" for index, group in enumerate(at.settings.gpu_nodes)}
    known = ", ".join(f"{zone} ({identity})" for zone, identity in sorted(at.zones.items()))
    missing = [f"{setting}: {zone!r}" for zone, setting in wanted.items() if at.zone_name(zone) is None]
    if missing:
        yield failed(name, f"{'; '.join(missing)} is no zone of this account", f"take one of {known}")
        return
    named = {zone: at.zone_name(zone) or "" for zone in wanted}
    yield ok(name, ", ".join(f"{named[zone]} ({at.zones[named[zone]]})" for zone in wanted))


def check_offerings(at: Context) -> Iterable[Check]:
    """EC2 offers each group's types in its zone."""
    for index, group in enumerate(at.settings.gpu_nodes):
        for kind in (group.instance_type, *group.alternatives):
            name = f"{kind} in {group.zone}"
            zone = at.zone_name(group.zone)
            offered = {
                str(offer["Location"])
                for offer in at.aws.all(
                    "ec2",
                    "describe_instance_type_offerings",
                    "InstanceTypeOfferings",
                    LocationType="availability-zone",
                    Filters=[{"Name": "instance-type", "Values": [kind]}],
                )
            }
            if zone in offered:
                yield ok(name, f"offered in {', '.join(sorted(offered))}")
                continue
            where = ", ".join(f"{z} ({at.zones.get(z, '?')})" for z in sorted(offered))
            yield failed(
                name,
                f"not offered there; offered in {where or f'no zone of {at.settings.region}'}",
                f"set gpu_nodes[{index}].zone to one of these" if offered else "take another region or type",
            )


def catalogue_differences(name: str, described: Mapping[str, Any]) -> list[str]:
    """Where the catalogue says other than EC2's DescribeInstanceTypes: ``EFA interfaces 32, EC2 says 16``."""
    known, network = INSTANCE_TYPES[name], described.get("NetworkInfo") or {}
    gpus = (described.get("GpuInfo") or {}).get("Gpus") or []
    efa = int((network.get("EfaInfo") or {}).get("MaximumEfaInterfaces") or 0) if network.get("EfaSupported") else 0
    pairs: list[tuple[str, object, object]] = [
        ("GPUs", known.gpus, sum(int(gpu["Count"]) for gpu in gpus)),
        ("EFA interfaces", known.efa_interfaces, efa),
        ("network cards", known.network_cards, network.get("MaximumNetworkCards")),
        ("vCPUs", known.vcpus, (described.get("VCpuInfo") or {}).get("DefaultVCpus")),
        ("MiB of memory", known.memory_mib, (described.get("MemoryInfo") or {}).get("SizeInMiB")),
    ]
    return [
        f"{what} {ours}, EC2 says {theirs}" for what, ours, theirs in pairs if theirs is not None and ours != theirs
    ]


def check_catalogue(at: Context) -> Iterable[Check]:
    """The program's catalogue agrees with EC2: interfaces and device requests are computed from it."""
    kinds = sorted({kind for group in at.settings.gpu_nodes for kind in (group.instance_type, *group.alternatives)})
    for kind in kinds:
        found = at.aws.all("ec2", "describe_instance_types", "InstanceTypes", InstanceTypes=[kind])
        differences = catalogue_differences(kind, found[0])
        if differences:
            yield failed(f"Catalogue: {kind}", "; ".join(differences), "report it: spec/instances.py is wrong here")
        else:
            known = INSTANCE_TYPES[kind]
            seen = f"{known.gpus} x {known.gpu}, {known.efa_interfaces} EFA interfaces on {known.network_cards} cards"
            yield ok(f"Catalogue: {kind}", seen)


def check_reservations(at: Context) -> Iterable[Check]:
    """Each reservation and block is there, fits its group, and lasts as long as its jobs may."""
    for index, group in enumerate(at.settings.gpu_nodes):
        if not group.capacity.reserved:
            continue
        found = _reservations(at, group.capacity)
        name = f"{'Capacity block' if group.capacity.kind == 'capacity-block' else 'Reservation'} of {group.name}"
        jobs = [job for label, job in at.settings.jobs.items() if at.settings.group_of(label) == group]
        longest = max((job.deadline_minutes for job in jobs), default=0)
        problems = list(
            reservation_problems(
                f"gpu_nodes[{index}]",
                group,
                found,
                now=at.now,
                until=max(at.now, group.capacity.starts or at.now) + timedelta(minutes=longest) if longest else None,
                running=_running_nodes(at, group.name),
            )
        )
        if problems:
            yield failed(
                name,
                "; ".join(problem.partition("; accepted: ")[0] for problem in problems),
                "; ".join(dict.fromkeys(problem.partition("; accepted: ")[2] for problem in problems))
                + f". `eks-fsdp capacity --type {group.instance_type} --regions {at.settings.region}` shows yours",
            )
        else:
            yield ok(name, "; ".join(_reservation_text(item) for item in found))


def _reservations(at: Context, wanted: CapacitySettings) -> list[dict[str, Any]]:
    """The reservation, or those of the resource group; empty where there is none of that name."""
    try:
        identities = [wanted.reservation_id]
        if wanted.resource_group_arn is not None:
            resources = at.aws.all(
                "resource-groups", "list_group_resources", "Resources", Group=wanted.resource_group_arn
            )
            identities = [str(resource["Identifier"]["ResourceArn"]).rsplit("/", 1)[-1] for resource in resources]
        if not identities:
            return []
        return at.aws.all(
            "ec2", "describe_capacity_reservations", "CapacityReservations", CapacityReservationIds=identities
        )
    except AwsError as error:
        if error.code == "NotFoundException" or error.code.startswith("InvalidCapacityReservationId"):
            return []
        raise


def _reservation_text(item: Mapping[str, Any]) -> str:
    ends = f", until {item['EndDate']:%Y-%m-%d %H:%M} UTC" if item.get("EndDate") else ""
    zone = f"{item['AvailabilityZone']} ({item.get('AvailabilityZoneId', '?')})"
    free = f"{item['AvailableInstanceCount']} of {item['TotalInstanceCount']} {item['InstanceType']} free"
    return f"{item['CapacityReservationId']}: {item['State']}, {free} in {zone}{ends}"


def _running_nodes(at: Context, group: str) -> int:
    """Nodes that the stack has in a group already."""
    deployed = at.outputs.get("gpu_node_groups") or []
    return next((int(found["desired"]) for found in deployed if found.get("name") == group), 0)


def check_quotas(at: Context) -> Iterable[Check]:
    """The account's vCPU quotas hold what the stack asks for, beside what runs already."""
    wanted_nodes = at.wanted_nodes()
    groups = {group.name: (group, wanted_nodes[group.name]) for group in at.settings.gpu_nodes}
    for quota, vcpus in wanted_vcpus(groups).items():
        if quota is None:
            yield unchecked("Quota", "Spot p6 instances: which quota they count against is not documented")
            continue
        name = f"Quota {quota.code}"
        try:
            limit = float(
                at.aws.ask("service-quotas", "get_service_quota", ServiceCode="ec2", QuotaCode=quota.code)["Quota"][
                    "Value"
                ]
            )
            running = _running_vcpus(at, quota)
        except AwsError as error:
            seen, do = why_not(error)
            yield unchecked(name, seen, do)
            continue
        seen = f"{quota.name}: {limit:,.0f} vCPUs, {running:,} used by others; the stack takes up to {vcpus:,}"
        if vcpus + running > limit:
            yield failed(
                name,
                seen,
                f"ask for {vcpus + running:,}: aws service-quotas request-service-quota-increase --service-code ec2 "
                f"--quota-code {quota.code} --desired-value {vcpus + running} --region {at.settings.region}",
            )
        elif vcpus + running > 0.9 * limit:
            yield warning(name, seen, "a rolling update of a group may need more")
        else:
            yield ok(name, seen)


def _running_vcpus(at: Context, quota: Quota) -> int:
    """vCPUs of the running instances that count against a quota, the stack's own aside."""
    letters = {"L-417A185B": ["p*"], "L-7212CCBC": ["p*"], "L-C4BD4855": ["p5*"]}.get(quota.code, ["g*", "vt*"])
    reservations = at.aws.all(
        "ec2",
        "describe_instances",
        "Reservations",
        Filters=[
            {"Name": "instance-state-name", "Values": ["running"]},
            {"Name": "instance-type", "Values": letters},
        ],
    )
    used = 0
    for instance in (i for reservation in reservations for i in reservation["Instances"]):
        tags = {tag["Key"]: tag["Value"] for tag in instance.get("Tags") or []}
        spot = instance.get("InstanceLifecycle") == "spot"
        block = instance.get("InstanceLifecycle") == "capacity-block"
        if tags.get(TAG_STACK) == at.stack or spot != quota.spot or block or not quota.covers(instance["InstanceType"]):
            continue
        cpu = instance.get("CpuOptions") or {}
        known = INSTANCE_TYPES.get(instance["InstanceType"])
        used += int(cpu.get("CoreCount", 0)) * int(cpu.get("ThreadsPerCore", 1)) or (known.vcpus if known else 0)
    return used
