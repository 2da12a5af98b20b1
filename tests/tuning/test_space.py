from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from standin import KNOBS, TODAY, admit

from harness.core.errors import ConfigError
from harness.core.knobs import Knob, KnobKind, Scale
from harness.tuning.space import ALL, GROUPS, SearchKnob, Space, as_fields, between, chips_of, grid, search_knobs
from harness.tuning.wishes import wanted
from pipeline.config import deadline_knobs, knobs

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


# ── choices and numbers that are not whole ──────────────────────────────────────────────────────────────────────────────────

MODE = SearchKnob("pipeline.mode", ("drain", "keep", "abort"), "keep")
SIZE = SearchKnob("pipeline.size", (1, 2, 4, 8, 16), 2)


def mixed() -> Space:
    return Space((SIZE, MODE), lambda settings: None)


def test_each_other_choice_is_tried_alone_and_no_choice_is_large() -> None:
    corners = list(mixed().corners())
    alone = [corner["pipeline.mode"] for corner in corners if corner["pipeline.size"] == 2]
    assert sorted(alone) == ["abort", "drain"]
    assert {corner["pipeline.mode"] for corner in corners if corner["pipeline.size"] != 2} == {"keep"}


def test_a_corner_marches_to_a_choice_or_not_at_all() -> None:
    def admit_no_drain(settings: dict[str, int | float | str]) -> None:
        if settings["pipeline.mode"] == "drain":
            raise ConfigError("is not for us", field="pipeline.mode")

    corners = list(Space((SIZE, MODE), admit_no_drain).corners())
    assert {corner["pipeline.mode"] for corner in corners} == {"keep", "abort"}


@PROFILE
@given(st.integers(0, 10_000))
def test_all_other_choices_are_neighbours(seed: int) -> None:
    space = Space((MODE,), lambda settings: None)
    rng = random.Random(seed)
    assert {space.near({"pipeline.mode": "drain"}, rng)["pipeline.mode"] for _ in range(40)} == {"keep", "abort"}


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_choice_goes_straight_back(share: float) -> None:
    moved = {"pipeline.size": 16, "pipeline.mode": "abort"}
    assert mixed().retreat(moved, "pipeline.mode", share) == {"pipeline.size": 16, "pipeline.mode": "keep"}


@PROFILE
@given(st.sampled_from([*knobs(), *deadline_knobs()]), st.floats(0, 1))
def test_every_knob_of_the_pipeline_has_a_grid_that_it_allows(knob: Knob, share: float) -> None:
    if knob.kind is KnobKind.CHOICE:
        assert grid(knob, knob.default) == knob.choices
        return
    assert knob.low is not None
    assert knob.high is not None
    today: float = knob.low + share * (min(knob.high, 1000.0) - knob.low)
    today = round(today) if knob.kind is KnobKind.INT else today
    values = grid(knob, today)
    assert list(values) == sorted(set(values))
    assert today in values
    assert knob.low <= values[0] <= values[-1] <= knob.high
    assert 2 <= len(values) <= 20
    assert knob.kind is not KnobKind.INT or all(type(value) is int for value in values)


@PROFILE
@given(st.sampled_from([*knobs(), *deadline_knobs()]), st.floats(0, 1), st.floats(0, 1))
def test_a_range_of_ones_own_is_kept_to_and_has_both_its_ends(knob: Knob, one: float, other: float) -> None:
    if knob.kind is KnobKind.CHOICE:
        return
    assert knob.low is not None
    ends = [knob.low + share * (min(knob.high or 0.0, 3000.0) - knob.low) for share in sorted((one, other))]
    low, high = (round(end) for end in ends) if knob.kind is KnobKind.INT else ends
    values = between(knob, low, high, knob.default)
    assert (values[0], values[-1]) == (low, high)
    assert list(values) == sorted(set(values))
    assert len(values) <= 20


# ── what is asked for ───────────────────────────────────────────────────────────────────────────────────────────────────────

EVERY = (*knobs(), *deadline_knobs())
NOW = {knob.path: knob.default for knob in EVERY}


def test_every_knob_is_in_one_group_and_every_group_has_its_reason() -> None:
    members = [name for group in GROUPS.values() for name in group.names]
    assert len(members) == len(set(members))
    assert {knob.name for knob in knobs()} <= set(members)
    assert set(members) <= {knob.name for knob in EVERY} | {"chip_split"}
    assert all(group.why for group in GROUPS.values())
    assert set(ALL) < set(GROUPS)


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_means_its_members(group: str) -> None:
    assert set(wanted([group], EVERY, NOW)) == set(GROUPS[group].names) - {"chip_split"}


def test_values_of_ones_own_win_over_a_group_in_either_order() -> None:
    own, group = "max_inflight=64,256,128", "schedule"
    assert wanted([own, group], EVERY, NOW)["max_inflight"] == (64, 128, 256)
    assert wanted([group, own], EVERY, NOW) == wanted([own, group], EVERY, NOW)


@pytest.mark.parametrize(
    "wish",
    ["sync_mode=keep,drain", "pipeline.sync_mode=drain,keep", "sync_mode = drain , keep"],
)
def test_choices_keep_the_order_of_the_descriptor(wish: str) -> None:
    assert wanted([wish], EVERY, NOW) == {"sync_mode": ("drain", "keep")}


@pytest.mark.parametrize(
    ("wish", "says"),
    [
        ("max_inflight=9..3", "low end is above"),
        ("max_inflight=0..3", "0 is not allowed"),
        ("max_inflight=1..x", "no whole number"),
        ("max_inflight=1.5", "no whole number"),
        ("max_inflight=", "no whole number"),
        ("tool_s=inf", "not allowed"),
        ("tool_s=nan", "not allowed"),
        ("tool_s=soon", "no number"),
        ("sync_mode=kep", "did you mean keep"),
        ("sync_mode=drain..keep", "not among the choices"),
        ("max_inflite", "did you mean max_inflight"),
        ("capacity=3", "a group"),
        ("=3", "is no knob"),
        ("", "is no knob"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_reason(wish: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        wanted([wish], EVERY, NOW)
    assert says in f"{refused.value}"
    assert refused.value.field == "--knob"


def test_a_knob_with_two_lists_of_values_is_a_contradiction() -> None:
    assert wanted(["max_inflight=1,2", "max_inflight=2,1"], EVERY, NOW) == {"max_inflight": (1, 2)}
    with pytest.raises(ConfigError, match="twice"):
        wanted(["max_inflight=1,2", "max_inflight=1..9"], EVERY, NOW)


def test_a_split_of_chips_is_three_fields() -> None:
    assert as_fields({"world.chip_split": "8x4+32", "pipeline.max_inflight": 3}) == {
        "world.inference.replicas": 8,
        "world.inference.chips_per_replica": 4,
        "world.learner.chips": 32,
        "pipeline.max_inflight": 3,
    }
    with pytest.raises(ConfigError, match="no split of chips"):
        chips_of("8+4x32")
