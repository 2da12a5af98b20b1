"""One pipeline, two virtual engines: the same canonical log to the last event, and the same laws when ties are shuffled."""

from __future__ import annotations

from statistics import fmean, pstdev

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tiny_configs import scenarios
from tiny_world import play, scenario

from harness.core.events import describe, first_difference
from harness.engines import virtual

CONFIGURATIONS = {
    "constant laws, every event tied": {},
    "drain": {"sync_mode": "drain"},
    "drain_episodes": {"sync_mode": "drain_episodes"},
    "abort_resume": {"sync_mode": "abort_resume"},
    "waiting learner": {
        "stale_policy": "wait",
        "consume_chunk": 1,
        "max_staleness": 2,
        "pipeline_depth": 2,
        "buffer_capacity": 6,
    },
    "everything at once": {
        "overprovision_members": 1,
        "overprovision_groups": 1,
        "group_quorum": 1,
        "eval_interval": 1,
        "checkpoint_interval": 2,
        "env_workers": 5,
        "tool_workers": 2,
        "reward_workers": 1,
        "slots_per_replica": 2,
    },
}
TROUBLE = {
    "world": {
        "inference": {"replicas": 2},
        "environments": {"reset_infra_failure": 0.1, "reset_hang": 0.05},
        "scoring": {"failure": 0.1},
    },
    "tool": {"failure": 0.05, "infra_failure": 0.1, "hang": 0.05},
}
LIMITS = {"build_s": 3.0, "reset_s": 3.0, "tool_s": 4.0, "step_s": 9.0}


def same_log(what, seed):
    on_sim, on_trio = (play(what, seed, **options).all_events for options in ({"checks": False}, {"engine": virtual.run}))
    at = first_difference(on_sim, on_trio)
    assert at is None, f"event {at}: {describe(on_sim[at])} on sim, {describe(on_trio[at])} on virtual"
    return on_sim


@pytest.mark.parametrize("trouble", [False, True], ids=["fine", "trouble"])
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_both_engines_leave_the_same_log(name, trouble):
    knobs = {**CONFIGURATIONS[name], **({"deadlines": LIMITS} if trouble else {})}
    what = scenario(knobs, random=trouble, steps=4, **(TROUBLE if trouble else {}))
    assert len(same_log(what, 5)) > 300


@settings(max_examples=18, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.filter_too_much])
@given(what=scenarios(most_steps=4), seed=st.integers(0, 1000))
def test_both_engines_leave_the_same_log_of_any_configuration(what, seed):
    assume(what is not None)
    same_log(what, seed)


TIE_SEEDS = 16
TIGHT = {
    "env_workers": 6,
    "tool_workers": 3,
    "slots_per_replica": 4,
    "max_staleness": 2,
    "pipeline_depth": 2,
    "buffer_capacity": 6,
    "group_size": 3,
    "max_inflight": 12,
}


def kept(what, seed, **options):
    return play(what, seed, **options).summary.kept_groups_per_chip_s


def shuffled(what):
    """The result under each order of ties, over that of the canonical order. `play` checks conservation in each run."""
    reference = kept(what, 1, checks=False)
    return [kept(what, 1, engine=virtual.run, tie_seed=seed, checks=seed < 3) / reference for seed in range(TIE_SEEDS)]


def test_shuffled_ties_hardly_change_the_result_where_all_is_tied():
    """Constant durations, the worst case: the order of what is simultaneous is all there is. Measured: 0.8 to 0.9 %."""
    assert max(abs(value - 1) for value in shuffled(scenario(TIGHT, steps=8))) < 0.03


def test_shuffled_ties_change_less_than_luck_does():
    """Random durations: the spread over orders of ties against that over seeds. Measured: 2.2 % against 12 %."""
    what = scenario(TIGHT, random=True, steps=8)
    by_tie = shuffled(what)
    by_seed = [kept(what, seed, checks=False) for seed in range(TIE_SEEDS)]
    luck = pstdev(by_seed) / fmean(by_seed)
    assert pstdev(by_tie) < luck / 2
    assert abs(fmean(by_tie) - 1) < luck
