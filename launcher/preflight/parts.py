"""What else must be there before `up`: addresses, versions, image, secret, guard."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from eks_fsdp.launcher.aws import Aws, AwsError
from eks_fsdp.launcher.image import Address, image_present
from eks_fsdp.spec.addons import addon_version
from eks_fsdp.spec.instances import PREFIX_ADDRESSES
from eks_fsdp.spec.names import TAG_STACK, repository_name
from eks_fsdp.spec.rules.addresses import needed
from eks_fsdp.spec.settings import Settings
from eks_fsdp.spec.versions import (
    AMI_RELEASES,
    CLOUDWATCH,
    COREDNS,
    EBS_CSI,
    FSX_CSI,
    KUBE_PROXY,
    NODE_MONITORING,
    POD_IDENTITY,
    S3_CSI,
    TRAINER_REPOSITORY,
    VPC_CNI,
)

from .check import Check, Context, failed, ok, unchecked, warning

PRIVATE_TAG = "kubernetes.io/role/internal-elb"
"""On private subnets of the program's own network."""
CNI_TAG = "cluster.k8s.amazonaws.com/name"
"""vpc-cni's, on the interfaces that it makes: the cluster's name."""
ECR_ADDRESS = re.compile(r"^(\d{12})\.dkr\.ecr\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?/(.+)$")


def check_kubernetes(at: Context) -> Iterable[Check]:
    """EKS still offers the Kubernetes version."""
    version = at.settings.cluster.kubernetes_version
    name = f"Kubernetes {version}"
    found = at.aws.all("eks", "describe_cluster_versions", "clusterVersions")
    offered = {
        str(item["clusterVersion"]): item for item in found if item.get("versionStatus", "").upper() != "UNSUPPORTED"
    }
    if version not in offered:
        yield failed(name, f"EKS offers {', '.join(sorted(offered))}", "set cluster.kubernetes_version to one of these")
    elif offered[version].get("versionStatus", "").upper() == "EXTENDED_SUPPORT":
        until = offered[version].get("endOfExtendedSupportDate")
        yield warning(
            name,
            "in extended support, which costs extra for every cluster-hour"
            + (f"; until {until:%Y-%m-%d}" if until else ""),
            "plan the upgrade of cluster.kubernetes_version",
        )
    else:
        until = offered[version].get("endOfStandardSupportDate")
        yield ok(name, "in standard support" + (f" until {until:%Y-%m-%d}" if until else ""))


def installed_addons(settings: Settings) -> list[str]:
    """Names of the add-ons that the stack installs."""
    wanted = settings.cluster.addons
    names = [VPC_CNI, KUBE_PROXY, POD_IDENTITY, COREDNS, EBS_CSI]
    names += [FSX_CSI] if settings.storage.mode == "fsx" else []
    names += [S3_CSI] if settings.storage.s3_mounts else []
    names += [NODE_MONITORING] if wanted.node_monitoring else []
    return names + ([CLOUDWATCH] if wanted.cloudwatch else [])


def check_addons(at: Context) -> Iterable[Check]:
    """EKS has the pinned version of each add-on for the Kubernetes version."""
    kubernetes = at.settings.cluster.kubernetes_version
    found = at.aws.all("eks", "describe_addon_versions", "addons", kubernetesVersion=kubernetes)
    offered: dict[str, list[str]] = {
        str(addon["addonName"]): [
            str(version["addonVersion"])
            for version in addon["addonVersions"]
            if any(c.get("clusterVersion") == kubernetes for c in version.get("compatibilities") or [])
        ]
        for addon in found
    }
    wanted = at.settings.cluster.addons.versions
    # Without a pin EKS takes its own default.
    pins = {
        name: version
        for name in installed_addons(at.settings)
        if (version := addon_version(name, kubernetes, wanted)) is not None
    }
    wrong = {name: version for name, version in pins.items() if version not in offered.get(name, [])}
    for name, version in wrong.items():
        known = ", ".join(offered.get(name, [])[:3])
        yield failed(
            f"Add-on {name}",
            f"{version} is not offered for Kubernetes {kubernetes}",
            f"set cluster.addons.versions.{name} to one of {known}" if known else "EKS does not know this add-on here",
        )
    if not wrong and pins:
        yield ok("Add-ons", f"all {len(pins)} pinned versions are offered for Kubernetes {kubernetes}")


def ami_parameter(kubernetes: str, release: str) -> str:
    """SSM parameter of the NVIDIA image of one release, such as ``1.34.2-20260107``."""
    build = release.partition("-")[2]
    image = f"amazon-eks-node-al2023-x86_64-nvidia-{kubernetes}-v{build}"
    return f"/aws/service/eks/optimized-ami/{kubernetes}/amazon-linux-2023/x86_64/nvidia/{image}/image_id"


def check_ami(at: Context) -> Iterable[Check]:
    """The nodes' image is there."""
    kubernetes = at.settings.cluster.kubernetes_version
    pinned = AMI_RELEASES.get(kubernetes)
    seen: set[tuple[str | None, str | None]] = set()
    for index, group in enumerate(at.settings.gpu_nodes):
        key = (group.ami.image_id, group.ami.release or pinned)
        if key in seen:
            continue
        seen.add(key)
        if group.ami.image_id is not None:
            name = f"Image {group.ami.image_id}"
            try:
                images = at.aws.all("ec2", "describe_images", "Images", ImageIds=[group.ami.image_id])
            except AwsError as error:
                if not error.code.startswith("InvalidAMIID"):
                    raise
                images = []
            if images and images[0].get("State") == "available":
                yield ok(name, str(images[0].get("Name", "available")))
            else:
                yield failed(name, "not available to this account", f"change gpu_nodes[{index}].ami.image_id")
            continue
        release = key[1]
        name = f"AMI release {release or 'recommended'}"
        parameter = (
            ami_parameter(kubernetes, release)
            if release
            else f"/aws/service/eks/optimized-ami/{kubernetes}/amazon-linux-2023/x86_64/nvidia/recommended/image_id"
        )
        try:
            value = at.aws.ask("ssm", "get_parameter", Name=parameter)["Parameter"]["Value"]
        except AwsError as error:
            if error.code != "ParameterNotFound":
                raise
            yield failed(
                name,
                f"EKS has no such NVIDIA image for Kubernetes {kubernetes} in {at.settings.region}",
                f"set gpu_nodes[{index}].ami.release; `aws ssm get-parameter --name "
                f"{parameter.rsplit('/', 2)[0]}/recommended/release_version` tells the newest",
            )
            continue
        yield ok(name, str(value))


def image_repository(at: Context) -> str:
    """Address or name of the trainer's repository, as far as it is known before `up`."""
    return at.settings.image.repository or repository_name(at.stack, TRAINER_REPOSITORY)


def check_image(at: Context) -> Iterable[Check]:
    """The trainer's image is in its repository."""
    image = at.settings.image
    repository = image_repository(at)
    name = "Trainer image"
    place = ECR_ADDRESS.match(repository)
    if image.repository is not None and place is None:
        yield unchecked(name, f"{repository} is not in ECR: nodes must be able to pull it")
        return
    ecr = (Aws(place[2]) if place else at.aws).client("ecr")
    address = Address(repository, image.tag, image.digest or "")
    found = image_present(ecr, place[3] if place else repository, address, registry=place[1] if place else None)
    if found.found is None:
        yield unchecked(name, found.message, found.remedy)
    elif found.found:
        yield ok(name, f"{found.message} ({found.digest[:19]})")
    elif image.repository is None and "does not exist" in found.message:
        do = "`up` with desired: 0 and no jobs, then `eks-fsdp image build`, then set the image.digest that it prints"
        yield warning(name, f"{found.message} yet", do)
    else:
        do = found.remedy if image.repository is None else "push it, or change image.repository, tag or digest"
        yield failed(name, found.message, do)


def check_token(at: Context) -> Iterable[Check]:
    """The Hugging Face token's secret is there. Its value is not asked for."""
    name, given = "Hugging Face token", at.settings.hugging_face
    if given.secret_arn is None:
        if given.token is not None:
            yield ok(name, "set in the stack's configuration, encrypted")
        return
    try:
        secret = at.aws.ask("secretsmanager", "describe_secret", SecretId=given.secret_arn)
    except AwsError as error:
        if error.code != "ResourceNotFoundException":
            raise
        yield failed(name, f"{given.secret_arn}: no such secret", "make it, or change hugging_face.secret_arn")
        return
    if secret.get("DeletedDate"):
        yield failed(
            name,
            f"{secret['Name']} is to be deleted",
            f"aws secretsmanager restore-secret --secret-id {secret['Name']}",
        )
    else:
        yield ok(name, f"secret {secret['Name']} is there (not read)")


def check_guard(at: Context) -> Iterable[Check]:
    """The expiry lies ahead, and something ends nodes that are forgotten."""
    guard, name = at.settings.guard, "Cost guard"
    if guard.expiry is not None and guard.expiry <= at.now:
        yield failed(
            name, f"guard.expiry {guard.expiry:%Y-%m-%d %H:%M %Z} is over: GPU groups stay at 0", "renew guard.expiry"
        )
        return
    told = [f"expires {guard.expiry:%Y-%m-%d %H:%M %Z}"] if guard.expiry else []
    told += [f"idle after {guard.idle_minutes} min"] if guard.idle_minutes else []
    told += [f"budget ${guard.budget_usd:,}/month"] if guard.budget_usd else []
    if guard.expiry is not None and guard.expiry - at.now < timedelta(hours=1):
        yield warning(name, "; ".join(told), "less than an hour is left: renew guard.expiry before a long job")
    elif not (guard.expiry or guard.idle_minutes or guard.budget_usd) and at.settings.gpu_nodes:
        yield warning(
            name, "no expiry, no idle guard, no budget", "set guard.idle_minutes, guard.expiry or guard.budget_usd"
        )
    elif told:
        yield ok(name, "; ".join(told))


def check_addresses(at: Context) -> Iterable[Check]:
    """The private subnets have addresses for all nodes, interfaces and pods. Before `up`, an own network has none yet."""
    existing = at.settings.network.existing
    if existing is not None:
        try:
            found = at.aws.all(
                "ec2", "describe_subnets", "Subnets", SubnetIds=sorted(existing.private_subnets.values())
            )
        except AwsError as error:
            if not error.code.startswith("InvalidSubnetID"):
                raise
            yield failed("Subnets", str(error), "correct network.existing.private_subnets")
            return
        zones = {identity: zone for zone, identity in existing.private_subnets.items()}
    else:
        mine = [{"Name": f"tag:{TAG_STACK}", "Values": [at.stack]}, {"Name": f"tag:{PRIVATE_TAG}", "Values": ["1"]}]
        found = at.aws.all("ec2", "describe_subnets", "Subnets", Filters=mine)
        by_name = {at.zone_name(zone): zone for zone in at.settings.network.zones}
        zones = {str(subnet["SubnetId"]): by_name.get(str(subnet["AvailabilityZone"]), "") for subnet in found}
    wanted = needed(at.settings)
    for subnet in sorted(found, key=lambda item: str(item["AvailabilityZone"])):
        yield _subnet_check(at, subnet, zones[str(subnet["SubnetId"])], wanted)


def _subnet_check(at: Context, subnet: dict[str, Any], zone: str, wanted: Mapping[str, int]) -> Check:
    name, actual = f"Subnet {subnet['SubnetId']}", str(subnet["AvailabilityZone"])
    setting = f"network.existing.private_subnets.{zone}"
    if at.settings.network.existing is not None:
        if at.zone_name(zone) != actual:
            return failed(name, f"is in {actual}, not in {zone}", f"correct {setting}")
        if subnet.get("MapPublicIpOnLaunch"):
            why = "gives public addresses: an EFA node with several interfaces never joins from it"
            return failed(name, why, f"set {setting} to a private subnet")
    free, own, most = int(subnet["AvailableIpAddressCount"]), _own_addresses(at, subnet), wanted.get(zone, 0)
    seen = f"{free:,} of {subnet['CidrBlock']} free in {actual}" + (f", {own:,} are the stack's already" if own else "")
    seen += f"; nodes at their max and pods take {most:,}"
    if free + own < most:
        return failed(name, seen, "a larger subnet, a lower max of the group, pod_cidr, or efa: efa-only-dense")
    return ok(name, seen)


def _own_addresses(at: Context, subnet: dict[str, Any]) -> int:
    """Addresses of a subnet that the stack's nodes and vpc-cni on them hold."""
    interfaces = at.aws.all(
        "ec2",
        "describe_network_interfaces",
        "NetworkInterfaces",
        Filters=[{"Name": "subnet-id", "Values": [subnet["SubnetId"]]}],
    )
    held = 0
    for interface in interfaces:
        tags = {tag["Key"]: tag["Value"] for tag in interface.get("TagSet") or []}
        cluster = str(at.outputs.get("cluster_name") or "")
        if tags.get(TAG_STACK) == at.stack or (cluster and tags.get(CNI_TAG) == cluster):
            held += len(interface.get("PrivateIpAddresses") or ())
            held += PREFIX_ADDRESSES * len(interface.get("Ipv4Prefixes") or ())
    return held
