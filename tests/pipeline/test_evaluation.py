"""Evaluation and checkpoints: their rhythm, what they cost and whom they hold up."""

from __future__ import annotations

import pytest
from tiny_world import Hanging, S, play, replaced, scenario

from harness.core.accounts import Fate
from harness.core.errors import ActorError
from harness.core.events import EventKind
from harness.core.lanes import State
from harness.core.work import WorkKind
from harness.engines import virtual
from pipeline.data import EVALUATION_GROUPS, Ended

FIRST = EVALUATION_GROUPS << 16
ROUND = round((1 + 2 * (0.1 + 0.2 + 2) + 1 + 0.5) * S)


def of_evaluation(events):
    return [event for event in events if event[2] >= FIRST]


def test_rounds_are_due_at_their_interval_and_name_their_version():
    played = play(scenario({"eval_interval": 2, "eval_episodes": 3, "env_workers": 16}, steps=9))
    ordered = {event[2]: event[0] for event in played.of(EventKind.STEP) if event[2] % 2 == 0}
    done = {event[2]: event for event in played.of(EventKind.EVALUATED)}
    assert done.keys() <= ordered.keys()
    assert len(done) >= 3
    assert all(event[3:5] == (3, 0) for event in done.values())
    starts = of_evaluation(played.of(EventKind.EPISODE_START))
    assert sorted(event[0] for event in starts) == sorted(at for at in ordered.values() for _ in range(3))


def test_their_tokens_and_chip_time_are_evaluation():
    played = play(scenario({"eval_interval": 2, "eval_episodes": 3, "env_workers": 16}, steps=9))
    accounts = played.report.accounts
    ended = of_evaluation(played.of(EventKind.EPISODE_END))
    assert accounts.settled[Fate.EVALUATION] == len(ended)
    assert accounts.tokens[Fate.EVALUATION] == 40 * len(ended)
    assert played.summary.chip_ns["overhead:evaluation"] > 0
    assert played.summary.tokens_trained == 9 * 4 * 40


def test_they_take_sandboxes_from_the_same_pool():
    """Four sandboxes are all in use by training: evaluation queues for them, in lanes of its own."""
    played = play(scenario({"eval_interval": 1, "eval_episodes": 4, "env_workers": 4}, steps=6))
    lanes = {name: ns for name, ns in played.report.lane_ns.items() if name.startswith("evaluation/")}
    assert sum(ns[State.ENV_QUEUE] for ns in lanes.values()) > 0
    assert played.summary.utilisation["environments"] > 0.9


def test_lanes_are_used_again_by_later_rounds():
    played = play(scenario({"eval_interval": 4, "eval_episodes": 3, "env_workers": 16}, steps=12))
    assert len(played.of(EventKind.EVALUATED)) >= 2
    lanes = [lane for lane in played.report.lanes if lane.role == "evaluation"]
    assert len(lanes) == 3


@pytest.mark.parametrize("engine", [None, virtual.run], ids=["sim", "virtual"])
@pytest.mark.parametrize("kind", ["EnvReset", "ToolCall"])
def test_an_episode_that_hangs_is_lost_at_the_deadline_of_its_round(kind, engine):
    limits = {"evaluation_s": 12.0, "episode_s": 12.0, "step_s": 12.0, "tool_s": 12.0, "generation_s": 12.0}
    limits |= {"build_s": 12.0, "reset_s": 12.0, "reward_s": 12.0}
    knobs = {"eval_interval": 2, "eval_episodes": 3, "env_workers": 16, "deadlines": limits, "retry_infra": 0}
    hangs = replaced(**{kind: lambda own: Hanging(own, lambda work: work.entity == FIRST + 1)})
    played = play(scenario(knobs, steps=9), performers=hangs, **({"engine": engine} if engine else {}))
    first = played.of(EventKind.EVALUATED, entity=2)[0]
    ordered = next(event[0] for event in played.of(EventKind.STEP) if event[2] == 2)
    # The deadline of the round, 5 s of grace for the hanging worker, 0.5 s to close.
    assert first[0] == ordered + 12 * S + 5 * S + S // 2
    assert first[2:5] == (2, 2, 1)
    assert [Ended(event[3]) for event in played.of(EventKind.EPISODE_END, entity=FIRST + 1)] == [Ended.CANCELLED]
    assert played.report.accounts.fate_of(FIRST + 1) is Fate.EVALUATION
    closes = [event[2] for event in played.works(WorkKind.ENV_CLOSE)]
    assert closes.count(FIRST + 1) == 1


def test_a_round_whose_episodes_fail_is_a_round():
    hangs = replaced(EnvReset=lambda own: Hanging(own, lambda work: work.entity >= FIRST))
    limits = {"build_s": 1.0, "reset_s": 2.0}
    played = play(
        scenario({"eval_interval": 2, "deadlines": limits, "retry_infra": 0, "env_workers": 16}, steps=9), performers=hangs
    )
    assert {Ended(event[3]) for event in of_evaluation(played.of(EventKind.EPISODE_END))} == {Ended.TIMED_OUT}
    assert all(event[4] == 0 for event in played.of(EventKind.EVALUATED)), "they ended, if not well"


def test_checkpoints_hold_the_learner_up_at_their_interval():
    world = {"checkpoint": {"state_bytes": 10_000, "save": {"base_s": 3.0, "bytes_per_s": 1e12}}}
    played = play(scenario({"checkpoint_interval": 2}, world=world, steps=6))
    assert [event[2] for event in played.of(EventKind.CHECKPOINTED)] == [2, 4, 6]
    assert played.report.lane_ns["learner"][State.CHECKPOINT] == 3 * (3 * S + 10)
    assert played.summary.chip_ns["overhead:checkpoint"] == 3 * (3 * S + 10)


def test_a_checkpoint_past_its_deadline_ends_the_run():
    world = {"checkpoint": {"state_bytes": 10_000, "save": {"base_s": 30.0, "bytes_per_s": 1e12}}}
    with pytest.raises(BaseExceptionGroup) as caught:
        play(scenario({"checkpoint_interval": 2, "deadlines": {"checkpoint_s": 20.0}}, world=world))
    assert "version 2 was not saved in time" in str(leaf(caught.value, ActorError))


def leaf(failure, kind):
    found = failure.subgroup(kind)
    assert found is not None
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
