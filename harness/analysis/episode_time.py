"""Where an episode's time goes: the states of the lanes that play episodes, beside the split of the chips' time.

The slots' time in a state over a window, divided by the episodes that ended in it, is the mean time that an episode spends in
the state, up to those that reach over the window's edges (as in Little's law).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.core.lanes import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from harness.core.lanes import Lane

ROLLOUT = "rollout"

_NOBODY = frozenset({State.NO_WORK, State.GATED, State.DOWN, State.UNTRACED})


def episode_time_ns(lanes: Iterable[Lane], lane_ns: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Nanoseconds by state (in lower case) that slots spent on episodes, states without any left out.

    Args:
        lanes: of the run.
        lane_ns: nanoseconds by state in the window, by lane name.

    """
    totals = [lane_ns[lane.name] for lane in lanes if lane.role == ROLLOUT]
    sums = {state: sum([total[state] for total in totals]) for state in State if state not in _NOBODY}
    return {state.name.lower(): ns for state, ns in sums.items() if ns}
