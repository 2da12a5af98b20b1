"""Replicas that are lost and come back: nothing is lost with them but time, on every engine and in every sync mode."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_world import S, count, play, scenario

from harness.core.accounts import Fate
from harness.core.errors import LawError
from harness.core.events import EventKind, describe, first_difference
from harness.core.lanes import State
from harness.core.work import WorkKind
from harness.engines import sim, virtual
from pipeline.policies.fleet import slice_of

MODES = ["drain", "drain_episodes", "abort_resume", "keep"]
ALONE = {"group_size": 1, "groups_per_step": 1, "max_inflight": 1, "max_staleness": 0, "pipeline_depth": 0}
"""One episode at a time."""


def lossy(what, calendar, seed=0, engine=sim.run, **options):
    """Play a scenario in which replica i is down in [from_s, to_s) for each (i, from_s, to_s) of `calendar`."""
    box = []

    async def one(rt, replica, from_s, to_s):
        engines = box[0].engines
        await rt.sleep(round(from_s * S))
        rt.emit(EventKind.CAPACITY_LOST, slice_of(replica), 0, 1)
        engines.lose(replica)
        await rt.sleep(round((to_s - from_s) * S))
        engines.replicas[replica].lane.to(State.RESTORE)
        await rt.sleep(S // 10)
        await engines.recover(replica)
        down_ns = rt.now() - round(from_s * S)
        rt.emit(EventKind.CAPACITY_BACK, slice_of(replica), 0, down_ns, engines.replicas[replica].version)

    async def fleet(rt, scope):
        async with rt.nursery() as nursery:
            for entry in calendar:
                nursery.start_soon(one, rt, *entry)

    return play(what, seed, engine=engine, interrupt=fleet, made=box.append, **options)


def world(replicas, server=False):
    inference = {"replicas": replicas, "prefill": {"base_s": 0.1, "per_token_s": 0.001}}
    return {"inference": inference | ({"server": {"slots": 3}} if server else {})}


@st.composite
def calendars(draw):
    """Outages of three replicas, none of them twice at a time."""
    entries = []
    for replica in range(3):
        now = 0.0
        for _ in range(draw(st.integers(0, 3))):
            gap, length = draw(st.floats(0.01, 6.0)), draw(st.floats(0.001, 8.0))
            now = round(now + gap, 3)
            entries.append((replica, now, round(now + length, 3)))
            now += length + 1.5  # restore and transfer
    return entries


@settings(max_examples=12)
@given(
    calendar=calendars(),
    mode=st.sampled_from(MODES),
    rolling=st.booleans(),
    router=st.sampled_from(["round_robin", "sticky", "least_loaded"]),
    server=st.booleans(),
    seed=st.integers(0, 100),
)
def test_whatever_is_lost_the_run_ends_and_both_engines_agree(calendar, mode, rolling, router, server, seed):
    rollout = "rolling" if rolling and mode != "drain_episodes" else "all_at_once"
    knobs = {
        "sync_mode": mode,
        "sync_rollout": rollout,
        "router_policy": router,
        "slots_per_replica": 2,
        "decode_chunk_steps": 7,
    }
    what = scenario(knobs, random=True, world=world(3, server), steps=3, max_sim_s=3000.0)
    one, other = (lossy(what, calendar, seed, engine, checks=engine is sim.run) for engine in (sim.run, virtual.run))
    first = first_difference(one.all_events, other.all_events)
    assert first is None, f"{first}: {describe(one.all_events[first])} | {describe(other.all_events[first])}"
    assert one.report.versions[0] == 3


@pytest.mark.parametrize("server", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_while_no_replica_is_up_requests_wait_and_versions_are_published(mode, server):
    """Both are down for a minute; syncs do not wait for them, and they come back with the newest version."""
    what = scenario({"sync_mode": mode}, world=world(2, server), steps=6)
    played = lossy(what, [(0, 4.0, 64.0), (1, 6.0, 66.0)])
    starts = [event[0] for event in played.works(WorkKind.GENERATE if server else WorkKind.DECODE)]
    assert not [at for at in starts if 6.0 * S < at < 64.0 * S]
    assert min(at for at in starts if at > 60 * S) >= 64.6 * S, "restore 0.1 s, weights 0.5 s"
    installs = [event for event in played.of(EventKind.SYNC_INSTALL) if 64 * S < event[0] < 65 * S]
    published = [event[2] for event in played.of(EventKind.PUBLISHED) if event[0] <= 64.6 * S]
    assert [(event[2], event[3]) for event in installs] == [(published[-1] if published else 0, 0)]
    down = played.report.lane_ns["replica/0"][State.DOWN]
    assert down == 60 * S


@pytest.mark.parametrize("server", [False, True])
def test_a_lost_replica_loses_the_running_chunk_and_no_finished_one(server):
    """One request of 20 tokens, lost in its second chunk: the first chunk's tokens stay, all of the context comes again."""
    what = scenario(
        ALONE,
        world=world(2, server), workload={"turns": count(1)}, steps=1,
    )  # fmt: skip
    # reset 1 s, prefill of 10 tokens 0.11 s, chunks of 0.1 s
    played = lossy(what, [(0, 1.255, 50.0)])
    assert played.report.accounts.made_tokens == 20
    if server:  # its step that is running is counted when the abort is in force
        sent = played.works(WorkKind.GENERATE)
        assert [(event[2 + 2], event[5]) for event in sent] == [(0, 10), (1, 10 + 15)]
        return
    prefills, chunks = played.works(WorkKind.PREFILL), played.works(WorkKind.DECODE)
    assert [event[5] for event in prefills] == [10, 20], "10 of the prompt, and then 10 made as well"
    assert [(event[2], event[4]) for event in chunks] == [(0, 10), (0, 10), (1, 10)]
    assert played.report.lane_ns["replica/1"][State.REPREFILL] == round(0.12 * S)
    lost = played.report.accounts.window_ns[Fate.LOST]
    assert lost == pytest.approx(0.045 * S)
    assert played.summary.chip_ns["discarded:lost"] == pytest.approx(lost, abs=2)


def test_a_prefill_that_is_cut_off_is_lost_and_no_repetition():
    what = scenario(
        ALONE,
        world=world(2), workload={"turns": count(1)}, steps=1,
    )  # fmt: skip
    played = lossy(what, [(0, 1.05, 50.0)])
    assert played.report.accounts.window_ns[Fate.LOST] == pytest.approx(0.05 * S)
    assert played.report.lane_ns["replica/1"][State.REPREFILL] == 0
    assert played.report.lane_ns["replica/1"][State.PREFILL] == round(0.11 * S)


@pytest.mark.parametrize("server", [False, True])
def test_a_caller_that_leaves_while_no_replica_is_up_leaves_nothing_behind(server):
    what = scenario({"deadlines": {"generation_s": 3.0}, "retry_infra": 0}, world=world(1, server), steps=2, max_sim_s=300.0)
    played = lossy(what, [(0, 1.3, 40.0)])
    assert played.report.versions[0] == 2
    assert sum(played.report.accounts.settled) > 4, "those who waited have failed, others came after"


def test_a_later_token_may_come_from_an_older_version():
    """In a sync in turn one replica is ahead of the other: an episode that goes round both is as old as its oldest token."""
    knobs = {
        "sync_rollout": "rolling",
        "router_policy": "round_robin",
        "max_inflight": 3,
        "max_staleness": 4,
        "pipeline_depth": 4,
    }
    slow = {"weights": {"transfer": {"base_s": 5.0, "bytes_per_s": 1e12}}}
    what = scenario(knobs | {"buffer_capacity": 10}, world=world(2) | slow, workload={"turns": count(5)}, steps=6)
    played = play(what)
    ends = [event for event in played.of(EventKind.EPISODE_END) if event[6] < event[7]]
    assert ends, "some episodes saw two versions"


@pytest.mark.parametrize("server", [False, True])
def test_lost_twice_and_back_without_a_loss_are_mistakes(server):
    what = scenario({}, world=world(2, server), steps=1)
    box, seen = [], []

    async def wrong(rt, scope):
        engines = box[0].engines
        await rt.sleep(S)
        with pytest.raises(LawError, match="never lost"):
            await engines.recover(0)
        engines.lose(0)
        with pytest.raises(LawError, match="lost twice"):
            engines.lose(0)
        await engines.recover(0)
        seen.append(engines.up)

    play(what, interrupt=wrong, made=box.append)
    assert seen == [[True, True]]


@settings(max_examples=10)
@given(down_s=st.floats(0.5, 20.0), cut_s=st.floats(0.001, 0.7), server=st.booleans())
def test_a_return_that_is_broken_off_leaves_the_replica_down(down_s, cut_s, server):
    what = scenario({}, world=world(2, server), steps=3)
    box, seen = [], []

    async def fleet(rt, scope):
        engines = box[0].engines
        await rt.sleep(round(down_s * S))
        engines.lose(0)
        with rt.move_on_after(round(cut_s * S)) as limit:
            await engines.recover(0)
        seen.append(engines.up[0])
        if limit.cancelled_caught:
            assert not engines.up[0]
            engines.replicas[0].lane.to(State.DOWN)
            await rt.sleep(S)
            await engines.recover(0)

    play(what, interrupt=fleet, made=box.append)
