"""What a search has so far, and which of its finalists it would name."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.tuning.bench import Job
from harness.tuning.elimination import FIRST_STAGE, Standing, eliminate, told
from harness.tuning.result import INDIFFERENCE
from harness.tuning.screen import score, value

if TYPE_CHECKING:
    from harness.analysis.summary import RunSummary
    from harness.tuning.bench import Bench
    from harness.tuning.result import ByHand, Elimination, Objective
    from harness.tuning.screen import Screen
    from harness.tuning.search import Problem
    from harness.tuning.space import Settings

LAG_GRAIN = 0.25
"""Lags that differ by less than this many optimizer steps are not a reason to prefer one setting."""


@dataclass(slots=True)
class State:
    """What a search has so far.

    Attributes:
        indifference: difference of the objective that is not worth telling.
        error: probability, at most, of a wrong choice among the finalists, and of an interval that misses.
        first_stage: pairs of each finalist before any is dropped.
        off_steps: learner steps of the replications with inputs that are off; 0 while there are none.

    """

    problem: Problem
    bench: Bench
    screen: Screen
    objective: Objective
    ceiling_lag: int
    ceiling_given: bool
    workers: int
    leader: Settings | None = None
    finalists: list[Settings] = field(default_factory=list)
    final_steps: int = 0
    final_seeds: tuple[int, ...] = ()
    interrupted: bool = False
    indifference: float = INDIFFERENCE
    error: float = 0.05
    first_stage: int = FIRST_STAGE
    by_hand: ByHand | None = None
    off_steps: int = 0

    def final_runs(self, settings: Settings) -> list[RunSummary]:
        """Reported replications of these settings, up to the first that is missing."""
        return self.bench.runs_of(settings, self.final_seeds, self.final_steps)

    def pairs(self, settings: Settings) -> tuple[list[RunSummary], list[RunSummary]]:
        """Today's and these settings' replications on the seeds that both have."""
        before, after = self.final_runs(self.problem.space.today), self.final_runs(settings)
        n = min(len(before), len(after))
        return before[:n], after[:n]

    def final_score(self, settings: Settings, most: int = 10**9) -> float:
        """Score on the reported seeds; minus infinity when there are none, or the ceiling is exceeded."""
        before, after = self.pairs(settings)
        if not after or max(run.lag_max for run in after) > self.ceiling_lag:
            return -math.inf
        return score(self.objective, before[:most], after[:most])

    def race(self) -> tuple[list[Settings], Standing | None]:
        """The finalists and today's settings that may be named, and how far they are told apart; None with none.

        Those over the lag ceiling, and those whose simulation failed, are no competitors.
        """
        entrants = [settings for settings in (self.problem.space.today, *self.finalists) if self._competes(settings)]
        table = [[value(self.objective, run) for run in self.final_runs(settings)] for settings in entrants]
        if not self.finalists or not table:
            return entrants, None
        standing = eliminate(table, indifference=self.indifference, error=self.error, first_stage=self.first_stage)
        return entrants, standing

    def _competes(self, settings: Settings) -> bool:
        runs = self.final_runs(settings)
        if any(run.lag_max > self.ceiling_lag for run in runs):
            return False
        missing = self.final_seeds[len(runs) : len(runs) + 1]
        return not any(Job.of(settings, seed, self.final_steps) in self.bench.failures for seed in missing)

    def elimination(self) -> Elimination | None:
        """How the finalists were told apart; None where nothing was compared."""
        entrants, standing = self.race()
        if standing is None:
            return None
        changes = [self.problem.space.changed(settings) for settings in entrants]
        return told(standing, changes, indifference=self.indifference, error=self.error)

    def winner(self) -> Settings | None:
        """The setting to name: the least lag among those that the best finalist does not beat; None without a pair.

        Of those, the cheapest where there are prices, then the one that changes least.
        """
        entrants, standing = self.race()
        alive = [entrants[i] for i in standing.survivors if entrants[i] in self.finalists] if standing else []
        scores = [(self.final_score(settings), settings) for settings in alive or self.finalists]
        usable = [(worth, settings) for worth, settings in scores if worth > -math.inf]
        if not usable:
            return None
        best = max(worth for worth, _ in usable)
        near = [settings for worth, settings in usable if worth >= best - self.indifference and (worth > 0 or worth == best)]
        least = min(self._lag_of(settings) for settings in near)
        young = [settings for settings in near if self._lag_of(settings) <= least + LAG_GRAIN]
        cheapest = min(self._usd_of(settings) for settings in young)
        cheap = [settings for settings in young if self._usd_of(settings) <= cheapest * (1 + self.indifference)]
        changed = self.problem.space.changed
        return min(cheap, key=lambda settings: (len(changed(settings)), -self.final_score(settings)))

    def _lag_of(self, settings: Settings) -> float:
        runs = self.pairs(settings)[1]
        return sum(run.lag_p95 for run in runs) / len(runs)

    def _usd_of(self, settings: Settings) -> float:
        runs = self.pairs(settings)[1]
        return sum(run.usd_per_1000_groups for run in runs) / len(runs)
