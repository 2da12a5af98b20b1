"""Laws of the whole pipeline, over many configurations through the real actors. `play` checks most of them on every run:

conservation of episodes and tokens, the split of chip time to the last nanosecond, the invariants of the record (lag within
its bound at consumption, versions, order, depth of the buffer), sandboxes closed once, permits back at the end.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tiny_configs import scenarios
from tiny_world import exponential, play, scenario

from harness.core.errors import ConfigError
from harness.core.events import EventKind
from harness.core.lanes import State
from pipeline.policies.kinds import AdmissionKind, StalePolicy


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.filter_too_much])
@given(what=scenarios(), seed=st.integers(0, 1000))
def test_what_is_accepted_makes_its_steps_and_keeps_every_law(what, seed):
    assume(what is not None)
    played = play(what, seed)
    config = what.pipeline
    assert played.summary.learner_steps == what.run.learner_steps
    assert played.summary.groups == what.run.learner_steps * config.groups_per_step
    groups_in_flight(played)
    checkpoints = [event[2] for event in played.of(EventKind.CHECKPOINTED)]
    every = config.checkpoint_interval
    assert checkpoints == ([n for n in range(1, what.run.learner_steps + 1) if n % every == 0] if every else [])


def groups_in_flight(played):
    """Whatever was admitted is trained, dropped or somewhere; and no more runs than the cap and the law of admission allow."""
    config = played.scenario.pipeline
    live, episodes, version = set(), set(), 0
    trained = 0
    for _, kind, entity, *fields in played.events:
        if kind == EventKind.GROUP_ADMIT:
            live.add(entity)
            if config.admission is AdmissionKind.LEAD:
                credit = (config.pipeline_depth + version + 1) * config.groups_per_step + config.overprovision_groups
                assert trained + len(live) <= credit
        elif kind == EventKind.CONSUME:
            live.remove(entity)
            trained += 1
        elif kind == EventKind.DROP:
            live.remove(entity)
        elif kind == EventKind.PUBLISHED:
            version = entity
        elif kind == EventKind.EPISODE_START and fields[0] < 1 << 40:
            episodes.add(entity)
            assert len(episodes) <= config.max_inflight
        elif kind == EventKind.EPISODE_END:
            episodes.discard(entity)


@settings(max_examples=10, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.filter_too_much])
@given(what=scenarios(most_steps=4), seed=st.integers(0, 1000), warmup_steps=st.integers(1, 3))
def test_a_window_that_begins_anywhere_splits_exactly(what, seed, warmup_steps):
    assume(what is not None)
    whole = play(
        what.model_copy(update={"run": what.run.model_copy(update={"learner_steps": what.run.learner_steps + warmup_steps})}),
        seed,
    )
    cut = play(what, seed, warmup_steps=warmup_steps)
    assert cut.events == whole.events, "looking on changes nothing"
    assert cut.summary.learner_steps == what.run.learner_steps


def tiny(S, k, D, admission, stale, **knobs):
    """One member a group, two groups a step, random durations: a few milliseconds."""
    return scenario(
        {"group_size": 1, "groups_per_step": 2, "max_staleness": S, "pipeline_depth": D, "steps_per_sync": k,
         "admission": admission.value, "stale_policy": stale.value, "buffer_capacity": 2 * (max(S, D, k) + 1),
         "max_inflight": 6, **knobs},
        workload={"turns": {"law": "constant", "value": 1}},
        tool={"duration": exponential(3.0)},
        steps=2 * k + S + 2,
        max_sim_s=3000.0,
    )  # fmt: skip


GRID = [(S, k, D) for S in range(7) for k in range(1, 7) for D in range(S + 1)]


def accepted(grid, admission, stale):
    for S, k, D in grid:
        if D and admission in (AdmissionKind.WINDOW, AdmissionKind.INFLIGHT):
            continue  # the depth has no effect there
        try:
            yield tiny(S, k, D, admission, stale)
        except ConfigError:
            continue


def run_all(scenarios):
    ran = 0
    for what in scenarios:
        played = play(what, 1, checks=False)
        assert played.summary.learner_steps == what.run.learner_steps
        if what.pipeline.stale_policy is not StalePolicy.TRAIN:
            assert played.summary.lag_max <= what.pipeline.max_staleness
        ran += 1
    return ran


@pytest.mark.parametrize("stale", StalePolicy)
@pytest.mark.parametrize("admission", AdmissionKind)
def test_bounds_intervals_and_depths_that_are_accepted_make_steps(admission, stale):
    never = stale is StalePolicy.WAIT and admission in (AdmissionKind.INFLIGHT, AdmissionKind.TARGET_STEP)
    assert (run_all(accepted(GRID[::5], admission, stale)) == 0) is never


@pytest.mark.slow
@pytest.mark.parametrize("stale", StalePolicy)
@pytest.mark.parametrize("admission", AdmissionKind)
def test_all_bounds_intervals_and_depths_that_are_accepted_make_steps(admission, stale):
    run_all(accepted(GRID, admission, stale))


@pytest.mark.parametrize(("tau", "S"), [(0.5, 3), (1.0, 4), (1.0, 6)])
def test_a_wider_window_under_a_waiting_learner(tau, S):
    played = play(tiny(S, 1, 0, AdmissionKind.WINDOW, StalePolicy.WAIT, window_fraction=tau), 2)
    assert played.summary.lag_max <= S
    assert played.summary.dropped_groups == {}


@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.filter_too_much])
@given(what=scenarios(most_steps=4), seed=st.integers(0, 1000))
def test_whatever_may_start_does_so_in_the_same_instant(what, seed):
    assume(what is not None)
    instants = []

    def look(played):
        instants.append(played.pipeline.groups.may_start)

    play(what, seed, at_instant=look, checks=False)
    assert len(instants) > 20
    assert not any(instants)


@pytest.mark.parametrize("lost", ["stale", "evicted", "filtered", "failed", "surplus"])
def test_what_is_lost_is_replaced_in_the_same_instant(lost):
    knobs = {
        "stale": {"groups_per_step": 4, "buffer_capacity": 8},
        "evicted": {
            "on_full": "drop_oldest",
            "buffer_capacity": 2,
            "consume_chunk": 1,
            "max_staleness": 3,
            "pipeline_depth": 3,
        },
        "filtered": {"filter": "zero_variance"},
        "failed": {"retry_infra": 0},
        "surplus": {"overprovision_groups": 2},
    }[lost]
    world = {"environments": {"reset_infra_failure": 0.2 if lost == "failed" else 0.0}}
    world["learner"] = {"train": {"base_s": 4.0 if lost in ("evicted", "surplus") else 0.5}}
    groups = instants = 0

    def look(played):
        nonlocal instants
        instants += played.pipeline.groups.may_start

    for seed in range(4):
        what = scenario({"max_inflight": 40, "env_workers": 40} | knobs, random=True, world=world, steps=6)
        groups += play(what, seed, at_instant=look, checks=False).summary.dropped_groups.get(lost, 0)
    assert groups > 0
    assert instants == 0


def test_a_slot_is_never_idle_while_there_is_credit_and_room():
    """Progress: whatever may start does so in the same instant. Here the cap is what limits, so no slot is ever gated."""
    played = play(scenario({"max_inflight": 4, "admission": "inflight", "max_staleness": 3, "env_workers": 8}, random=True), 1)
    for name, lane in played.report.lane_ns.items():
        if name.startswith("slot/"):
            assert lane[State.GATED] == 0
