"""Checkpoints against losses: the exact mean time of a run that is always fed, through the pipeline's own actors.

Losses of the learner are a Poisson process of mean distance M. A segment is k steps and a save, w seconds of work together; a
loss within it costs all of it so far and R seconds until it begins anew, in which nothing is lost. Its mean time is

    E[T] = (e^(w/M) - 1) (M + R).

(The number of losses before a segment succeeds is geometric with mean e^(w/M) - 1; each costs R and, given that it came within
w, M - w / (e^(w/M) - 1); the success costs w.)

Source: Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer Systems
22(3), 2006, where losses within R are counted too.
"""

from __future__ import annotations

import math

import pytest
from lossy_world import lossy
from tiny_world import constant, exponential, play, scenario

from harness.analysis.statistics import mean_interval

STEP_S, SAVE_S, AWAY_S, LIFE_S = 10.0, 3.0, 25.0, 60.0
QUICK = {
    "inference": {"decode": {"base_s": 1e-9}, "prefill": {"base_s": 1e-9}},
    "environments": {"reset": constant(1e-9), "close": constant(1e-9)},
    "scoring": {"duration": constant(1e-9)},
    "weights": {"weights_bytes": 0, "transfer": {"base_s": 0.0, "bytes_per_s": 1e12}},
    "learner": {"train": {"base_s": STEP_S}},
    "host": {"per_pass_s": 0.0, "per_step_s": 0.0},
}
"""A world in which nothing but the learner, its saves and its losses takes time."""

STORE = {"state_bytes": 0, "save": {"base_s": SAVE_S, "bytes_per_s": 1e12}}


@pytest.mark.parametrize("interval", [1, 2, 4])
def test_mean_time_of_a_run_with_losses(interval):
    base = scenario(steps=4, world=QUICK, tool={"duration": constant(1e-9)})
    what = lossy(
        base,
        learner=exponential(LIFE_S),
        replicas=None,
        provision=constant(AWAY_S),
        world={"checkpoint": STORE},
        checkpoint_interval=interval,
    )
    times = [play(what, seed, checks=False).summary.total_s for seed in range(60)]
    work_s = interval * STEP_S + SAVE_S
    expected = 4 // interval * (math.exp(work_s / LIFE_S) - 1) * (LIFE_S + AWAY_S)
    interval_of_mean = mean_interval(times, 0.99)
    assert interval_of_mean.low <= expected <= interval_of_mean.high
    assert interval_of_mean.high - interval_of_mean.low < 0.7 * expected
