"""EC2 of the stand-in account: capacity reservations and capacity blocks."""

from __future__ import annotations

from moto.core.responses import ActionResult
from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.ec2.responses import EC2Response

from .account_capacity import CAPACITY, moment
from .account_errors import Refusal
from .refusals import gpus

_FILTERS = {
    "state": "State",
    "instance-type": "InstanceType",
    "availability-zone": "AvailabilityZone",
    "availability-zone-id": "AvailabilityZoneId",
}
_PLAIN = (
    "InstancePlatform",
    "Tenancy",
    "EbsOptimized",
    "EphemeralStorage",
    "InstanceMatchCriteria",
    "PlacementGroupArn",
)


class CapacityRequests(EC2Response):
    """Requests for what moto lacks."""

    def create_capacity_reservation(self) -> ActionResult:
        """CreateCapacityReservation: it is active at once."""
        self.error_on_dryrun()
        zone = self._zone_of(
            self._get_param("AvailabilityZone") or self._get_param("AvailabilityZoneId"),
            self._get_param("InstanceType"),
        )
        tags = self._parse_tag_specification().get("capacity-reservation", {})
        values = {key: self._get_param(key) for key in _PLAIN}
        values |= {
            "InstanceType": self._get_param("InstanceType"),
            "InstanceCount": self._get_int_param("InstanceCount"),
            "EndDate": moment(self._get_param("EndDate")),
            "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
        }
        made = CAPACITY.reserve(self.region, self.current_account, zone, values)
        return ActionResult({"CapacityReservation": made})

    def describe_capacity_reservations(self) -> ActionResult:
        """DescribeCapacityReservations, by id and by some filters."""
        filters = self._filters_from_querystring()
        unknown = set(filters) - set(_FILTERS)
        if unknown:
            raise Refusal("InvalidParameterValue", f"The filter '{sorted(unknown)[0]}' is invalid")
        found = [
            reservation
            for reservation in CAPACITY.describe(self.region, self._get_param("CapacityReservationIds", []))
            if all(reservation[_FILTERS[name]] in values for name, values in filters.items())
        ]
        return ActionResult({"CapacityReservations": found})

    def modify_capacity_reservation(self) -> ActionResult:
        """ModifyCapacityReservation."""
        values = {"InstanceCount": self._get_int_param("InstanceCount"), "EndDate": moment(self._get_param("EndDate"))}
        CAPACITY.modify(self.region, self._get_param("CapacityReservationId"), values)
        return ActionResult({"Return": True})

    def cancel_capacity_reservation(self) -> ActionResult:
        """CancelCapacityReservation."""
        CAPACITY.cancel(self.region, self._get_param("CapacityReservationId"))
        return ActionResult({"Return": True})

    def describe_capacity_block_offerings(self) -> ActionResult:
        """DescribeCapacityBlockOfferings: made-up ones."""
        wanted = {
            "InstanceType": self._get_param("InstanceType"),
            "InstanceCount": self._get_int_param("InstanceCount") or 1,
            "CapacityDurationHours": self._get_int_param("CapacityDurationHours"),
            "StartDateRange": moment(self._get_param("StartDateRange")),
            "EndDateRange": moment(self._get_param("EndDateRange")),
        }
        described = INSTANCE_TYPES.get(wanted["InstanceType"])
        if described is None:
            raise Refusal("InvalidInstanceType", f"The instance type {wanted['InstanceType']} is not known")
        return ActionResult({"CapacityBlockOfferings": CAPACITY.offerings(self.region, wanted, gpus(described))})

    def purchase_capacity_block(self) -> ActionResult:
        """PurchaseCapacityBlock: a reservation that is scheduled until its block begins."""
        self.error_on_dryrun()
        offering = CAPACITY.offering(self._get_param("CapacityBlockOfferingId"))
        zone = self._zone_of(offering["AvailabilityZone"], offering["InstanceType"])
        tags = self._parse_tag_specification().get("capacity-reservation", {})
        values = {
            **{key: offering[key] for key in ("InstanceType", "InstanceCount", "StartDate", "EndDate")},
            "InstancePlatform": self._get_param("InstancePlatform"),
            "InstanceMatchCriteria": "targeted",
            "ReservationType": "capacity-block",
            "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
        }
        made = CAPACITY.reserve(self.region, self.current_account, zone, values)
        return ActionResult({"CapacityReservation": made, "CapacityBlocks": []})

    def _zone_of(self, name: str, instance_type: str) -> dict[str, str]:
        if instance_type not in INSTANCE_TYPES:
            raise Refusal("InvalidInstanceType", f"The instance type {instance_type} is not known")
        for zone in self.ec2_backend.describe_availability_zones():
            if name in (zone.name, zone.zone_id):
                return {"ZoneName": zone.name, "ZoneId": zone.zone_id}
        raise Refusal("InvalidParameterValue", f"Invalid availability zone: [{name}]")
