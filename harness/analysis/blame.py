"""Blame from a kept record: the same integers that `harness.core.blame` counts while the run goes on.

For every wait the lane-nanoseconds by state of the blamed role are F(t1) - F(t0), where for one state

    F(t) = Σ over its intervals that began by t of (t - begin) - Σ over those that ended by t of (t - end)

With begins and ends sorted and their prefix sums at hand, all waits are looked up at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from harness.core.blame import LEARNER_CAUSES, charge
from harness.core.lanes import STATES, State

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from numpy.typing import NDArray

T0, T1, LANE, STATE = range(4)


def waits_of(
    intervals: NDArray[np.int64], waiter: int, waiting: Collection[State], window: tuple[int, int]
) -> list[tuple[int, int]]:
    """The waits of one lane within a window, in order: each interval is one, as a meter begins anew with each `lane.to`.

    Args:
        intervals: rows of (t0_ns, t1_ns, lane, state, …).
        waiter: lane.
        waiting: states that count as waiting.
        window: first and last nanosecond; a wait that crosses them is cut.

    """
    start, end = window
    own = intervals[(intervals[:, LANE] == waiter) & np.isin(intervals[:, STATE], list(waiting))]
    own = own[np.argsort(own[:, T0], kind="stable")]
    cut = np.clip(own[:, :2], start, end)
    return [(t0, t1) for t0, t1 in cut.tolist() if t0 < t1]


def blame(
    intervals: NDArray[np.int64],
    waits: list[tuple[int, int]],
    blamed: Collection[int],
    causes: Mapping[State, str] = LEARNER_CAUSES,
) -> dict[str, int]:
    """Waiting nanoseconds by cause; they add up to the length of the waits.

    Args:
        intervals: rows of (t0_ns, t1_ns, lane, state, …).
        waits: as `waits_of` gives them.
        blamed: lanes that could have ended the waits.
        causes: state of such a lane → cause.

    """
    rows = intervals[np.isin(intervals[:, LANE], list(blamed))]
    before = _occupancy(rows, np.array([t0 for t0, _ in waits], dtype=np.int64))
    after = _occupancy(rows, np.array([t1 for _, t1 in waits], dtype=np.int64))
    states = tuple(sorted(causes))
    totals: dict[str, int] = {}
    for (t0, t1), begin, end in zip(waits, before.tolist(), after.tolist(), strict=True):
        charge(totals, t1 - t0, begin, end, states, causes)
    return totals


def _occupancy(rows: NDArray[np.int64], instants: NDArray[np.int64]) -> NDArray[np.int64]:
    """Lane-nanoseconds by state up to each instant.

    The prefix sums may pass 2⁶³ on long records. That is harmless: integers wrap, and the difference is right again
    because it is itself below 2⁶³.
    """
    table = np.zeros((len(instants), STATES), dtype=np.int64)
    for state in np.unique(rows[:, STATE]).tolist():
        mine = rows[rows[:, STATE] == state]
        for column, sign in ((T0, 1), (T1, -1)):
            edges = np.sort(mine[:, column])
            sums = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(edges)])
            count = np.searchsorted(edges, instants, side="right")
            table[:, state] += sign * (count * instants - sums[count])
    return table
