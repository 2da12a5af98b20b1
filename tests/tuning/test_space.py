from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from standin import KNOBS, TODAY, admit

from harness.core.errors import ConfigError
from harness.core.knobs import Knob, KnobKind, Scale
from harness.tuning.space import SearchKnob, Space, search_knobs

PROFILE = settings(derandomize=True, deadline=None, max_examples=60)

todays = st.fixed_dictionaries(
    {
        "pipeline.max_staleness": st.integers(0, 12),
        "pipeline.pipeline_depth": st.integers(0, 12),
        "pipeline.steps_per_sync": st.integers(1, 12),
        "pipeline.max_inflight": st.integers(0, 5000),
        "pipeline.buffer_capacity": st.integers(0, 5000),
    }
)


def space_of(today: dict[str, int]) -> Space:
    return Space(search_knobs(KNOBS, today), admit)


@PROFILE
@given(todays)
def test_a_grid_is_ascending_within_what_is_allowed_and_holds_today(today: dict[str, int]) -> None:
    by_path = {knob.path: knob for knob in KNOBS}
    for knob in search_knobs(KNOBS, today):
        assert list(knob.values) == sorted(set(knob.values))
        assert today[knob.path] in knob.values
        assert by_path[knob.path].low <= knob.values[0] <= knob.values[-1] <= by_path[knob.path].high
        assert len(knob.values) <= 20
        assert knob.values[knob.start] == knob.today


@PROFILE
@given(todays)
def test_corners_are_admitted_and_differ_from_today(today: dict[str, int]) -> None:
    space = space_of(today)
    for corner in space.corners():
        assert corner != today
        admit(corner)


@PROFILE
@given(todays, st.integers(0, 1000), st.sampled_from([0.0, 0.3, 0.5, 1.0]))
def test_retreats_move_one_knob_towards_today_and_arrive(today: dict[str, int], seed: int, share: float) -> None:
    space = space_of(today)
    drawn = space.draw(random.Random(seed))
    for knob in space.knobs:
        here, away = drawn, abs(knob.position(drawn[knob.path]) - knob.start)
        for _ in range(away):
            there = space.retreat(here, knob.path, share)
            assert {path for path in there if there[path] != here[path]} == {knob.path}
            nearer = abs(knob.position(there[knob.path]) - knob.start)
            assert nearer < away
            here, away = there, nearer
            if away == 0:
                break
        assert here[knob.path] == today[knob.path]


def test_a_ceiling_leaves_nothing_above_it() -> None:
    knob = SearchKnob("pipeline.max_staleness", (0, 1, 2, 4, 8), 4)
    assert knob.below(3).values == (0, 1, 2)
    with pytest.raises(ConfigError, match="no value left"):
        SearchKnob("pipeline.max_staleness", (1, 2), 1).below(0)


def test_automatic_has_a_scale_where_one_is_given_and_powers_of_four_where_not() -> None:
    knob = Knob("pipeline.max_inflight", KnobKind.INT, 0, "x", low=0, high=10_000, scale=Scale.LOG)
    (guessed,) = search_knobs([knob], {knob.path: 0})
    (told,) = search_knobs([knob], {knob.path: 0}, scale_of={knob.path: 100})
    assert guessed.values == (0, 1, 4, 16, 64, 256, 1024, 4096)
    assert told.values == (0, 25, 50, 75, 100, 150, 200, 300, 400)


def test_a_knob_that_the_pipeline_does_not_have_is_left_out() -> None:
    assert [knob.name for knob in search_knobs(KNOBS[:2], TODAY)] == ["max_staleness", "pipeline_depth"]
