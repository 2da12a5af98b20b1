"""What becomes of the answer when the inputs are off: each calibrated input ten percent down and up, one at a time.

Today's settings, the answer and its closest rivals are simulated under every changed input, on common seeds. Two things are
asked: how much the prediction moves, and whether another of the settings that were compared would have been the better choice.
What matters most by the closed forms comes first, so that little time is spent on the right questions.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

from harness.core.errors import ConfigError
from harness.tuning.bench import Job
from harness.tuning.measured import gain
from harness.tuning.result import Sensitivity
from harness.tuning.screen import score

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from harness.analysis.summary import RunSummary
    from harness.tuning.analytic import ByHandSaid
    from harness.tuning.space import Settings
    from harness.tuning.state import State


class Input(Protocol):
    """One calibrated input (`harness.scenario.inputs.Input`)."""

    @property
    def path(self) -> str:
        """Of it in the scenario."""

    @property
    def doc(self) -> str:
        """In words."""


FACTORS = (0.9, 1.1)
"""By which each input is multiplied."""

MOST_RIVALS = 2
"""Settings beside today's and the answer that are asked about under every input."""

SEEDS = 2
"""Replications of each, at most."""

SCALE = "scale:"
"""Before the path of an input in settings."""


def off(settings: Settings, path: str, factor: float) -> Settings:
    """The settings in a world where one input is off."""
    return settings | {f"{SCALE}{path}": factor}


def ranked(inputs: Sequence[Input], settings: Settings, by_hand: Callable[[Settings], ByHandSaid] | None) -> list[Input]:
    """The inputs, those first that move the closed forms most."""
    if by_hand is None:
        return list(inputs)
    moves: dict[str, float] = {}
    for one in inputs:
        try:
            low, high = (by_hand(off(settings, one.path, factor)).rate for factor in FACTORS)
        except ConfigError:
            continue
        moves[one.path] = abs(high - low)
    return sorted(inputs, key=lambda one: -moves.get(one.path, 0.0))


def rivals(state: State, winner: Settings) -> list[Settings]:
    """The finalists that came closest, without today's settings and the answer."""
    others = [settings for settings in state.finalists if settings not in (winner, state.problem.space.today)]
    return sorted(others, key=lambda settings: -state.final_score(settings))[:MOST_RIVALS]


def sensitivity_jobs(inputs: Sequence[Input], settings: Sequence[Settings], seeds: Sequence[int], steps: int) -> Iterator[Job]:
    """Seed by seed, so that every input has been looked at once before any is looked at twice."""
    for seed in seeds:
        for one in settings:
            yield Job.of(one, seed, steps)
        for given in inputs:
            for factor in FACTORS:
                for one in settings:
                    yield Job.of(off(one, given.path, factor), seed, steps)


def sensitivities(state: State, winner: Settings) -> tuple[Sensitivity, ...]:
    """What was found, the inputs first that move the answer most; those that were not simulated are left out."""
    if not state.off_steps:
        return ()
    seeds = state.final_seeds[:SEEDS]
    runs: Callable[[Settings], list[RunSummary]] = lambda one: state.bench.runs_of(one, seeds, state.off_steps)  # noqa: E731
    as_is, found = runs(winner), []
    for given in state.problem.inputs:
        for factor in FACTORS:
            before, after = (runs(off(one, given.path, factor)) for one in (state.problem.space.today, winner))
            n = min(len(before), len(after), len(as_is))
            if n:
                moved, won = gain(as_is[:n], after[:n]), gain(before[:n], after[:n])
                rival = _rival(state, winner, given.path, factor, runs)
                steps = min(run.learner_steps for run in after[:n])
                found.append(Sensitivity(given.path, given.doc, factor, moved, won, rival, n, steps))
    largest: dict[str, float] = {}
    for one in found:
        largest[one.path] = max(largest.get(one.path, 0.0), abs(one.kept.mean))
    return tuple(sorted(found, key=lambda one: (-largest[one.path], one.path, one.factor)))


def _rival(
    state: State, winner: Settings, path: str, factor: float, runs: Callable[[Settings], list[RunSummary]]
) -> Settings | None:
    """The setting, of those compared, that would be better than the answer by more than the indifference zone.

    By how much is what the final says, which had more and longer replications, and on top how much the input moves it: the
    difference under the input less the difference without, on the same seeds. So what is mere luck of few short replications
    cancels, and only what the input does can overturn an answer.
    """
    best, found = state.indifference, None
    for settings in (state.problem.space.today, *rivals(state, winner)):
        mine, theirs = runs(off(winner, path, factor)), runs(off(settings, path, factor))
        pairs = [mine, theirs, runs(winner), runs(settings)]
        n = min(map(len, pairs))
        if settings == winner or not n or max(run.lag_max for run in theirs) > state.ceiling_lag:
            continue
        if state.final_score(settings) == -math.inf:  # over the ceiling there, or not compared
            continue
        under, without = (score(state.objective, a[:n], b[:n]) for a, b in (pairs[:2], pairs[2:]))
        better = _in_the_final(state, winner, settings) + under - without
        if better > best:
            best, found = better, state.problem.space.changed(settings)
    return found


def _in_the_final(state: State, winner: Settings, settings: Settings) -> float:
    before, after = state.final_runs(winner), state.final_runs(settings)
    n = min(len(before), len(after))
    return score(state.objective, before[:n], after[:n])
