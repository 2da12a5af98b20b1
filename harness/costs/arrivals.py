"""Gaps between tasks that come from outside, in modelled time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.core.work import Arrive, Outcome
from harness.costs.draws import Uniforms, duration_ns
from harness.costs.laws import sampler

if TYPE_CHECKING:
    from harness.scenario.arrivals import Arrivals

_DONE = Outcome()


class SimulatedArrivals:
    """A renewal process. Each gap is keyed by the ordinal of the task that ends it, so that no knob changes when tasks come."""

    def __init__(self, arrivals: Arrivals, seed: int) -> None:
        self._sample = sampler(arrivals.gap)
        self._uniforms = Uniforms(seed)

    def arrive(self, work: Arrive) -> tuple[int, Outcome]:
        """Let the gap before a task pass."""
        return duration_ns(self._sample, float(self._uniforms.draw(1, "arrival", work.entity)[0])), _DONE
