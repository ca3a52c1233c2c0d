"""Settings of the cost guard."""

from __future__ import annotations

from pydantic import Field, model_validator

from eks_fsdp.spec.base import Strict

from .common import Moment


class GuardSettings(Strict):
    """What keeps GPU nodes from costing money that nobody meant to spend."""

    expiry: Moment | None = None
    """When all GPU groups go to zero, whoever forgot them, and stay there until this is renewed; None: never."""
    delete_after_hours: int | None = Field(default=None, ge=1, le=720)
    """Hours after the expiry at which the GPU groups are deleted; None: never."""
    idle_minutes: int = Field(default=20, ge=0, le=1440)
    """Minutes without a job's pod after which a GPU group goes to its `idle` count; 0: no idle guard."""
    budget_usd: int | None = Field(default=None, ge=1)
    """Monthly AWS Budget for all that carries the stack's tag, in US dollars; None: none."""
    budget_email: str | None = Field(default=None, pattern=r"^[^@\s]+@[^@\s]+\.[^@\s]+$")
    """Who is told at 80 % of the budget, and when the forecast passes it."""

    @model_validator(mode="after")
    def _fits_together(self) -> GuardSettings:
        if self.delete_after_hours is not None and self.expiry is None:
            raise ValueError(f"delete_after_hours: {self.delete_after_hours} counts from expiry, which is not set")
        if (self.budget_usd is None) != (self.budget_email is None):
            raise ValueError("budget_email: goes with budget_usd; accepted: both or neither")
        return self
