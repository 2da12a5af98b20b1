"""Published cases: those that are quick are inside their tolerance; all of them behave as the mechanism says at other points.

The whole list, slow cases included, is printed by `uv run python tests/benchmarks/published.py`.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import closed_loop as serving
import fully_async
import one_step_off
import published_rows as rows
import pytest
import reward_stage
import terminal_bench
import turn_barrier

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "published.py"


def inside(found):
    assert [(row.case, round(row.error, 3)) for row in found if not row.inside] == []


def test_error_is_relative_and_bounded():
    row = rows.Row("x", "nothing", 110.0, 100.0, 0.1)
    assert row.error == pytest.approx(0.1)
    assert not rows.Row("x", "nothing", 89.9, 100.0, 0.1).inside


@pytest.mark.parametrize("power", [0.5, 1.0, 3.0])
def test_a_fit_meets_its_target_and_says_when_it_cannot(power):
    assert rows.solve(lambda x: x**power, 7.0, 0.1, 400.0, rel=1e-6) ** power == pytest.approx(7.0, rel=1e-5)
    with pytest.raises(ValueError, match="not between"):
        rows.solve(lambda x: x**power, -1.0, 0.1, 40.0)


# ── one step off ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_one_step_off_waits_for_the_spread_of_generation():
    """The lag is one; without spread nobody waits while generation is shorter than the rest; the wait grows with the spread."""
    runs = [one_step_off.measured(one_step_off.FSDP2, cv, steps=150) for cv in (1e-6, 0.1, 0.3, 0.6)]
    assert all((run.lag_mean, run.lag_max) == (1.0, 1) for run in runs)
    assert runs[0].wait_s == pytest.approx(0.0, abs=1e-6)
    assert all(one.wait_s < other.wait_s for one, other in pairwise(runs))
    assert all(run.step_s == pytest.approx(108 + 337 + 30 + run.wait_s) for run in runs)


def test_one_step_off_is_the_recursion_that_it_is_said_to_be():
    """Batch by batch: the wait is what is left of a generation when the step beside it is over."""
    slow = one_step_off.Published("generation alone is the limit", 0, 0, 900, 100, 200)
    run = one_step_off.measured(slow, 1e-6, steps=50)
    assert run.step_s == pytest.approx(900, rel=1e-4)
    assert run.log_probs_s == pytest.approx(100)


def test_one_step_off_predicts_the_other_row():
    inside(one_step_off.rows())


# ── fully asynchronous ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_staleness_threshold_takes_wait_away_until_nothing_is_left_of_it():
    """At a quarter of the servers and prompts; the updates are the same at every threshold."""
    small = fully_async.Engine(servers=2)
    runs = []
    for threshold in (0.0, 0.1, 0.5):
        made = fully_async.fully_async(threshold, 1_000.0, update_s=40.0, engine=small)
        changes = {"groups_per_step": 16, "max_inflight": 32 * 16, "buffer_capacity": 64 + int(64 * threshold)}
        made = made.model_copy(update={"pipeline": made.pipeline.with_changes(**changes)})
        runs.append(rows.learner(made, steps=16, warmup_steps=4, per=4))
    assert runs[0].wait_s > 1.3 * runs[1].wait_s > 1.3 * runs[2].wait_s
    assert runs[0].lag_max == 3  # a window of four updates, none of them on older weights
    assert all(one.lag_mean < other.lag_mean for one, other in pairwise(runs))


@pytest.mark.slow
def test_fully_async_predicts_the_threshold_of_a_tenth():
    inside(fully_async.rows())


# ── turn barrier ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_barrier_costs_nothing_where_all_turns_are_alike_and_more_the_more_they_differ():
    small = {"environments": 24, "turns": 6, "steps": 4}
    gains = [turn_barrier.speed_up(sigma, **small) for sigma in (0.0, 1.0, 3.0, 5.0, 10.0)]
    assert gains[0] == pytest.approx(1.0, abs=1e-6)
    assert all(one < other for one, other in pairwise(gains))
    assert turn_barrier.speed_up(3.0, **{**small, "environments": 48}) > gains[2]  # the slowest of more
    assert turn_barrier.speed_up(3.0, **small, generation_s=5.0) < gains[2]  # a smaller part of a turn differs


@pytest.mark.slow
def test_the_published_speed_ups_of_trajectory_level_rollouts():
    inside(turn_barrier.rows())


# ── serving ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_published_closed_loop_takes_its_time():
    inside(serving.rows())


def test_more_requests_in_flight_make_more_tokens_a_second_and_slower_ones():
    runs = {flight: serving.served(in_flight=flight, requests=8 * flight) for flight in (8, 32, 64, 128)}
    assert all(one.tokens_per_s < other.tokens_per_s for one, other in pairwise(runs.values()))
    each = [flight / run.tokens_per_s for flight, run in runs.items()]  # seconds from token to token
    assert all(one < other for one, other in pairwise(each))


# ── Terminal-Bench ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_actors_live_through_the_quantiles_that_the_shipped_laws_state():
    made = terminal_bench.trials(150)
    found = terminal_bench.lived(made)
    for law, seconds in ((made.world.environments.reset, found.set_up_s), (made.workload.agent_run.duration, found.agent_s)):
        for level in (0.5, 0.9):  # a share lies below the law's quantile: five standard errors, and turns that take a little
            below = (seconds <= law.quantile(level) + 0.5).mean()
            assert below >= level - 5 * (level * (1 - level) / len(seconds)) ** 0.5
            assert law.cdf(float(sorted(seconds)[round(level * len(seconds)) - 1]) + 0.5) >= level - 0.1
    assert found.at_a_limit == pytest.approx(terminal_bench.AT_A_LIMIT, abs=0.09)


@pytest.mark.slow
def test_terminal_bench_quantiles():
    inside(terminal_bench.rows())


# ── reward stage ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_reward_stage_that_leaves_the_event_loop():
    inside(reward_stage.rows())


def test_a_reward_stage_takes_the_work_over_the_workers():
    """Less and less with more workers; one worker takes what the loop takes, and a rest that no worker can take away."""
    score = {"score_s": 0.0145, "rest_s": 20.0, "sequences": 256}
    steps = [reward_stage.step_s(workers, **score) for workers in (1, 4, 32)]
    assert all(one > other for one, other in pairwise(steps))
    assert steps[0] == pytest.approx(reward_stage.step_s(None, **score), rel=0.02)
    assert steps[0] == pytest.approx(20.0 + 256 * 0.0145, rel=0.02)
    assert steps[2] > 20.0


# ── the command ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_command_prints_rows_and_says_whether_all_are_inside():
    shown = subprocess.run(
        [sys.executable, str(SCRIPT), "--json", "--case", "closed_loop"], capture_output=True, text=True, check=True
    )
    (first, *_) = json.loads(shown.stdout)["rows"]
    assert set(first) == {"case", "fitted", "predicted", "published", "error", "tolerance"}


def test_the_table_fits_a_terminal_and_marks_what_is_missed():
    spec = importlib.util.spec_from_file_location("published_script", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    good, bad = rows.Row("case " * 20, "much " * 40, 1e-3, 1e-3, 0.1), rows.Row("x", "nothing", 123_456.0, 1.0, 0.1)
    lines = script.as_table([good, bad]).splitlines()
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if "missed" in line] == [line for line in lines if line.startswith("x ")]
