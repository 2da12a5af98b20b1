"""Random configurations of the pipeline, and of what goes wrong in the world round it."""

from __future__ import annotations

from hypothesis import strategies as st
from tiny_world import scenario

from harness.core.errors import ConfigError
from pipeline.policies.kinds import (
    AdmissionKind,
    FilterKind,
    OnFull,
    OrderPolicy,
    RouterPolicy,
    StalePolicy,
    StartUnit,
    Stepping,
    SyncMode,
    SyncRollout,
)


def _outage(**fields):
    """Calls take a second to fail: without retries or back-off a run would be out of tasks before an outage is over."""
    laws = {"up": {"law": "exponential", "mean_s": 25.0}, "down": {"law": "exponential", "mean_s": 3.0}}
    return {
        "name": "vendor",
        "takes": ["tools", "scoring"],
        "fail_after": {"law": "constant", "value_s": 1.0},
        **laws,
        **fields,
    }


OUTAGES = (
    _outage(),
    _outage(in_flight="hang", new_calls="hang", takes=["tools"]),
    _outage(in_flight="slow", new_calls="slow", slow_factor=3.0, takes=["environments", "tools"]),
    _outage(in_flight="finish", share=0.5, hosts=3, fail_after={"law": "gamma", "shape": 4.0, "mean_s": 1.0}),
)


def _named(kinds):
    return st.sampled_from([kind.value for kind in kinds])


@st.composite
def scenarios(draw, *, most_steps=6, troubles=True):
    """A scenario that the pipeline accepts, or None."""
    batch, size = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    bound = draw(st.integers(0, 3))
    depth = draw(st.integers(0, bound))
    stale = draw(_named(StalePolicy))
    admission = draw(_named((AdmissionKind.LEAD, AdmissionKind.WINDOW) if stale == "wait" else AdmissionKind))
    window = batch * (depth + 1)
    chunk = draw(st.sampled_from([0, *(n for n in range(1, batch + 1) if batch % n == 0)]))
    tight = stale != "wait" and chunk not in (0, batch)
    sync_mode, quorum = draw(_named(SyncMode)), draw(st.integers(0, size))
    knobs = {
        "groups_per_step": batch,
        "group_size": size,
        "max_staleness": bound,
        "pipeline_depth": depth,
        "steps_per_sync": draw(st.integers(1, (depth if admission == "lead" else bound) + 1)),
        "stale_policy": stale,
        "admission": admission,
        "window_fraction": draw(st.sampled_from((0.0, 0.5))) if admission == "window" else 0.0,
        "consume_chunk": chunk,
        "order_policy": draw(_named(OrderPolicy)),
        "max_inflight": draw(st.sampled_from((size + 2, 8, 16, 40))),
        "start_unit": draw(_named(StartUnit)),
        "stepping": draw(_named(Stepping)),
        "buffer_capacity": draw(st.integers(chunk, window)) if tight else draw(st.sampled_from((window, 2 * window))),
        "on_full": draw(_named(OnFull)),
        "sync_mode": sync_mode,
        "sync_rollout": "all_at_once" if sync_mode == "drain_episodes" else draw(_named(SyncRollout)),
        "overprovision_members": draw(st.integers(0, 2)),
        "overprovision_groups": 0 if stale == "wait" else draw(st.integers(0, 2)),
        "group_quorum": quorum,
        "filter": draw(_named(FilterKind)) if (quorum or size) > 1 else "none",
        "env_workers": draw(st.sampled_from((3, 8, 64))),
        "tool_workers": draw(st.sampled_from((1, 3, 64))),
        "reward_workers": draw(st.sampled_from((1, 3, 64))),
        "router_policy": draw(_named(RouterPolicy)),
        "slots_per_replica": draw(st.sampled_from((1, 3, 64))),
        "decode_chunk_steps": draw(st.sampled_from((1, 5, 16))),
        "checkpoint_interval": draw(st.integers(0, 2)),
        "eval_interval": draw(st.integers(0, 2)),
        "retry_infra": draw(st.integers(0, 2)),
        "retry_data": draw(st.integers(0, 1)),
    }
    world = {"inference": {"replicas": draw(st.integers(1, 3)), "kv_capacity_tokens": draw(st.sampled_from((200, 10_000)))}}
    world["inference"]["prefix_reuse"] = draw(st.sampled_from((0.0, 0.5, 1.0)))
    tool = {}
    if troubles and draw(st.booleans()):
        world["environments"] = {"reset_infra_failure": 0.05, "reset_hang": 0.02}
        world["scoring"] = {"failure": 0.05}
        tool = {"failure": 0.05, "infra_failure": 0.05, "hang": 0.02}
        if draw(st.booleans()):
            world["outages"] = [draw(st.sampled_from(OUTAGES))]
        if draw(st.booleans()):
            world["environments"] |= {"starts_at_once": draw(st.sampled_from((4, 8))), "slowdown_per_start": 0.05}
        if draw(st.booleans()):
            tool |= {"rate_per_s": 10.0, "burst": 2}
        limits = ("build_s", "reset_s", "step_s", "tool_s", "generation_s", "reward_s")
        knobs["deadlines"] = dict.fromkeys(limits, 20.0) | {"episode_s": draw(st.sampled_from((30.0, 100.0)))}
    try:
        return scenario(
            knobs,
            random=True,
            steps=draw(st.integers(3, most_steps)),
            world=world,
            workload={"max_context_tokens": 200, "success": {"median": 0.5, "spread": 1.0}},
            tool=tool,
            max_sim_s=20_000.0,
        )
    except ConfigError:
        return None
