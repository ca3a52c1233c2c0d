"""VPC and its parts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from botocore.exceptions import ClientError

from .kinds import Call, Context, Failure, Kind, Update, describer, ec2_tagger, identity, is_gone, tag_list, tag_map
from .wire import has_unknown

_EC2_ARN = "arn:aws:ec2:{region}:{account}:"
_ROUTE_TARGETS = {
    "gatewayId": "GatewayId",
    "natGatewayId": "NatGatewayId",
    "vpcEndpointId": "VpcEndpointId",
    "networkInterfaceId": "NetworkInterfaceId",
    "transitGatewayId": "TransitGatewayId",
    "egressOnlyGatewayId": "EgressOnlyInternetGatewayId",
    "vpcPeeringConnectionId": "VpcPeeringConnectionId",
}


def _attribute(operation: str, key: str, parameter: str, source: str) -> Update:
    params = {key: identity, parameter: lambda context: {"Value": str(context.inputs[source]).lower() == "true"}}
    return Update((source,), Call(operation, params), at_creation=True)


def _vpc_more(context: Context, described: Mapping[str, Any]) -> dict[str, Any]:
    filters = [{"Name": "vpc-id", "Values": [context.id]}]
    main = [*filters, {"Name": "association.main", "Values": ["true"]}]
    tables = context.client.describe_route_tables(Filters=main)["RouteTables"]
    groups = context.client.describe_security_groups(Filters=filters)["SecurityGroups"]
    acls = context.client.describe_network_acls(Filters=filters)["NetworkAcls"]
    group = next((g["GroupId"] for g in groups if g["GroupName"] == "default"), None)
    table = tables[0]["RouteTableId"] if tables else None
    acl = next((a["NetworkAclId"] for a in acls if a["IsDefault"]), None)
    return {
        "mainRouteTableId": table,
        "defaultRouteTableId": table,
        "defaultSecurityGroupId": group,
        "defaultNetworkAclId": acl,
        "enableDnsSupport": context.inputs.get("enableDnsSupport", True),
        "enableDnsHostnames": context.inputs.get("enableDnsHostnames", False),
    }


VPC = Kind(
    token="aws:ec2/vpc:Vpc",
    service="ec2",
    create=Call(
        "create_vpc",
        {
            "CidrBlock": "cidrBlock",
            "InstanceTenancy": "instanceTenancy",
            "AmazonProvidedIpv6CidrBlock": "assignGeneratedIpv6CidrBlock",
        },
        tags="spec:vpc",
    ),
    id="Vpc.VpcId",
    read=describer("describe_vpcs", "VpcIds", "Vpcs"),
    observed={
        "cidrBlock": "CidrBlock",
        "instanceTenancy": "InstanceTenancy",
        "ownerId": "OwnerId",
        "dhcpOptionsId": "DhcpOptionsId",
        "tags": tag_map,
    },
    computed=_vpc_more,
    computed_names=("mainRouteTableId", "defaultRouteTableId", "defaultSecurityGroupId", "defaultNetworkAclId"),
    delete=Call("delete_vpc", {"VpcId": identity}),
    updates=(
        _attribute("modify_vpc_attribute", "VpcId", "EnableDnsSupport", "enableDnsSupport"),
        _attribute("modify_vpc_attribute", "VpcId", "EnableDnsHostnames", "enableDnsHostnames"),
    ),
    replaces=frozenset({"cidrBlock", "instanceTenancy"}),
    arn=_EC2_ARN + "vpc/{id}",
    tagged=ec2_tagger,
)

SUBNET = Kind(
    token="aws:ec2/subnet:Subnet",
    service="ec2",
    create=Call(
        "create_subnet",
        {
            "VpcId": "vpcId",
            "CidrBlock": "cidrBlock",
            "AvailabilityZone": "availabilityZone",
            "AvailabilityZoneId": "availabilityZoneId",
            "Ipv6CidrBlock": "ipv6CidrBlock",
        },
        tags="spec:subnet",
    ),
    id="Subnet.SubnetId",
    read=describer("describe_subnets", "SubnetIds", "Subnets"),
    observed={
        "vpcId": "VpcId",
        "cidrBlock": "CidrBlock",
        "availabilityZone": "AvailabilityZone",
        "availabilityZoneId": "AvailabilityZoneId",
        "mapPublicIpOnLaunch": "MapPublicIpOnLaunch",
        "ownerId": "OwnerId",
        "arn": "SubnetArn",
        "tags": tag_map,
    },
    delete=Call("delete_subnet", {"SubnetId": identity}),
    updates=(_attribute("modify_subnet_attribute", "SubnetId", "MapPublicIpOnLaunch", "mapPublicIpOnLaunch"),),
    replaces=frozenset({"vpcId", "cidrBlock", "availabilityZone", "availabilityZoneId"}),
    delete_before_replace=True,
    tagged=ec2_tagger,
)


def _detach_gateway(context: Context) -> None:
    vpc = context.state.get("vpcId")
    if vpc:
        context.client.detach_internet_gateway(InternetGatewayId=context.id, VpcId=vpc)


def _attach_gateway(context: Context) -> None:
    if context.old.get("vpcId"):
        context.client.detach_internet_gateway(InternetGatewayId=context.id, VpcId=context.old["vpcId"])
    if context.inputs.get("vpcId"):
        context.client.attach_internet_gateway(InternetGatewayId=context.id, VpcId=context.inputs["vpcId"])


INTERNET_GATEWAY = Kind(
    token="aws:ec2/internetGateway:InternetGateway",
    service="ec2",
    create=Call("create_internet_gateway", tags="spec:internet-gateway"),
    id="InternetGateway.InternetGatewayId",
    read=describer("describe_internet_gateways", "InternetGatewayIds", "InternetGateways"),
    observed={"vpcId": "Attachments[0].VpcId", "ownerId": "OwnerId", "tags": tag_map},
    before_delete=(_detach_gateway,),
    delete=Call("delete_internet_gateway", {"InternetGatewayId": identity}),
    updates=(Update(("vpcId",), _attach_gateway, at_creation=True),),
    arn=_EC2_ARN + "internet-gateway/{id}",
    tagged=ec2_tagger,
)

EIP = Kind(
    token="aws:ec2/eip:Eip",
    service="ec2",
    create=Call("allocate_address", {"Domain": "domain"}, tags="spec:elastic-ip"),
    id="AllocationId",
    read=describer("describe_addresses", "AllocationIds", "Addresses"),
    observed={
        "domain": "Domain",
        "allocationId": "AllocationId",
        "publicIp": "PublicIp",
        "privateIp": "PrivateIpAddress",
        "associationId": "AssociationId",
        "tags": tag_map,
    },
    delete=Call("release_address", {"AllocationId": identity}),
    replaces=frozenset({"domain"}),
    arn=_EC2_ARN + "elastic-ip/{id}",
    tagged=ec2_tagger,
)


def _live_nat(context: Context) -> Mapping[str, Any] | None:
    found = describer("describe_nat_gateways", "NatGatewayIds", "NatGateways")(context)
    return None if found is None or found["State"] in ("deleted", "deleting") else dict(found)


NAT_GATEWAY = Kind(
    token="aws:ec2/natGateway:NatGateway",
    service="ec2",
    create=Call(
        "create_nat_gateway",
        {"AllocationId": "allocationId", "SubnetId": "subnetId", "ConnectivityType": "connectivityType"},
        tags="spec:natgateway",
    ),
    id="NatGateway.NatGatewayId",
    read=_live_nat,
    observed={
        "allocationId": "NatGatewayAddresses[0].AllocationId",
        "subnetId": "SubnetId",
        "connectivityType": "ConnectivityType",
        "publicIp": "NatGatewayAddresses[0].PublicIp",
        "privateIp": "NatGatewayAddresses[0].PrivateIp",
        "networkInterfaceId": "NatGatewayAddresses[0].NetworkInterfaceId",
        "tags": tag_map,
    },
    delete=Call("delete_nat_gateway", {"NatGatewayId": identity}),
    replaces=frozenset({"allocationId", "subnetId", "connectivityType"}),
    arn=_EC2_ARN + "natgateway/{id}",
    tagged=ec2_tagger,
)


def _route_params(route: Mapping[str, Any]) -> dict[str, Any]:
    params = {"DestinationCidrBlock": route.get("cidrBlock") or route.get("destinationCidrBlock")}
    params["DestinationIpv6CidrBlock"] = route.get("ipv6CidrBlock") or route.get("destinationIpv6CidrBlock")
    params |= {member: route.get(name) for name, member in _ROUTE_TARGETS.items()}
    return {key: value for key, value in params.items() if value}


def _set_routes(context: Context) -> None:
    old, new = context.old.get("routes") or [], context.inputs.get("routes") or []
    for route in old:
        if route not in new:
            keep = {key: value for key, value in _route_params(route).items() if key.startswith("Destination")}
            context.client.delete_route(RouteTableId=context.id, **keep)
    for route in new:
        if route not in old:
            context.client.create_route(RouteTableId=context.id, **_route_params(route))


ROUTE_TABLE = Kind(
    token="aws:ec2/routeTable:RouteTable",
    service="ec2",
    create=Call("create_route_table", {"VpcId": "vpcId"}, tags="spec:route-table"),
    id="RouteTable.RouteTableId",
    read=describer("describe_route_tables", "RouteTableIds", "RouteTables"),
    observed={"vpcId": "VpcId", "ownerId": "OwnerId", "tags": tag_map},
    delete=Call("delete_route_table", {"RouteTableId": identity}),
    updates=(Update(("routes",), _set_routes, at_creation=True),),
    replaces=frozenset({"vpcId"}),
    arn=_EC2_ARN + "route-table/{id}",
    tagged=ec2_tagger,
)


def _read_route(context: Context) -> Mapping[str, Any] | None:
    table = context.state.get("routeTableId") or context.inputs.get("routeTableId")
    source = {**context.state, **context.inputs}
    try:
        tables = context.client.describe_route_tables(RouteTableIds=[table])["RouteTables"]
    except ClientError as error:
        if is_gone(error):
            return None
        raise
    for route in tables[0]["Routes"] if tables else []:
        wanted = source.get("destinationCidrBlock") or source.get("destinationIpv6CidrBlock")
        if wanted in (route.get("DestinationCidrBlock"), route.get("DestinationIpv6CidrBlock")):
            return {"RouteTableId": table, **route}
    return None


def _of_state(name: str) -> Callable[[Context], Any]:
    return lambda context: context.state.get(name)


def _route_id(context: Context) -> str:
    destination = context.inputs.get("destinationCidrBlock") or context.inputs.get("destinationIpv6CidrBlock")
    return f"r-{context.inputs['routeTableId']}{_number(destination)}"


def _number(*values: Any) -> int:
    """A number that is the same for the same values, for ids that the API does not give."""
    return int(hashlib.sha256(repr(values).encode()).hexdigest()[:8], 16)


_ROUTE_KEY = {
    "RouteTableId": "routeTableId",
    "DestinationCidrBlock": "destinationCidrBlock",
    "DestinationIpv6CidrBlock": "destinationIpv6CidrBlock",
}

ROUTE = Kind(
    token="aws:ec2/route:Route",
    service="ec2",
    create=Call("create_route", {**_ROUTE_KEY, **{member: name for name, member in _ROUTE_TARGETS.items()}}),
    id=_route_id,
    read=_read_route,
    observed={"origin": "Origin", "state": "State", "gatewayId": "GatewayId", "natGatewayId": "NatGatewayId"},
    delete=Call("delete_route", {key: _of_state(name) for key, name in _ROUTE_KEY.items()}),
    updates=(
        Update(
            tuple(_ROUTE_TARGETS),
            Call("replace_route", {**_ROUTE_KEY, **{member: name for name, member in _ROUTE_TARGETS.items()}}),
        ),
    ),
    replaces=frozenset(_ROUTE_KEY.values()),
    delete_before_replace=True,
)


def _read_association(context: Context) -> Mapping[str, Any] | None:
    filters = [{"Name": "association.route-table-association-id", "Values": [context.id]}]
    for table in context.client.describe_route_tables(Filters=filters)["RouteTables"]:
        for association in table["Associations"]:
            if association["RouteTableAssociationId"] == context.id:
                return dict(association)
    return None


ROUTE_TABLE_ASSOCIATION = Kind(
    token="aws:ec2/routeTableAssociation:RouteTableAssociation",
    service="ec2",
    create=Call(
        "associate_route_table", {"RouteTableId": "routeTableId", "SubnetId": "subnetId", "GatewayId": "gatewayId"}
    ),
    id="AssociationId",
    read=_read_association,
    observed={"routeTableId": "RouteTableId", "subnetId": "SubnetId", "gatewayId": "GatewayId"},
    delete=Call("disassociate_route_table", {"AssociationId": identity}),
    replaces=frozenset({"routeTableId", "subnetId", "gatewayId"}),
    # A subnet has one association: the old one goes before the new one comes.
    delete_before_replace=True,
)


def _read_block(context: Context) -> Mapping[str, Any] | None:
    filters = [{"Name": "cidr-block-association.association-id", "Values": [context.id]}]
    for vpc in context.client.describe_vpcs(Filters=filters)["Vpcs"]:
        for block in vpc["CidrBlockAssociationSet"]:
            if block["AssociationId"] == context.id:
                return {"VpcId": vpc["VpcId"], **block}
    return None


VPC_CIDR_BLOCK = Kind(
    token="aws:ec2/vpcIpv4CidrBlockAssociation:VpcIpv4CidrBlockAssociation",
    service="ec2",
    create=Call("associate_vpc_cidr_block", {"VpcId": "vpcId", "CidrBlock": "cidrBlock"}),
    id="CidrBlockAssociation.AssociationId",
    read=_read_block,
    observed={"vpcId": "VpcId", "cidrBlock": "CidrBlock"},
    delete=Call("disassociate_vpc_cidr_block", {"AssociationId": identity}),
    replaces=frozenset({"vpcId", "cidrBlock"}),
)


def _change_endpoint(context: Context) -> None:
    request: dict[str, Any] = {}
    for source, noun in (
        ("routeTableIds", "RouteTableIds"),
        ("subnetIds", "SubnetIds"),
        ("securityGroupIds", "SecurityGroupIds"),
    ):
        old, new = set(context.old.get(source) or []), set(context.inputs.get(source) or [])
        request |= {f"Add{noun}": sorted(new - old)} if new - old else {}
        request |= {f"Remove{noun}": sorted(old - new)} if old - new else {}
    if context.changed("privateDnsEnabled"):
        request["PrivateDnsEnabled"] = bool(context.inputs.get("privateDnsEnabled"))
    context.client.modify_vpc_endpoint(VpcEndpointId=context.id, **request)


VPC_ENDPOINT = Kind(
    token="aws:ec2/vpcEndpoint:VpcEndpoint",
    service="ec2",
    create=Call(
        "create_vpc_endpoint",
        {
            "VpcId": "vpcId",
            "ServiceName": "serviceName",
            # EC2's own default, which moto leaves open.
            "VpcEndpointType": lambda context: context.inputs.get("vpcEndpointType") or "Gateway",
            "RouteTableIds": "routeTableIds",
            "SubnetIds": "subnetIds",
            "SecurityGroupIds": "securityGroupIds",
            "PrivateDnsEnabled": "privateDnsEnabled",
            "PolicyDocument": "policy",
            "IpAddressType": "ipAddressType",
        },
        tags="spec:vpc-endpoint",
    ),
    id="VpcEndpoint.VpcEndpointId",
    read=describer("describe_vpc_endpoints", "VpcEndpointIds", "VpcEndpoints"),
    observed={
        "vpcId": "VpcId",
        "serviceName": "ServiceName",
        "vpcEndpointType": "VpcEndpointType",
        "state": "State",
        "ownerId": "OwnerId",
        "networkInterfaceIds": "NetworkInterfaceIds",
        "routeTableIds": "RouteTableIds",
        "subnetIds": "SubnetIds",
        "tags": tag_map,
    },
    delete=Call("delete_vpc_endpoints", {"VpcEndpointIds": lambda context: [context.id]}),
    updates=(Update(("routeTableIds", "subnetIds", "securityGroupIds", "privateDnsEnabled"), _change_endpoint),),
    replaces=frozenset({"vpcId", "serviceName", "vpcEndpointType"}),
    delete_before_replace=True,
    arn=_EC2_ARN + "vpc-endpoint/{id}",
    tagged=ec2_tagger,
)


# Security groups


def permissions(rules: Iterable[Mapping[str, Any]], group_id: str) -> list[dict[str, Any]]:
    """IpPermissions of rules as the program writes them (``cidrBlocks``, ``securityGroups``, ``self``, …)."""
    result = []
    for rule in rules:
        note = {"Description": rule["description"]} if rule.get("description") else {}
        protocol = str(rule["protocol"]).lower()
        permission: dict[str, Any] = {"IpProtocol": "-1" if protocol in ("-1", "all") else protocol}
        if permission["IpProtocol"] != "-1":
            permission |= {"FromPort": int(rule["fromPort"]), "ToPort": int(rule["toPort"])}
        permission["IpRanges"] = [{"CidrIp": block, **note} for block in rule.get("cidrBlocks") or []]
        permission["Ipv6Ranges"] = [{"CidrIpv6": block, **note} for block in rule.get("ipv6CidrBlocks") or []]
        permission["PrefixListIds"] = [{"PrefixListId": item, **note} for item in rule.get("prefixListIds") or []]
        groups = list(rule.get("securityGroups") or [])
        groups += [rule["sourceSecurityGroupId"]] if rule.get("sourceSecurityGroupId") else []
        groups += [group_id] if rule.get("self") else []
        permission["UserIdGroupPairs"] = [{"GroupId": group, **note} for group in groups]
        result.append({key: value for key, value in permission.items() if value != []})
    return result


def _set_rules(context: Context) -> None:
    client = context.client
    for direction, authorize, revoke in (
        ("ingress", client.authorize_security_group_ingress, client.revoke_security_group_ingress),
        ("egress", client.authorize_security_group_egress, client.revoke_security_group_egress),
    ):
        old = permissions(context.old.get(direction) or [], context.id)
        new = permissions(context.inputs.get(direction) or [], context.id)
        gone, more = [p for p in old if p not in new], [p for p in new if p not in old]
        if gone:
            revoke(GroupId=context.id, IpPermissions=gone)
        if more:
            authorize(GroupId=context.id, IpPermissions=more)


def _drop_default_egress(context: Context) -> None:
    """EC2 gives a new group a rule that lets all out; the provider takes it away, so that what is declared is all."""
    group = context.client.describe_security_groups(GroupIds=[context.id])["SecurityGroups"][0]
    if group["IpPermissionsEgress"]:
        context.client.revoke_security_group_egress(GroupId=context.id, IpPermissions=group["IpPermissionsEgress"])


def _create_rules(context: Context) -> None:
    if not context.old:
        _drop_default_egress(context)
    _set_rules(context)


def _forget_rules(context: Context) -> None:
    """Rules that name the group itself or groups that go away in the same breath do not hold it."""
    group = context.client.describe_security_groups(GroupIds=[context.id])["SecurityGroups"][0]
    if group["IpPermissions"]:
        context.client.revoke_security_group_ingress(GroupId=context.id, IpPermissions=group["IpPermissions"])
    if group["IpPermissionsEgress"]:
        context.client.revoke_security_group_egress(GroupId=context.id, IpPermissions=group["IpPermissionsEgress"])


SECURITY_GROUP = Kind(
    token="aws:ec2/securityGroup:SecurityGroup",
    service="ec2",
    create=Call(
        "create_security_group",
        {
            "GroupName": "name",
            "Description": lambda context: context.inputs.get("description") or "Managed by Pulumi",
            "VpcId": "vpcId",
        },
        tags="spec:security-group",
    ),
    id="GroupId",
    read=describer("describe_security_groups", "GroupIds", "SecurityGroups"),
    observed={
        "name": "GroupName",
        "description": "Description",
        "vpcId": "VpcId",
        "ownerId": "OwnerId",
        "tags": tag_map,
    },
    before_delete=(_forget_rules,),
    delete=Call("delete_security_group", {"GroupId": identity}),
    updates=(Update(("ingress", "egress"), _create_rules, at_creation=True),),
    replaces=frozenset({"name", "namePrefix", "description", "vpcId"}),
    ignored=frozenset({"revokeRulesOnDelete"}),
    arn=_EC2_ARN + "security-group/{id}",
    auto_name="name",
    tagged=ec2_tagger,
)


def _rule_permission(context: Context) -> list[dict[str, Any]]:
    return permissions([{**context.state, **context.inputs}], str(_rule_group(context)))


def _rule_group(context: Context) -> Any:
    return context.inputs.get("securityGroupId") or context.state.get("securityGroupId")


def _direction(context: Context, verb: str) -> Any:
    return getattr(context.client, f"{verb}_security_group_{context.inputs.get('type') or context.state.get('type')}")


def _revoke_rule(context: Context) -> None:
    _direction(context, "revoke")(GroupId=_rule_group(context), IpPermissions=_rule_permission(context))


def _read_rule(context: Context) -> Mapping[str, Any] | None:
    """A rule is there if the group has a permission of the same protocol and ports that covers its sources."""
    try:
        group = context.client.describe_security_groups(GroupIds=[_rule_group(context)])["SecurityGroups"][0]
    except ClientError as error:
        if is_gone(error):
            return None
        raise
    kind = context.inputs.get("type") or context.state.get("type")
    present = group["IpPermissions"] if kind == "ingress" else group["IpPermissionsEgress"]
    wanted = _rule_permission(context)[0]
    for permission in present:
        same = all(permission.get(key) == wanted.get(key) for key in ("IpProtocol", "FromPort", "ToPort"))
        if same and _sources(wanted) <= _sources(permission):
            return {"GroupId": group["GroupId"]}
    return None


def _sources(permission: Mapping[str, Any]) -> set[str]:
    found = {item["CidrIp"] for item in permission.get("IpRanges", [])}
    found |= {item["CidrIpv6"] for item in permission.get("Ipv6Ranges", [])}
    found |= {item["PrefixListId"] for item in permission.get("PrefixListIds", [])}
    return found | {item["GroupId"] for item in permission.get("UserIdGroupPairs", [])}


def _rule_source(context: Context) -> Iterable[Failure]:
    sources = ("cidrBlocks", "ipv6CidrBlocks", "prefixListIds", "self", "sourceSecurityGroupId")
    if not any(context.inputs.get(name) for name in sources):
        yield "cidrBlocks", f"a rule needs one of {', '.join(sources)}"
    if context.inputs.get("type") not in ("ingress", "egress") and not has_unknown(context.inputs.get("type")):
        yield "type", f"{context.inputs.get('type')!r} is not a direction; accepted: ingress, egress"


class _RuleCall(Call):
    """Authorises in the direction that the inputs name."""

    def request(self, context: Context, names: Mapping[str, str]) -> dict[str, Any]:
        if has_unknown(dict(context.inputs)):
            return {}
        return {"GroupId": context.inputs["securityGroupId"], "IpPermissions": _rule_permission(context)}

    def __call__(self, context: Context, names: Mapping[str, str]) -> dict[str, Any]:
        return dict(_direction(context, "authorize")(**self.request(context, names)))


_RULE_INPUTS = (
    "type",
    "protocol",
    "fromPort",
    "toPort",
    "cidrBlocks",
    "ipv6CidrBlocks",
    "prefixListIds",
    "self",
    "sourceSecurityGroupId",
    "securityGroupId",
    "description",
)

SECURITY_GROUP_RULE = Kind(
    token="aws:ec2/securityGroupRule:SecurityGroupRule",
    service="ec2",
    create=_RuleCall("authorize_security_group_ingress"),
    id=lambda context: f"sgrule-{_number(sorted(context.inputs.items(), key=str))}",
    read=_read_rule,
    delete=_revoke_rule,
    replaces=frozenset(_RULE_INPUTS),
    delete_before_replace=True,
    checks=(_rule_source,),
)


def _one_rule(context: Context) -> list[dict[str, Any]]:
    inputs = context.inputs
    rule = {
        "protocol": inputs["ipProtocol"],
        "fromPort": inputs.get("fromPort"),
        "toPort": inputs.get("toPort"),
        "cidrBlocks": [inputs["cidrIpv4"]] if inputs.get("cidrIpv4") else [],
        "ipv6CidrBlocks": [inputs["cidrIpv6"]] if inputs.get("cidrIpv6") else [],
        "prefixListIds": [inputs["prefixListId"]] if inputs.get("prefixListId") else [],
        "sourceSecurityGroupId": inputs.get("referencedSecurityGroupId"),
        "description": inputs.get("description"),
    }
    return permissions([rule], "")


class _SingleRuleCall(Call):
    def request(self, context: Context, names: Mapping[str, str]) -> dict[str, Any]:
        if has_unknown(dict(context.inputs)):
            return {}
        request = {"GroupId": context.inputs["securityGroupId"], "IpPermissions": _one_rule(context)}
        if context.tags:
            tags = tag_list(context.tags)
            request["TagSpecifications"] = [{"ResourceType": "security-group-rule", "Tags": tags}]
        return request


def _one_rule_source(context: Context) -> Iterable[Failure]:
    sources = ("cidrIpv4", "cidrIpv6", "prefixListId", "referencedSecurityGroupId")
    given = [name for name in sources if context.inputs.get(name)]
    if len(given) != 1:
        yield (
            given[-1] if given else sources[0],
            f"a rule has one of {', '.join(sources)}; given: {', '.join(given) or 'none'}",
        )
    protocol = context.inputs.get("ipProtocol")
    if protocol not in ("-1", None) and not has_unknown(protocol) and context.inputs.get("fromPort") is None:
        yield "fromPort", f"protocol {protocol} needs fromPort and toPort"


def _single_rule(direction: str, token: str) -> Kind:
    return Kind(
        token=token,
        service="ec2",
        create=_SingleRuleCall(f"authorize_security_group_{direction}"),
        id="SecurityGroupRules[0].SecurityGroupRuleId",
        read=describer("describe_security_group_rules", "SecurityGroupRuleIds", "SecurityGroupRules"),
        observed={"securityGroupRuleId": "SecurityGroupRuleId"},
        delete=Call(
            f"revoke_security_group_{direction}",
            {"GroupId": lambda c: c.state["securityGroupId"], "SecurityGroupRuleIds": lambda c: [c.id]},
        ),
        replaces=frozenset(
            {
                "securityGroupId",
                "ipProtocol",
                "fromPort",
                "toPort",
                "cidrIpv4",
                "cidrIpv6",
                "prefixListId",
                "referencedSecurityGroupId",
                "description",
            }
        ),
        delete_before_replace=True,
        arn=_EC2_ARN + "security-group-rule/{id}",
        checks=(_one_rule_source,),
        tagged=ec2_tagger,
    )


INGRESS_RULE = _single_rule("ingress", "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule")
EGRESS_RULE = _single_rule("egress", "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule")

KINDS = (
    VPC,
    SUBNET,
    INTERNET_GATEWAY,
    EIP,
    NAT_GATEWAY,
    ROUTE_TABLE,
    ROUTE,
    ROUTE_TABLE_ASSOCIATION,
    VPC_CIDR_BLOCK,
    VPC_ENDPOINT,
    SECURITY_GROUP,
    SECURITY_GROUP_RULE,
    INGRESS_RULE,
    EGRESS_RULE,
)
