"""The host's side of a world: what the Python event loop costs, on which all actors of a run live."""

from __future__ import annotations

from pydantic import Field

from harness.core.host import HostCosts
from harness.core.units import ns_from_s
from harness.costs.laws import Record

CROWDED = 0.4
"""Busy share of the event loop above which a simulation of it is not to be believed blindly: work then queues for the loop, and
how long is up to chance that two constants do not catch."""

CALIBRATED = (
    "Default: this engine on trio 0.35, Python 3.11, a core of an Intel Xeon (family 6, model 167), November 2026, by "
    "tests/benchmarks/host_loop.py: rows that it was not fitted to were off by 0.3 % where the loop is 68 % busy, and by 9 % "
    "where it is full."
)


class Host(Record):
    """The event loop of the process that coordinates everything. Always charged; `harness.core.host` has the theory."""

    per_pass_s: float = Field(
        default=56e-6,
        ge=0,
        le=1,
        description=f"Seconds of a pass of the loop: a look at timers and sockets, shared by the steps of a pass. {CALIBRATED}",
    )
    per_step_s: float = Field(
        default=13.4e-6,
        ge=0,
        le=1,
        description=f"Seconds of a task's step, from one wait to the next. {CALIBRATED}",
    )

    @property
    def costs(self) -> HostCosts:
        """The same in whole nanoseconds."""
        return HostCosts(ns_from_s(self.per_pass_s), ns_from_s(self.per_step_s))
