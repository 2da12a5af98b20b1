"""The host's side of a world: what the Python event loop costs, on which all actors of a run live."""

from __future__ import annotations

from pydantic import Field

from harness.core.host import HostCosts
from harness.core.units import ns_from_s
from harness.costs.laws import Record

CROWDED = 0.4
"""Busy share of the event loop above which a simulation of it is not to be believed blindly: work then queues for the loop, and
how long is up to chance that two constants do not catch."""


class Host(Record):
    """The event loop of the process that coordinates everything. Always charged; `harness.core.host` has the theory."""

    per_pass_s: float = Field(
        default=80e-6,
        ge=0,
        le=1,
        description="Seconds that a loop with nothing to do takes to wake up and look.",
    )
    per_step_s: float = Field(
        default=20e-6,
        ge=0,
        le=1,
        description="Seconds of a task's step, from one wait to the next.",
    )

    @property
    def costs(self) -> HostCosts:
        """The same in whole nanoseconds."""
        return HostCosts(ns_from_s(self.per_pass_s), ns_from_s(self.per_step_s))
