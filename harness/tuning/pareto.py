"""What cannot be had at once: kept groups per chip-second against lag, cost and waste.

A setting is on the front when no other is at least as good in all four and better in one. Finalists stand there with their
fresh seeds; what was only screened stands there too, marked, for the best of many noisy trials looks better than it is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from harness.analysis.statistics import Interval
from harness.tuning.measured import gain
from harness.tuning.result import Point

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from harness.analysis.summary import RunSummary
    from harness.tuning.space import Settings
    from harness.tuning.state import State

MOST_POINTS = 60
"""Points that are reported: the whole front, then those with the largest gain."""


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
    n = len(after)
    return Point(
        settings=changed,
        gain=gain(before, after) if changed else Interval(0.0, 0.0, 0.0, 0.0, n),
        kept_groups_per_chip_s=sum(run.kept_groups_per_chip_s for run in after) / n,
        lag_p95=sum(run.lag_p95 for run in after) / n,
        lag_max=max(run.lag_max for run in after),
        usd_per_1000_groups=sum(run.usd_per_1000_groups for run in after) / n,
        waste_share=sum(run.share("discarded") for run in after) / n,
        idle_share=sum(run.idle_share for run in after) / n,
        on_front=False,
        replications=n,
        learner_steps=min(run.learner_steps for run in after),
        fresh=fresh,
    )


def marked(found: Iterable[Point], most: int = MOST_POINTS) -> tuple[Point, ...]:
    """The points with the front marked, the front first; at most so many besides it.

    Of points that are equal in all four only the one that changes least is on the front.
    """
    rest = sorted(found, key=lambda point: (len(point.settings), not point.fresh, -point.gain.mean))
    front: list[Point] = []
    for point in rest:
        if not any(dominates(other, point) for other in rest) and not any(_goods(other) == _goods(point) for other in front):
            front.append(point)
    others = [point for point in rest if not any(point is one for one in front)]
    front.sort(key=lambda point: (point.lag_p95, -point.gain.mean))
    others.sort(key=lambda point: -point.gain.mean)
    kept = others[: max(0, most - len(front))]
    kept += [point for point in others[len(kept) :] if not point.settings]  # today's is always there
    return (*(replace(point, on_front=True) for point in front), *kept)


def dominates(one: Point, other: Point) -> bool:
    """Whether it is at least as good in gain, lag, cost and waste, and better in one."""
    a, b = _goods(one), _goods(other)
    return a != b and all(x >= y for x, y in zip(a, b, strict=True))


def _goods(point: Point) -> tuple[float, float, float, float]:
    """The four, more of each is better."""
    return point.gain.mean, -point.lag_p95, -point.usd_per_1000_groups, -point.waste_share
