"""What cannot be had at once: kept groups per chip-second against lag, cost and waste.

A setting is on the front when no other is at least as good in all four and better in one. Finalists stand there with their
fresh seeds; what was only screened stands there too, marked, for the best of many noisy trials looks better than it is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from harness.analysis import money
from harness.analysis.statistics import Interval
from harness.core.units import NS_PER_S
from harness.tuning.measured import gain
from harness.tuning.result import Point

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from harness.analysis.summary import RunSummary
    from harness.tuning.space import Settings
    from harness.tuning.state import State

MOST_POINTS = 60
"""Points that are reported: the whole front, then those that miss it by the least."""


def points(state: State) -> tuple[Point, ...]:
    """Every setting that was compared with today's, and whether it is on the front; the front first, then by gain."""
    space, screen = state.problem.space, state.screen
    found = []
    today = state.final_runs(space.today) or state.bench.runs_of(space.today, screen.wide_seeds, screen.wide_steps)
    if today:
        found.append(_point({}, today, today, fresh=bool(state.final_runs(space.today))))
    for settings in state.finalists:
        before, after = state.pairs(settings)
        if after:
            found.append(_point(space.changed(settings), before, after, fresh=True))
    for settings in screen.usable():
        if settings in state.finalists or settings == space.today:
            continue
        before, after = _screened(state, settings)
        if after:
            found.append(_point(space.changed(settings), before, after, fresh=False))
    return marked(found)


def _screened(state: State, settings: Settings) -> tuple[list[RunSummary], list[RunSummary]]:
    screen, bench = state.screen, state.bench
    seeds, steps = screen.wide_seeds, screen.wide_steps
    before, after = bench.runs_of(state.problem.space.today, seeds, steps), bench.runs_of(settings, seeds, steps)
    n = min(len(before), len(after))
    return before[:n], after[:n]


def _point(changed: Settings, before: Sequence[RunSummary], after: Sequence[RunSummary], *, fresh: bool) -> Point:
    n, chip_ns = len(after), sum(run.chip_total_ns for run in after)
    return Point(
        settings=changed,
        gain=gain(before, after) if changed else Interval(0.0, 0.0, 0.0, 0.0, n),
        kept_groups_per_chip_s=sum(run.groups for run in after) * NS_PER_S / chip_ns,
        lag_p95=sum(run.lag_p95 for run in after) / n,
        lag_max=max(run.lag_max for run in after),
        usd_per_1000_groups=money.per_thousand(after, [run.groups for run in after]),
        waste_share=sum(run.share("discarded") * run.chip_total_ns for run in after) / chip_ns,
        idle_share=sum(run.idle_share * run.chip_total_ns for run in after) / chip_ns,
        on_front=False,
        replications=n,
        learner_steps=min(run.learner_steps for run in after),
        fresh=fresh,
    )


def marked(found: Iterable[Point], most: int = MOST_POINTS) -> tuple[Point, ...]:
    """The points with the front marked, the front first; as many others as there is room for, and today's always.

    Of points that are equal in all four only the one that changes least is on the front.
    """
    rest = sorted(found, key=lambda point: (len(point.settings), not point.fresh, -point.gain.mean))
    front: list[Point] = []
    for point in rest:
        if not any(dominates(other, point) for other in rest) and not any(_goods(other) == _goods(point) for other in front):
            front.append(point)
    others = [point for point in rest if not any(point is one for one in front)]
    front.sort(key=lambda point: (point.lag_p95, -point.gain.mean))
    spans = [max(column) - min(column) or 1.0 for column in zip(*map(_goods, rest), strict=True)]
    others.sort(key=lambda point: (_missed_by(point, front, spans), -point.gain.mean))
    room = max(0, most - len(front))
    kept = [point for i, point in enumerate(others) if i < room or not point.settings]
    kept.sort(key=lambda point: -point.gain.mean)
    return (*(replace(point, on_front=True) for point in front), *kept)


def dominates(one: Point, other: Point) -> bool:
    """Whether it is at least as good in gain, lag, cost and waste, and better in one."""
    a, b = _goods(one), _goods(other)
    return a != b and all(x >= y for x, y in zip(a, b, strict=True))


def _missed_by(point: Point, front: Sequence[Point], spans: Sequence[float]) -> float:
    """By how much all four would have to be better, as shares of what they span, until nothing dominated it."""
    mine = _goods(point)
    beaten = [
        min((theirs - own) / span for theirs, own, span in zip(_goods(other), mine, spans, strict=True))
        for other in front
        if dominates(other, point)
    ]
    return max(beaten, default=0.0)


def _goods(point: Point) -> tuple[float, float, float, float]:
    """The four, more of each is better."""
    return point.gain.mean, -point.lag_p95, -point.usd_per_1000_groups, -point.waste_share
