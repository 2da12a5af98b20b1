"""The figures of the recording benchmark are what they are called. Times are not tested here: machines differ."""

from __future__ import annotations

import random

import pytest
from recording import Spent, figures, interval


def test_the_interval_of_few_values_is_as_worked_out_by_hand():
    """Walsh averages of 1, 2, 4: 1, 1.5, 2, 2.5, 3, 4."""
    assert interval([4.0, 1.0, 2.0], z=0.0) == (2.5, 2.5, 2.0)
    assert interval([1.0, 2.0, 4.0]) == (1.0, 2.5, 4.0)


def test_the_interval_covers_as_often_as_it_says():
    """Of a median of 0.3 with heavy tails, 20 values each."""
    source = random.Random(5)
    covered = 0
    for _ in range(200):
        lower, estimate, upper = interval([0.3 + source.gauss(0, 1) / max(0.2, source.random()) for _ in range(20)])
        assert lower <= estimate <= upper
        covered += lower <= 0.3 <= upper
    assert 0.9 <= covered / 200 <= 0.99


def test_a_ratio_below_one_means_that_recording_costs():
    """Recorded runs take 2 % longer, whatever the machine's own pace in that pair; one was held up by something else."""
    found = [
        (Spent(1.02 * pace, 1.01 * pace, 32, 0.105 * pace), Spent(pace, pace, 32, 0.1 * pace)) for pace in (0.4, 0.5, 2.0) * 10
    ]
    found[7] = (Spent(9.0, 1.0, 32, 0.05), Spent(0.5, 0.5, 32, 0.05))
    said = figures(found)
    assert said["recording_ratio"] == pytest.approx(1 / 1.02)
    assert said["recording_cpu_ratio"] == pytest.approx(1 / 1.01)
    assert said["recording_host_ratio"] == pytest.approx(1 / 1.005)
    assert said["recording_ratio_lower"] <= said["recording_ratio"] <= said["recording_ratio_upper"]
    assert said["pairs"] == 30
