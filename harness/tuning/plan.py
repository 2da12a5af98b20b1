"""How a promise about wall time is kept.

The cost of a simulation is measured as it goes: seconds of a call over the learner steps that it runs, warm-up included,
because cost follows the steps. A call starts only when it is expected to end before the deadline, and one that has started
is stopped at the deadline whatever it has done. Lengths are chosen from what is left:

- the screen is as long as still lets `SCREEN_CANDIDATES` settings be tried in its share of the time;
- those that lead run once more, two to three times as long, if there is time for a few of them;
- the final is as long as the scenario asks (never below `HONEST_STEPS`) if that leaves enough pairs; else fewer finalists;
  else shorter, and then the answer is provisional.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.tuning.elimination import FEWEST_FIRST, FIRST_STAGE
from harness.tuning.measured import HONEST_STEPS

if TYPE_CHECKING:
    from collections.abc import Sequence

SCREEN_SHARE = 0.42
"""Share of the time after the first measurement that goes to trying settings. More finds better settings and leaves less to
prove them with; the final's interval shrinks with the root of its share only."""

RETREAT_SHARE = 0.12
"""Share for taking back changes that do nothing."""

FINAL_SHARE = 0.34
"""Share for the paired comparison on fresh seeds. What is left after it measures what each change contributes."""

SHORTEST_SCREEN = 5
"""Learner steps after warm-up below which a screening replication says too little."""

SCREEN_CANDIDATES = 40
"""Settings that a screen should be able to try: some twenty first guesses, and as many again that learn from them."""

MOST_CANDIDATES = 250
"""Settings after which the screen ends, however much time is left."""

ENOUGH_REPLICATIONS = 10
"""Pairs after which the final ends when the finalists are told apart, however much time is left."""

MOST_REPLICATIONS = 24
"""Pairs after which it ends even if they are not."""

CLIMB_SHARE = 0.4
"""Share of the screen's time for running the best third once more, longer. That costs about what the rest costs."""

CLIMB_FACTOR = 2
"""They run at least this many times as long; the next length of the ladder is at most half as much again."""

FEWEST_PROMOTED = 3
"""Settings below which promoting them is not worth today's settings at that length, too."""

MARGIN = 1.15
"""A call is expected to take this many times what such calls took."""


class CostModel:
    """What a simulation of so many learner steps costs, learnt from those that are done.

    Args:
        warmup_steps: learner steps that every simulation runs before its window.

    """

    def __init__(self, warmup_steps: int) -> None:
        self._warmup_steps = warmup_steps
        self._seconds: dict[int, list[float]] = {}

    def note(self, steps: int, seconds: float) -> None:
        """A call of `steps` learner steps after warm-up took `seconds`."""
        self._seconds.setdefault(steps, []).append(seconds)

    def expected_s(self, steps: int) -> float:
        """Seconds that one more such call is expected to take, with a margin; 0 while nothing is known."""
        if not self._seconds:
            return 0.0
        nearest = min(self._seconds, key=lambda known: (abs(known - steps), known))
        scale = (steps + self._warmup_steps) / (nearest + self._warmup_steps)
        return MARGIN * scale * statistics.median(self._seconds[nearest])

    def calls(self, steps: int, seconds: float, workers: int) -> int:
        """How many such calls fit in `seconds` on so many workers."""
        each = self.expected_s(steps)
        return 10**9 if each <= 0 else int(max(0.0, seconds) / each) * workers


def lengths(honest_steps: int) -> tuple[int, ...]:
    """Lengths to choose from, the longest first."""
    shorter = (60, 40, 30, HONEST_STEPS, 14, 10, 7, SHORTEST_SCREEN)
    return (honest_steps, *(steps for steps in shorter if steps < honest_steps))


def screen_steps(cost: CostModel, seconds: float, workers: int, honest_steps: int) -> int:
    """Learner steps of a screening replication when the screen has so many seconds."""
    for steps in lengths(honest_steps):
        if cost.calls(steps, seconds, workers) >= 2 * SCREEN_CANDIDATES:
            return steps
    return min(SHORTEST_SCREEN, honest_steps)


def climb_steps(steps: int, honest_steps: int) -> int:
    """Learner steps of the replications to which the best of those of `steps` are promoted; `steps` when there are none."""
    return min((longer for longer in lengths(honest_steps) if longer >= CLIMB_FACTOR * steps), default=steps)


@dataclass(frozen=True, slots=True)
class Final:
    """Shape of the final.

    Attributes:
        steps: learner steps after warm-up of each replication.
        finalists: settings compared with today's.
        replications: pairs of each.

    """

    steps: int
    finalists: int
    replications: int

    @property
    def first_stage(self) -> int:
        """Pairs of each before any finalist is dropped: as many as are usual, but so that one is left to save."""
        return max(FEWEST_FIRST, min(FIRST_STAGE, self.replications - 1))


def plan_final(cost: CostModel, seconds: float, workers: int, choose_from: Sequence[int]) -> Final:
    """The best final that `seconds` allow.

    Args:
        cost: of simulations.
        seconds: from now until it must be over.
        workers: calls at once.
        choose_from: lengths, the longest first.

    """
    for steps in choose_from:
        calls = cost.calls(steps, seconds, workers)
        for finalists, fewest in ((8, 8), (6, 6), (4, 6), (3, 5), (2, 5), (2, 4), (1, 4), (1, 3)):
            pairs = calls // (finalists + 1)
            if pairs >= fewest and (steps >= HONEST_STEPS or fewest >= 4):
                return Final(steps, finalists, min(pairs, ENOUGH_REPLICATIONS))
    shortest = choose_from[-1]
    return Final(shortest, 1, max(1, min(cost.calls(shortest, seconds, workers) // 2, ENOUGH_REPLICATIONS)))
