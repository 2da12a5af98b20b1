"""What lies round the answer, one knob at a time: what each change is worth, how flat it is, and which knobs do nothing.

All comparisons are paired by seed, on the seeds of the final where there are enough, else on those of the screen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.tuning.bench import Job
from harness.tuning.measured import gain
from harness.tuning.result import WITHIN, Contribution, Flatness
from harness.tuning.screen import score

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.analysis.summary import RunSummary
    from harness.tuning.space import SearchKnob, Settings, Space, Value
    from harness.tuning.state import State


def contributions(state: State, winner: Settings) -> tuple[Contribution, ...]:
    """What each changed knob adds: the winner against itself with that change taken back."""
    space = state.problem.space
    found = []
    for path, value in space.changed(winner).items():
        revert = space.retreat(winner, path, 1.0)
        before, after = comparison(state, revert, winner)
        worth = gain(before, after) if after else None
        steps = after[0].learner_steps if after else 0
        found.append(Contribution(path, space.today[path], value, worth, steps, needed=not space.admits(revert)))
    return tuple(found)


def comparison(state: State, one: Settings, other: Settings) -> tuple[list[RunSummary], list[RunSummary]]:
    """Both on the same seeds: the final's where two or more are there, else the screen's, the longest first."""
    screen = state.screen
    for seeds, steps, fewest in (
        (state.final_seeds, state.final_steps, 2),
        (screen.seeds, screen.steps, 1),
        (screen.wide_seeds, screen.wide_steps, 1),
    ):
        a, b = state.bench.runs_of(one, seeds, steps), state.bench.runs_of(other, seeds, steps)
        n = min(len(a), len(b))
        if n >= fewest:
            return a[:n], b[:n]
    return [], []


def alone(space: Space, hub: Settings, knob: SearchKnob) -> dict[int, Settings]:
    """The admitted settings in which nothing but this knob differs from `hub`, by position in its grid."""
    others = {i: hub | {knob.path: value} for i, value in enumerate(knob.values) if value != hub[knob.path]}
    return {i: settings for i, settings in others.items() if space.admits(settings)}


def far_end(space: Space, hub: Settings, knob: SearchKnob) -> Settings | None:
    """The admitted value that is furthest away in the grid, all else as in `hub`; None where the knob cannot move alone."""
    here, reach = knob.position(hub[knob.path]), alone(space, hub, knob)
    return reach[max(reach, key=lambda i: (abs(i - here), i))] if reach else None


def far_ends(space: Space, hubs: list[Settings], knob: SearchKnob) -> list[tuple[Settings, Settings]]:
    """Hub and far end, round each hub in which the knob can move alone."""
    ends = [(hub, far_end(space, hub, knob)) for hub in hubs]
    return [(hub, end) for hub, end in ends if end is not None]


def dead_knobs(state: State, winner: Settings | None) -> tuple[str, ...]:
    """Knobs that gave the very same replication wherever two settings differed in them alone, at a far end among others."""
    space, known = state.problem.space, differences(state, winner)
    hubs = [space.today, *([winner] if winner else [])]
    far = {
        knob.path
        for knob in space.knobs
        for _, end in far_ends(space, hubs, knob)
        if any(end[knob.path] == value for value, _ in known.get(knob.path, ()))
    }
    return tuple(path for path in (knob.path for knob in space.knobs) if path in far and not any(d for _, d in known[path]))


def differences(state: State, winner: Settings | None) -> dict[str, list[tuple[Value, bool]]]:
    """What was run that differs from today's settings or the winner in one knob alone: its values, and whether runs differ."""
    found: dict[str, list[tuple[Value, bool]]] = {}
    jobs = list(state.bench.runs)
    for hub in (state.problem.space.today, *([winner] if winner else [])):
        for job in jobs:
            other = job.settings
            twin = state.bench.runs.get(Job.of(hub, job.seed, job.steps))
            alike = twin is not None and other.keys() == hub.keys()
            apart = [path for path in other if other[path] != hub[path]] if alike else []
            if len(apart) == 1:
                found.setdefault(apart[0], []).append((other[apart[0]], twin != state.bench.runs[job]))
    return found


def flatness(state: State, winner: Settings) -> tuple[Flatness, ...]:
    """How far each knob may move from the answer, from whatever differs from it in one knob alone."""
    space = state.problem.space
    found = []
    for knob in space.knobs:
        here = winner[knob.path]
        within: dict[int, Value] = {}
        outside: dict[int, Value] = {}
        steps: list[int] = []
        for i, settings in alone(space, winner, knob).items():
            costs = cost_of_moving(state, winner, settings)
            if costs is not None:
                (within if costs[0] <= WITHIN else outside)[i] = knob.values[i]
                steps.append(costs[1])
        if steps:
            within[knob.position(here)] = here
            inside, out = (tuple(part[i] for i in sorted(part)) for part in (within, outside))
            found.append(Flatness(knob.path, here, inside, out, min(steps)))
    return tuple(found)


def cost_of_moving(state: State, winner: Settings, settings: Settings) -> tuple[float, int] | None:
    """What the objective loses with these settings, and the length behind that; None where it is not known.

    A setting over the lag ceiling loses everything.
    """
    before, after = comparison(state, winner, settings)
    if not after:
        return None
    over = max(run.lag_max for run in after) > state.ceiling_lag
    return (float("inf") if over else -score(state.objective, before, after)), min(run.learner_steps for run in after)


def outwards(state: State, winner: Settings) -> Iterator[list[Settings]]:
    """Waves of probes round the answer: the next values each way, then further ones by doubling, until one is outside."""
    space = state.problem.space
    fronts = []
    for knob in space.knobs:
        reach, here = alone(space, winner, knob), knob.position(winner[knob.path])
        fronts.append([reach[i] for i in sorted(i for i in reach if i > here)])
        fronts.append([reach[i] for i in sorted((i for i in reach if i < here), reverse=True)])
    stride = 1
    while any(fronts):
        yield [front[min(stride, len(front)) - 1] for front in fronts if front]
        left = []
        for front in fronts:
            if len(front) > stride:
                costs = cost_of_moving(state, winner, front[stride - 1])
                if costs is not None and costs[0] <= WITHIN:
                    left.append(front)
        fronts, stride = left, 2 * stride
