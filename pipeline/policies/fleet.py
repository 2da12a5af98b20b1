"""Slices of chips: which are there, which are lost, and which replacement is ordered when.

Theory of operation. A slice is bought, lost and replaced whole. Each is in one phase::

    THERE ──lost──► WANTED ──ordered──► ORDERED ──arrived──► THERE

Slices have numbers: 0 is the learner's, 1 + i that of replica i. Only so many replacements are on their way at once (what a
quota, or a queue for chips, allows). Of those that are wanted the learner's comes first, because everything waits for it, and
then the one that was lost first. A slice that is wanted or ordered cannot be lost again.

No number of replicas is needed to go on: with none, requests wait. A fleet that dies faster than it comes back would go on for
ever without a step: `hopeless` says so after `PATIENCE` losses a slice in a row in which the learner got no further than ever
before.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from harness.core.errors import LawError

if TYPE_CHECKING:
    from collections.abc import Sequence

LEARNER = 0
"""The learner's slice."""

PATIENCE = 100
"""Losses a slice in a row without a new step, after which a run is given up. A run that needs 100 attempts at one step on
average still gets there two times in three; one that needs 20 misses it once in 170."""


def slice_of(replica: int) -> int:
    """The slice of a replica."""
    return 1 + replica


class Phase(StrEnum):
    """Where a slice stands."""

    THERE = "there"
    WANTED = "wanted"
    ORDERED = "ordered"


class Slices:
    """The slices that can be lost.

    Args:
        slices: their numbers.
        at_once: replacements that are on their way at the same time; None: any number.

    """

    __slots__ = ("_at_once", "_furthest", "_losses", "_ordered", "_phases", "_wanted")

    def __init__(self, slices: Sequence[int], at_once: int | None = None) -> None:
        if at_once is not None and at_once < 1:
            raise LawError(f"with {at_once} replacements at once nothing ever comes back")
        self._phases = dict.fromkeys(slices, Phase.THERE)
        self._at_once = at_once
        self._wanted: list[int] = []
        self._ordered = 0
        self._losses = 0
        self._furthest = 0

    def phase(self, slice_: int) -> Phase:
        """Where a slice stands; one that cannot be lost is there."""
        return self._phases.get(slice_, Phase.THERE)

    def lost(self, slice_: int) -> tuple[int, ...]:
        """A slice is gone; returns those whose replacements have to be ordered now."""
        self._expect(slice_, Phase.THERE, "lost")
        self._phases[slice_] = Phase.WANTED
        self._wanted.append(slice_)
        self._losses += 1
        return self._order()

    def arrived(self, slice_: int) -> tuple[int, ...]:
        """A replacement is there; returns those that have to be ordered now."""
        self._expect(slice_, Phase.ORDERED, "replaced")
        self._phases[slice_] = Phase.THERE
        self._ordered -= 1
        return self._order()

    def stepped(self, t: int) -> None:
        """The learner completed step `t`, now or once more."""
        if t > self._furthest:
            self._furthest, self._losses = t, 0

    @property
    def hopeless(self) -> str:
        """Why this leads nowhere; empty while it may lead somewhere."""
        if self._losses <= PATIENCE * len(self._phases):
            return ""
        return (
            f"{self._losses} slices of chips were lost in a row since step {self._furthest}, and no step was completed: "
            "they are lost faster than they can be used (simulated: world.preemption), or the run goes back too far "
            "(pipeline.checkpoint_interval)"
        )

    def _order(self) -> tuple[int, ...]:
        now = []
        while self._wanted and (self._at_once is None or self._ordered < self._at_once):
            next_ = LEARNER if LEARNER in self._wanted else self._wanted[0]
            self._wanted.remove(next_)
            self._phases[next_] = Phase.ORDERED
            self._ordered += 1
            now.append(next_)
        return tuple(now)

    def _expect(self, slice_: int, phase: Phase, what: str) -> None:
        if slice_ not in self._phases:
            raise LawError(f"slice {slice_} is none that can be lost")
        if self._phases[slice_] is not phase:
            raise LawError(f"slice {slice_} is {self._phases[slice_]} and {what}")
