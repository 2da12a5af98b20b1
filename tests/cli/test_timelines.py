"""Timelines: whole windows, whole lanes, and none where there is no time."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

import harness
from harness.timelines import MOST_LANES, _columns, before_and_after, step_timeline
from harness.tuning.result import Effort

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
        assert all(left.end_s == right.start_s for left, right in pairwise(spans))


def test_a_seed_gives_one_timeline(scenario):
    assert step_timeline(scenario, 3) == step_timeline(scenario, 3)


def test_columns_keep_the_window_and_what_fills_most(scenario):
    slivers = [(i, i + 1, i % 3 == 0) for i in range(9000)]
    told = _columns(slivers, 0, 9000)
    assert (told[0][0], told[-1][1]) == (0, 9000)
    assert {state for *_, state in told} == {False}


def test_none_is_made_where_no_time_is_left_or_nothing_changes(scenario):
    effort = Effort(10, 10, 10, 3, 0, 0, 0, 0, 5, (1,), 20, (1, 2), 3, 2)
    changed = {"pipeline.steps_per_sync": 2}
    assert before_and_after(scenario, changed, effort, 0.1, clock=lambda: 0.0) == ()
    assert before_and_after(scenario, {}, effort, 1e9, clock=lambda: 0.0) == ()
    assert [one.steps for one in before_and_after(scenario, changed, effort, 1e9, clock=lambda: 0.0)] == [1, 2]
