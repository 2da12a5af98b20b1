"""Which of a few systems is best, dropping losers as soon as the evidence allows: Kim and Nelson's procedure.

S.-H. Kim and B. L. Nelson, "A fully sequential procedure for indifference-zone selection in simulation", ACM TOMACS 11(3),
2001, with c = 1. It needs normal observations that are independent from seed to seed. Those of one seed may depend on each
other: it looks at paired differences only, so that common random numbers are allowed, and make it fast.

With k systems, n0 observations of each at first, error alpha and indifference zone delta:

    eta  = ((2 alpha / (k - 1)) ** (-2 / (n0 - 1)) - 1) / 2
    h2   = 2 eta (n0 - 1)
    S2   = sample variance of the first n0 differences of two systems
    W(r) = max(0, delta / (2 r) * (h2 * S2 / delta**2 - r))

Two systems are told apart at the first r >= n0 at which their mean difference exceeds W(r), or W(r) is 0. With probability
1 - alpha at least, the best is never told to be worse, if it is better than every other by delta or more.

The region is made for gaps about as wide as delta; where the gap is many times that, it waits far too long. So a fifth of the
error is spent on Student's test of the paired differences, look by look: at the n-th look two systems are told apart, too, if
the one-sided test rejects at 0.2 alpha / ((k - 1) n (n + 1)). All these add up to 0.2 alpha; the region is drawn for 0.8 alpha.

Here a system that was told to be worse is dropped only if it also looks worse by more than delta; until then it is a tie and
stays. Two are told to be ties, too, as soon as the usual paired interval of their difference, at a confidence that allows for
the number of pairs, lies within the indifference zone. Whoever once came out ahead of another, or level with it, cannot be
dropped for it later, so that a wrong drop still needs a wrong verdict, and the guarantee holds. It ends when every two of those
left are told apart: they are then all within the indifference zone of each other, as far as can be seen.

Few first observations make eta large: with k = 4 and alpha = 0.05 it is 2.2 for n0 = 5, and 14.5 for n0 = 3, so that three
suffice where common random numbers leave next to no noise, and never otherwise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import TYPE_CHECKING

from harness.analysis.statistics import simultaneous, student_quantile
from harness.tuning.result import Elimination

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.tuning.space import Settings

FIRST_STAGE = 5
"""Observations of each system before any is dropped."""

REGION_SHARE = 0.8
"""Share of the error that the continuation region may make; the rest is for gaps that no region is needed for."""

FEWEST_FIRST = 3
"""With fewer the variance of a difference is not worth its name."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How far it is. Systems are named by their row.

    Attributes:
        rounds: observations of each survivor that were used.
        dropped: systems shown to be worse, with the observations that it took.
        survivors: the others.
        decided: whether every two survivors are told apart; nothing is left to sample.
        due: survivors that lack the next observation; empty when it is decided.

    """

    rounds: int
    dropped: tuple[tuple[int, int], ...]
    survivors: tuple[int, ...]
    decided: bool
    due: tuple[int, ...]


def eta(systems: int, error: float, first_stage: int) -> float:
    """The constant of the continuation region."""
    return (math.pow(2 * error / (systems - 1), -2 / (first_stage - 1)) - 1) / 2


def eliminate(
    table: Sequence[Sequence[float]], *, indifference: float, error: float = 0.05, first_stage: int = FIRST_STAGE
) -> Standing:
    """Where the procedure stands, more being better.

    It is replayed from the start, so that handing in a longer table continues where a shorter one ended.

    Args:
        table: a row a system; entry j of every row has the same seed. Rows may end early.
        indifference: difference that is not worth telling, above 0.
        error: probability, at most, that the best by more than that is dropped.
        first_stage: observations of each before any is dropped, 3 or more.

    Raises:
        ValueError: no system, or an argument out of its range.

    """
    if not table or indifference <= 0 or not 0 < error < 0.5 or first_stage < FEWEST_FIRST:
        raise ValueError(
            "elimination needs a system, an indifference above 0, an error between 0 and 0.5, and a first stage of "
            f"{FEWEST_FIRST} or more; got {len(table)}, {indifference}, {error} and {first_stage}"
        )
    alive = list(range(len(table)))
    rounds = min(len(row) for row in table)
    dropped: list[tuple[int, int]] = []
    if len(alive) == 1:
        return Standing(rounds, (), (0,), decided=True, due=())
    if rounds < first_stage:
        due = tuple(i for i in alive if len(table[i]) == rounds)
        return Standing(rounds, (), tuple(alive), decided=False, due=due)
    margin = _Margin(table, indifference, error, first_stage)
    told_apart: dict[tuple[int, int], int | None] = {}  # who came out ahead; None where both are equal
    rounds = first_stage
    while True:
        means = {i: math.fsum(table[i][:rounds]) / rounds for i in alive}
        worse = set[int]()
        for i, j in combinations(alive, 2):
            if (i, j) not in told_apart:
                gap, width = means[i] - means[j], margin(i, j, rounds)
                if width == 0 or abs(gap) > width or margin.plain(i, j, rounds):
                    told_apart[i, j] = None if gap == 0 else i if gap > 0 else j
                elif margin.within(i, j, rounds):
                    told_apart[i, j] = None
            ahead = told_apart.get((i, j))
            if ahead is not None and means[ahead] - means[i + j - ahead] > indifference:
                worse.add(i + j - ahead)
        dropped += [(i, rounds) for i in alive if i in worse]
        alive = [i for i in alive if i not in worse]
        decided = all(pair in told_apart for pair in combinations(alive, 2))
        due = () if decided else tuple(i for i in alive if len(table[i]) == rounds)
        if decided or due:
            return Standing(rounds, tuple(dropped), tuple(alive), decided, due)
        rounds += 1


class _Margin:
    """What is known of the differences of all pairs."""

    def __init__(self, table: Sequence[Sequence[float]], indifference: float, error: float, first_stage: int) -> None:
        self._table = table
        self._delta = indifference
        self._first = first_stage
        self._h2 = 2 * eta(len(table), REGION_SHARE * error, first_stage) * (first_stage - 1)
        self._spent = (1 - REGION_SHARE) * error / (len(table) - 1)
        self._variances: dict[tuple[int, int], float] = {}
        self._confidence = simultaneous(len(table) * (len(table) - 1) // 2, 1 - error)

    def __call__(self, i: int, j: int, rounds: int) -> float:
        """Half-width of the continuation region."""
        if (i, j) not in self._variances:
            self._variances[i, j] = self._moments(i, j, self._first)[1]
        return max(0.0, self._delta / (2 * rounds) * (self._h2 * self._variances[i, j] / self._delta**2 - rounds))

    def plain(self, i: int, j: int, rounds: int) -> bool:
        """Whether the gap is so wide that Student's test rejects that there is none, at this look's share of the error."""
        mean, variance = self._moments(i, j, rounds)
        look = rounds - self._first + 1
        reach = abs(mean) / math.sqrt(max(variance, 1e-300) / rounds)
        return reach > 3 and reach > _quantile(1 - self._spent / (look * (look + 1)), rounds - 1)

    def within(self, i: int, j: int, rounds: int) -> bool:
        """Whether the interval of the difference lies within the indifference zone."""
        mean, variance = self._moments(i, j, rounds)
        room = (self._delta - abs(mean)) / math.sqrt(max(variance, 1e-300) / rounds)
        return room > 0 and room > _quantile((1 + self._confidence) / 2, rounds - 1)

    def _moments(self, i: int, j: int, rounds: int) -> tuple[float, float]:
        differences = [a - b for a, b in zip(self._table[i][:rounds], self._table[j][:rounds], strict=True)]
        mean = math.fsum(differences) / rounds
        return mean, math.fsum((value - mean) ** 2 for value in differences) / (rounds - 1)


@cache
def _quantile(probability: float, degrees: int) -> float:
    return student_quantile(probability, degrees)


def told(standing: Standing, changes: Sequence[Settings], *, indifference: float, error: float) -> Elimination:
    """The standing as a part of the answer; entry i of `changes` is what system i changes from today."""
    return Elimination(
        indifference=indifference,
        error=error,
        entrants=len(changes),
        rounds=standing.rounds,
        dropped=tuple((changes[i], after) for i, after in standing.dropped),
        survivors=tuple(changes[i] for i in standing.survivors),
        decided=standing.decided,
    )
