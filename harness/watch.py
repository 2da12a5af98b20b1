"""Watches a live run for a stall: nothing is finished, and who waits on what."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.core.units import ns_from_s
from pipeline.actors.supervisor import stall_report

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.core.runtime import Runtime

SHORTEST_S = 30.0
LONGEST_TIMES = 3
"""A run stalls when nothing was finished for `SHORTEST_S`, and for so many times the longest such time before."""


class StallWatch:
    """Tells when a run stalls: no optimizer step was completed and no episode ended for longer than is usual for it.

    Usual is up to three times the longest wait so far that ended well, and half a minute in any case: a run whose episodes
    take ten minutes is told of once, in its first ten minutes.

    Args:
        rt: of the run.
        finished: how much was finished so far; any change is progress.

    Attributes:
        stalls: how often it stalled so far.

    """

    def __init__(self, rt: Runtime, finished: Callable[[], object]) -> None:
        self._rt, self._finished = rt, finished
        self._seen = finished()
        self._since_ns = rt.now()
        self._longest_ns = 0
        self._stalled = False
        self.stalls = 0

    def look(self) -> str:
        """Who waits on what while the run stalls; empty while it does not. Call it now and then."""
        now, finished = self._rt.now(), self._finished()
        quiet_ns = now - self._since_ns
        if finished != self._seen:
            self._seen, self._since_ns, self._stalled = finished, now, False
            self._longest_ns = max(self._longest_ns, quiet_ns)
            return ""
        if quiet_ns <= max(ns_from_s(SHORTEST_S), LONGEST_TIMES * self._longest_ns):
            return ""
        self.stalls += not self._stalled
        self._stalled = True
        return f"nothing was finished for {quiet_ns / 1e9:.0f} s: {stall_report(self._rt)}"
