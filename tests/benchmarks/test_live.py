"""The benchmark of a live run compares like with like, and knows every figure that has a target. Times are not tested here."""

from __future__ import annotations

import async_sync
import host_turn
import live as live_benchmark
import pytest

from pipeline.config import PipelineConfig


@pytest.mark.real_clock
def test_both_loops_make_the_turns_that_they_are_asked_for(monkeypatch):
    monkeypatch.setattr(host_turn, "TURNS_PER_S", 4000)
    assert host_turn.pipeline_turn_us(16, 1) > 0
    assert host_turn.bare_turn_us(16, 2) > 0


def test_async_and_sync_differ_in_staleness_and_depth_alone():
    import harness

    sync, asynchronous = (
        harness.load(async_sync.SCENARIO, overrides=async_sync.COMMON + more).pipeline for more in async_sync.SETTINGS.values()
    )
    differ = {name for name in PipelineConfig.model_fields if getattr(sync, name) != getattr(asynchronous, name)}
    assert differ == {"max_staleness", "pipeline_depth"}


def test_the_interval_holds_the_median_and_is_that_of_the_values():
    lower, median, upper = async_sync.interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    assert lower < median == 4.5 < upper
    assert async_sync.interval([2.0] * 8) == (2.0, 2.0, 2.0)


def test_a_figure_that_is_null_misses_no_target():
    shown = live_benchmark.table({"decode_over_transformers": None, "turn_us_2000": 151.0, "recompilations_after_warmup": 0})
    assert "null" in shown
    assert "MISSED" in shown.splitlines()[1]
    assert "met" in shown.splitlines()[2]
