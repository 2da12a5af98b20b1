"""Contexts that stay on a replica, and shapes that it compiles for, in whole pipelines."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_replica_loss import lossy
from tiny_world import S, constant, count, play, scenario

from harness.core.errors import ConfigError
from harness.core.events import describe, first_difference
from harness.core.lanes import State
from harness.core.work import WorkKind
from harness.engines import sim, virtual
from harness.run import hardware, notices

ONE = {"group_size": 1, "groups_per_step": 1, "max_inflight": 1, "max_staleness": 0, "pipeline_depth": 0}


def caching(knobs=None, *, replicas=1, cache=None, kv=10_000, compiling=None, **options):
    inference = {"replicas": replicas, "kv_capacity_tokens": kv, "prefill": {"base_s": 0.1, "per_token_s": 0.001}}
    if cache is not None:
        inference["prefix_cache"] = cache
    if compiling is not None:
        inference["compile"] = compiling
    return scenario(
        {"slots_per_replica": 4, "decode_chunk_steps": 10} | (knobs or {}), world={"inference": inference}, **options
    )


def prefilled(played):
    return [event[5] for event in played.works(WorkKind.PREFILL)]


# ── contexts ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_later_turn_prefills_what_is_new():
    """Prompt 10, answers 20, observations 5: the second and third turn find 30 and 55 tokens, and compute 5 each."""
    what = caching(ONE, cache={}, workload={"turns": count(3)}, steps=1)
    assert prefilled(play(what)) == [10, 5, 5]


def test_new_weights_drop_contexts_unless_they_are_kept():
    """With room for all, a replica finds every context of a later turn, but for those that an installation came between."""
    found = {}
    for on_swap in ("keep", "drop"):
        what = caching(cache={"on_swap": on_swap, "shared_prompts": False}, random=True, steps=6, workload={"turns": count(4)})
        played = play(what)
        prefix = played.pipeline.replicas[0].prefix
        found[on_swap] = prefix.asked_tokens - prefix.hit_tokens, sum(prefilled(played))
        assert found[on_swap][0] == found[on_swap][1], "what is not found is computed"
    assert found["drop"][0] > 1.2 * found["keep"][0]


def test_an_episode_that_moves_leaves_its_context_behind():
    """Sticky finds every context again; round robin finds one in three."""
    shares = {}
    for router in ("sticky", "round_robin"):
        what = caching(
            {"router_policy": router, "max_inflight": 3, "group_size": 1, "groups_per_step": 3, "buffer_capacity": 6},
            replicas=3, cache={"shared_prompts": False}, workload={"turns": count(6)}, steps=3, random=True,
        )  # fmt: skip
        replicas = play(what).pipeline.replicas
        shares[router] = sum(r.prefix.hit_tokens for r in replicas) / sum(r.prefix.asked_tokens for r in replicas)
    assert shares["sticky"] > 2 * shares["round_robin"]


def test_members_find_the_prompt_of_their_group():
    """Four answers to one prompt of 10 on one replica: one computes it, the others their last token."""
    knobs = {"group_size": 4, "groups_per_step": 1, "max_inflight": 4, "max_staleness": 0, "pipeline_depth": 0}
    alone = play(caching(knobs, cache={"shared_prompts": False}, workload={"turns": count(1)}, steps=1))
    shared = play(caching(knobs, cache={}, workload={"turns": count(1)}, steps=1))
    assert (prefilled(alone), prefilled(shared)) == ([40], [10 + 3])


@settings(max_examples=10)
@given(
    kv=st.integers(110, 600), grow=st.booleans(), router=st.sampled_from(["round_robin", "sticky"]), mode=st.sampled_from(
        ["drain", "abort_resume", "keep"]), seed=st.integers(0, 100), lose=st.booleans(),
)  # fmt: skip
def test_contexts_fit_beside_what_runs_and_both_engines_agree(kv, grow, router, mode, seed, lose):
    what = caching(
        {"kv_policy": "grow" if grow else "reserve", "router_policy": router, "sync_mode": mode}, replicas=2, cache={}, kv=kv,
        random=True, steps=2, workload={"max_context_tokens": 110},
        compiling={"bucket": constant(0.3), "batch_buckets": [1, 2, 4]},
    )  # fmt: skip

    def watch(played):
        for replica in played.pipeline.replicas:
            assert replica.prefix.cached + replica._kv.used <= kv
            assert grow or replica._kv.promised <= kv

    calendar = [(0, 3.0, 5.0), (1, 4.0, 9.0)] if lose else []
    one = lossy(what, calendar, seed, sim.run, at_instant=watch)
    other = lossy(what, calendar, seed, virtual.run, checks=False)
    first = first_difference(one.all_events, other.all_events)
    assert first is None, f"{first}: {describe(one.all_events[first])} | {describe(other.all_events[first])}"


# ── compilation ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_replica_compiles_before_it_serves_at_a_new_bucket_and_after_a_loss():
    what = caching(
        {"router_policy": "sticky"}, replicas=2, steps=16,
        compiling={"start_s": 3.0, "bucket": constant(0.25), "batch_buckets": [2, 4], "prefill_buckets": [1000],
                   "again_share": 0.5},
    )  # fmt: skip
    played = lossy(what, [(0, 20.0, 30.0)])
    compiled = [(event[0] / S, event[4]) for event in played.works(WorkKind.COMPILE) if event[2] == 0]
    assert compiled[0] == (0.0, 0)
    before = [bucket for at, bucket in compiled if at < 20]
    after = [(at, bucket) for at, bucket in compiled if at >= 20]
    assert len(before) == len(set(before)), "each once"
    assert after[0] == (30.1, 0), "and again, before it takes the weights"
    first = min(event[0] for event in played.works(WorkKind.PREFILL) if event[2] == 0 and event[0] > 20 * S)
    assert first >= round(30.1 * S) + 1.5 * S + 0.5 * S, "half the time, and then the weights"
    assert played.works(WorkKind.PREFILL)[0][0] >= 3 * S
    lane = played.report.lane_ns["replica/0"][State.COMPILE]
    again = {bucket for _, bucket in after} - {0}
    assert lane == round((3.0 + 0.25 * (len(before) - 1) + 1.5 + 0.125 * len(again)) * S)
    other = played.report.lane_ns["replica/1"][State.COMPILE]
    assert played.summary.chip_ns["overhead:compile"] == lane + other


def test_a_server_compiles_before_it_serves():
    what = scenario({}, world={"inference": {"server": {"slots": 3}, "compile": {"start_s": 7.0}}}, steps=1)
    played = play(what)
    assert min(event[0] for event in played.works(WorkKind.GENERATE)) == 7 * S
    assert played.report.lane_ns["replica/0"][State.COMPILE] == 7 * S


def test_what_is_off_leaves_the_log_as_it_was():
    plain = play(caching({}, random=True), 3).all_events
    same = play(caching({"kv_policy": "reserve"}, random=True, compiling=None, cache=None), 3).all_events
    assert first_difference(plain, same) is None
    free = [event for event in play(caching({}, random=True, compiling={}), 3).all_events if WorkKind.COMPILE not in event[3:4]]
    assert [event[1:] for event in free] == [event[1:] for event in plain]
    assert all(a[0] <= b[0] for a, b in pairwise(plain))


# ── bad input ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"prefix_cache": {"on_swap": "perhaps"}}, "on_swap"),
        ({"prefix_cache": {"blocks": 3}}, "blocks"),
        ({"prefix_cache": {}, "prefix_reuse": 0.5}, "prefix cache says it as well"),
        ({"prefix_cache": {}, "server": {"slots": 2}}, "not modelled for servers"),
        ({"compile": {"start_s": -1.0}}, "start_s"),
        ({"compile": {"start_s": float("inf")}}, "start_s"),
        ({"compile": {"start_s": float("nan")}}, "start_s"),
        ({"compile": {"batch_buckets": [4, 2]}}, "does not ascend"),
        ({"compile": {"prefill_buckets": [2, 2]}}, "does not ascend"),
        ({"compile": {"batch_buckets": [0]}}, "batch_buckets"),
        ({"compile": {"batch_buckets": [1.5]}}, "batch_buckets"),
        ({"compile": {"again_share": 1.5}}, "again_share"),
        ({"compile": {"bucket": {"law": "constant", "value_s": -1.0}}}, "value_s"),
        ({"compile": {"batch_buckets": [4]}, "server": {"slots": 2}}, "not seen of servers"),
    ],
)
def test_what_makes_no_sense_is_refused(table, says):
    with pytest.raises((ConfigError, ValueError), match=says):
        scenario({}, world={"inference": table})


def test_the_last_bucket_limits_the_slots_and_is_told():
    what = caching({"slots_per_replica": 16}, compiling={"batch_buckets": [2, 8]})
    assert hardware(what).slots == 8
    assert any("cut to 8" in said for said in notices(what))


def test_growth_that_can_do_nothing_is_told():
    assert any("kv_policy has no effect" in said for said in notices(caching({"kv_policy": "grow"}, kv=4000)))
    assert not any("kv_policy" in said for said in notices(caching({"kv_policy": "grow"}, kv=3999)))
