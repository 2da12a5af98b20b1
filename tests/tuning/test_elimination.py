"""The best is kept as often as was promised, losers go early, and names and offsets do not matter."""

from __future__ import annotations

import random
from statistics import NormalDist

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.tuning.elimination import Standing, eliminate, eta, told

PROFILE = settings(derandomize=True, deadline=None, max_examples=40)
DELTA, ERROR = 0.01, 0.05
REPEATS = 300


def sampled(means: list[float], seed: int, *, common: float = 0.0, own: float = 0.006, first: int = 5) -> Standing:
    """Runs the procedure to its end on normal observations, drawing only what is due."""
    rng = random.Random(seed)
    shared: list[float] = []
    table: list[list[float]] = [[] for _ in means]
    for _ in range(5000):
        standing = eliminate(table, indifference=DELTA, error=ERROR, first_stage=first)
        if standing.decided:
            return standing
        for i in standing.due:
            if len(table[i]) == len(shared):
                shared.append(rng.gauss(0.0, common))
            table[i].append(means[i] + shared[len(table[i])] + rng.gauss(0.0, own))
    raise AssertionError("it does not end")


@pytest.mark.parametrize(("common", "first"), [(0.0, 5), (0.5, 5), (0.0, 10)])
def test_the_best_by_the_indifference_zone_is_dropped_no_more_often_than_promised(common: float, first: int) -> None:
    lost = 0
    for seed in range(REPEATS):
        standing = sampled([DELTA, 0.0, 0.0, 0.0], seed, common=common, first=first)
        best = standing.survivors
        lost += 0 not in best
    allowed = REPEATS * ERROR + NormalDist().inv_cdf(0.999) * (REPEATS * ERROR * (1 - ERROR)) ** 0.5
    assert lost <= allowed


def test_what_seeds_share_costs_nothing() -> None:
    alone = [sampled([0.02, 0.0, 0.0], seed).rounds for seed in range(40)]
    shared = [sampled([0.02, 0.0, 0.0], seed, common=10.0).rounds for seed in range(40)]
    assert sum(shared) <= 1.3 * sum(alone)


def test_a_wide_gap_is_seen_in_the_first_stage_and_never_the_wrong_way() -> None:
    for seed in range(100):
        standing = sampled([0.0, 1.0, 0.3], seed)
        assert standing.survivors == (1,)
        assert standing.rounds == 5


def test_losers_stop_being_sampled_while_rivals_go_on() -> None:
    standing = sampled([0.0, 0.004, -0.5], 3, own=0.02)
    assert (2, 5) in standing.dropped
    assert standing.rounds > 5


tables = st.integers(2, 5).flatmap(
    lambda k: st.lists(st.lists(st.floats(-0.1, 0.1), min_size=8, max_size=8), min_size=k, max_size=k)
)


@PROFILE
@given(tables, st.randoms())
def test_the_order_of_the_systems_does_not_matter(table: list[list[float]], rng: random.Random) -> None:
    order = list(range(len(table)))
    rng.shuffle(order)
    one = eliminate(table, indifference=DELTA)
    other = eliminate([table[i] for i in order], indifference=DELTA)
    assert {order[i] for i in other.survivors} == set(one.survivors)
    assert (one.decided, one.rounds) == (other.decided, other.rounds)


@PROFILE
@given(st.lists(st.lists(st.integers(-50, 50), min_size=8, max_size=8), min_size=2, max_size=5), st.integers(-1000, 1000))
def test_what_is_added_to_a_seed_of_all_does_not_matter(units: list[list[int]], shift: int) -> None:
    table = [[value / 512 for value in row] for row in units]  # sums of these are exact
    moved = [[value + shift * (j + 1) for j, value in enumerate(row)] for row in table]
    assert eliminate(moved, indifference=1 / 128) == eliminate(table, indifference=1 / 128)


@PROFILE
@given(tables)
def test_more_observations_continue_where_fewer_ended(table: list[list[float]]) -> None:
    early = eliminate([row[:6] for row in table], indifference=DELTA)
    later = eliminate(table, indifference=DELTA)
    assert set(early.dropped) <= set(later.dropped)
    assert {i for i, _ in later.dropped} | set(later.survivors) == set(range(len(table)))
    assert later.survivors
    if early.decided:
        assert later == early


def test_exact_ties_all_survive_and_need_no_more_than_the_first_stage() -> None:
    row = [0.3, 0.1, 0.2, 0.5, 0.4]
    standing = eliminate([row, row, row], indifference=DELTA)
    assert standing == Standing(5, (), (0, 1, 2), decided=True, due=())


def test_differences_without_variance_are_told_at_once() -> None:
    row = [0.25, 0.5, 0.125, 1.0, 0.75]
    worse = [value - 0.25 for value in row]
    standing = eliminate([worse, row], indifference=DELTA)
    assert standing == Standing(5, ((0, 5),), (1,), decided=True, due=())
    near = [value - 2**-10 for value in row]
    assert eliminate([near, row], indifference=DELTA).survivors == (0, 1)


def test_a_gap_of_many_times_the_zone_is_seen_early_in_noise_of_many_times_the_zone() -> None:
    rounds = [sampled([0.0, 80 * DELTA], seed, own=10 * DELTA).rounds for seed in range(40)]
    region = 2 * eta(2, ERROR, 5) * 4 * 2 * 10**2 / (2 * 80)  # observations at which the region alone lets go
    assert region > 10
    assert sum(rounds) / len(rounds) < 6


@pytest.mark.parametrize("gap", [1.0, 3.0])
def test_the_best_is_kept_in_much_noise(gap: float) -> None:
    lost = sum(0 not in sampled([gap * DELTA, 0.0, 0.0], seed, own=DELTA).survivors for seed in range(60))
    assert lost <= 60 * ERROR + NormalDist().inv_cdf(0.999) * (60 * ERROR * (1 - ERROR)) ** 0.5


def test_those_within_the_indifference_zone_are_ties() -> None:
    for seed in range(20):
        standing = sampled([0.0, DELTA / 10, -DELTA / 10, -20 * DELTA], seed, own=DELTA)
        assert 3 not in standing.survivors
        assert len(standing.survivors) >= 2


def test_ties_are_told_before_a_winner_among_them_would_be() -> None:
    rng = random.Random(1)
    rows = [[rng.gauss(0.0, DELTA) for _ in range(60)] for _ in range(3)]
    to_choose = 2 * eta(3, ERROR, 3) * 2 * 2  # observations, with the variance 2 of a difference in units of the zone
    standing = eliminate(rows, indifference=DELTA, first_stage=3)
    assert to_choose > 60
    assert standing.decided
    assert standing.survivors == (0, 1, 2)
    assert standing.rounds < 60


def test_nothing_is_dropped_before_the_first_stage_and_rows_may_end_early() -> None:
    assert eliminate([[9.0] * 4, [0.0] * 3], indifference=DELTA) == Standing(3, (), (0, 1), decided=False, due=(1,))
    assert eliminate([[9.0] * 9, [0.0] * 5], indifference=DELTA).dropped == ((1, 5),)
    assert eliminate([[1.0]], indifference=DELTA).decided


def test_the_constant_is_kim_and_nelson_s() -> None:
    assert eta(4, 0.05, 5) == pytest.approx(2.2386, abs=1e-4)  # ((0.1 / 3) ** -0.5 - 1) / 2
    assert eta(4, 0.05, 3) == pytest.approx(14.5)


@pytest.mark.parametrize(
    ("table", "indifference", "error", "first"),
    [([], 0.1, 0.05, 5), ([[1.0]], 0.0, 0.05, 5), ([[1.0]], 0.1, 0.5, 5), ([[1.0]], 0.1, 0.05, 2)],
)
def test_what_cannot_be_asked_is_refused(table: list[list[float]], indifference: float, error: float, first: int) -> None:
    with pytest.raises(ValueError, match="elimination"):
        eliminate(table, indifference=indifference, error=error, first_stage=first)


def test_it_is_told_in_settings() -> None:
    changes = [{}, {"a": 1}, {"b": 2}]
    row = [0.3, 0.1, 0.2, 0.5, 0.4]
    standing = eliminate([[v - 1 for v in row], row, row], indifference=DELTA)
    answer = told(standing, changes, indifference=DELTA, error=ERROR)
    assert answer.dropped == (({}, 5),)
    assert answer.survivors == ({"a": 1}, {"b": 2})
    assert (answer.entrants, answer.rounds, answer.decided) == (3, 5, True)
