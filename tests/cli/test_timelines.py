"""Timelines: whole windows, whole lanes, and none where there is no time."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

import harness
from harness.timelines import MOST_LANES, _columns, before_and_after, step_timeline

SMALL = ("pipeline.group_size=2", "pipeline.groups_per_step=2", "pipeline.max_inflight=8", "pipeline.buffer_capacity=8")


@pytest.fixture(scope="module")
def scenario():
    return harness.load("scenarios/fully_async.toml", overrides=SMALL)


def test_the_spans_of_each_lane_fill_the_window_without_overlap(scenario):
    told = step_timeline(scenario, 3)
    assert told.length_s > 0
    assert told.lanes[0] == "learner"
    assert 1 <= len(told.lanes) <= MOST_LANES
    for lane in told.lanes:
        spans = [span for span in told.spans if span.lane == lane]
        assert spans[0].start_s == 0.0
        assert math.isclose(spans[-1].end_s, told.length_s)
        assert all(left.end_s == right.start_s for left, right in zip(spans, spans[1:], strict=False))


def test_a_seed_gives_one_timeline(scenario):
    assert step_timeline(scenario, 3) == step_timeline(scenario, 3)


def test_columns_keep_the_window_and_what_fills_most(scenario):
    slivers = [(i, i + 1, i % 3 == 0) for i in range(9000)]
    told = _columns(slivers, 0, 9000)
    assert (told[0][0], told[-1][1]) == (0, 9000)
    assert {state for *_, state in told} == {False}


def test_none_is_made_where_no_time_is_left_or_nothing_changes(scenario):
    effort = SimpleNamespace(evaluations=10, screen_steps=5, wall_s=10.0, workers=2, final_seeds=(1,))
    changed = {"pipeline.steps_per_sync": 2}
    result = SimpleNamespace(settings=changed, changed=changed, effort=effort)
    assert before_and_after(scenario, result, 0.1, clock=lambda: 0.0) == ()
    assert before_and_after(scenario, SimpleNamespace(settings=changed, changed={}, effort=effort), 1e9) == ()
    assert len(before_and_after(scenario, result, 1e9, clock=lambda: 0.0)) == 2
