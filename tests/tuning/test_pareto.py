"""The front: what it must hold whatever the points are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standin import TODAY, Pipeline

from harness.analysis.statistics import Interval
from harness.tuning.measured import measure
from harness.tuning.pareto import _goods, _point, dominates, marked
from harness.tuning.result import Point

SMALL = st.integers(0, 3)


def point(gain: int, lag: int, usd: int, waste: int, changes: int) -> Point:
    """A point with small whole numbers, so that ties are common."""
    settings = {f"pipeline.knob_{i}": 1 for i in range(changes)}
    worth = Interval(gain / 10, gain / 10, gain / 10, 0.0, 3)
    return Point(settings, worth, 1.0, float(lag), lag, float(usd), waste / 10, 0.1, False, 3, 20, True)


POINTS = st.lists(st.builds(point, SMALL, SMALL, SMALL, SMALL, st.integers(0, 3)), min_size=1, max_size=25)


@given(POINTS)
def test_no_point_of_the_front_is_dominated_and_every_other_is_or_equals_one(points: list[Point]) -> None:
    found = marked(points)
    front = [one for one in found if one.on_front]
    assert front
    for one in front:
        assert not any(dominates(other, one) for other in points)
    for one in found:
        if not one.on_front:
            same = [(f.gain.mean, f.lag_p95, f.usd_per_1000_groups, f.waste_share) for f in front]
            assert any(dominates(f, one) for f in front) or (
                (one.gain.mean, one.lag_p95, one.usd_per_1000_groups, one.waste_share) in same
            )


@given(POINTS, st.randoms(use_true_random=False))
def test_order_does_not_matter(points: list[Point], rng) -> None:  # type: ignore[no-untyped-def]
    mixed = list(points)
    rng.shuffle(mixed)
    goods = [sorted((p.gain.mean, p.lag_p95, p.usd_per_1000_groups, p.waste_share) for p in marked(some) if p.on_front)
             for some in (points, mixed)]  # fmt: skip
    assert goods[0] == goods[1]


@given(POINTS)
def test_few_are_reported_but_the_whole_front_and_today(points: list[Point]) -> None:
    few, everything = marked(points, most=2), marked(points)
    assert [one for one in few if one.on_front] == [one for one in everything if one.on_front]
    assert any(not one.settings for one in points) == any(not one.settings for one in few)
    assert len(everything) == len(points)


@given(POINTS)
def test_saying_a_point_twice_adds_nothing_to_the_front(points: list[Point]) -> None:
    once, twice = ([_goods(one) for one in marked(some) if one.on_front] for some in (points, points + points))
    assert once == twice
    assert len(set(once)) == len(once)


def test_of_the_others_those_nearest_to_the_front_are_reported() -> None:
    best, near, far, cheap = point(9, 1, 1, 1, 1), point(8, 1, 1, 1, 2), point(8, 3, 3, 3, 3), point(0, 0, 0, 0, 0)
    assert [_goods(one) for one in marked([far, best, cheap, near], most=3)] == [_goods(one) for one in (cheap, best, near)]


def test_shares_and_rates_are_ratios_of_sums() -> None:
    slow, quick = (Pipeline(generate_s=g, common=0.0, own=0.0)(TODAY, 1, 20) for g in (40.0, 10.0))
    found = _point({"pipeline.pipeline_depth": 1}, [slow, quick], [slow, quick], fresh=True)
    together = measure([slow, quick])
    assert found.kept_groups_per_chip_s == pytest.approx(together.kept_groups_per_chip_s.mean)
    assert found.idle_share == pytest.approx(together.idle_share.mean)
    assert found.waste_share == pytest.approx(together.share("discarded"))
