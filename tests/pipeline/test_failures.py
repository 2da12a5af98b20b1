"""What goes wrong outside costs episodes, never the run: `play` checks sandboxes, permits, conservation and steps of each."""

from __future__ import annotations

from collections import Counter

import pytest
from tiny_world import Hanging, S, constant, count, play, replaced, scenario

from harness.core.accounts import Fate
from harness.core.errors import ActorError
from harness.core.events import EventKind
from harness.core.lanes import State
from harness.core.work import Outcome, Status, WorkKind
from harness.run import simulate_once
from pipeline.data import Ended

SHORT = {"build_s": 2.0, "reset_s": 2.0, "tool_s": 4.0, "step_s": 15.0, "reward_s": 3.0, "close_s": 2.0, "generation_s": 20.0}


def ends(played):
    """How episodes ended, by kind."""
    return Counter(Ended(event[3]) for event in played.of(EventKind.EPISODE_END))


def ended_how(played, episode):
    return [Ended(event[3]) for event in played.of(EventKind.EPISODE_END, entity=episode)]


class Answers:
    """A performer that answers a list of outcomes for one episode, and the world's own for all others."""

    def __init__(self, inner, episode, *outcomes):
        self._inner = inner
        self._episode = episode
        self._outcomes = list(outcomes)

    async def __call__(self, rt, work, /):
        own = await self._inner(rt, work)
        return self._outcomes.pop(0) if work.entity == self._episode and self._outcomes else own

    async def gone(self, rt, work, /):
        await self._inner.gone(rt, work)


INFRA, FAILED = Outcome(status=Status.INFRA), Outcome(status=Status.FAILED)


# ── retries: the budget, the back-off, and what is left when it is used up ───────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("kind", "work_kind"), [("EnvReset", WorkKind.ENV_RESET), ("ToolCall", WorkKind.TOOL_CALL), ("Reward", WorkKind.REWARD)]
)
@pytest.mark.parametrize("failures", [1, 2, 3])
def test_infrastructure_failures_are_tried_again_up_to_the_budget(kind, work_kind, failures):
    played = play(scenario({"retry_infra": 2}), performers=replaced(**{kind: lambda own: Answers(own, 1, *[INFRA] * failures)}))
    starts = [event for event in played.works(work_kind) if event[2] == 1]
    calls = 2 if kind == "ToolCall" else 1
    delays = [event[5] for event in played.of(EventKind.RETRY, entity=1)]
    assert delays == [S // 4, S // 2][:failures], "back-off doubles"
    if failures <= 2:
        assert ended_how(played, 1) == [Ended.DONE]
        assert len(starts) == calls + failures
        assert played.summary.dropped_groups == {}
    else:
        assert ended_how(played, 1) == [Ended.FAILED_INFRA]
        assert len(starts) == 3
        assert played.summary.dropped_groups == {"failed": 1}, "its group is short of a member"
    assert played.summary.learner_steps == 4


def test_data_failures_have_a_budget_of_their_own():
    for retries, how in ((0, Ended.FAILED_DATA), (1, Ended.DONE)):
        knobs = {"retry_data": retries, "retry_infra": 0}
        played = play(scenario(knobs), performers=replaced(Reward=lambda own: Answers(own, 1, FAILED)))
        assert ended_how(played, 1) == [how]


def test_a_call_that_fails_in_itself_is_an_answer():
    played = play(scenario(), performers=replaced(ToolCall=lambda own: Answers(own, 0, FAILED)))
    assert ends(played).keys() <= {Ended.DONE}
    assert not played.of(EventKind.RETRY)


def test_a_lost_episode_is_no_zero_reward():
    """Success is certain, so a reward of 0 could only come from a failure: it would give a group variance."""
    knobs = {"filter": "zero_variance", "group_size": 2, "overprovision_members": 0, "retry_infra": 0, "max_staleness": 1}
    what = scenario(
        knobs,
        world={"environments": {"reset_infra_failure": 0.2}},
        workload={"success": {"median": 0.5, "spread": 0.0}},
        random=True,
        steps=3,
    )
    played = play(what, 1)
    kept = played.of(EventKind.GROUP_RELEASE)
    failed = [event[2] for event in played.of(EventKind.EPISODE_END) if event[3] == Ended.FAILED_INFRA]
    assert failed
    assert not {episode >> 16 for episode in failed} & {event[2] for event in kept}


# ── hangs ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_reset_that_hangs_is_cut_off_and_tried_again():
    hangs = replaced(EnvReset=lambda own: Hanging(own, lambda work: work.entity == 0 and work.attempt == 0))
    played = play(scenario({"deadlines": SHORT}), performers=hangs)
    assert ended_how(played, 0) == [Ended.DONE]
    retry = played.of(EventKind.RETRY, entity=0)
    assert len(retry) == 1
    # 4 s to build and reset, 5 s of grace that the worker does not use by dying.
    assert retry[0][0] == (4 + 5) * S


def test_resets_that_always_hang_use_the_retries_up():
    hangs = replaced(EnvReset=lambda own: Hanging(own, lambda work: work.entity == 0))
    played = play(scenario({"deadlines": SHORT}), performers=hangs)
    assert ended_how(played, 0) == [Ended.TIMED_OUT]
    assert len(played.of(EventKind.RETRY, entity=0)) == 2
    assert played.summary.dropped_groups == {"failed": 1}


def test_a_tool_that_hangs_costs_its_worker_until_it_is_gone():
    """Its worker never goes: the pool is one smaller for ever, and the episode goes on with a second attempt."""
    hangs = replaced(ToolCall=lambda own: Hanging(own, lambda work: work.entity == 0 and work.attempt == 0 and work.turn == 0))
    limits = {**SHORT, "step_s": 100.0}
    played = play(scenario({"deadlines": limits, "tool_workers": 2}, steps=3), performers=hangs)
    assert ended_how(played, 0) == [Ended.DONE]
    began = [event for event in played.works(WorkKind.TOOL_CALL) if event[2] == 0]
    assert began[1][0] - began[0][0] >= (4 + 5) * S + S // 4
    assert most_at_once(played, [State.TOOL_EXEC], after=began[1][0]) == 1


def most_at_once(played, states, after):
    """Most slots at once in some states, after an instant."""
    slots = {lane["lane"] for lane in played.record.lanes.rows(named=True) if lane["role"] == "rollout"}
    changes = []
    for t0, t1, lane, state, *_ in played.record.intervals.rows():
        if lane in slots and state in states and t1 > after:
            changes += [(max(t0, after), 1), (t1, -1)]
    running = most = 0
    for _, change in sorted(changes):
        running += change
        most = max(most, running)
    return most


def test_calls_that_hang_use_the_step_up():
    hangs = replaced(ToolCall=lambda own: Hanging(own, lambda work: work.entity == 0 and work.turn == 1))
    played = play(scenario({"deadlines": SHORT, "retry_infra": 100}), performers=hangs)
    assert ended_how(played, 0) == [Ended.TIMED_OUT]


def test_a_reward_that_hangs_is_abandoned_and_its_worker_stays_taken():
    hangs = replaced(Reward=lambda own: Hanging(own, lambda work: work.entity == 0))
    played = play(scenario({"deadlines": SHORT, "reward_workers": 4, "retry_infra": 2}, steps=3), performers=hangs)
    assert ended_how(played, 0) == [Ended.TIMED_OUT]
    began = [event for event in played.works(WorkKind.REWARD) if event[2] == 0]
    assert len(began) == 3
    assert began[1][0] - began[0][0] == 3 * S + S // 4, "nobody waits for a thread that cannot be killed"
    assert most_at_once(played, [State.REWARD], after=began[2][0] + 3 * S) == 1, "three of four workers are gone"


def test_a_close_that_hangs_is_abandoned_and_its_sandbox_stays_taken():
    hangs = replaced(EnvClose=lambda own: Hanging(own, lambda work: work.entity in (0, 1)))
    played = play(scenario({"deadlines": SHORT, "env_workers": 5}, steps=3), performers=hangs)
    assert ended_how(played, 0) == ended_how(played, 1) == [Ended.DONE], "the episode itself is whole"
    given_up = max(event[0] for event in played.works(WorkKind.ENV_CLOSE, ends=True) if event[2] in (0, 1))
    held = [state for state in State if state not in (State.NO_WORK, State.GATED, State.ENV_QUEUE, State.BLOCKED_PUT)]
    starts = [event[0] for event in played.works(WorkKind.ENV_RESET)]
    assert any(start > given_up for start in starts)
    assert most_at_once(played, held, after=given_up) == 3


# ── deadlines ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_generation_past_its_deadline_ends_its_episode():
    limits = {"generation_s": 0.35}
    knobs = {"deadlines": limits, "slots_per_replica": 2, "decode_chunk_steps": 5}
    played = play(scenario(knobs, steps=2, random=True), 3)
    how = ends(played)
    assert how[Ended.TIMED_OUT] > 0
    assert how[Ended.DONE] > 0
    assert played.report.accounts.settled[Fate.FAILED] > 0
    assert played.report.accounts.tokens[Fate.FAILED] > 0, "what was made for them is on the books"


def test_an_episode_past_its_deadline_is_cut_off_where_it_is():
    limits = dict.fromkeys(("build_s", "reset_s", "step_s", "tool_s", "generation_s", "reward_s"), 6.0) | {"episode_s": 6.0}
    played = play(scenario({"deadlines": limits, "retry_infra": 0}, steps=2, random=True), 1)
    how = ends(played)
    assert how[Ended.TIMED_OUT] > 0
    assert how[Ended.DONE] > 0
    lasted = {}
    for event in played.of(EventKind.EPISODE_START):
        lasted[event[2]] = -event[0]
    for event in played.of(EventKind.EPISODE_END):
        # Deadline, one decode chunk, grace, close.
        assert lasted[event[2]] + event[0] <= 6 * S + S // 2 + 5 * S + 5 * S


def test_waiting_for_a_sandbox_is_no_part_of_an_attempt():
    """Eight episodes, one sandbox, 7 s each: the last one waits for longer than an episode may take, and is whole."""
    limits = dict.fromkeys(("build_s", "reset_s", "step_s", "tool_s", "generation_s", "reward_s"), 8.0) | {"episode_s": 8.0}
    played = play(scenario({"deadlines": limits, "env_workers": 1}, steps=2))
    assert ends(played).keys() == {Ended.DONE}
    assert played.summary.dropped_groups == {}


# ── groups ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_quorum_does_without_a_member():
    hangs = replaced(EnvReset=lambda own: Hanging(own, lambda work: work.entity == 1))
    knobs = {"group_size": 3, "group_quorum": 2, "deadlines": SHORT}
    played = play(scenario(knobs), performers=hangs)
    assert played.summary.dropped_groups == {}
    assert all(event[3] == 2 for event in played.of(EventKind.GROUP_RELEASE))
    assert ended_how(played, 1) == [Ended.CANCELLED], "it was cut off when the other two were done"
    settled = played.report.accounts.settled
    assert settled[Fate.TRAINED] == 2 * 2 * 4


def test_over_provisioned_members_and_groups_end_as_surplus():
    knobs = {"overprovision_members": 1, "overprovision_groups": 2, "max_inflight": 20, "env_workers": 20, "buffer_capacity": 8}
    played = play(scenario(knobs, world={"learner": {"train": {"base_s": 6.0}}}, random=True, steps=6), 2)
    accounts = played.report.accounts
    assert accounts.settled[Fate.SURPLUS] > 6
    assert played.summary.dropped_groups.get("surplus", 0) > 0
    drops = [event for event in played.of(EventKind.DROP) if event[3] == Fate.SURPLUS]
    assert drops
    # No surplus group runs on: whatever is open at the end belongs to a group that is not dropped.
    dropped = {event[2] for event in played.of(EventKind.DROP)}
    running = {episode >> 16 for episode, who in played.pipeline.holders().items() if who != "running"}
    assert not dropped & running


def test_groups_without_signal_are_filtered_and_replaced():
    played = play(scenario({"filter": "zero_variance", "group_size": 2}, random=True, steps=5), 4)
    assert played.summary.dropped_groups["filtered"] > 0
    assert played.report.accounts.settled[Fate.FILTERED] == 2 * played.summary.dropped_groups["filtered"]


def test_a_full_buffer_that_drops_gives_the_credit_back():
    knobs = {"on_full": "drop_oldest", "buffer_capacity": 2, "admission": "inflight", "max_staleness": 2, "pipeline_depth": 0}
    played = play(scenario(knobs, world={"learner": {"train": {"base_s": 30.0}}}, random=True, steps=4), 1)
    assert played.summary.dropped_groups["evicted"] > 0
    assert played.report.accounts.settled[Fate.EVICTED] == 2 * played.summary.dropped_groups["evicted"]


@pytest.mark.parametrize("max_inflight", [2, 3, 8])
def test_a_full_buffer_that_blocks_holds_slots_and_loses_nothing(max_inflight):
    knobs = {"consume_chunk": 1, "buffer_capacity": 1, "max_inflight": max_inflight, "stale_policy": "train"}
    played = play(scenario(knobs, world={"learner": {"train": {"base_s": 5.0}}}, steps=5))
    assert played.summary.dropped_groups == {}
    blocked = sum(lane[State.BLOCKED_PUT] for lane in played.report.lane_ns.values())
    assert (blocked > 0) is (max_inflight > 3)
    puts = [event[2] for event in played.of(EventKind.BUFFER_PUT)]
    used = [event[2] for event in played.of(EventKind.CONSUME)]
    assert puts[: len(used)] == sorted(used), "who waits longer is served first"


# ── a learner that waits is woken ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("lost", ["fails", "filtered"])
def test_a_waiting_learner_hears_that_the_group_it_waits_for_is_gone(lost):
    """Group 0 is the oldest and the slowest, and never comes: when it is gone the learner goes on in the same instant."""
    bound = {"stale_policy": "wait", "max_staleness": 1, "pipeline_depth": 1, "consume_chunk": 1, "group_size": 2}
    own = {"deadlines": {**SHORT, "reset_s": 98.0, "episode_s": 200.0}, "retry_infra": 0}
    own |= {"filter": "zero_variance"} if lost == "filtered" else {}

    class Rewards:
        def __init__(self, inner):
            self._inner = inner

        async def __call__(self, rt, work, /):
            await self._inner(rt, work)
            return Outcome(result=0.0 if work.entity >> 16 == 0 else float(work.entity & 1))

        async def gone(self, rt, work, /):
            await self._inner.gone(rt, work)

    class Slow:
        def __init__(self, inner):
            self._inner = inner

        async def __call__(self, rt, work, /):
            if work.entity >> 16 == 0:
                await rt.sleep(60 * S)
                return INFRA if lost == "fails" else Outcome()
            return await self._inner(rt, work)

        async def gone(self, rt, work, /):
            await self._inner.gone(rt, work)

    what = scenario(bound | own, steps=5)
    played = play(what, performers=replaced(EnvReset=Slow, Reward=Rewards))
    drop = next(event for event in played.of(EventKind.DROP) if event[2] == 0)
    waits = [(t0, t1) for t0, t1, _, state, *_ in played.record.intervals.rows() if state == State.STALE_WAIT]
    assert any(t0 < t1 == drop[0] for t0, t1 in waits)
    assert any(event[0] == drop[0] for event in played.of(EventKind.CONSUME))
    assert max(event[4] for event in played.of(EventKind.CONSUME)) <= 1


def test_a_slow_world_only_takes_longer():
    slow = {"environments": {"reset": constant(50.0)}, "scoring": {"duration": constant(40.0)}}
    fast, long = play(scenario()), play(scenario(world=slow))
    assert [event[2:] for event in fast.of(EventKind.STEP)] == [event[2:] for event in long.of(EventKind.STEP)]


# ── odd workloads ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "workload",
    [
        {"response_tokens": count(0)},
        {"response_tokens": {"law": "lognormal", "mean": 1.0, "cv": 2.0, "min": 0, "max": 4}},
        {"turns": count(0)},
        {"prompt_tokens": count(0), "observation_tokens": count(0)},
    ],
    ids=["no answer", "some without an answer", "no turn", "nothing to read"],
)
def test_episodes_that_make_nothing_are_episodes(workload):
    played = play(scenario({"max_inflight": 6}, workload=workload))
    assert played.summary.learner_steps == 4


# ── a world in which nothing comes of anything is given up, with the reason ──────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("knobs", "changes", "named"),
    [
        ({"retry_infra": 0}, {"world": {"environments": {"reset_infra_failure": 1.0}}}, "world.environments"),
        ({"retry_data": 0}, {"world": {"scoring": {"failure": 1.0}}}, "world.scoring"),
        ({"filter": "zero_variance"}, {"workload": {"success": {"median": 1 - 1e-12}}}, "pipeline.filter"),
    ],
)
def test_a_world_where_nothing_can_be_trained_is_given_up(knobs, changes, named):
    with pytest.raises(ActorError, match="nothing can be trained") as caught:
        simulate_once(scenario(knobs, **changes), 0)
    assert named in str(caught.value)
    assert caught.value.exit_code == 2
