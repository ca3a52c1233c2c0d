"""Functions that a program asks of the provider: getRegion, getAvailabilityZones, and the like."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Clients = Callable[[str], Any]
Args = Mapping[str, Any]


class UnknownInvoke(LookupError):
    """The stand-in has no such function."""


def _caller_identity(args: Args, clients: Clients, region: str) -> dict[str, Any]:
    answer = clients("sts").get_caller_identity()
    return {"id": answer["Account"], "accountId": answer["Account"], "arn": answer["Arn"], "userId": answer["UserId"]}


def _partition(args: Args, clients: Clients, region: str) -> dict[str, Any]:
    return {"id": "aws", "partition": "aws", "dnsSuffix": "amazonaws.com", "reverseDnsPrefix": "com.amazonaws"}


def _region(args: Args, clients: Clients, region: str) -> dict[str, Any]:
    name = args.get("region") or args.get("name") or region
    return {"id": name, "name": name, "region": name, "description": name, "endpoint": f"ec2.{name}.amazonaws.com"}


def _zones(args: Args, clients: Clients, region: str) -> dict[str, Any]:
    filters = [{"Name": item["name"], "Values": item["values"]} for item in args.get("filters") or []]
    answer = clients("ec2").describe_availability_zones(Filters=filters)["AvailabilityZones"]
    zones = [
        zone
        for zone in answer
        if args.get("state") in (None, zone["State"])
        and zone["ZoneName"] not in (args.get("excludeNames") or [])
        and zone["ZoneId"] not in (args.get("excludeZoneIds") or [])
    ]
    return {
        "id": region,
        "names": [zone["ZoneName"] for zone in zones],
        "zoneIds": [zone["ZoneId"] for zone in zones],
        "groupNames": [region],
        "region": region,
        **{key: value for key, value in args.items() if key in ("state", "excludeNames", "filters")},
    }


def _parameter(args: Args, clients: Clients, region: str) -> dict[str, Any]:
    found = clients("ssm").get_parameter(Name=args["name"])["Parameter"]
    return {
        "id": args["name"],
        "name": args["name"],
        "arn": found["ARN"],
        "type": found["Type"],
        "value": found["Value"],
        "insecureValue": found["Value"],
        "version": found["Version"],
        "region": region,
    }


def _secret_version(args: Args, clients: Clients, region: str) -> dict[str, Any]:
    found = clients("secretsmanager").get_secret_value(SecretId=args["secretId"])
    return {
        "id": f"{args['secretId']}|AWSCURRENT",
        "arn": found["ARN"],
        "secretId": args["secretId"],
        "secretString": found["SecretString"],
        "secretBinary": "",
        "versionId": found["VersionId"],
        "versionStages": found["VersionStages"],
        "createdDate": found["CreatedDate"].isoformat(),
        "region": region,
    }


def _cluster(args: Args, clients: Clients, region: str) -> dict[str, Any]:
    found = clients("eks").describe_cluster(name=args["name"])["cluster"]
    return {
        "id": found["name"],
        "name": found["name"],
        "arn": found["arn"],
        "endpoint": found["endpoint"],
        "roleArn": found["roleArn"],
        "status": found["status"],
        "version": found["version"],
        "platformVersion": found["platformVersion"],
        "createdAt": found["createdAt"].isoformat(),
        "certificateAuthorities": [found["certificateAuthority"]],
        "identities": [{"oidcs": [{"issuer": found["identity"]["oidc"]["issuer"]}]}],
        "vpcConfig": found["resourcesVpcConfig"],
        "accessConfigs": [found["accessConfig"]],
        "enabledClusterLogTypes": [],
        "kubernetesNetworkConfigs": [found["kubernetesNetworkConfig"]],
        "tags": found.get("tags", {}),
        "region": region,
    }


def _instance_type(args: Args, clients: Clients, region: str) -> dict[str, Any]:
    found = clients("ec2").describe_instance_types(InstanceTypes=[args["instanceType"]])["InstanceTypes"][0]
    network = found["NetworkInfo"]
    gpus = found.get("GpuInfo", {}).get("Gpus", [])
    return {
        "id": args["instanceType"],
        "instanceType": args["instanceType"],
        "defaultVcpus": found["VCpuInfo"]["DefaultVCpus"],
        "memorySize": found["MemoryInfo"]["SizeInMiB"],
        "efaSupported": network["EfaSupported"],
        "efaMaximumInterfaces": network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0),
        "maximumNetworkCards": network["MaximumNetworkCards"],
        "maximumNetworkInterfaces": network["MaximumNetworkInterfaces"],
        "maximumIpv4AddressesPerInterface": network["Ipv4AddressesPerInterface"],
        "networkPerformance": network["NetworkPerformance"],
        "networkCards": [
            {
                "index": card["NetworkCardIndex"],
                "maximumInterfaces": card["MaximumNetworkInterfaces"],
                "performance": card["NetworkPerformance"],
            }
            for card in network["NetworkCards"]
        ],
        "gpuses": [
            {
                "count": gpu["Count"],
                "manufacturer": gpu["Manufacturer"],
                "memorySize": gpu["MemoryInfo"]["SizeInMiB"],
                "name": gpu["Name"],
            }
            for gpu in gpus
        ],
        "totalGpuMemory": found.get("GpuInfo", {}).get("TotalGpuMemoryInMiB", 0),
        "region": region,
    }


def _addon_version(args: Args, clients: Clients, region: str) -> dict[str, Any]:
    name = args["addonName"]
    found = clients("eks").describe_addon_versions(addonName=name)["addons"]
    version = found[0]["addonVersions"][0]["addonVersion"] if found else ""
    return {"id": name, "version": version, **{key: value for key, value in args.items() if value is not None}}


def _cluster_versions(args: Args, clients: Clients, region: str) -> dict[str, Any]:
    found = clients("eks").describe_cluster_versions()["clusterVersions"]
    keys = ("clusterType", "clusterVersion", "defaultVersion", "versionStatus")
    return {"id": region, "clusterVersions": [{key: item[key] for key in keys} for item in found]}


def _offerings(args: Args, clients: Clients, region: str) -> dict[str, Any]:
    filters = [{"Name": item["name"], "Values": item["values"]} for item in args.get("filters") or []]
    where = args.get("locationType") or "region"
    found = clients("ec2").describe_instance_type_offerings(LocationType=where, Filters=filters)[
        "InstanceTypeOfferings"
    ]
    return {
        "id": region,
        "instanceTypes": [item["InstanceType"] for item in found],
        "locations": [item["Location"] for item in found],
        "locationTypes": [item["LocationType"] for item in found],
    }


INVOKES: dict[str, Callable[[Args, Clients, str], dict[str, Any]]] = {
    "aws:index/getCallerIdentity:getCallerIdentity": _caller_identity,
    "aws:index/getPartition:getPartition": _partition,
    "aws:index/getRegion:getRegion": _region,
    "aws:index/getAvailabilityZones:getAvailabilityZones": _zones,
    "aws:ssm/getParameter:getParameter": _parameter,
    "aws:secretsmanager/getSecretVersion:getSecretVersion": _secret_version,
    "aws:eks/getCluster:getCluster": _cluster,
    "aws:eks/getAddonVersion:getAddonVersion": _addon_version,
    "aws:eks/getClusterVersions:getClusterVersions": _cluster_versions,
    "aws:ec2/getInstanceType:getInstanceType": _instance_type,
    "aws:ec2/getInstanceTypeOfferings:getInstanceTypeOfferings": _offerings,
}


def invoke(token: str, args: Args, clients: Clients, region: str) -> dict[str, Any]:
    """The answer of a function. Raises `UnknownInvoke`."""
    if token not in INVOKES:
        raise UnknownInvoke(
            f"the sandbox's stand-in does not cover the function {token}; it covers {', '.join(sorted(INVOKES))}"
        )
    return INVOKES[token](args, clients, region)
