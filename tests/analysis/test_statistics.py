from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import stdtrit

from harness.analysis.selection import eliminate
from harness.analysis.statistics import (
    Interval,
    Progress,
    RatioSample,
    SequentialStop,
    batch_means,
    mean_interval,
    paired_difference,
    paired_ratio_difference,
    ratio_interval,
    relative_difference,
    relative_ratio_difference,
    simultaneous,
    student_quantile,
)

properties = settings(derandomize=True, deadline=None, max_examples=60)
finite = st.floats(-1e6, 1e6, allow_subnormal=False)
positive = st.floats(1e-3, 1e6)
samples = st.lists(finite, min_size=2, max_size=20)


def covered(intervals: list[Interval], truth: float) -> float:
    return sum(interval.contains(truth) for interval in intervals) / len(intervals)


# Laws


@properties
@given(samples, st.randoms(use_true_random=False))
def test_order_of_replications_does_not_matter(values, random):
    shuffled = list(values)
    random.shuffle(shuffled)
    assert mean_interval(shuffled) == mean_interval(values)


@properties
@given(samples, st.integers(-6, 6), st.booleans())
def test_scaling_by_powers_of_two_is_exact(values, power, negative):
    factor = 2.0**power * (-1 if negative else 1)
    plain, scaled = mean_interval(values), mean_interval([factor * value for value in values])
    assert scaled.mean == factor * plain.mean
    assert scaled.half_width == abs(factor) * plain.half_width


@properties
@given(samples)
def test_equal_samples_differ_by_exactly_nothing(values):
    for interval in (paired_difference(values, list(values)), paired_ratio_difference(*[rates(values)] * 2)):
        assert (interval.mean, interval.low, interval.high, interval.half_width) == (0, 0, 0, 0)
    if math.fsum(values):
        assert relative_difference(values, values).half_width == 0
        relative = relative_ratio_difference(rates(values), rates(values))
        assert (relative.mean, relative.half_width) == (0, 0)


def rates(values: list[float]) -> RatioSample:
    return RatioSample(values, [1.0 + i for i in range(len(values))])


@properties
@given(st.lists(st.tuples(finite, finite), min_size=2, max_size=20))
def test_differences_are_antisymmetric(pairs):
    a, b = [x for x, _ in pairs], [y for _, y in pairs]
    forth, back = paired_difference(a, b), paired_difference(b, a)
    assert forth.mean == -back.mean
    assert forth.half_width == back.half_width
    assert forth.sign == -back.sign


@properties
@given(st.lists(st.tuples(finite, positive), min_size=2, max_size=20), st.integers(0, 19))
def test_a_ratio_of_sums_is_that_of_pooled_replications(pairs, index):
    """Merging all replications into one gives the same rate; the mean of ratios would not."""
    numerators, denominators = [y for y, _ in pairs], [x for _, x in pairs]
    pooled = ratio_interval([math.fsum(numerators)], [math.fsum(denominators)])
    assert ratio_interval(numerators, denominators).mean == pooled.mean
    assert pooled.half_width == math.inf


@properties
@given(samples)
def test_a_ratio_to_constant_denominators_is_a_mean(values):
    ratio, mean = ratio_interval(values, [4.0] * len(values)), mean_interval(values)
    assert ratio.mean == pytest.approx(mean.mean / 4, rel=1e-12, abs=1e-9)
    assert ratio.half_width == pytest.approx(mean.half_width / 4, rel=1e-9, abs=1e-9)


@properties
@given(st.lists(st.tuples(positive, positive), min_size=2, max_size=20))
def test_relative_difference_is_a_difference_over_the_base(pairs):
    a, b = [x for x, _ in pairs], [y for _, y in pairs]
    assert relative_difference(a, b).mean == pytest.approx(math.fsum(b) / math.fsum(a) - 1, rel=1e-9, abs=1e-12)


@properties
@given(st.integers(1, 1000), st.floats(0.5, 0.999))
def test_simultaneous_confidence_spends_the_error_evenly(count, confidence):
    assert (1 - simultaneous(count, confidence)) * count == pytest.approx(1 - confidence)


# Coverage: what an interval promises, checked on data whose truth is known


def test_mean_interval_covers_as_often_as_it_says():
    rng = np.random.default_rng(1)
    intervals = [mean_interval(row) for row in rng.normal(3.0, 2.0, size=(3000, 6)).tolist()]
    assert covered(intervals, 3.0) == pytest.approx(0.95, abs=0.012)
    narrow = [mean_interval(row, 0.8) for row in rng.normal(3.0, 2.0, size=(3000, 6)).tolist()]
    assert covered(narrow, 3.0) == pytest.approx(0.8, abs=0.022)


def test_mean_interval_of_skewed_replications_comes_close():
    rng = np.random.default_rng(2)
    intervals = [mean_interval(row) for row in rng.lognormal(0.0, 0.5, size=(2000, 20)).tolist()]
    assert 0.90 <= covered(intervals, math.exp(0.125)) <= 0.97


def test_ratio_interval_covers_where_the_mean_of_ratios_does_not():
    """Groups made in windows of random length: rate 2 per second, whatever the length."""
    rng = np.random.default_rng(3)
    seconds = rng.lognormal(0.0, 1.0, size=(1500, 30))
    groups = 2.0 * seconds + 3.0 * rng.normal(size=seconds.shape) + 5.0 * (1.0 - seconds / math.exp(0.5))
    sums = [ratio_interval(y, x) for y, x in zip(groups.tolist(), seconds.tolist(), strict=True)]
    means = [mean_interval(row) for row in (groups / seconds).tolist()]
    assert covered(sums, 2.0) > 0.85
    assert covered(means, 2.0) < 0.5


def test_paired_ratio_intervals_cover_and_are_narrower_than_unpaired():
    rng = np.random.default_rng(4)
    seconds = rng.uniform(50, 60, size=(1500, 20))
    luck = rng.normal(1.0, 0.1, size=seconds.shape)
    ours = rate_rows(1.10 * luck * seconds + rng.normal(size=seconds.shape), seconds * 1.0)
    theirs = rate_rows(1.00 * luck * seconds + rng.normal(size=seconds.shape), seconds * 1.0)
    differences = [paired_ratio_difference(a, b) for a, b in zip(theirs, ours, strict=True)]
    relative = [relative_ratio_difference(a, b) for a, b in zip(theirs, ours, strict=True)]
    assert covered(differences, 0.1) == pytest.approx(0.95, abs=0.02)
    assert covered(relative, 0.1) == pytest.approx(0.95, abs=0.02)
    one = ratio_interval(next(iter(ours)).numerators, next(iter(ours)).denominators)
    assert differences[0].half_width < one.half_width / 2


def rate_rows(numerators, denominators):
    return [RatioSample(y, x) for y, x in zip(numerators.tolist(), denominators.tolist(), strict=True)]


def test_students_t_agrees_with_scipy():
    for degrees in (*range(1, 30), 99, 100, 399, 400, 401, 5000):
        for probability in (0.025, 0.1, 0.6, 0.9, 0.975, 0.9995, 0.99995):
            assert student_quantile(probability, degrees) == pytest.approx(stdtrit(degrees, probability), rel=1e-8)


# Batch means and sequential stopping


def test_batch_means_cover_for_independent_data_and_say_so():
    rng = np.random.default_rng(5)
    batches = [batch_means(row) for row in rng.normal(size=(1000, 203)).tolist()]
    assert covered([batch.interval for batch in batches], 0.0) == pytest.approx(0.95, abs=0.02)
    assert sum(batch.independent for batch in batches) / 1000 > 0.9
    assert batches[0].batch_size == 10


def test_batch_means_say_when_batches_are_too_short():
    rng = np.random.default_rng(6)
    walk = np.cumsum(rng.normal(size=400)).tolist()
    batch = batch_means(walk)
    assert not batch.independent
    assert batch.lag1 > 0.5


def test_batch_means_cut_the_remainder_from_the_start():
    assert batch_means([1e9, 1.0, 2.0, 3.0, 4.0], batches=2).interval.mean == 2.5


@properties
@given(st.integers(2, 40), st.integers(0, 400))
def test_checkpoints_grow_from_minimum_to_maximum(minimum, more):
    looks = SequentialStop(0.05, minimum, minimum + more).checkpoints()
    assert looks[0] == minimum
    assert looks[-1] == minimum + more
    assert all(a < b for a, b in itertools.pairwise(looks))


def test_sequential_stop_looks_only_at_checkpoints_and_gives_up_honestly():
    stop = SequentialStop(0.05, minimum=10, maximum=20)
    assert stop.checkpoints() == (10, 15, 20)
    narrow = {n: Interval(100.0, 99.0, 101.0, 1.0, n) for n in (5, 10, 11, 20)}
    wide = {n: Interval(100.0, 50.0, 150.0, 50.0, n) for n in (10, 20)}
    assert [stop.decide(narrow[n]) for n in (5, 10, 11, 20)] == [
        Progress.MORE,
        Progress.REACHED,
        Progress.MORE,
        Progress.REACHED,
    ]
    assert [stop.decide(wide[n]) for n in (10, 20)] == [Progress.MORE, Progress.NOT_REACHED]


def test_one_replication_says_nothing():
    interval = mean_interval([7.0])
    assert (interval.mean, interval.low, interval.high) == (7.0, -math.inf, math.inf)
    assert interval.sign == 0
    assert interval.relative_half_width == math.inf


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: mean_interval([]), "no replication"),
        (lambda: mean_interval([1.0, math.nan]), "replication 1 is nan"),
        (lambda: mean_interval([1.0, 2.0], 95), "between 0 and 1"),
        (lambda: paired_difference([1.0], [1.0, 2.0]), "share a seed"),
        (lambda: ratio_interval([1.0, 1.0], [1.0, -1.0]), "sum to zero"),
        (lambda: relative_ratio_difference(rates([0.0, 0.0]), rates([1.0, 2.0])), "rate of zero"),
        (lambda: batch_means([1.0] * 5), "cannot fill 20 batches"),
        (lambda: simultaneous(0), "at least one"),
        (lambda: SequentialStop(0.0), "target above 0"),
        (lambda: student_quantile(1.0, 5), "inside (0, 1)"),
        (lambda: eliminate({}, 0.1), "no candidate"),
        (lambda: eliminate({"a": [1.0] * 20}, 0.0), "indifference > 0"),
        (lambda: eliminate({"a": [1.0] * 4, "b": [1.0] * 20}, 0.1), "'a' has 4 replications"),
        (lambda: eliminate({"a": [math.inf] * 20}, 0.1), "'a' has a replication"),
    ],
)
def test_misuse_is_named(call, said):
    with pytest.raises(ValueError) as caught:
        call()
    assert said in str(caught.value)


# Elimination


def candidates(rng: np.random.Generator, means: list[float], n: int) -> dict[str, list[float]]:
    """Normal candidates that share most of their luck, as paired seeds give."""
    luck = rng.normal(0.0, 1.0, size=n)
    return {f"c{i}": (mean + luck + rng.normal(0.0, 0.5, size=n)).tolist() for i, mean in enumerate(means)}


def test_elimination_keeps_the_best_as_often_as_it_says():
    """The hardest case the procedure is made for: everybody else is worse by exactly the indifference."""
    rng = np.random.default_rng(7)
    results = [eliminate(candidates(rng, [0.3, 0.0, 0.0, 0.0], 150), 0.3) for _ in range(250)]
    right = sum("c0" in result.survivors for result in results)
    assert right >= 0.95 * 250
    assert sum(result.decided for result in results) > 0.9 * 250


def test_elimination_drops_the_hopeless_early_and_names_who_beat_it():
    rng = np.random.default_rng(8)
    result = eliminate(candidates(rng, [10.0, 0.0], 40), 0.3)
    assert result.survivors == ("c0",)
    assert result.eliminated == {"c1": (10, "c0")}
    assert result.replications == 10


def test_candidates_that_are_the_same_stay_tied():
    values = [float(i % 7) for i in range(60)]
    result = eliminate({"now": values, "dead_knob": list(values)}, 0.01)
    assert set(result.survivors) == {"now", "dead_knob"}
    assert not result.decided


@properties
@given(st.integers(0, 10_000), st.integers(10, 60))
def test_elimination_goes_on_where_it_stopped(seed, cut):
    """On a beginning of the samples it has taken just those decisions that fall within it, whatever the eliminated lack."""
    rng = np.random.default_rng(seed)
    whole = candidates(rng, [0.2, 0.0, 0.1], 60)
    final = eliminate(whole, 0.1)
    early = eliminate({name: values[:cut] for name, values in whole.items()}, 0.1)
    assert early.eliminated == {name: at for name, at in final.eliminated.items() if at[0] <= cut}
    ragged = {name: values[: final.eliminated.get(name, (60, ""))[0]] for name, values in whole.items()}
    assert eliminate(ragged, 0.1) == final
    assert set(final.survivors) | set(final.eliminated) == set(whole)
    assert final.survivors
