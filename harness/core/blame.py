"""Blame: an interval in which somebody waited is charged to what those were doing who could have ended it.

A wait [t0, t1) of length L is split over the states that the lanes of another role were in meanwhile, in proportion to the
lane-nanoseconds Δ that they spent in each (`RoleClock`), so equally per lane. States that could not have ended the wait
have no cause in the mapping and are left out. Where none is left, the cause is `UNATTRIBUTED`. The shares of a wait add up
to L exactly: they are differences of the rounded-down running sum L·(Δ₁ + … + Δᵢ) ÷ ΣΔ, so each is less than a nanosecond
off, and the order of the causes is fixed.

A meter belongs to one waiter and costs two snapshots a wait. It follows the waiter live and simulated alike; a record that
was kept gives the same integers again (`harness.analysis.blame`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.core.errors import LawError
from harness.core.lanes import State

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.core.lanes import RoleClock

UNATTRIBUTED = "unattributed"

LEARNER_CAUSES: dict[State, str] = {
    State.TOOL_EXEC: "tools",
    State.TOOL_QUEUE: "tool_queue",
    State.ENV_RESET: "env_start",
    State.ENV_QUEUE: "env_queue",
    State.ENV_CLOSE: "env_close",
    State.GENERATE: "generation",
    State.PREFILL: "generation",
    State.REPREFILL: "generation",
    State.GEN_QUEUE: "generation_queue",
    State.REWARD: "reward",
    State.REWARD_QUEUE: "reward_queue",
    State.WAIT_TASK: "admission",
    State.GATED: "admission",
    State.NO_WORK: "no_task",
    State.STALE_WAIT: "stale_wait",
    State.TURN_WAIT: "turn_barrier",
    State.SYNC_PAUSE: "weight_sync",
    State.SYNC_RECV: "weight_sync",
    State.SYNC_WAIT: "weight_sync",
    State.EVAL: "evaluation",
    State.BACKOFF: "backoff",
    State.HOST_LAG: "host",
    State.DOWN: "down",
    State.PROVISION: "down",
    State.UNTRACED: "untraced",
}
"""What a rollout lane was doing while the learner had no batch. A lane that is blocked on a full buffer has delivered: it
could not have ended the wait."""

INFERENCE_CAUSES: dict[State, str] = {state: cause for state, cause in LEARNER_CAUSES.items() if cause != "generation"} | {
    State.BLOCKED_PUT: "buffer_full"
}
"""What a rollout lane was doing while a replica had no request. A lane whose request runs elsewhere could not have sent
another; one that is blocked on a full buffer could have been in its next episode."""


def apportion(length: int, weights: Sequence[int]) -> list[int]:
    """Split `length` in proportion to whole non-negative weights that are not all zero; the parts add up to it exactly."""
    total = sum(weights)
    parts = []
    running = before = 0
    for weight in weights:
        running += weight
        upto = length * running // total
        parts.append(upto - before)
        before = upto
    return parts


class BlameMeter:
    """Charges the waits of one waiter to causes.

    Args:
        role: clock of the lanes that could end the wait.
        causes: state of such a lane → cause.

    """

    __slots__ = ("_begin", "_causes", "_role", "_since_ns", "_states", "_totals")

    def __init__(self, role: RoleClock, causes: Mapping[State, str] = LEARNER_CAUSES) -> None:
        self._role = role
        self._causes = dict(causes)
        self._states = tuple(sorted(causes))
        self._totals: dict[str, int] = {}
        self._begin: list[int] | None = None
        self._since_ns = 0

    @property
    def waiting(self) -> bool:
        """Whether a wait is open."""
        return self._begin is not None

    def begin(self, now_ns: int) -> None:
        """The waiter begins to wait."""
        if self._begin is not None:
            raise LawError(f"a wait that began at {self._since_ns} ns has not ended; one meter follows one waiter")
        self._since_ns = now_ns
        self._begin = self._role.snapshot(now_ns)

    def end(self, now_ns: int) -> None:
        """It has what it waited for, or has given up."""
        begin = self._begin
        if begin is None:
            raise LawError("a wait ends that never began")
        self._begin = None
        if now_ns > self._since_ns:
            charge(self._totals, now_ns - self._since_ns, begin, self._role.snapshot(now_ns), self._states, self._causes)

    def mark(self, now_ns: int) -> None:
        """The reported window starts now: what was charged before is forgotten, an open wait is cut in two."""
        self._totals = {}
        if self._begin is not None:
            self._since_ns = now_ns
            self._begin = self._role.snapshot(now_ns)

    def totals(self, now_ns: int) -> dict[str, int]:
        """Waiting nanoseconds by cause since `mark`, an open wait included up to now. They add up to the time waited."""
        totals = dict(self._totals)
        if self._begin is not None and now_ns > self._since_ns:
            after = self._role.snapshot(now_ns)
            charge(totals, now_ns - self._since_ns, self._begin, after, self._states, self._causes)
        return totals


def charge(
    totals: dict[str, int],
    length_ns: int,
    before: Sequence[int],
    after: Sequence[int],
    states: Sequence[State],
    causes: Mapping[State, str],
) -> None:
    """Add one wait of `length_ns` to `totals`, from the lane-nanoseconds by state before and after it.

    Args:
        totals: cause → nanoseconds, changed in place.
        length_ns: length of the wait.
        before: lane-nanoseconds by state when it began.
        after: the same when it ended.
        states: the keys of `causes`, in ascending order.
        causes: state → cause.

    """
    spent = [(state, after[state] - before[state]) for state in states if after[state] != before[state]]
    if not spent:
        totals[UNATTRIBUTED] = totals.get(UNATTRIBUTED, 0) + length_ns
        return
    for (state, _), part in zip(spent, apportion(length_ns, [ns for _, ns in spent]), strict=True):
        if part:
            cause = causes[state]
            totals[cause] = totals.get(cause, 0) + part
