"""Statistics on real replications: intervals that cover, outages that are controlled for, runs that say they are too short."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
import sys
from pathlib import Path

import pytest
from breakdowns import NAME, TRUTH, broken_server
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_world import exponential, scenario

from harness.analysis.outages import adjusted_kept, headline
from harness.analysis.statistics import (
    LEAST_REPLICATIONS,
    control_variate,
    controlled_ratio,
    mean_interval,
    mser5,
    ratio_interval,
)
from harness.analysis.stopping import looks_at, one_run_said, reached, step_times_s, too_short
from harness.core.errors import ConfigError
from harness.run import simulate, simulate_once

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import coverage as benchmark

QUIET = settings(max_examples=60, deadline=None, derandomize=True, database=None)
NUMBERS = st.lists(st.floats(-1e6, 1e6), min_size=4, max_size=30)


# ── coverage ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_intervals_of_the_product_cover_at_a_small_size():
    """Of 12 intervals of 95 %, 9 or more: fewer come in 1 of 500 cases. `tests/benchmarks/coverage.py` counts a thousand."""
    found = benchmark.failure_free_covers(12)["failure_free"]
    assert found["experiments"] == 12
    assert found["coverage"] >= 9 / 12
    assert found["half_width"] < 0.15


# ── control variates ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_adjusted_mean_covers_as_often_as_it_says_and_is_far_narrower():
    rng = random.Random(5)
    hits = narrower = 0
    for _ in range(1000):
        controls = [rng.gauss(3.0, 1.0) for _ in range(12)]
        values = [10.0 - 2.0 * c + rng.gauss(0.0, 0.3) for c in controls]
        found = control_variate(values, controls, 3.0)
        hits += found.interval.contains(4.0)
        narrower += found.interval.half_width < mean_interval(values).half_width
    assert 0.93 <= hits / 1000 <= 0.97
    assert narrower > 990


@QUIET
@given(NUMBERS, st.floats(-10, 10))
def test_a_control_that_never_varied_changes_nothing(values, constant):
    found = control_variate(values, [constant] * len(values), constant)
    assert found.interval == mean_interval(values)
    assert found.variance_left == 1.0


@QUIET
@given(st.lists(st.floats(0, 100), min_size=4, max_size=20), st.floats(-5, 5), st.floats(-5, 5))
def test_what_depends_on_the_control_alone_is_known_exactly(controls, base, slope):
    if max(controls) - min(controls) < 1.0:
        return
    found = control_variate([base + slope * c for c in controls], controls, 50.0)
    assert found.interval.mean == pytest.approx(base + slope * 50.0, abs=1e-6)
    assert found.interval.half_width == pytest.approx(0.0, abs=1e-6)


def test_a_ratio_is_adjusted_like_a_mean_where_all_denominators_are_one():
    rng = random.Random(2)
    controls = [rng.gauss(0.0, 1.0) for _ in range(9)]
    values = [5.0 + c + rng.gauss(0.0, 0.1) for c in controls]
    ratio = controlled_ratio(values, [1.0] * 9, controls)
    mean = control_variate(values, controls, 0.0)
    assert ratio.interval.low == pytest.approx(mean.interval.low)
    assert ratio.interval.high == pytest.approx(mean.interval.high)


def test_outage_time_takes_the_luck_out_of_a_rate():
    """A worker that always has work: throughput is availability over service, and outages are nearly all of the noise."""
    what = broken_server(batch=20, steps=8)
    runs = [simulate_once(what, seed) for seed in range(8)]
    shares = {outage.name: outage.down_share for outage in what.world.outages}
    down = sum(run.outage_ns[NAME] for run in runs) / sum(run.window_s for run in runs) / 1e9
    assert shares[NAME] == pytest.approx(6 / 46)
    assert 0.3 * shares[NAME] < down < 2.5 * shares[NAME], "availability, roughly: the interval is below"
    plain = ratio_interval([run.groups for run in runs], [run.chip_total_ns / 1e9 for run in runs])
    found = adjusted_kept(runs, shares)
    assert found.variance_left < 0.8
    assert found.interval.contains(TRUTH / runs[0].chips)
    assert found.slope < 0, "more outage, less throughput"
    assert headline(runs, shares) == found.interval
    assert headline(runs, {}) == plain
    assert adjusted_kept(runs[:4], shares) is None, "too few for a slope"


# ── warm-up and length ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_mser_cuts_a_start_that_is_different_and_nothing_else():
    rng = random.Random(1)
    steady = [rng.gauss(10.0, 1.0) for _ in range(200)]
    assert mser5(steady).cut <= 50
    late = [30.0] * 20 + steady
    found = mser5(late)
    assert 20 <= found.cut <= 60
    assert found.settled
    drifting = [float(n) for n in range(100)]
    assert not mser5(drifting).settled, "a cut at the limit says that the run is too short"
    assert not mser5(steady[:15]).settled, "too little to tell"


def test_runs_that_are_too_short_say_how_long_to_be():
    deep = {"pipeline_depth": 4, "max_staleness": 4, "buffer_capacity": 10, "max_inflight": 20}
    what = scenario(deep, random=True, steps=20)
    runs = [simulate_once(what, seed, warmup_steps=1) for seed in range(2)]
    said = too_short(runs, model_warmup_steps=6)
    assert any("run.warmup_steps to 6 or more" in line for line in said)
    assert too_short([simulate_once(what, 0, warmup_steps=6, learner_steps=30)], model_warmup_steps=6, outages=True) == ()
    times = step_times_s(runs)
    assert len(times) == 21
    assert math.fsum(times) == pytest.approx(sum(run.total_s for run in runs) / 2)


def test_a_start_that_is_still_slow_is_seen_where_there_are_steps_enough():
    run = simulate_once(scenario(random=True, steps=80), 3, warmup_steps=2)
    late = [round(10e9 * (1 + 2 * (n < 25)) * (1 + 0.02 * (n % 3))) for n in range(82)]
    ends = tuple(itertools.accumulate(late))
    said = too_short([dataclasses.replace(run, step_ends_ns=ends)], model_warmup_steps=2)
    assert any("run.warmup_steps to that" in line for line in said)
    even = tuple(itertools.accumulate([round(10e9 * (1 + 0.02 * (n % 3))) for n in range(82)]))
    assert too_short([dataclasses.replace(run, step_ends_ns=even)], model_warmup_steps=2) == ()
    assert too_short([dataclasses.replace(run, step_ends_ns=ends)], model_warmup_steps=2, outages=True) == ()


def test_one_long_replication_has_an_interval_of_its_own():
    run = simulate_once(scenario(random=True, steps=60), 3, warmup_steps=5)
    assert one_run_said(run).startswith("one replication: ")
    assert one_run_said(simulate_once(scenario(random=True, steps=10), 3, warmup_steps=5)) == ""


# ── sequential stopping ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_replications_are_added_until_the_precision_is_reached():
    done = simulate(scenario(random=True, steps=6), precision=0.2, workers=1)
    assert done.precision.reached
    assert len(done.summaries) == LEAST_REPLICATIONS == done.precision.needed
    assert done.precision.interval.relative_half_width <= 0.2


def test_a_precision_that_is_not_reached_says_so_and_what_it_would_take():
    done = simulate(scenario(random=True, steps=3), precision=0.001, max_replications=12, workers=1)
    found = done.precision
    assert not found.reached
    assert len(done.summaries) == 12
    assert found.needed == math.ceil(12 * (found.interval.relative_half_width / 0.001) ** 2)
    assert "not reached" in found.said
    assert f"{found.needed:,}" in found.said


@pytest.mark.parametrize(
    ("target", "most", "field"), [(0.0, 100, "precision"), (1.5, 100, "precision"), (0.1, 9, "max_replications")]
)
def test_a_wish_that_is_none_is_refused(target, most, field):
    with pytest.raises(ConfigError) as refused:
        looks_at(target, None, most)
    assert refused.value.field == field


def test_an_exact_result_is_reached_at_the_first_look():
    same = simulate(scenario(steps=3), precision=0.01, workers=1)
    assert same.precision.interval.half_width == 0.0
    assert reached(None, same.precision.interval) is None


def test_one_law_of_gaps_is_a_stream_of_tasks_in_a_simulation():
    done = simulate(
        scenario({"max_inflight": 4}, workload={"arrivals": {"gap": exponential(4.0)}}, steps=4), replications=2, workers=1
    )
    assert done.agreement.expected.narrowest.groups_per_s <= 0.25
