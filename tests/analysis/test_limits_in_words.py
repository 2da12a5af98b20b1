"""What a simulation says that limits it: whose chips are idle, queues at providers, and a bound only where it is reached."""

from __future__ import annotations

import pytest

from harness.core.errors import ConfigError
from harness.run import load, simulate, simulate_once
from harness.tuning.measured import measure
from harness.tuning.wording import limits_in_words
from tests.scenario.test_shipped import FOLDER


def said(name, *overrides, replications=1):
    run = simulate(load(FOLDER / f"{name}.toml", overrides=overrides), replications=replications, workers=1)
    return measure(run.summaries), " ".join(limits_in_words(measure(run.summaries), run.agreement))


def test_idle_chips_of_the_roles_add_up_to_the_idle_chips():
    for name in ("fully_async", "colocated"):
        summary = simulate_once(load(FOLDER / f"{name}.toml", overrides=["run.learner_steps=3"]), 1)
        idle = sum(ns for key, ns in summary.chip_ns.items() if key.startswith("idle:"))
        assert sum(summary.idle_by_role_ns.values()) == idle > 0


def test_a_rate_limit_that_holds_everything_up_is_named():
    measured, words = said("web_research_agent", "run.learner_steps=6", "workload.tools.search.rate_per_s=0.7")
    assert measured.episode_s["provider_queue"] > measured.episode_s["tool_exec"]
    assert "a queue at their provider" in words
    assert "Rate limit of search" in words
    assert "so it is the limit" in words


def test_a_bound_that_is_far_away_is_not_called_the_limit():
    _, words = said("fully_async", "run.learner_steps=6")
    assert "so it is the limit" not in words
    assert "No resource is at its bound" in words
    assert words.index("those of the learner") < words.index("those of the replicas")


def test_a_time_beyond_all_counting_is_the_users_mistake():
    with pytest.raises(ConfigError, match="far too large"):
        said("fully_async", "world.inference.decode.base_s=1e308")
