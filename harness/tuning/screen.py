"""Trying many settings, briefly.

Every setting runs on the same seeds as today's, and its score is the mean paired difference, so that the luck of a seed
cancels. First come guesses, those that were handed in and those that span the space (`Space.corners`), then a few random
ones, then by turns those that Optuna's tree-structured Parzen estimator proposes from what was learnt, and neighbours of the
leader. Settings that lead on one seed get the second. Where there is time, the best third then run once more, longer and on
the other seed first (`Screen.climb`): many settings briefly, few at length.

The scores rank; nothing that is reported is taken from them except under the word "provisional". The best of many noisy
trials looks better than it is, which is why the final uses fresh seeds.
"""

from __future__ import annotations

import math
import random
import warnings
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any

from harness.tuning.bench import Job
from harness.tuning.plan import MOST_CANDIDATES, SCREEN_CANDIDATES
from harness.tuning.result import INDIFFERENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from harness.analysis.summary import RunSummary
    from harness.tuning.bench import Bench
    from harness.tuning.result import Objective
    from harness.tuning.space import Settings, Space, Value

RANDOM_CANDIDATES = 4
"""Random settings between the first guesses and the learnt proposals, so that no knob is known at three values only."""

TRIES = 60
"""Proposals in a row that were refused or known already, after which the space counts as exhausted."""

SCREEN_SEEDS = 2
"""Seeds of the screen: the first for every setting, the others for those that lead."""

CONTENDERS = 3
"""The best this many get the second seed."""


def value(objective: Objective, run: RunSummary) -> float:
    """What a replication is worth; more is better, and differences of two on one seed are what is compared.

    `kept`: log of the kept groups per chip-second. `tokens`: log of the trained tokens per chip-second. `idle`: the share of
    chip time that was not idle.
    """
    if objective == "idle":
        return 1.0 - run.idle_share
    if objective == "tokens":
        return math.log(max(run.tokens_trained, 1) / run.chip_total_ns)
    return math.log(run.kept_groups_per_chip_s)


def score(objective: Objective, before: Sequence[RunSummary], after: Sequence[RunSummary]) -> float:
    """How much better `after` is, the mean difference of `value`; 0 is no difference. Entry i of both has the same seed."""
    pairs = zip(before, after, strict=True)
    return math.fsum(value(objective, a) - value(objective, b) for b, a in pairs) / len(after)


@dataclass(frozen=True, slots=True)
class Scored:
    """A screened setting.

    Attributes:
        settings: all searched knobs.
        score: over today, see `score`.
        seeds: how many seeds it rests on.
        lag_p95: the largest over the seeds, in optimizer steps.

    """

    settings: Settings
    score: float
    seeds: int
    lag_p95: float


class Screen:
    """One screen.

    Args:
        space: what is searched.
        bench: where it runs.
        objective: what is wanted.
        ceiling_lag: largest lag allowed, in optimizer steps.
        steps: learner steps of a replication.
        seeds: the first for every setting, the others for those that lead.
        rng_seed: of the proposals.
        indifference: a setting that leads by less is no contender.

    Attributes:
        wide_steps: learner steps of the replications that every setting has; `steps` is more for those that were promoted.
        wide_seeds: the seeds of those, likewise.
        long_steps: learner steps of the replications of those that were promoted; 0 while there are none.
        first: settings to try before all others but the guesses that span the space, by turns with those.
        rules_out: whether a setting need not be tried, because it cannot win.

    """

    def __init__(
        self,
        space: Space,
        bench: Bench,
        objective: Objective,
        ceiling_lag: int,
        steps: int,
        seeds: Sequence[int],
        rng_seed: int,
        indifference: float = INDIFFERENCE,
    ) -> None:
        self.space = space
        self.bench = bench
        self.objective = objective
        self.ceiling_lag = ceiling_lag
        self.steps = steps
        self.seeds = tuple(seeds)
        self.indifference = indifference
        self.wide_steps, self.wide_seeds = self.steps, self.seeds
        self.long_steps = 0
        self.first: list[Settings] = []
        self.rules_out: Callable[[Settings], bool] = lambda settings: False
        self.refused = 0
        self.idle_knobs: frozenset[str] = frozenset()
        self.over_ceiling: set[tuple[tuple[str, Value], ...]] = set()
        self._tried: dict[tuple[tuple[str, Value], ...], Settings] = {}
        self._promoted: set[Job] = set()
        self._rng = random.Random(rng_seed)
        self._rng_seed = rng_seed
        self._turn = False
        self._recalled = 0

    @cached_property
    def _proposer(self) -> Proposer:
        return Proposer(self.space, self._rng_seed)

    @property
    def candidates(self) -> int:
        """Settings of which something is known, beside today's."""
        done = {job.key for table in (self.bench.runs, self.bench.failures) for job in table}
        return len(done & self._tried.keys())

    def baseline(self) -> Iterator[Job]:
        """Today's settings on every seed."""
        return (Job.of(self.space.today, seed, self.steps) for seed in self.seeds)

    def begin(self, steps: int) -> None:
        """Choose the length of the replications that every setting gets."""
        self.steps = self.wide_steps = steps

    def recall(self) -> Iterator[Job]:
        """What earlier sessions of a study have tried in just this way: it costs nothing and is learnt from."""
        inside = {knob.path: (*knob.values, knob.today) for knob in self.space.knobs}
        for job in self.bench.known:
            settings = job.settings
            same = (job.steps, job.seed) == (self.steps, self.seeds[0]) and settings.keys() == inside.keys()
            if same and all(value in inside[path] for path, value in settings.items()) and self.space.admits(settings):
                yield self._first(settings)
        self._recalled = len(self._tried)

    def climb(self, steps: int, most: int) -> Iterator[Job]:
        """The best so many once more, longer, and on another seed first, so that luck on the first does not carry them.

        From here on `scored` and `ranking` know only those that were promoted.
        """
        leading = sorted(self.ranking(), key=lambda s: -s.score)[:most]
        self.long_steps = steps
        self.ascend()
        for seed in self.seeds:
            yield Job.of(self.space.today, seed, steps)
        yield from self.probe([scored.settings for scored in leading], 1)
        for scored in sorted(self.ranking(), key=lambda s: -s.score)[:CONTENDERS]:
            for seed in self.seeds[1:]:
                yield Job.of(scored.settings, seed, steps)

    def ascend(self) -> None:
        """To the replications of those that were promoted, if any were."""
        if self.long_steps > self.wide_steps:
            self.steps, self.seeds = self.long_steps, (*self.wide_seeds[1:], self.wide_seeds[0])

    def descend(self) -> None:
        """Back to the replications that every setting has."""
        self.steps, self.seeds = self.wide_steps, self.wide_seeds

    def search(self, affordable: int) -> Iterator[Job]:
        """Jobs of the search, for about so many simulations, until stopped."""
        guesses = self._guesses(max(6, min(affordable, 2 * SCREEN_CANDIDATES) // 2))
        while len(self._tried) < MOST_CANDIDATES + self._recalled:
            job = self._promotion()
            if job is None:
                settings = next(guesses, None) or self._proposal()
                if settings is None:
                    return
                job = self._first(settings)
            yield job

    def probe(self, candidates: Sequence[Settings], seeds: int) -> Iterator[Job]:
        """These settings on the first so many seeds."""
        for settings in candidates:
            first = self._first(settings)
            yield first
            for seed in self.seeds[1:seeds]:
                yield Job.of(settings, seed, self.steps)

    def learn(self, job: Job) -> None:
        """A job of this screen is over."""
        scored = self.scored(job.settings)
        run = self.bench.runs.get(job)
        if run is not None and run.lag_max > self.ceiling_lag:
            self.over_ceiling.add(job.key)
        self._proposer.tell(job.settings, None if job.key in self.over_ceiling or scored is None else scored.score)

    def scored(self, settings: Settings, most_seeds: int = SCREEN_SEEDS) -> Scored | None:
        """What is known of one setting; None before its first result."""
        after = self.bench.runs_of(settings, self.seeds, self.steps)
        before = self.bench.runs_of(self.space.today, self.seeds, self.steps)
        n = min(len(after), len(before), most_seeds)
        if n == 0:
            return None
        value = score(self.objective, before[:n], after[:n])
        return Scored(settings, value, n, max(run.lag_p95 for run in after[:n]))

    def ranking(self) -> list[Scored]:
        """Every setting within the ceiling, the best first; those with every seed before those without."""
        known = [self.scored(settings) for settings in self.usable()]
        found = [scored for scored in known if scored is not None]
        return sorted(found, key=lambda s: (-s.seeds, -s.score, s.lag_p95, len(self.space.changed(s.settings))))

    def same(self, one: Settings, other: Settings) -> bool:
        """Whether both are known to give the very same run: what differs does nothing."""
        for seed, steps in ((self.wide_seeds[0], self.wide_steps), (self.seeds[0], self.steps)):
            run = self.bench.runs.get(Job.of(one, seed, steps))
            if run is not None and run == self.bench.runs.get(Job.of(other, seed, steps)):
                return True
        return one == other

    def usable(self) -> list[Settings]:
        """Settings tried, but for those over the ceiling."""
        return [settings for key, settings in self._tried.items() if key not in self.over_ceiling]

    def _first(self, settings: Settings) -> Job:
        job = Job.of(settings, self.seeds[0], self.steps)
        if settings != self.space.today:
            self._tried[job.key] = settings
        return job

    def _promotion(self) -> Job | None:
        """The next seed for a contender that lacks it."""
        leading = sorted(self.ranking(), key=lambda s: -s.score)[:CONTENDERS]
        for scored in leading:
            if scored.seeds < len(self.seeds) and scored.score > self.indifference:
                job = Job.of(scored.settings, self.seeds[scored.seeds], self.steps)
                if job not in self._promoted:
                    self._promoted.add(job)
                    return job
        return None

    def _guesses(self, most: int) -> Iterator[Settings]:
        sent = 0
        corners = self.space.corners(self.idle_knobs)
        for settings in chain.from_iterable(zip_longest(self.first[: most // 2], corners)):
            if settings is None or settings == self.space.today or self.rules_out(settings):
                continue
            if sent < most and Job.of(settings, self.seeds[0], self.steps).key not in self._tried:
                sent += 1
                yield settings
        for _ in range(RANDOM_CANDIDATES):
            drawn = self._fresh(lambda: self.space.draw(self._rng))
            if drawn is None:
                return
            yield drawn

    def _proposal(self) -> Settings | None:
        """By turns what the estimator proposes and a neighbour of the leader.

        The estimator models the whole space and needs dozens of results to be sharp; there are seldom more than that, and
        constraints that tie knobs together are invisible to it.
        """
        self._turn = not self._turn
        leader = max(self.ranking(), key=lambda s: s.score, default=None)
        if self._turn and leader is not None:
            neighbour = self._fresh(lambda: self.space.near(leader.settings, self._rng))
            if neighbour is not None:
                return neighbour
        return self._fresh(self._proposer.ask)

    def _fresh(self, propose: Callable[[], Settings]) -> Settings | None:
        """The first proposal that is admitted and new."""
        for _ in range(TRIES):
            settings = propose()
            if settings == self.space.today or Job.of(settings, self.seeds[0], self.steps).key in self._tried:
                continue
            admitted = self.space.admits(settings)
            if admitted and not self.rules_out(settings):
                return settings
            self.refused += not admitted
            self._proposer.tell(settings, None)
        return None


class Proposer:
    """Optuna's estimator over positions in the grids.

    Refused settings and those over the ceiling are told as pruned, which the estimator ranks below every result.
    """

    def __init__(self, space: Space, seed: int) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._optuna = optuna
        self._space = space
        self._grids: dict[str, Any] = {knob.path: optuna.distributions.IntDistribution(0, knob.last) for knob in space.knobs}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=0, multivariate=True)
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        self._open: dict[tuple[tuple[str, Value], ...], Any] = {}
        self._told: set[tuple[tuple[str, Value], ...]] = set()

    def ask(self) -> Settings:
        """The next proposal."""
        trial = self._study.ask(self._grids)
        settings = self._space.at(trial.params)
        key = tuple(sorted(settings.items()))
        if key in self._told or key in self._open:
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        else:
            self._open[key] = trial
        return settings

    def tell(self, settings: Settings, value: float | None) -> None:
        """What came of a setting, proposed here or not; None for one that cannot be used. Only the first word counts."""
        key = tuple(sorted(settings.items()))
        if key in self._told:
            return
        self._told.add(key)
        state = self._optuna.trial.TrialState
        trial = self._open.pop(key, None)
        if trial is not None:
            self._study.tell(trial, value, state=None if value is not None else state.PRUNED)
            return
        self._study.add_trial(
            self._optuna.trial.create_trial(
                params=self._space.positions(settings),
                distributions=self._grids,
                value=value,
                state=state.COMPLETE if value is not None else state.PRUNED,
            )
        )
