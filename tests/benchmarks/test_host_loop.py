"""The calibration of the event loop measures what it says."""

from __future__ import annotations

import pytest

from tests.benchmarks import host_loop

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""A row collects garbage before it is measured: also that of earlier tests, of engines that were broken on purpose."""


def test_a_live_row_shows_a_loop_that_is_busy(monkeypatch):
    monkeypatch.setattr(host_loop, "STEPS", 2)
    monkeypatch.setattr(host_loop, "WARMUP_STEPS", 1)
    row, free, charged = host_loop.played(5.0), host_loop.predicted(5.0, 0.0, 0.0), host_loop.predicted(5.0, 5e-5, 1e-5)
    assert free.busy == 0.0
    assert 0.2 < row.busy <= 1.0
    assert charged.turns_per_s < free.turns_per_s
    assert row.turns_per_s < 1.05 * free.turns_per_s


def test_a_fit_finds_the_costs_that_made_the_rows(monkeypatch):
    monkeypatch.setattr(host_loop, "STEPS", 1)
    monkeypatch.setattr(host_loop, "WARMUP_STEPS", 1)
    monkeypatch.setattr(host_loop, "EPISODES", 32)
    monkeypatch.setattr(host_loop, "FITTED", (5.0, 0.5))
    rows = {latency: host_loop.predicted(latency, 6e-5, 2e-5) for latency in host_loop.FITTED}
    pass_s, step_s = host_loop.fitted(rows)
    assert abs(pass_s / 6e-5 - 1) < 0.1
    assert abs(step_s / 2e-5 - 1) < 0.1
