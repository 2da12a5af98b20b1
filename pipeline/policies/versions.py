"""Versions and lag.

A **version** is a number of completed optimizer steps. The learner is at `t`; the engines hold the *published* version
`p ≤ t`. Both only grow.

**Lag** of a token = t at use - version that sampled it, in optimizer steps, whatever the sync interval is. A sample's lag
is that of its oldest token and has two parts:

    in flight = t when the sample entered the buffer - oldest version
    in queue  = t at use - t when it entered the buffer
"""

from __future__ import annotations

from typing import NamedTuple

from harness.core.errors import LawError


class Lag(NamedTuple):
    """Lag of one sample, in optimizer steps."""

    in_flight_steps: int
    in_queue_steps: int

    @property
    def total_steps(self) -> int:
        """What `max_staleness` bounds."""
        return self.in_flight_steps + self.in_queue_steps


class VersionClock:
    """Where learner and engines stand.

    Attributes:
        t: optimizer steps completed by the learner.
        p: version that every engine holds.

    """

    __slots__ = ("p", "t")

    def __init__(self, t: int = 0, p: int | None = None) -> None:
        published = t if p is None else p
        if not 0 <= published <= t:
            raise LawError(f"a learner at step {t} cannot have published version {published}")
        self.t = t
        self.p = published

    def step_done(self) -> int:
        """The learner completed one optimizer step; returns the new `t`."""
        self.t += 1
        return self.t

    def publish(self, version: int) -> None:
        """Every engine now holds `version`. The same version again is no change (a repaired replica)."""
        if not self.p <= version <= self.t:
            raise LawError(f"version {version} published after {self.p} with the learner at {self.t}")
        self.p = version

    @property
    def publish_lag_steps(self) -> int:
        """How far the engines are behind the learner: t - p."""
        return self.t - self.p

    def lag_steps(self, oldest_version: int) -> int:
        """Lag of a sample used now."""
        if not 0 <= oldest_version <= self.t:
            raise LawError(f"a token of version {oldest_version} cannot exist with the learner at {self.t}")
        return self.t - oldest_version

    def lag(self, oldest_version: int, entered_at_step: int) -> Lag:
        """Lag of a sample used now that entered the buffer when the learner was at `entered_at_step`."""
        if not 0 <= oldest_version <= entered_at_step <= self.t:
            raise LawError(f"versions out of order: token {oldest_version}, buffer {entered_at_step}, learner {self.t}")
        return Lag(entered_at_step - oldest_version, self.t - entered_at_step)
