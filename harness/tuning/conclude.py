"""From finished simulations to an answer.

The winner is named only when its paired interval, widened for having chosen among the finalists, excludes no gain and its
mean gain is worth having. Among finalists that cannot be told apart from the best by more than the indifference zone, the
one with the least lag is named, then the one that changes least.
"""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.analysis.statistics import simultaneous
from harness.tuning.bench import Job
from harness.tuning.measured import HONEST_STEPS, gain, idle_change, measure
from harness.tuning.result import INDIFFERENCE, Alternative, Contribution, Effort, TuneResult, Verdict, toml_patch
from harness.tuning.screen import score
from harness.tuning.wording import bottleneck, percent, settings_in_words

if TYPE_CHECKING:
    from harness.analysis.statistics import Interval
    from harness.analysis.summary import RunSummary
    from harness.tuning.bench import Bench
    from harness.tuning.result import Objective
    from harness.tuning.screen import Screen
    from harness.tuning.search import Problem
    from harness.tuning.space import Settings

LAG_GRAIN = 0.25
"""Lags that differ by less than this many optimizer steps are not a reason to prefer one setting."""

UNSETTLED = 0.1
"""More chip time than this made work that is still in flight, compared with today: stocks are still filling, and the window
does not show the rate that lasts."""

FEWEST_PAIRS = 3
"""Pairs below which an answer is provisional: with two, one lucky pair can carry it."""


@dataclass(slots=True)
class State:
    """What a search has so far."""

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

    def winner(self) -> Settings | None:
        """The setting to name: the least lag among those that the best finalist does not beat; None without a pair."""
        scores = [(self.final_score(settings), settings) for settings in self.finalists]
        usable = [(value, settings) for value, settings in scores if value > -math.inf]
        if not usable:
            return None
        best = max(value for value, _ in usable)
        near = [settings for value, settings in usable if value >= best - INDIFFERENCE and (value > 0 or value == best)]
        least = min(self._lag_of(settings) for settings in near)
        young = [settings for settings in near if self._lag_of(settings) <= least + LAG_GRAIN]
        changed = self.problem.space.changed
        return min(young, key=lambda settings: (len(changed(settings)), -self.final_score(settings)))

    def _lag_of(self, settings: Settings) -> float:
        runs = self.pairs(settings)[1]
        return sum(run.lag_p95 for run in runs) / len(runs)


def conclude(state: State, budget_s: float, wall_s: float) -> TuneResult:
    """The answer, from whatever is finished. At least one simulation of today's settings is."""
    winner = state.winner()
    proven = winner is not None
    if winner is not None:
        before, after = state.pairs(winner)
    else:
        before, after = _from_screen(state)
        winner = _screen_leader(state) if after else None
    before = before or _any_baseline(state)
    confidence = simultaneous(max(1, len(state.finalists)))
    gained = gain(before, after, confidence) if after else None
    idle = idle_change(before, after, confidence) if after else None
    baseline, best = measure(before), measure(after) if after else None
    verdict = _verdict(state, before, gained, idle, proven=proven)
    unsettled = best is not None and best.share("in_flight") - baseline.share("in_flight") > UNSETTLED
    short = baseline.learner_steps < HONEST_STEPS or baseline.replications < FEWEST_PAIRS
    changed = state.problem.space.changed(winner) if winner else {}
    return TuneResult(
        scenario=state.problem.scenario,
        verdict=verdict,
        provisional=short or unsettled or not proven,
        interrupted=state.interrupted,
        objective=state.objective,
        ceiling_lag=state.ceiling_lag,
        ceiling_given=state.ceiling_given,
        today=state.problem.space.today,
        baseline=baseline,
        settings=winner,
        best=best,
        gain=gained,
        idle_change=idle,
        contributions=_contributions(state, winner) if winner else (),
        dead_knobs=_dead_knobs(state, winner),
        alternatives=_alternatives(state, winner, confidence),
        disagreement=_disagreement(state, winner),
        bottleneck=bottleneck(baseline, best),
        notes=_notes(state, proven=proven, unsettled=unsettled),
        effort=_effort(state, before, budget_s, wall_s),
        command=_command(state, changed, after or before),
        patch=toml_patch(changed) if verdict in (Verdict.BETTER, Verdict.WITHIN_CEILING) else "",
    )


def _screen_leader(state: State) -> Settings | None:
    ranking = state.screen.ranking()
    return state.leader or (ranking[0].settings if ranking else None)


def _from_screen(state: State) -> tuple[list[RunSummary], list[RunSummary]]:
    leader = _screen_leader(state)
    if leader is None:
        return [], []
    screen = state.screen
    before = state.bench.runs_of(state.problem.space.today, screen.seeds, screen.steps)
    after = state.bench.runs_of(leader, screen.seeds, screen.steps)
    n = min(len(before), len(after))
    return before[:n], after[:n]


def _any_baseline(state: State) -> list[RunSummary]:
    """Today's settings at the greatest length that is finished."""
    today = Job.of(state.problem.space.today, 0, 0).key
    done = [job for job in state.bench.runs if job.key == today]
    longest = max(job.steps for job in done)
    return [state.bench.runs[job] for job in sorted(done, key=lambda job: job.seed) if job.steps == longest]


def _verdict(
    state: State, before: list[RunSummary], gained: Interval | None, idle: Interval | None, *, proven: bool
) -> Verdict:
    if gained is None or idle is None or not proven:
        return Verdict.CANNOT_TELL
    if max(run.lag_max for run in before) > state.ceiling_lag:
        return Verdict.WITHIN_CEILING
    low, mean, high = (
        (gained.low, gained.mean, gained.high) if state.objective == "kept" else (-idle.high, -idle.mean, -idle.low)
    )
    if low > 0 and mean >= INDIFFERENCE:
        return Verdict.BETTER
    return Verdict.NO_BETTER if high < 2 * INDIFFERENCE else Verdict.CANNOT_TELL


def _contributions(state: State, winner: Settings) -> tuple[Contribution, ...]:
    space = state.problem.space
    found = []
    for path, value in space.changed(winner).items():
        revert = space.retreat(winner, path, 1.0)
        before, after = _comparison(state, revert, winner)
        worth = gain(before, after) if after else None
        steps = after[0].learner_steps if after else 0
        found.append(Contribution(path, space.today[path], value, worth, steps, needed=not space.admits(revert)))
    return tuple(found)


def _comparison(state: State, one: Settings, other: Settings) -> tuple[list[RunSummary], list[RunSummary]]:
    """Both on the same seeds: the final's where two or more are there, else the screen's."""
    for seeds, steps, fewest in (
        (state.final_seeds, state.final_steps, 2),
        (state.screen.seeds, state.screen.steps, 1),
    ):
        a, b = state.bench.runs_of(one, seeds, steps), state.bench.runs_of(other, seeds, steps)
        n = min(len(a), len(b))
        if n >= fewest:
            return a[:n], b[:n]
    return [], []


def _dead_knobs(state: State, winner: Settings | None) -> tuple[str, ...]:
    """Knobs that gave the very same replication wherever two settings differed in them alone."""
    alive, seen = set[str](), set[str]()
    jobs = list(state.bench.runs)
    hubs = [state.problem.space.today, *([winner] if winner else [])]
    for hub in hubs:
        for job in jobs:
            other = job.settings
            apart = [path for path in other if other[path] != hub[path]]
            twin = state.bench.runs.get(Job.of(hub, job.seed, job.steps))
            if len(apart) == 1 and twin is not None:
                seen.add(apart[0])
                if twin != state.bench.runs[job]:
                    alive.add(apart[0])
    return tuple(knob.path for knob in state.problem.space.knobs if knob.path in seen - alive)


def _alternatives(state: State, winner: Settings | None, confidence: float) -> tuple[Alternative, ...]:
    found = []
    for settings in state.finalists:
        before, after = state.pairs(settings)
        if settings == winner or not after or winner is None:
            continue
        lag_max = max(run.lag_max for run in after)
        near = abs(state.final_score(settings) - state.final_score(winner)) <= INDIFFERENCE
        lag_p95 = sum(run.lag_p95 for run in after) / len(after)
        changed = state.problem.space.changed(settings)
        found.append(
            Alternative(changed, gain(before, after, confidence), lag_p95, lag_max, near and lag_max <= state.ceiling_lag)
        )
    return tuple(found)


def _disagreement(state: State, winner: Settings | None) -> str:
    """What the other objective would choose among the settings that were screened, if it is another setting."""
    if winner is None:
        return ""
    screen = state.screen
    other: Objective = "idle" if state.objective == "kept" else "kept"
    # On the first seed alone: it is the one that every setting has, and what one seed shares does not cancel between seeds.
    seeds, today = screen.seeds[:1], state.problem.space.today
    before = state.bench.runs_of(today, seeds, screen.steps)
    known = [(settings, state.bench.runs_of(settings, seeds, screen.steps)) for settings in screen.usable()]
    both = [(score(other, before, runs), score(state.objective, before, runs), settings) for settings, runs in known if runs]
    mine = next((pair for pair in both if pair[2] == winner), None)
    if mine is None:
        return ""
    rival = max(both, key=lambda pair: pair[0])
    better = rival[0] - mine[0]
    if better <= INDIFFERENCE or rival[1] > mine[1] - INDIFFERENCE:
        return ""
    words = settings_in_words(state.problem.space.changed(rival[2]))
    if other == "idle":
        return f"By idle share alone, {words} would win: {percent(better)} less idle in the screen, and fewer kept groups."
    more = percent(math.expm1(better))
    return f"By kept groups per chip-second, {words} would win: {more} more in the screen, and more idle chips."


def _notes(state: State, *, proven: bool, unsettled: bool) -> tuple[str, ...]:
    bench, notes = state.bench, []
    if state.interrupted:
        notes.append("Interrupted: this is what was finished.")
    if not proven and state.screen.candidates:
        notes.append("Not compared on fresh seeds, for want of time: the figures are the screen's, whose best looks too good.")
    if unsettled:
        notes.append(
            "The runs are too short for so deep a pipeline: with the settings found, much of the work made is still in flight "
            "at the end, so that the gain is not yet that of a long run. Raise run.warmup_steps and run.learner_steps."
        )
    if not state.screen.candidates:
        notes.append("No other setting was tried: one simulation takes too much of the budget, or the ranges leave no other.")
    if bench.cut:
        notes.append(f"{len(bench.cut)} simulations were cut off, because they would have broken the promise of time.")
    broken = [failure for failure in bench.failures.values() if failure.kind != "CutOff"]
    if broken:
        notes.append(f"{len(broken)} simulations failed and were left out; the first: {broken[0].kind}: {broken[0].message}")
    return tuple(notes)


def _effort(state: State, before: list[RunSummary], budget_s: float, wall_s: float) -> Effort:
    bench, screen = state.bench, state.screen
    failed = {job.key for job, failure in bench.failures.items() if failure.kind != "CutOff"}
    return Effort(
        budget_s=budget_s,
        wall_s=wall_s,
        evaluations=len(bench.runs),
        candidates=screen.candidates,
        refused=screen.refused,
        over_ceiling=len(screen.over_ceiling),
        failed=len(failed),
        cut_off=len(bench.cut),
        screen_steps=screen.steps,
        screen_seeds=screen.seeds,
        final_steps=state.final_steps,
        final_seeds=tuple(run.seed for run in before),
        warmup_steps=before[0].warmup_steps if before else state.problem.warmup_steps,
        workers=state.workers,
    )


def _command(state: State, changed: Settings, runs: list[RunSummary]) -> str:
    """The command that simulates the answer on the seeds that are reported."""
    sets = dict(changed)
    if runs[0].learner_steps != state.problem.learner_steps:
        sets["run.learner_steps"] = runs[0].learner_steps
    if runs[0].warmup_steps != state.problem.warmup_steps:
        sets["run.warmup_steps"] = runs[0].warmup_steps
    words = [f"--set {shlex.quote(f'{path}={value}')}" for path, value in sets.items()]
    return " ".join(["harness simulate", state.problem.source, *words, f"--seed {runs[0].seed}", f"--replications {len(runs)}"])
