"""An AWS Budget over all that carries the stack's tag, and who is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from eks_fsdp.spec.names import TAG_STACK

ALERTS: tuple[tuple[str, int], ...] = (("ACTUAL", 80), ("FORECASTED", 100))
"""What is compared with the limit, and at which per cent of it somebody is told."""


@dataclass(frozen=True, kw_only=True)
class StackBudgetArgs:
    """Inputs of `StackBudget`."""

    stack: str
    """Value of the tag ``eksfsdp:stack``. The tag must be activated as a cost allocation tag in the billing console."""
    monthly_usd: int
    """Limit in US dollars."""
    email: str
    """Who is told."""
    tags: Mapping[str, str]
    """Tags of every AWS resource."""


class StackBudget(pulumi.ComponentResource):
    """A monthly cost budget with alerts by mail."""

    budget_name: pulumi.Output[str]

    def __init__(self, name: str, args: StackBudgetArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("eksfsdp:budget:StackBudget", name, None, opts)
        budget = aws.budgets.Budget(
            f"{name}-monthly",
            budget_type="COST",
            time_unit="MONTHLY",
            limit_amount=str(args.monthly_usd),
            limit_unit="USD",
            # "user:" is AWS' mark of a tag that is not its own, the dollar parts key and value.
            cost_filters=[{"name": "TagKeyValue", "values": [f"user:{TAG_STACK}${args.stack}"]}],
            notifications=[
                {
                    "notification_type": compared,
                    "comparison_operator": "GREATER_THAN",
                    "threshold": percent,
                    "threshold_type": "PERCENTAGE",
                    "subscriber_email_addresses": [args.email],
                }
                for compared, percent in ALERTS
            ],
            tags=args.tags,
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.budget_name = budget.name
        self.register_outputs({"budget_name": self.budget_name})
