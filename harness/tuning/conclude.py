"""From finished simulations to an answer.

The winner is named only when its paired interval, widened for having chosen among the finalists, excludes no gain and its
mean gain is worth having. Among finalists that cannot be told apart from the best by more than the indifference zone, the
one with the least lag is named, then the one that changes least.
"""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING

from harness.analysis.statistics import simultaneous
from harness.tuning.around import contributions, dead_knobs, flatness
from harness.tuning.bench import Job
from harness.tuning.measured import HONEST_STEPS, gain, idle_change, improvement, measure
from harness.tuning.pareto import points
from harness.tuning.result import Alternative, Effort, TuneResult, Verdict, toml_patch
from harness.tuning.screen import score
from harness.tuning.sensitivity import sensitivities
from harness.tuning.space import as_fields
from harness.tuning.wording import bottleneck, percent, settings_in_words

if TYPE_CHECKING:
    from harness.analysis.statistics import Interval
    from harness.analysis.summary import RunSummary
    from harness.tuning.measured import Measured
    from harness.tuning.result import Objective
    from harness.tuning.space import Settings
    from harness.tuning.state import State

UNSETTLED = 0.1
"""More chip time than this made work that is still in flight, compared with today: stocks are still filling, and the window
does not show the rate that lasts."""

BOUND_GRAIN = 0.01
"""A rate above a firm bound by less than this share is the rounding of the closed forms."""

FEWEST_PAIRS = 3
"""Pairs below which an answer is provisional: with two, one lucky pair can carry it."""


def conclude(state: State, budget_s: float, wall_s: float) -> TuneResult:
    """The answer, from whatever is finished. At least one simulation of today's settings is."""
    winner = state.winner()
    proven = winner is not None
    if winner is not None:
        before, after = state.pairs(winner)
    else:
        before, after = _from_screen(state)
        winner = _screen_leader(state) if after else None
    before = before or any_baseline(state)
    confidence = simultaneous(max(1, len(state.finalists)), 1 - state.error)
    gained = gain(before, after, confidence) if after else None
    idle = idle_change(before, after, confidence) if after else None
    baseline, best = measure(before), measure(after) if after else None
    better = improvement(state.objective, before, after, confidence) if after and proven else None
    elimination = state.elimination()
    verdict = _verdict(state, before, better)
    unsettled = best is not None and best.share("in_flight") - baseline.share("in_flight") > UNSETTLED
    lucky = best is not None and winner is not None and _above_its_bound(state, winner, best)
    short = baseline.learner_steps < HONEST_STEPS or baseline.replications < FEWEST_PAIRS
    changed = state.problem.space.changed(winner) if winner else {}
    return TuneResult(
        scenario=state.problem.scenario,
        verdict=verdict,
        provisional=short or unsettled or lucky or not proven,
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
        contributions=contributions(state, winner) if winner else (),
        dead_knobs=dead_knobs(state, winner),
        alternatives=_alternatives(state, winner, confidence),
        disagreement=_disagreement(state, winner),
        bottleneck=bottleneck(baseline, best),
        notes=_notes(state, proven=proven, unsettled=unsettled, lucky=lucky),
        effort=_effort(state, before, budget_s, wall_s),
        command=_command(state, changed, after or before),
        patch=toml_patch(as_fields(changed)) if verdict in (Verdict.BETTER, Verdict.WITHIN_CEILING) else "",
        indifference=state.indifference,
        flatness=flatness(state, winner) if winner else (),
        by_hand=state.by_hand,
        elimination=elimination,
        points=points(state),
        sensitivity=sensitivities(state, winner) if winner else (),
        inputs=len(state.problem.inputs),
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


def any_baseline(state: State) -> list[RunSummary]:
    """Today's settings at the greatest length that is finished."""
    today = Job.of(state.problem.space.today, 0, 0).key
    done = [job for job in state.bench.runs if job.key == today]
    longest = max(job.steps for job in done)
    return [state.bench.runs[job] for job in sorted(done, key=lambda job: job.seed) if job.steps == longest]


def verdict_of(state: State) -> Verdict:
    """What could be said if the search ended here."""
    winner = state.winner()
    if winner is None:
        return Verdict.CANNOT_TELL
    before, after = state.pairs(winner)
    confidence = simultaneous(max(1, len(state.finalists)), 1 - state.error)
    return _verdict(state, before, improvement(state.objective, before, after, confidence))


def _verdict(state: State, before: list[RunSummary], better: Interval | None) -> Verdict:
    """None of `better`: nothing was compared on fresh seeds."""
    if better is None:
        return Verdict.CANNOT_TELL
    if max(run.lag_max for run in before) > state.ceiling_lag:
        return Verdict.WITHIN_CEILING
    if better.low > 0 and better.mean >= state.indifference:
        return Verdict.BETTER
    if any(rival.high >= 2 * state.indifference for rival in _rivals(state)):
        return Verdict.CANNOT_TELL  # the one that would be named is settled, but not the others
    if better.high <= state.indifference:
        return Verdict.NO_BETTER
    elimination = state.elimination()
    kept = elimination is not None and elimination.decided and {} in elimination.survivors
    return Verdict.NO_BETTER if kept and better.high < 2 * state.indifference else Verdict.CANNOT_TELL


def _rivals(state: State) -> list[Interval]:
    """How much better each finalist is that was not shown to be worse."""
    race = state.elimination()
    confidence = simultaneous(max(1, len(state.finalists)), 1 - state.error)
    survivors = race.survivors if race is not None else ()
    pairs = [state.pairs(one) for one in state.finalists if state.problem.space.changed(one) in survivors]
    return [improvement(state.objective, before, after, confidence) for before, after in pairs if after]


def _alternatives(state: State, winner: Settings | None, confidence: float) -> tuple[Alternative, ...]:
    found = []
    for settings in state.finalists:
        before, after = state.pairs(settings)
        if settings == winner or not after or winner is None:
            continue
        lag_max = max(run.lag_max for run in after)
        near = abs(state.final_score(settings) - state.final_score(winner)) <= state.indifference
        lag_p95 = sum(run.lag_p95 for run in after) / len(after)
        changed = state.problem.space.changed(settings)
        found.append(
            Alternative(changed, gain(before, after, confidence), lag_p95, lag_max, near and lag_max <= state.ceiling_lag)
        )
    return tuple(found)


def _disagreement(state: State, winner: Settings | None) -> str:
    """What other objectives would choose among the settings that were screened, where that is another setting."""
    if winner is None:
        return ""
    others: tuple[Objective, ...] = ("kept", "idle", "tokens")
    return " ".join(filter(None, (_rival(state, winner, other) for other in others if other != state.objective)))


def _rival(state: State, winner: Settings, other: Objective) -> str:
    screen = state.screen
    # On the first seed alone: it is the one that every setting has, and what one seed shares does not cancel between seeds.
    seeds, today = screen.wide_seeds[:1], state.problem.space.today
    before = state.bench.runs_of(today, seeds, screen.wide_steps)
    known = [(settings, state.bench.runs_of(settings, seeds, screen.wide_steps)) for settings in screen.usable()]
    both = [(score(other, before, runs), score(state.objective, before, runs), settings) for settings, runs in known if runs]
    mine = next((pair for pair in both if pair[2] == winner), None)
    if mine is None:
        return ""
    rival = max(both, key=lambda pair: pair[0])
    better = rival[0] - mine[0]
    if better <= state.indifference or rival[1] > mine[1] - state.indifference:
        return ""
    words = settings_in_words(state.problem.space.changed(rival[2]))
    price = {"kept": "fewer kept groups", "idle": "more idle chips", "tokens": "fewer trained tokens"}[state.objective]
    if other == "idle":
        return f"By idle share alone, {words} would win: {percent(better)} less idle in the screen, and {price}."
    rate = "kept groups" if other == "kept" else "trained tokens"
    return f"By {rate} per chip-second, {words} would win: {percent(math.expm1(better))} more in the screen, and {price}."


def _above_its_bound(state: State, winner: Settings, best: Measured) -> bool:
    """Whether a rate was measured that cannot last: groups that were nearly finished before the window came out in it."""
    if state.problem.by_hand is None:
        return False
    return best.kept_groups_per_chip_s.mean > (1 + BOUND_GRAIN) * state.problem.by_hand(winner).bound


def _notes(state: State, *, proven: bool, unsettled: bool, lucky: bool) -> tuple[str, ...]:
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
    if lucky:
        notes.append(
            "The rate found is above what closed forms allow in the long run: work done before the window came out in it, so "
            "that the gain is not yet that of a long run. Raise run.learner_steps."
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
        screen_steps=screen.wide_steps,
        screen_seeds=screen.wide_seeds,
        final_steps=state.final_steps,
        final_seeds=tuple(run.seed for run in before),
        warmup_steps=before[0].warmup_steps if before else state.problem.warmup_steps,
        workers=state.workers,
    )


def _command(state: State, changed: Settings, runs: list[RunSummary]) -> str:
    """The command that simulates the answer on the seeds that are reported."""
    sets = as_fields(changed)
    if runs[0].learner_steps != state.problem.learner_steps:
        sets["run.learner_steps"] = runs[0].learner_steps
    if runs[0].warmup_steps != state.problem.warmup_steps:
        sets["run.warmup_steps"] = runs[0].warmup_steps
    words = [f"--set {shlex.quote(f'{path}={value}')}" for path, value in sets.items()]
    return " ".join(["harness simulate", state.problem.source, *words, f"--seed {runs[0].seed}", f"--replications {len(runs)}"])
