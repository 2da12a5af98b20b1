"""Outages are found where there are some, with the laws that made them, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest

from harness.calibration.columns import Measurements
from harness.calibration.correlation import NAME, find_outages
from harness.calibration.outcomes import FAILURE, HANG, INFRA, OK


def measured(rng, *, runs=40, length_s=40_000.0, rate=0.03, outages=(), failing=1.0, kinds=("a", "b"), known_runs=True):
    """Calls of many runs at once: each waits, calls, and waits again. A call in an outage fails after 0.2 s."""
    at, value, code, run, ended = [], [], [], [], []
    starts, ends = (np.array(side) for side in zip(*outages, strict=True)) if outages else (np.array([]), np.array([]))
    for number in range(runs):
        count = int(length_s / 5)
        think, took = rng.exponential(6.0, count), rng.lognormal(0.0, 0.7, count)
        begun = np.cumsum(think + took) - took
        begun = begun[begun < length_s]
        took = took[: len(begun)]
        fate = np.where(rng.random(len(begun)) < rate, FAILURE, OK)
        which = np.searchsorted(ends, begun)
        known = which < len(ends)
        first = np.where(known, starts[np.minimum(which, max(len(starts) - 1, 0))], np.inf) if len(ends) else np.inf
        kind = rng.integers(0, len(kinds), len(begun))
        met = (begun + took >= first) & (rng.random(len(begun)) < failing)
        took = np.where(met, np.where(begun >= first, 0.2, first - begun + 1e-3), took)
        fate = np.where(met, INFRA, fate)
        at.append(begun)
        value.append(took)
        code.append(kind)
        run.append(np.full(len(begun), number))
        ended.append(fate)
    at_s = np.concatenate(at)
    order = np.argsort(at_s, kind="stable")
    return Measurements(
        file="x.csv", dated="2026-01-01", rows=len(at_s), duplicates=0, kinds=tuple(kinds),
        codes=np.concatenate(code)[order].astype(np.int64), values_s=np.concatenate(value)[order],
        runs=np.concatenate(run)[order].astype(np.int64) if known_runs else None, at_s=at_s[order],
        ended=np.concatenate(ended)[order].astype(np.int8), remarks=(),
    )  # fmt: skip


def calendar(rng, *, up_s=1500.0, down_s=90.0, length_s=40_000.0):
    found, at = [], 0.0
    while True:
        start = at + rng.exponential(up_s)
        at = start + rng.exponential(down_s)
        if at > length_s:
            return found
        found.append((start, at))


@pytest.mark.parametrize("seed", range(3))
def test_outages_are_found_with_their_laws(seed):
    rng = np.random.default_rng(seed)
    truth = calendar(rng)
    found = find_outages(measured(rng, outages=truth))
    assert found.verdict == "outages"
    long = [one for one in truth if one[1] - one[0] > 3]  # of a shorter one only a call or two takes notice
    assert len(found.outages) == pytest.approx(len(long), abs=2)
    outage = found.outage
    assert outage is not None
    assert (outage.name, outage.takes, outage.share, outage.new_calls) == (NAME, ("tools",), 1.0, "fail")
    down_s = sum(end - start for start, end in truth)
    assert sum(end - start for start, end in found.outages) == pytest.approx(down_s, rel=0.05)
    assert outage.up.expected_s() == pytest.approx((40_000 - down_s) / len(truth), rel=0.15)
    assert outage.down.expected_s() == pytest.approx(down_s / len(truth), rel=0.2)
    assert outage.fail_after.expected_s() == pytest.approx(0.2)
    assert "x.csv, 2026-01-01" in outage.up.source
    assert "known to about" in outage.down.note


def test_what_failed_in_outages_is_told_from_what_failed_by_itself():
    rng = np.random.default_rng(5)
    data = measured(rng, outages=calendar(rng), rate=0.03)
    found = find_outages(data)
    assert found.inside is not None
    assert (data.ended[found.inside] == INFRA).mean() > 0.95
    outside = ~found.inside
    assert (data.ended[outside] == FAILURE).mean() == pytest.approx(0.03, rel=0.1)
    assert (data.ended[outside] == INFRA).mean() < 0.001


def test_an_outage_that_takes_one_kind_of_step_names_it():
    rng = np.random.default_rng(6)
    data = measured(rng, outages=calendar(rng), kinds=("a", "b", "c"))
    other = data.codes != 1
    data.ended[other & (data.ended == INFRA)] = OK
    found = find_outages(data)
    assert found.verdict == "outages"
    assert found.outage is not None
    assert found.outage.takes == ("b",)


def test_outages_that_take_a_part_of_the_calls_have_their_share():
    rng = np.random.default_rng(7)
    found = find_outages(measured(rng, outages=calendar(rng), failing=0.6))
    assert found.outage is not None
    assert found.outage.share == pytest.approx(0.62, abs=0.06)


def test_calls_that_hang_make_an_outage_that_hangs():
    rng = np.random.default_rng(8)
    data = measured(rng, outages=calendar(rng))
    data.ended[data.ended == INFRA] = HANG
    found = find_outages(data)
    assert found.outage is not None
    assert (found.outage.in_flight, found.outage.new_calls) == ("hang", "hang")


def test_independent_failures_are_no_outages():
    """Also where kinds differ much, and come in stretches of one kind."""
    verdicts = []
    for seed in range(30):
        rng = np.random.default_rng(100 + seed)
        data = measured(rng, runs=8, length_s=4000, rate=0.05)
        stretch = (data.at_s // 200).astype(int) % 2 == 0
        data.codes[:] = stretch
        data.ended[:] = np.where(rng.random(len(data.codes)) < np.where(stretch, 0.3, 0.02), FAILURE, OK)
        verdicts.append(find_outages(data).verdict)
    assert verdicts.count("independent") >= 29
    assert "outages" not in verdicts


def test_retries_within_one_run_are_no_outage():
    """Each run meets a broken call now and then and tries it ten times at once; nobody else is concerned."""
    rng = np.random.default_rng(9)
    count = 20_000
    at_s = np.cumsum(rng.exponential(1.0, count))
    runs = np.arange(count) // 100
    ended = np.where(np.isin(np.arange(count) % 100, np.arange(40, 50)), FAILURE, OK)
    data = Measurements(
        file="x.csv", dated="", rows=count, duplicates=0, kinds=("a",), codes=np.zeros(count, np.int64),
        values_s=np.full(count, 0.5) + rng.random(count) * 0.1, runs=runs, at_s=at_s, ended=ended.astype(np.int8), remarks=(),
    )  # fmt: skip
    found = find_outages(data)
    assert found.verdict == "cannot tell"
    assert "retries" in found.words
    assert found.outage is None


def test_it_says_when_it_cannot_tell():
    rng = np.random.default_rng(10)
    outages = calendar(rng)
    without_runs = find_outages(measured(rng, outages=outages, known_runs=False))
    assert without_runs.verdict == "cannot tell"
    assert "name the column of runs" in without_runs.words
    two = find_outages(measured(rng, outages=[(5000.0, 5100.0), (20_000.0, 20_300.0)]))
    assert two.verdict == "cannot tell"
    assert "2 outages" in two.words
    assert "3 are needed" in two.words
    assert two.outages[1] == pytest.approx((20_000.0, 20_300.0), abs=2)
    few = find_outages(measured(rng, runs=2, length_s=500, rate=0.01))
    assert few.verdict == "cannot tell"
    assert "too few" in few.words
