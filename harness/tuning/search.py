"""`tune`: which settings keep the chips busier, within a promised time, and how sure that is.

1. Today's settings, briefly: what does a simulation cost? Then at the length of the final.
2. Screen: closed forms say which settings look best and which cannot win (`harness.tuning.analytic`); then many settings,
   briefly, paired by seed (`harness.tuning.screen`); the best third once more, longer.
3. Retreat: of the settings that lead, the one with the least lag; changes of it that do nothing are taken back, wholly or
   half-way.
4. Final: the leader and the best of the screen against today's, on fresh seeds, paired, at the longest length that the time
   allows; losers are dropped on the way (`harness.tuning.elimination`). Only this names a winner.
5. What lies round the winner: each change taken back alone, each knob at its far end, and each knob moved away step by step
   (`harness.tuning.around`).

An interruption ends it where it is; what is finished is reported.
"""

from __future__ import annotations

import importlib
import math
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from harness.core.errors import ConfigError, HarnessError
from harness.core.units import NS_PER_S, format_duration
from harness.tuning.analytic import screen_by_hand
from harness.tuning.around import differences, far_ends, outwards
from harness.tuning.bench import Bench, Job
from harness.tuning.conclude import any_baseline, conclude, verdict_of
from harness.tuning.crew import Processes, cores
from harness.tuning.measured import HONEST_STEPS
from harness.tuning.plan import (
    CLIMB_SHARE,
    FEWEST_PROMOTED,
    FINAL_SHARE,
    MOST_REPLICATIONS,
    RETREAT_SHARE,
    SCREEN_CANDIDATES,
    SCREEN_SHARE,
    SHORTEST_SCREEN,
    CostModel,
    Final,
    climb_steps,
    lengths,
    plan_final,
    screen_steps,
)
from harness.tuning.result import INDIFFERENCE, Verdict
from harness.tuning.screen import SCREEN_SEEDS, Screen
from harness.tuning.sensitivity import SEEDS as OFF_SEEDS
from harness.tuning.sensitivity import ranked, rivals, sensitivity_jobs
from harness.tuning.space import LAG_KNOB, Settings, Space
from harness.tuning.state import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from harness.analysis.summary import RunSummary
    from harness.tuning.analytic import ByHandSaid
    from harness.tuning.crew import Crew
    from harness.tuning.result import Objective, TuneResult
    from harness.tuning.sensitivity import Input
    from harness.tuning.study import Study

SCREEN_SEED_OFFSET = 1_000_003
"""Screening seeds lie this far above the scenario's, so that no reported replication was ever used to choose."""

SYNC_KNOB = "steps_per_sync"

MOST_BY_HAND_S, BY_HAND_SHARE = 2.0, 0.03
"""Seconds for closed forms at most, and as a share of the time."""

ENDS_SHARE = 0.3
"""Share of the time after the final for trying knobs that may do nothing at their far ends."""

SENSITIVE_FROM_S, SENSITIVITY_SHARE = 120.0, 0.14
"""Budget from which inputs that are off are asked about unasked, and the share of it that is kept back for that."""

GUESSING_S = 1.0
"""Finding the first guess takes no longer: where corners are refused, others are asked for in their place."""

MOST_FINALISTS = 8
"""Finalists, with those that a study knows already."""

FEWEST_PAIRS, CLAIMING_PAIRS = 2, 3
"""Pairs of the final without which there would be no interval at all, and no claim."""

RETREATS = (1.0, 0.5, 0.0)
"""How far back each change is taken, pass by pass: all the way, half-way, by one value. All of them together may cost what is
not worth a change: the leader of a screen is a lucky one besides, so that a smaller tolerance would keep changes that do
nothing."""


class EvaluationError(HarnessError):
    """Today's settings could not be simulated, so there is nothing to compare with."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True)
class Problem:
    """What is tuned.

    Attributes:
        scenario: name, for people.
        space: what may be changed. A candidate is refused by its `admit`.
        evaluate: simulates (settings, seed, learner steps after warm-up). Must be picklable: it runs in other processes.
        learner_steps: length that the scenario asks for, after warm-up.
        warmup_steps: learner steps cut from the start.
        seed: of the first reported replication; the others follow it.
        source: how a shell names the scenario, with the overrides that were given (`FILE --set path=value`).
        by_hand: what closed forms say of settings, in a moment; None where nobody knows any. Raises `ConfigError` like `admit`.
        inputs: what was measured or assumed and may be off; `evaluate` and `by_hand` take `scale:PATH` for each.

    """

    scenario: str
    space: Space
    evaluate: Callable[[Settings, int, int], RunSummary]
    learner_steps: int
    warmup_steps: int
    seed: int
    source: str
    by_hand: Callable[[Settings], ByHandSaid] | None = None
    inputs: tuple[Input, ...] = ()


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a search is.

    Attributes:
        phase: what it is doing, in words.
        elapsed_s: since the start.
        budget_s: the promise.
        evaluations: simulations finished.
        candidates: settings tried.
        leading: score of the best so far (see `harness.tuning.screen.score`); None before the first.

    """

    phase: str
    elapsed_s: float
    budget_s: float
    evaluations: int
    candidates: int
    leading: float | None


@dataclass(frozen=True, slots=True)
class Promise:
    """When the answer is due.

    Attributes:
        budget_s: seconds from the start to the answer.
        started_at: when that began, on the crew's clock; None for now. A command line hands in the start of its process.
        reserve_s: kept back for saying the answer.

    """

    budget_s: float = 60.0
    started_at: float | None = None
    reserve_s: float = 0.5


def tune(
    problem: Problem,
    *,
    promise: Promise | None = None,
    objective: Objective = "kept",
    max_lag: int | None = None,
    indifference: float = INDIFFERENCE,
    error: float = 0.05,
    workers: int | None = None,
    crew: Crew | None = None,
    heard: Callable[[Progress], None] | None = None,
    study: Study | None = None,
    sensitivity: bool | None = None,
) -> TuneResult:
    """Search, prove and explain, within the promised time.

    Args:
        problem: what is tuned.
        promise: when the answer is due.
        objective: `kept` groups per chip-second, trained `tokens` per chip-second, or the `idle` share.
        max_lag: largest lag allowed, in optimizer steps; None for the largest `max_staleness` that is searched.
        indifference: gain that is not worth a change of configuration, as a fraction; a share of chip time for `idle`.
        error: probability, at most, that the best finalist is dropped, or that an interval misses.
        workers: processes; None for one a core.
        crew: who runs the simulations instead of new processes; closed at the end.
        heard: told of progress after every simulation.
        sensitivity: ask what becomes of the answer when inputs are off; None: where the budget is 2 minutes or more.
        study: where simulations are kept; what it knows is not simulated again.

    Raises:
        ConfigError: the budget does not hold one simulation, or leaves nothing to search.
        EvaluationError: today's settings fail.
        KeyboardInterrupt: interrupted before anything was finished.

    """
    promise = promise or Promise()
    size = workers or cores()
    space = _under_ceiling(problem.space, max_lag)
    for field, number, top in (("--indifference", indifference, 1.0), ("--error", error, 0.5)):
        if not 0 < number < top:
            raise ConfigError("is out of range", field=field, value=number, allowed=f"more than 0, less than {top:g}")
    if crew is None:
        crew = Processes(problem.evaluate, size)
        crew.start()
        # The import takes a second, in which the workers already simulate.
        threading.Thread(target=importlib.import_module, args=("optuna",), daemon=True).start()
    try:
        tuning = _Tuning(replace(problem, space=space), promise, objective, max_lag, indifference, error, size, crew, heard)
        tuning.sensitivity = sensitivity
        return tuning.run() if study is None else tuning.go_on_with(study)
    finally:
        crew.close()


def _under_ceiling(space: Space, max_lag: int | None) -> Space:
    if max_lag is None:
        return space
    if max_lag < 0:
        raise ConfigError("is negative", field="--max-lag", value=max_lag, allowed="0 or more optimizer steps")
    return replace(space, knobs=tuple(knob.below(max_lag) if knob.name == LAG_KNOB else knob for knob in space.knobs))


class _Tuning:
    """One search."""

    def __init__(
        self,
        problem: Problem,
        promise: Promise,
        objective: Objective,
        max_lag: int | None,
        indifference: float,
        error: float,
        workers: int,
        crew: Crew,
        heard: Callable[[Progress], None] | None,
    ) -> None:
        self.problem = problem
        self.promise = promise
        self.workers = workers
        self.heard = heard
        self.sensitivity: bool | None = None
        self.started = crew.now() if promise.started_at is None else promise.started_at
        self.cost = CostModel(problem.warmup_steps)
        self.bench = Bench(crew, self.cost, self.started + promise.budget_s - promise.reserve_s, heard=self._hear)
        self.honest_steps = max(problem.learner_steps, HONEST_STEPS)
        self.final = Final(self.honest_steps, 1, 2)
        self.phase = "measuring today's settings"
        self.hints: dict[str, int] = {}
        lag_values = [knob.values[-1] for knob in problem.space.knobs if knob.name == LAG_KNOB]
        bounds = [value for value in lag_values if isinstance(value, int)]
        ceiling = max_lag if max_lag is not None else max(bounds, default=10**9)
        seeds = [problem.seed + SCREEN_SEED_OFFSET + i for i in range(SCREEN_SEEDS)]
        self.screen = Screen(problem.space, self.bench, objective, ceiling, SHORTEST_SCREEN, seeds, problem.seed, indifference)
        self.state = State(
            problem,
            self.bench,
            self.screen,
            objective,
            ceiling,
            max_lag is not None,
            workers,
            indifference=indifference,
            error=error,
        )

    def go_on_with(self, study: Study) -> TuneResult:
        """All phases, with what a study knows; what is added is kept in it."""
        study.today = dict(self.problem.space.today)
        self.bench.known = study.recalled()
        for job in study.runs:
            self.cost.note(job.steps, study.seconds[job])
        self.bench.filed = study.file
        self.hints = dict(study.hints)
        try:
            result = self.run()
        finally:
            if self.screen.candidates:
                study.hint(screen_steps=self.screen.wide_steps, final_steps=self.state.final_steps)
        return replace(result, study=str(study.folder), notes=(*study.said(), *result.notes))

    def run(self) -> TuneResult:
        """All phases."""
        kept_back = SENSITIVITY_SHARE * self.promise.budget_s if self._asks_of_inputs() else 0.0
        self.bench.deadline -= kept_back
        try:
            self._first()
            self._by_hand()
            self._search()
            self._retreat()
            self._final()
            self._ends()
            self._contributions()
            self._flatness()
            self.bench.deadline += kept_back
            self._sensitivity()
        except KeyboardInterrupt:
            self.state.interrupted = True
            if not self.bench.runs:
                raise
        return conclude(self.state, self.promise.budget_s, self.bench.crew.now() - self.started)

    def _hear(self) -> None:
        if self.heard is not None:
            ranking = self.screen.ranking()
            elapsed = self.bench.crew.now() - self.started
            leading = ranking[0].score if ranking else None
            done = len(self.bench.runs)
            self.heard(Progress(self.phase, elapsed, self.promise.budget_s, done, self.screen.candidates, leading))

    def _seeds(self, count: int) -> tuple[int, ...]:
        return tuple(self.problem.seed + i for i in range(count))

    def _first(self) -> None:
        """What a simulation costs, and today's settings at the length of the final."""
        self.bench.drive(self.screen.baseline())
        if not self.bench.runs:
            self._give_up()
        if self.state.objective == "tokens" and not any(run.tokens_trained for run in self.bench.runs.values()):
            raise ConfigError("needs tokens, and none was trained", field="--objective", value="tokens", allowed="kept or idle")
        left = self.bench.left_s
        choose_from, before = lengths(self.honest_steps), self.hints.get("final_steps", 0)
        kept = self.bench.kept(self.problem.space.today, self._seeds(MOST_REPLICATIONS), before)
        if before >= HONEST_STEPS and before in choose_from and kept >= CLAIMING_PAIRS:
            choose_from = (before,)  # however short this session is: the pairs are there
        self.final = plan_final(self.cost, FINAL_SHARE * left, self.workers, choose_from)
        self._aim()
        if self.final.steps > self.screen.steps:
            today, early = self.problem.space.today, min(self.final.replications, max(2, self.workers))
            self.bench.drive(Job.of(today, seed, self.final.steps) for seed in self._seeds(early))

    def _aim(self) -> None:
        self.state.final_steps, self.state.final_seeds = self.final.steps, self._seeds(MOST_REPLICATIONS)
        self.state.first_stage = self.final.first_stage

    def _give_up(self) -> None:
        job, failure = next(iter(self.bench.failures.items()), (None, None))
        if job is None or failure is None or failure.kind == "CutOff":
            raise ConfigError(
                f"is too short: one simulation of {SHORTEST_SCREEN} learner steps (and {self.problem.warmup_steps} of warm-up) "
                "did not end in it",
                field="--budget",
                value=format_duration(self.promise.budget_s),
                remedy="give a larger budget, or a scenario with fewer groups a batch or fewer warm-up steps",
            )
        raise EvaluationError(f"today's settings cannot be simulated: {failure.kind}: {failure.message}", failure.exit_code)

    def _by_hand(self) -> None:
        """What closed forms say, where anybody knows some: first guesses, and what need not be simulated."""
        if self.problem.by_hand is None:
            return
        self.phase = "asking closed forms"
        runs = any_baseline(self.state)
        reached = sum(run.groups for run in runs) / sum(run.chip_total_ns / NS_PER_S for run in runs)
        barred = self.state.objective == "kept" and max(run.lag_max for run in runs) <= self.state.ceiling_lag
        self.state.by_hand, self.screen.first, rules_out = screen_by_hand(
            self.problem.space,
            self.problem.by_hand,
            reached if barred else 0.0,
            seconds=min(MOST_BY_HAND_S, BY_HAND_SHARE * self.bench.left_s),
            rng_seed=self.problem.seed,
        )
        self.screen.rules_out = rules_out

    def _search(self) -> None:
        """The screen, as long a replication as lets enough settings be tried; then the best of it, longer."""
        self.phase = "trying settings"
        left = self.bench.left_s
        until = self.bench.crew.now() + SCREEN_SHARE * left
        planned = screen_steps(self.cost, SCREEN_SHARE * left, self.workers, self.honest_steps)
        self.screen.begin(self.hints.get("screen_steps", planned))
        self.bench.drive(self.screen.baseline())
        self.bench.drive(self.screen.recall(), until=until, finished=self.screen.learn)
        self.screen.idle_knobs = self._idle_knobs()
        steps = self._promoted_to()
        wide = until if steps == self.screen.steps else until - CLIMB_SHARE * SCREEN_SHARE * left
        affordable = self.cost.calls(self.screen.steps, wide - self.bench.crew.now(), self.workers)
        wide = min(wide, self._final_must_start())
        wide = max(wide, self.bench.crew.now() + self.cost.expected_s(self.screen.steps) + GUESSING_S)  # one try, if possible
        self.bench.drive(self.screen.search(affordable), until=wide, finished=self.screen.learn)
        if steps > self.screen.steps:
            self._climb(steps, min(until, self._final_must_start()))

    def _promoted_to(self) -> int:
        """The length to which the best of the screen are promoted; its own where there is no time for that.

        Few settings are not worth it: what it costs would be better spent on trying some more.
        """
        seconds = SCREEN_SHARE * self.bench.left_s
        steps = climb_steps(self.screen.steps, self.honest_steps)
        wide = self.cost.calls(self.screen.steps, (1 - CLIMB_SHARE) * seconds, self.workers)
        long = self.cost.calls(steps, CLIMB_SHARE * seconds, self.workers)
        enough = wide >= SCREEN_CANDIDATES // 2 and long >= SCREEN_SEEDS + FEWEST_PROMOTED
        return steps if enough else self.screen.steps

    def _climb(self, steps: int, until: float) -> None:
        self.phase = "trying the best at length"
        known = len(self.screen.ranking())
        if known <= FEWEST_PROMOTED:
            return
        jobs = self.screen.climb(steps, max(FEWEST_PROMOTED, -(-known // 3)))
        self.bench.drive(jobs, until=until, finished=self.screen.learn)
        if not self.screen.ranking():
            self.screen.long_steps = 0
            self.screen.descend()

    def _idle_knobs(self) -> frozenset[str]:
        """Knobs that cannot win what would matter: fewer syncs, where today's syncs cost next to nothing."""
        runs = self.bench.runs_of(self.problem.space.today, self.screen.seeds, self.screen.steps)
        spent = sum(run.share("overhead:weight_sync") + run.share("idle:weight_sync") for run in runs)
        return frozenset({SYNC_KNOB}) if runs and spent / len(runs) < self.state.indifference else frozenset()

    def _final_must_start(self) -> float:
        """When the final must start at the latest, so that today's settings and one other have an interval each."""
        rounds = -(-FEWEST_PAIRS // self.workers)  # today's settings have run by then
        return self.bench.deadline - (rounds + 0.5) * self.cost.expected_s(self.final.steps)

    def _retreat(self) -> None:
        """Take back what does nothing, so that the answer changes no more than it must."""
        self.phase = "taking back changes that do nothing"
        ranking = self.screen.ranking()
        if not ranking:
            return
        until = self.bench.crew.now() + RETREAT_SHARE / (1 - SCREEN_SHARE) * self.bench.left_s
        top = [scored for scored in ranking if scored.score >= ranking[0].score - self.state.indifference]
        leader = min(top, key=lambda scored: (scored.lag_p95, -scored.score)).settings
        changes = len(self.problem.space.changed(leader))
        moves = len(RETREATS) * changes
        if self.cost.calls(self.screen.steps, until - self.bench.crew.now(), self.workers) < moves:
            self.screen.descend()
        # One whole pass in any case, and what it takes back together: what does nothing makes an answer hard to believe.
        rounds = -(-changes // self.workers) + 1
        until = max(until, self.bench.crew.now() + rounds * self.cost.expected_s(self.screen.steps))
        until = min(until, self._final_must_start())
        floor = max(0.0, self._score(leader) - self.state.indifference)
        for share in RETREATS:
            leader = self._step_back(leader, share, floor, until)
        self.state.leader = leader
        self.screen.ascend()

    def _step_back(self, leader: Settings, share: float, floor: float, until: float) -> Settings:
        space = self.problem.space
        moves = {path: space.retreat(leader, path, share) for path in space.changed(leader)}
        moves = {path: moved for path, moved in moves.items() if moved != leader and space.admits(moved)}
        self._try(moves.values(), until)
        harmless = {path: moved for path, moved in moves.items() if self._score(moved) >= floor}
        if not harmless:
            return leader
        together = leader | {path: moved[path] for path, moved in harmless.items()}
        if len(harmless) > 1 and together != space.today and space.admits(together):
            self._try([together], until)
            if self._score(together) >= floor:
                return together
        return max(harmless.values(), key=self._score)

    def _try(self, candidates: Iterable[Settings], until: float, seeds: int = 1) -> None:
        fresh = [settings for settings in candidates if settings != self.problem.space.today]
        self.bench.drive(self.screen.probe(fresh, seeds), until=until, finished=self.screen.learn)

    def _score(self, settings: Settings) -> float:
        """On the first seed; minus infinity for settings that did not run, exceed the ceiling or are today's."""
        over = Job.of(settings, 0, 0).key in self.screen.over_ceiling
        scored = self.screen.scored(settings, 1)
        return scored.score if scored is not None and not over and settings != self.problem.space.today else -math.inf

    def _final(self) -> None:
        """The paired comparison on fresh seeds."""
        self.phase = "comparing the best on fresh seeds"
        planned = [steps for steps in lengths(self.honest_steps) if steps <= self.final.steps]
        before = self.hints.get("final_steps", 0)
        if before >= HONEST_STEPS and before in planned:
            planned = [before]  # more pairs of the same are worth more than a few longer ones
        seconds = self.bench.left_s * FINAL_SHARE / (1 - SCREEN_SHARE - RETREAT_SHARE)
        until = self.bench.crew.now() + seconds
        plan = plan_final(self.cost, seconds, self.workers, planned)
        if plan.replications < CLAIMING_PAIRS:
            plan, until = plan_final(self.cost, self.bench.left_s, self.workers, planned), self.bench.deadline
        self.final = replace(plan, replications=max(plan.replications, FEWEST_PAIRS))
        self._aim()
        self.state.finalists = self._finalists(self.final.finalists)
        if self.state.finalists:
            self.bench.drive(self._final_jobs(), until=until)
            # At whatever cost to what comes after: without two pairs there is no interval.
            self.bench.drive(self._final_jobs(FEWEST_PAIRS))

    def _finalists(self, most: int) -> list[Settings]:
        """The leader after its retreat, the best of the screen, then the next best; of those that do the same, one.

        Those that an earlier session has compared cost nothing, so they are there beside as many as there is time for.
        """
        ranking = self.screen.ranking()
        if not ranking:
            return []
        order = [self.state.leader or ranking[0].settings, *(s.settings for s in sorted(ranking, key=lambda s: -s.score))]
        pairs = [self.bench.kept(s, self.state.final_seeds, self.final.steps) for s in (self.problem.space.today, *order)]
        earlier = [s for s, n in zip(order, pairs[1:], strict=True) if 2 * n > pairs[0] >= CLAIMING_PAIRS]
        if earlier and self.final.replications < CLAIMING_PAIRS:
            most = 0  # what another one could be shown to be in this time is less than what is known of these
        chosen: list[Settings] = []
        for settings in order:
            free = settings in earlier and len(chosen) < MOST_FINALISTS
            if (len(chosen) < most or free) and not any(self.screen.same(settings, other) for other in chosen):
                chosen.append(settings)
        return chosen

    def _final_jobs(self, most: int = MOST_REPLICATIONS) -> Iterator[Job]:
        """Seed by seed, so that whatever is finished is paired; without those that were shown to be worse."""
        for index, seed in enumerate(self.state.final_seeds[:most]):
            entrants, standing = self.state.race()
            told = standing is not None and standing.decided and verdict_of(self.state) is not Verdict.CANNOT_TELL
            if told and index >= self.final.replications:
                return
            out = [entrants[i] for i, _ in standing.dropped] if standing else []
            alive = [settings for settings in self.state.finalists if settings in entrants and settings not in out]
            for settings in (self.problem.space.today, *(alive or self.state.finalists[:1])):
                yield Job.of(settings, seed, self.final.steps)

    def _contributions(self) -> None:
        """The winner with each change taken back alone: on the final's seeds if there is time, else on the screen's."""
        self.phase = "measuring what each change contributes"
        winner, space = self.state.winner(), self.problem.space
        if winner is None:
            return
        changed = space.changed(winner)
        reverts = [space.retreat(winner, path, 1.0) for path in changed] if len(changed) > 1 else []
        reverts = [settings for settings in reverts if space.admits(settings)]
        seeds = self.state.final_seeds[:3]
        if reverts and self.cost.calls(self.final.steps, self.bench.left_s, self.workers) >= len(reverts) * len(seeds):
            self.bench.drive(Job.of(settings, seed, self.final.steps) for seed in seeds for settings in reverts)
        else:
            self._try([winner, *reverts], self.bench.deadline, SCREEN_SEEDS)

    def _ends(self) -> None:
        """Knobs that have made no difference yet at their far end, alone: where that is none either, they are dead.

        Briefly, for equal runs are equal from the first moment on.
        """
        self.phase = "looking for knobs that do nothing"
        winner, space = self.state.winner(), self.problem.space
        hubs = [space.today, *([winner] if winner else [])]
        alive = {path for path, seen in differences(self.state, winner).items() if any(differs for _, differs in seen)}
        still = [knob for knob in space.knobs if knob.path not in alive]
        seed, steps = self.screen.wide_seeds[0], self.screen.wide_steps
        ends = [pair for knob in still for pair in far_ends(space, hubs[-1:], knob) or far_ends(space, hubs, knob)]
        jobs = [Job.of(settings, seed, steps) for pair in ends for settings in pair]
        self.bench.drive(iter(dict.fromkeys(jobs)), until=self.bench.crew.now() + ENDS_SHARE * self.bench.left_s)

    def _asks_of_inputs(self) -> bool:
        asked = self.promise.budget_s >= SENSITIVE_FROM_S if self.sensitivity is None else self.sensitivity
        return asked and bool(self.problem.inputs)

    def _sensitivity(self) -> None:
        """Today's settings, the answer and its rivals, with each input off, one at a time."""
        winner, inputs = self.state.winner(), self.problem.inputs
        if winner is None or not self._asks_of_inputs():
            return
        self.phase = "asking what becomes of it when inputs are off"
        seconds = self.bench.left_s
        settings = [self.problem.space.today, winner, *rivals(self.state, winner)]
        wanted = len(settings) * (2 * len(inputs) + 1)
        shorter = [steps for steps in lengths(self.honest_steps) if steps <= self.state.final_steps]
        fitting = (steps for steps in shorter if self.cost.calls(steps, seconds, self.workers) >= wanted)
        self.state.off_steps = next(fitting, shorter[-1])
        order = ranked(inputs, winner, self.problem.by_hand)
        seeds = self.state.final_seeds[:OFF_SEEDS]
        self.bench.drive(sensitivity_jobs(order, settings, seeds, self.state.off_steps))

    def _flatness(self) -> None:
        """Each knob away from the winner's value, alone, until it costs something."""
        self.phase = "seeing how flat it is round the answer"
        winner, space = self.state.winner(), self.problem.space
        if winner is None:
            return
        probes = 2 * len(space.knobs)
        for seeds, steps in (
            (self.state.final_seeds[:3], self.final.steps),
            (self.state.final_seeds[:2], self.final.steps),
            (self.screen.seeds[:1], self.screen.steps),
            (self.screen.wide_seeds[:1], self.screen.wide_steps),
        ):
            if self.cost.calls(steps, self.bench.left_s, self.workers) >= 2 * probes * len(seeds):
                break
        self.bench.drive(Job.of(winner, seed, steps) for seed in seeds)
        for wave in outwards(self.state, winner):
            self.bench.drive(Job.of(settings, seed, steps) for settings in wave for seed in seeds)
