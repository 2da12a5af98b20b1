from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from harness.core.errors import ConfigError
from harness.run import load, simulate_once
from harness.tuned import by_hand, fair_lengths, tunable, with_settings
from harness.tuning.analytic import LUCK, ByHandSaid, screen_by_hand
from harness.tuning.space import SearchKnob, Space

SCENARIOS = Path(__file__).parents[2] / "scenarios"
AT_LEISURE = 60.0

A = SearchKnob("pipeline.a", tuple(range(8)), 2)
B = SearchKnob("pipeline.b", tuple(range(8)), 2)
C = SearchKnob("pipeline.c", ("left", "middle", "right"), "middle")


def admit(settings):
    if settings["pipeline.a"] > settings["pipeline.b"] + 3:
        raise ConfigError("too large", field="pipeline.a")


def said(settings):
    """More of `a` is better, up to what `b` allows; `c` is not seen."""
    admit(settings)
    rate, most = 1.0 + settings["pipeline.a"], 2.0 + settings["pipeline.b"]
    return ByHandSaid(min(rate, most), most, (("b", most), ("a", rate)))


def space_of(*knobs):
    return Space(knobs, admit)


def test_all_of_a_small_space_is_looked_at_and_the_best_comes_first():
    done, ranked, _ = screen_by_hand(space_of(A, B, C), said, 3.0, seconds=AT_LEISURE)
    assert done.combinations == 8 * 8 * 3
    assert done.looked_at == sum(1 for a in A.values for b in B.values if a <= b + 3) * 3
    best = max(said({"pipeline.a": a, "pipeline.b": b}).rate for a in A.values for b in B.values if a <= b + 3)
    assert said(ranked[0]).rate == best
    assert done.limits == (("b", 4.0), ("a", 3.0))


def test_what_looks_alike_is_asked_once_and_changes_the_least():
    _, ranked, _ = screen_by_hand(space_of(A, B, C), said, 3.0, seconds=AT_LEISURE)
    assert {settings["pipeline.c"] for settings in ranked} == {"middle"}
    words = [(said(settings).rate, said(settings).limits) for settings in ranked]
    assert len(set(words)) == len(words)
    assert all(settings != {"pipeline.a": 2, "pipeline.b": 2, "pipeline.c": "middle"} for settings in ranked)


@pytest.mark.parametrize("most", [30, 4000])
def test_the_order_of_the_knobs_makes_no_difference(most):
    answers = [
        screen_by_hand(space_of(*knobs), said, 3.0, most=most, seconds=AT_LEISURE)[:2]
        for knobs in ((A, B, C), (C, B, A), (B, A, C))
    ]
    first, *others = [(replace(done, seconds=0.0), ranked) for done, ranked in answers]
    assert all(other == first for other in others)


def test_what_cannot_reach_what_today_reaches_is_ruled_out_and_nothing_else():
    done, _, rules_out = screen_by_hand(space_of(A, B), said, 3.5 / (1 - LUCK), seconds=AT_LEISURE)
    for a in A.values:
        for b in B.values:
            settings = {"pipeline.a": a, "pipeline.b": b}
            assert rules_out(settings) == (a <= b + 3 and said(settings).bound < 3.5)
    assert done.ruled_out == sum(1 for a in A.values for b in (0, 1) if a <= b + 3)
    assert not rules_out({"pipeline.a": 2, "pipeline.b": 2})


def test_a_rate_above_todays_own_bound_is_luck_and_rules_out_no_more():
    _, _, lucky = screen_by_hand(space_of(A, B), said, 100.0, seconds=AT_LEISURE)
    _, _, bound = screen_by_hand(space_of(A, B), said, 4.0, seconds=AT_LEISURE)
    every = [{"pipeline.a": a, "pipeline.b": b} for a in A.values for b in B.values]
    assert [lucky(settings) for settings in every] == [bound(settings) for settings in every]


def test_without_firm_bounds_nothing_is_ruled_out():
    done, ranked, rules_out = screen_by_hand(
        space_of(A, B), lambda settings: replace(said(settings), bound=math.inf), 3.0, seconds=AT_LEISURE
    )
    assert done.ruled_out == 0
    assert not any(rules_out(settings) for settings in ranked)


def test_no_time_is_no_failure():
    done, ranked, rules_out = screen_by_hand(space_of(A, B), said, 3.0, seconds=0.0)
    assert (done.looked_at, ranked) == (1, [])
    assert rules_out({"pipeline.a": 0, "pipeline.b": 0})


@pytest.fixture(scope="module")
def small():
    return load(SCENARIOS / "one_step_async.toml", overrides=["pipeline.groups_per_step=4", "pipeline.buffer_capacity=8"])


def rate(scenario, settings, seed):
    changed = with_settings(scenario, settings)
    warmup, window = fair_lengths(changed, 8)
    return simulate_once(changed, seed, learner_steps=window, warmup_steps=warmup).kept_groups_per_chip_s


def test_nothing_is_ruled_out_that_is_better_when_simulated(small):
    space = tunable(small).space(["max_inflight=4..64", "pipeline_depth=0..1", "tool_workers=2,4,8,64", "buffer_capacity=8,16"])
    today = rate(small, {}, 1)
    done, ranked, rules_out = screen_by_hand(space, partial(by_hand, small), today, seconds=AT_LEISURE)
    assert done.looked_at > 40
    out = sorted((s for s in ranked if rules_out(s)), key=lambda s: -by_hand(small, s).bound)
    assert len(out) >= 3
    for settings in (out[0], out[1], out[len(out) // 2]):  # the first are the nearest to being wrong
        assert rate(small, settings, 1) < today


def test_what_the_closed_forms_leave_out_is_never_ruled_out():
    flaky = load(SCENARIOS / "flaky_environment.toml")
    assert by_hand(flaky, {"pipeline.max_inflight": 1}).bound == math.inf
    colocated = load(SCENARIOS / "colocated.toml")
    assert by_hand(colocated, {}).bound == math.inf


def test_the_closed_forms_are_asked_in_a_moment(small):
    space = tunable(small).space()
    done, _, _ = screen_by_hand(space, partial(by_hand, small), 0.0, most=600, seconds=AT_LEISURE)
    assert done.seconds < 5.0
    assert done.combinations > 10_000


def test_for_tokens_a_group_is_worth_its_members(small):
    half = {"pipeline.group_size": small.pipeline.group_size // 2}
    groups, tokens = by_hand(small, half), by_hand(small, half, objective="tokens")
    assert tokens.rate == pytest.approx(groups.rate / 2)
    assert by_hand(small, {}, objective="tokens") == by_hand(small, {})
