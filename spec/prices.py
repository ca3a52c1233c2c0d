"""What a GPU node costs an hour, so that a preview can say what it starts.

On-demand, Linux, US dollars, in us-west-2 and us-east-1. Read in a copy of instances.vantage.sh's table of 2025-11-30
(github.com/tsaol/aws-gpu, ``data/all_gpu_instances.js``), after AWS' reductions of June 2025. A price is AWS' to change:
the figure is there to stop a mistake of a factor of ten, not to settle an invoice.
"""

from __future__ import annotations

from collections.abc import Iterable

from .settings import GpuNodeGroupSettings, Settings

PRICED_ON = "2025-11-30"
_REGIONS = ("us-west-2", "us-east-1")
_SAME_IN_BOTH: dict[str, float] = {
    "p4d.24xlarge": 21.9576,
    "p4de.24xlarge": 27.44705,
    "p5.4xlarge": 6.88,
    "p5.48xlarge": 55.04,
    "p5en.48xlarge": 63.296,
    "p6-b200.48xlarge": 113.9328,
    "g5.8xlarge": 2.448,
    "g5.12xlarge": 5.672,
    "g5.16xlarge": 4.096,
    "g5.24xlarge": 8.144,
    "g5.48xlarge": 16.288,
    "g6.8xlarge": 2.0144,
    "g6.12xlarge": 4.6016,
    "g6.16xlarge": 3.3968,
    "g6.24xlarge": 6.6752,
    "g6.48xlarge": 13.3504,
    "g6e.8xlarge": 4.52856,
    "g6e.12xlarge": 10.49264,
    "g6e.16xlarge": 7.57719,
    "g6e.24xlarge": 15.06559,
    "g6e.48xlarge": 30.13118,
}
ON_DEMAND_USD_PER_HOUR: dict[str, dict[str, float]] = {region: dict(_SAME_IN_BOTH) for region in _REGIONS}
"""By region and instance type. p5e is not sold on demand; p6-b300 is in us-west-2 alone."""
ON_DEMAND_USD_PER_HOUR["us-west-2"]["p6-b300.48xlarge"] = 142.416


def price_lines(settings: Settings) -> Iterable[str]:
    """One line for each GPU group with nodes: how many of what, and what that is an hour."""
    for index, group in enumerate(settings.gpu_nodes):
        if group.desired:
            yield f"gpu_nodes[{index}]: {group.desired} x {group.instance_type} {_price(group, settings.region)}"


def _price(group: GpuNodeGroupSettings, region: str) -> str:
    each = ON_DEMAND_USD_PER_HOUR.get(region, {}).get(group.instance_type)
    if each is None:
        return f"at a price that is not known here (no on-demand price of it in {region})"
    hourly = f"${group.desired * each:,.2f}/h on demand ({PRICED_ON})"
    kinds = {
        "on-demand": f"= {hourly}",
        "spot": f"on spot, at most {hourly}",
        "odcr": f"= {hourly}, which the reservation costs unused too",
        "capacity-block": f"of a capacity block, paid for when it was bought; compare {hourly}",
    }
    return kinds[group.capacity.kind]
