"""Resource groups of the stand-in account: which reservations are in one."""

from __future__ import annotations

import json
import re

from moto.resourcegroups.responses import ResourceGroupsResponse

from .account_capacity import CAPACITY

PATHS = ("{0}/group-resources$", "{0}/ungroup-resources$", "{0}/list-group-resources$")
"""Requests that moto does not know."""


class SandboxResourceGroupsResponse(ResourceGroupsResponse):
    """moto's Resource Groups, with members."""

    def group_resources(self) -> str:
        """GroupResources."""
        arns = self._get_param("ResourceArns")
        CAPACITY.add_to_group(self._arn(), arns)
        return json.dumps({"Succeeded": arns, "Failed": [], "Pending": []})

    def ungroup_resources(self) -> str:
        """UngroupResources."""
        arns = self._get_param("ResourceArns")
        CAPACITY.remove_from_group(self._arn(), arns)
        return json.dumps({"Succeeded": arns, "Failed": [], "Pending": []})

    def list_group_resources(self) -> str:  # type: ignore[override]  # moto's only raises
        """ListGroupResources."""
        resources = [
            {"Identifier": {"ResourceArn": arn, "ResourceType": "AWS::EC2::CapacityReservation"}}
            for arn in CAPACITY.group_members(self._arn())
        ]
        return json.dumps({"Resources": resources, "ResourceIdentifiers": [r["Identifier"] for r in resources]})

    def _arn(self) -> str:
        name = re.split(r":[0-9]{12}:group/", self._get_param("Group") or self._get_param("GroupName"))[-1]
        return str(self.resourcegroups_backend.get_group(group_name=name).arn)
