"""Scenarios that an agentic RL system can be held to, and the tests that prove each: the table `FIELD_SCENARIOS`."""

from __future__ import annotations

import ast
import logging
import time
from pathlib import Path

import pytest
import trio
from live_world import Counted, S, counted, play
from tiny_world import constant, scenario
from tiny_world import play as simulate

from harness.core.events import EventKind
from harness.core.lanes import State
from pipeline.performers.loop_watch import LoopWatch

FIELD_SCENARIOS = {
    1: (
        "streaming groups: delivered once, whole, in batches of the asked size",
        ("live/test_field_flow.py::test_01_groups_are_delivered_once_whole_and_in_batches_of_the_asked_size",),
    ),
    2: (
        "one that raises: the error surfaces, no hang; so for each actor, and for the producer",
        (
            "live/test_field_failures.py::test_02_an_actor_that_dies_ends_the_run_with_its_name_and_cause",
            "live/test_field_failures.py::test_02_a_checkpointer_that_dies_ends_the_run_with_its_name",
            "environments/test_live_episodes.py::test_an_exception_fails_its_episode_alone_and_is_counted",
        ),
    ),
    3: (
        "queue: a waiting consumer wakes, leftovers stay (one consumer; a failure cancels every wait, so none is poisoned)",
        (
            "pipeline/test_failures.py::test_a_waiting_learner_hears_that_the_group_it_waits_for_is_gone",
            "pipeline/test_theory.py::test_the_learner_follows_the_recursion_of_a_batch_server",
            "live/test_field_flow.py::test_01_groups_are_delivered_once_whole_and_in_batches_of_the_asked_size",
        ),
    ),
    4: (
        "an episode's limits end it with their own status; masks, tokens, log-probabilities aligned",
        (
            "environments/test_live_episodes.py::test_each_limit_ends_an_episode_in_its_own_way",
            "environments/test_episode_alignment.py::test_the_lists_of_a_sample_are_aligned_for_any_conversation",
            "performers/test_learner.py::test_truncated_samples_are_left_out_on_request_but_their_rewards_count",
        ),
    ),
    5: (
        "learner: on-policy, 1 and 2 off reach four steps; micro-batches equal the whole; resumed equals uninterrupted",
        (
            "live/test_resumed_on_jax.py::test_05_on_policy_and_one_and_two_steps_off_reach_four_steps_and_parameters_change",
            "numerics/test_learner.py::test_any_split_into_chunks_gives_the_gradient_of_the_whole_batch",
            "live/test_resumed_on_jax.py::test_a_synchronous_run_that_is_resumed_has_the_same_parameters_bit_for_bit",
            "pipeline/test_evaluation.py::test_rounds_are_due_at_their_interval_and_name_their_version",
        ),
    ),
    6: (
        "tools: unknown, raising, parallel",
        (
            "environments/test_parsers_and_tools.py::test_what_goes_wrong_in_a_call_is_an_observation",
            "environments/test_parsers_and_tools.py::test_calls_of_one_turn_run_at_once_and_answer_in_order",
        ),
    ),
    7: (
        "spans: lanes, in one state at every instant, instead: nothing nests, and device work has one order",
        (
            "core/test_lanes.py::test_lanes_agree_with_their_diaries",
            "trace/test_invariants.py::test_random_lanes_partition_their_presence",
        ),
    ),
    8: (
        "a rollout that is a stand-in: seeded, with laws of length and time that are checked",
        (
            "differential/test_determinism.py::*",
            "costs/test_workload.py::*",
        ),
    ),
    9: (
        "stages: zero staleness goes one batch ahead; a cancellation ends all; the last micro-batch ends the step",
        (
            "pipeline/test_sync.py::test_the_synchronous_baseline_to_the_nanosecond",
            "pipeline/test_cancel.py::test_cut_off_at_any_event_on_real_trio",
            "numerics/test_learner.py::test_a_chunk_of_another_step_before_the_last_is_refused",
        ),
    ),
    10: (
        "weight sync: mismatch refused, one round at a time, versions never go back, cancelled at any moment",
        (
            "numerics/test_engine.py::test_weights_of_another_network_are_refused",
            "policies/test_sync_laws.py::test_rolling_takes_one_after_the_other_and_a_lost_one_does_not_hold_it_up",
            "pipeline/test_cancel.py::test_cut_off_at_any_event",
            "external/test_orders.py::test_a_caller_that_is_cancelled_in_the_middle_of_a_swap_is_let_go",
        ),
    ),
    11: (
        "a worker dies, answers late, a group cannot be refilled: no partial group, no credit kept",
        (
            "environments/test_live_episodes.py::test_a_constructor_that_hangs_is_given_up_and_what_it_builds_late_is_closed",
            "policies/test_group_laws.py::test_a_group_that_cannot_reach_its_quorum_fails_at_once",
            "pipeline/test_laws.py::test_what_is_lost_is_replaced_in_the_same_instant",
        ),
    ),
    12: (
        "off-policy 1 with little concurrency makes progress; the wait of each sync is reported",
        ("live/test_field_flow.py::test_12_off_policy_one_with_low_concurrency_makes_progress",),
    ),
    13: (
        "a long tail during a sync: what a drain costs, and what the alternatives cost",
        (
            "live/test_field_flow.py::test_13_a_drain_of_episodes_costs_the_slowest_one_and_says_so",
            "live/test_field_flow.py::test_13_the_alternatives_let_old_episodes_end_while_weights_change",
        ),
    ),
    14: (
        "steps of known length at once: each measured for its own episode",
        ("environments/test_live_episodes.py::test_steps_that_run_at_once_are_measured_each_for_its_own_episode",),
    ),
    15: (
        "an interval across a step's boundary neither raises nor vanishes",
        (
            "pipeline/test_laws.py::test_a_window_that_begins_anywhere_splits_exactly",
            "live/test_field_scenarios.py::test_15_a_step_of_an_environment_over_several_optimizer_steps_is_one_whole_interval",
        ),
    ),
    16: (
        "an environment that raises anywhere: closed once, the others go on, the cause counted",
        (
            "live/test_field_failures.py::test_16_an_environment_that_fails_is_closed_once_and_the_others_go_on",
            "environments/test_live_episodes.py::test_an_exception_fails_its_episode_alone_and_is_counted",
        ),
    ),
    17: (
        "hangs anywhere: bounded, threads told, the stall named, the pool never starved",
        (
            "environments/test_live_episodes.py::test_a_call_that_hangs_costs_its_episode_alone",
            "environments/test_live_episodes.py::test_a_constructor_that_hangs_is_given_up_and_what_it_builds_late_is_closed",
            "environments/test_live_episodes.py::test_more_hung_calls_than_threads_do_not_starve_the_pools",
            "live/test_field_failures.py::test_17_threads_that_hang_are_told_and_when_there_are_too_many_the_rest_is_closed",
            "live/test_field_failures.py::test_17_a_model_call_that_never_ends_is_cut_off_at_its_deadline",
            "live/test_field_failures.py::test_17_a_stall_is_named_with_who_waits_on_what_within_half_a_minute",
            "environments/test_sandbox.py::test_a_call_that_is_given_up_ends_at_once",
        ),
    ),
    18: (
        "a slow consumer at the end of the tasks gets every whole group",
        ("live/test_field_flow.py::test_18_a_slow_consumer_at_the_end_of_the_tasks_still_gets_every_whole_group",),
    ),
    19: (
        "truncation is told apart from success",
        ("environments/test_live_episodes.py::test_each_limit_ends_an_episode_in_its_own_way",),
    ),
    20: (
        "stale drops give their credit back",
        (
            "live/test_field_flow.py::test_20_stale_drops_give_their_credit_back_and_the_pace_returns",
            "policies/test_admission_laws.py::test_credit_of_a_lost_group_is_back_at_once",
        ),
    ),
    21: (
        "a worker that never answers: named, replaced or the end of the run",
        (
            "live/test_field_failures.py::test_21_a_publish_that_is_never_answered_ends_the_run_and_names_the_replica",
            "live/test_field_failures.py::test_21_an_engine_that_never_answers_ends_the_run_at_its_limit_by_name",
            "external/test_failures.py::test_a_server_that_is_silent_for_too_long_is_asked_again",
            "external/test_failures.py::test_a_deadline_of_ours_ends_a_request_at_a_server_that_hangs",
        ),
    ),
    22: (
        "recording for long: flat memory, bounded writes",
        (
            "trace/test_parts.py::test_memory_is_flat_however_long_the_run",
            "trace/test_recorder.py::test_spilling_frees_what_was_unpacked",
        ),
    ),
    23: (
        "a reward that blocks the loop is named; serial rewards are predicted",
        (
            "live/test_field_scenarios.py::test_23_a_reward_that_blocks_the_loop_is_charged_to_itself_and_named",
            "live/test_field_scenarios.py::test_23_serial_rewards_of_a_known_step_are_predicted",
        ),
    ),
    24: (
        "an evaluation that loses an episode times out and names it",
        ("live/test_field_failures.py::test_24_an_evaluation_that_loses_an_episode_times_out_and_names_it",),
    ),
}
"""Number: what must hold, and where it is tested (`*`: the whole file)."""


def test_each_scenario_is_proved_by_tests_that_exist():
    assert sorted(FIELD_SCENARIOS) == list(range(1, 25))
    root = Path(__file__).parents[1]
    lacking = []
    for number, (_, where) in FIELD_SCENARIOS.items():
        for place in where:
            file, _, name = place.partition("::")
            tree = ast.parse((root / file).read_text("utf-8"))
            tests = {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test")}
            if not tests or name not in tests | {"*"}:
                lacking.append((number, place))
    assert lacking == []


def test_15_a_step_of_an_environment_over_several_optimizer_steps_is_one_whole_interval():
    async def step(self, action):
        await self.host.sleep(60 if self.number == 6 and self.turns == 0 else 1)
        return await Counted.step(self, action)

    limits = {
        "tool_s": 100.0,
        "step_s": 200.0,
        "episode_s": 500.0,
        "generation_s": 20.0,
        "build_s": 4.0,
        "reset_s": 4.0,
        "reward_s": 8.0,
    }
    knobs = {"max_staleness": 2, "pipeline_depth": 2, "deadlines": limits, "tool_workers": 8}
    played = play(counted(step=step), pipeline=knobs, steps=16)
    steps = [event[0] for event in played.memory.events if event[1] == EventKind.STEP]
    long = [row for row in played.memory.intervals if row[3] == State.TOOL_EXEC and row[1] - row[0] == 60 * S]
    [(began_ns, ended_ns, *_)] = long
    assert len([at for at in steps if began_ns < at < ended_ns]) >= 2


@pytest.mark.real_clock
def test_23_a_reward_that_blocks_the_loop_is_charged_to_itself_and_named(caplog):
    """An `async def` that computes for 0.4 s stops all episodes; its own work is as long, and the watch shows its line.

    The run's clock goes ten times as fast as the system's.
    """

    def ready(pipeline):
        async def watch():
            with LoopWatch(0.1):
                await pipeline.rt.event().wait()

        pipeline.rt.background(watch, name="watch")

    async def score(self):
        if self.number == 1:
            time.sleep(0.4)  # noqa: ASYNC251 - what is tested
        return 0.5

    with caplog.at_level(logging.WARNING, "rollout_harness"):
        played = play(counted(score=score), ready=ready, steps=2, clock=trio.testing.MockClock(rate=10.0))
    lengths = [end - start for start, end, _, state, _ in played.memory.intervals if state == State.REWARD]
    assert len([length for length in lengths if length >= 4 * S]) == 1
    assert any("test_field_scenarios.py" in told.message and "in score" in told.message for told in caplog.records)


SERIAL_S, POOLED_S, STEP_S, MEASURED_S = 29.6, 3.5, 155.6, 129.0
"""A step whose rewards took 29.6 s of 155.6 s, one after the other; with rewards of 3.5 s it was measured to take 129.0 s."""


def step_s(reward_s, train_s):
    """Seconds of a synchronous step of 64 episodes that end together, with so much serial reward and training; its summary."""
    what = scenario(
        {
            "group_size": 8, "groups_per_step": 8, "max_staleness": 0, "pipeline_depth": 0, "max_inflight": 64,
            "buffer_capacity": 8, "env_workers": 64, "tool_workers": 64, "reward_workers": 1, "slots_per_replica": 64,
            "deadlines": {"episode_s": 1000.0},
        },
        world={"scoring": {"duration": constant(reward_s / 64)}, "learner": {"train": {"base_s": train_s}}},
        steps=4,
    )  # fmt: skip
    summary = simulate(what).summary
    return summary.window_s / 4, summary


def test_23_serial_rewards_of_a_known_step_are_predicted():
    """The step is calibrated to what was measured with serial rewards, and then asked about faster ones."""
    rest, _ = step_s(0.0, 1.0)
    train_s = 1.0 + (STEP_S - SERIAL_S) - rest
    serial, summary = step_s(SERIAL_S, train_s)
    assert serial == pytest.approx(STEP_S, rel=0.001)
    rewards_ns = summary.chip_ns["idle:reward"] + summary.chip_ns["idle:reward_queue"]
    assert rewards_ns / 4e9 == pytest.approx(
        2 * SERIAL_S / 2, rel=0.1
    )  # two chips; half of the episodes have theirs on average
    pooled, _ = step_s(POOLED_S, train_s)
    assert pooled == pytest.approx(MEASURED_S, rel=0.01)
