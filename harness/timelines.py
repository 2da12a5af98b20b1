"""What the chips do from one weight sync to the next: a short recorded run, cut to a window in steady state, as plain data.

A picture of one run, to see why an answer is better. No figure rests on it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.core.lanes import State
from harness.core.units import NS_PER_S
from harness.run import simulate_once
from harness.tuned import with_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from harness.core.events import Event
    from harness.core.lanes import Lane
    from harness.run import PipelineConfig
    from harness.scenario.schema import Scenario
    from harness.tuning.result import Effort
    from harness.tuning.space import Settings

MOST_LANES = 16
"""Chip lanes that are kept; replicas resemble each other."""

COLUMNS = 480
"""A lane is told in this many columns at most, each by what filled most of it: more could not be seen."""

MOST_STEPS = 4
"""Steps in a window, at most: one sync interval up to this, so that a window without its sync does not flatter."""

RECORDING = 1.5
"""How much longer a recorded simulation takes, generously."""


@dataclass(frozen=True, slots=True)
class Span:
    """What one chip lane did for a while; seconds from the start of the window."""

    lane: str
    start_s: float
    end_s: float
    state: State


@dataclass(frozen=True, slots=True)
class Timeline:
    """One sync interval of one simulated run, one optimizer step where weights are sent after each.

    Attributes:
        seed: of the run.
        step: the first step in the window, from 1.
        steps: how many.
        start_s: when the window begins, in seconds since the start of the run.
        length_s: of the window, whole steps.
        steps_per_sync: after how many steps weights are sent.
        lanes: names of the chip lanes shown: the learner's first, then replicas in order.
        left_out: chip lanes that are not.
        spans: by lane, in the order of time; those of a lane add up to the window.

    """

    seed: int
    step: int
    steps: int
    start_s: float
    length_s: float
    steps_per_sync: int
    lanes: tuple[str, ...]
    left_out: int
    spans: tuple[Span, ...]


def step_timeline(scenario: Scenario[PipelineConfig], seed: int, pipeline: str | None = None) -> Timeline:
    """Record few steps, as many as the pipeline takes to fill, and keep the interval of whole steps before the last one.

    Raises:
        TraceError: a law of the run does not hold.
        ActorError: the run did not end.

    """
    config = scenario.pipeline
    steps = config.pipeline_depth + config.steps_per_sync + 3
    window = min(config.steps_per_sync, MOST_STEPS)
    recorder, ended = _LastSteps(window + 2), list[Any]()
    summary = simulate_once(
        scenario, seed, learner_steps=steps, warmup_steps=0, recorder=recorder, at_end=ended.append, pipeline=pipeline
    )
    ends_ns = summary.step_ends_ns
    start_ns, end_ns = ends_ns[-2 - window], ends_ns[-2]
    chips = [lane for lane in ended[0].lanes if lane.chips]
    chips.sort(key=lambda lane: (lane.role != "learner", lane.index))
    shown, rows = chips[:MOST_LANES], recorder.by_lane()
    spans = [
        Span(lane.name, (t0 - start_ns) / NS_PER_S, (t1 - start_ns) / NS_PER_S, state)
        for lane in shown
        for t0, t1, state in _columns(_clipped(rows[lane.index], lane, start_ns, end_ns), start_ns, end_ns)
    ]
    return Timeline(
        seed, len(ends_ns) - window, window, start_ns / NS_PER_S, (end_ns - start_ns) / NS_PER_S, config.steps_per_sync,
        tuple(lane.name for lane in shown), len(chips) - len(shown), tuple(spans),
    )  # fmt: skip


def before_and_after(
    scenario: Scenario[PipelineConfig],
    changed: Settings,
    effort: Effort,
    until_s: float,
    *,
    pipeline: str | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Timeline, ...]:
    """Of today's settings and of the answer's, on the first reported seed; none where there is no answer or no time.

    Args:
        scenario: that was tuned.
        changed: what the answer changes; nothing where there is none.
        effort: of the search: what its simulations took tells whether there is time.
        until_s: when both must be there, by the clock.
        pipeline: `module:build` of a user's own.
        clock: what time it is, in seconds.

    """
    if not changed or not effort.evaluations:
        return ()
    simulated = effort.evaluations * max(1, effort.screen_steps)
    step_s = RECORDING * effort.wall_s * effort.workers / simulated
    seed = effort.final_seeds[0] if effort.final_seeds else scenario.run.seed
    made: list[Timeline] = []
    for settings in ({}, changed):
        tuned = with_settings(scenario, settings)
        steps = tuned.pipeline.pipeline_depth + tuned.pipeline.steps_per_sync + 3
        before = clock()
        if before + steps * step_s > until_s:
            return ()
        made.append(step_timeline(tuned, seed, pipeline))
        step_s = RECORDING * (clock() - before) / steps
    return tuple(made)


class _LastSteps:
    """A recorder that forgets what lies some steps back, and every event."""

    enabled = True

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._rows: list[tuple[int, int, int, int, int]] = []
        self._marks: list[int] = []
        self.append_interval: Callable[[tuple[int, int, int, int, int]], object] = self._rows.append

    def append_event(self, event: Event) -> None:
        """Nothing is kept of it."""

    def spill(self) -> None:
        """A step has ended: what closed before the last few did is forgotten."""
        self._marks.append(len(self._rows))
        if len(self._marks) > self._steps:
            gone = self._marks.pop(0)
            del self._rows[:gone]
            self._marks = [mark - gone for mark in self._marks]

    def by_lane(self) -> dict[int, list[tuple[int, int, int]]]:
        """Intervals in the order of time, by lane."""
        found = defaultdict[int, list[tuple[int, int, int]]](list)
        for t0, t1, lane, state, _ in self._rows:
            found[lane].append((t0, t1, state))
        return found


def _clipped(rows: Iterable[tuple[int, int, int]], lane: Lane, start_ns: int, end_ns: int) -> list[tuple[int, int, State]]:
    """What lies in the window, the lane's open interval included."""
    now = [] if lane.left_ns >= 0 else [(lane.since_ns, max(end_ns, lane.since_ns), int(lane.state))]
    return [
        (max(t0, start_ns), min(t1, end_ns), State(state)) for t0, t1, state in (*rows, *now) if t1 > start_ns and t0 < end_ns
    ]


def _columns(spans: Sequence[tuple[int, int, State]], start_ns: int, end_ns: int) -> list[tuple[int, int, State]]:
    """The same in columns, neighbours of one state joined."""
    merged: list[tuple[int, int, State]] = []
    for t0, t1, state in spans:
        _join(merged, t0, t1, state)
    if len(merged) <= COLUMNS // 4:
        return merged
    width = max(1, -(-(end_ns - start_ns) // COLUMNS))
    filled = defaultdict[int, dict[State, int]](lambda: defaultdict(int))
    for t0, t1, state in merged:
        for column in range((t0 - start_ns) // width, -(-(t1 - start_ns) // width)):
            left = start_ns + column * width
            filled[column][state] += min(t1, left + width) - max(t0, left)
    told: list[tuple[int, int, State]] = []
    for column in sorted(filled):
        left = start_ns + column * width
        by_state = filled[column]
        _join(told, left, min(left + width, end_ns), max(by_state, key=lambda state: by_state[state]))
    return told


def _join(spans: list[tuple[int, int, State]], t0: int, t1: int, state: State) -> None:
    if spans and spans[-1][2] is state and spans[-1][1] == t0:
        spans[-1] = (spans[-1][0], t1, state)
    else:
        spans.append((t0, t1, state))
