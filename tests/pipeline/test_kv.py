"""KV pressure in whole pipelines: who is pushed out comes back, and nothing is lost but time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_world import S, constant, count, geometric, play, scenario

from harness.core.events import EventKind, describe, first_difference
from harness.core.lanes import State
from harness.core.work import WorkKind
from harness.engines import sim, virtual
from pipeline.data import Ended

MODES = ["drain", "drain_episodes", "abort_resume", "keep"]
LONG = {"max_context_tokens": 110, "response_tokens": geometric(40.0, 60)}


def small_cache(tokens, knobs=None, **options):
    """Contexts of up to 110 tokens in a cache of so many."""
    options.setdefault("workload", {"max_context_tokens": 110})
    return scenario(
        {"kv_policy": "grow", "slots_per_replica": 6, "decode_chunk_steps": 7} | (knobs or {}),
        world={"inference": {"kv_capacity_tokens": tokens, "prefill": {"base_s": 0.01, "per_token_s": 0.001}}},
        **options,
    )


@settings(max_examples=15)
@given(tokens=st.integers(110, 300), mode=st.sampled_from(MODES), seed=st.integers(0, 100))
def test_pushed_out_or_not_the_run_ends_and_both_engines_agree(tokens, mode, seed):
    what = small_cache(tokens, {"sync_mode": mode}, random=True, steps=2, max_sim_s=3000.0)
    one, other = (play(what, seed, engine=engine, checks=engine is sim.run) for engine in (sim.run, virtual.run))
    first = first_difference(one.all_events, other.all_events)
    assert first is None, f"{first}: {describe(one.all_events[first])} | {describe(other.all_events[first])}"
    assert one.report.versions[0] == 2
    # A request makes at most its chunk; what a chunk adds at most is bounded by the caps, of which the last chunk is a part.
    assert all(event[6] <= tokens for event in one.works(WorkKind.DECODE))


def test_the_cache_is_never_fuller_than_it_is():
    """At every event of a run with many preemptions."""
    what = small_cache(150, random=True, steps=12, workload=LONG, tool={"duration": constant(0.01)})
    seen = []

    def watch(pipeline):
        replica = pipeline.replicas[0]
        rt = pipeline.rt
        emit = rt.recorder.append_event

        def append(event):
            seen.append(replica._kv.used)
            held = sum(r.kv_tokens + replica._progress - r.entered for r in replica.running.values())
            assert replica._kv.used == held <= 150
            return emit(event)

        rt.recorder.append_event = append

    played = play(what, 1, made=watch)
    assert played.pipeline.replicas[0].preemptions > 10
    assert max(seen) > 100


def test_growing_uses_what_reserving_leaves_empty():
    """Short answers under a large cap: six run at a time, where reserving lets one run."""
    ends = {}
    for policy in ("reserve", "grow"):
        what = small_cache(200, {"kv_policy": policy, "decode_chunk_steps": 20}, steps=3, workload={
            "max_context_tokens": 190, "response_tokens": geometric(4.0, 150), "turns": count(1)})  # fmt: skip
        played = play(what)
        ends[policy] = played.report.end_ns
        widest = max(event[5] for event in played.works(WorkKind.DECODE))
        assert widest == 1 if policy == "reserve" else widest >= 3
    assert ends["grow"] < ends["reserve"]


def test_a_preempted_request_is_prefilled_again_as_overhead_and_keeps_its_tokens():
    """Three of 10 + 40 tokens in a cache of 120, chunks of 10. By hand: all three fit until each holds 30; then
    3 · (30 + 10) = 120 still fits, and at 40 each the youngest goes with its 40."""
    what = scenario(
        {"kv_policy": "grow", "group_size": 3, "groups_per_step": 1, "max_staleness": 0, "pipeline_depth": 0,
         "max_inflight": 3, "decode_chunk_steps": 10},
        world={"inference": {"kv_capacity_tokens": 120, "prefill": {"base_s": 0.1, "per_token_s": 0.001}}},
        workload={"turns": count(1), "response_tokens": count(40), "max_context_tokens": 60}, steps=1,
    )  # fmt: skip
    played = play(what)
    preempted = played.of(EventKind.PREEMPT)
    assert [(event[3], event[4], event[5]) for event in preempted] == [(0, 40, 2)]
    chunks = [(event[4], event[5], event[6]) for event in played.works(WorkKind.DECODE)]
    assert chunks == [(10, 3, 30), (10, 3, 60), (10, 3, 90), (10, 2, 80), (10, 1, 40)]
    assert [event[5] for event in played.works(WorkKind.PREFILL)] == [30, 40]
    assert played.report.accounts.made_tokens == 120
    assert played.report.lane_ns["replica/0"][State.REPREFILL] == round(0.14 * S)
    assert played.summary.chip_ns["overhead:re_prefill"] == round(0.14 * S)


def test_a_caller_that_leaves_while_it_is_pushed_out_leaves_nothing_behind():
    knobs = {"deadlines": {"generation_s": 1.0}, "retry_infra": 0}
    what = small_cache(150, knobs, random=True, steps=6, workload=LONG, tool={"duration": constant(0.01)}, max_sim_s=2000.0)
    played = play(what, 1)
    assert played.pipeline.replicas[0].preemptions > 0
    pushed_out = {event[2] for event in played.of(EventKind.PREEMPT)}
    ended = {event[2]: event[3] for event in played.of(EventKind.EPISODE_END)}
    assert Ended.TIMED_OUT in {ended.get(episode) for episode in pushed_out}


@pytest.mark.parametrize("value", ["shrink", 3, None])
def test_a_policy_that_is_none_is_refused(value):
    with pytest.raises(ValueError, match="kv_policy"):
        scenario({"kv_policy": value})
