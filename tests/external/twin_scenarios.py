"""What live and simulated runs are compared on: seconds long, with steps that are long against the noise of a machine."""

from __future__ import annotations

from typing import Any

from tiny_world import constant, count, exponential, geometric, scenario

WORKLOAD = {
    "turns": count(2),
    "prompt_tokens": count(20),
    "response_tokens": geometric(15.0, 40),
    "observation_tokens": count(5),
}
PIPELINE = {
    "group_size": 2,
    "groups_per_step": 4,
    "max_staleness": 2,
    "pipeline_depth": 2,
    "max_inflight": 16,
    "buffer_capacity": 12,
    "env_workers": 64,
    "tool_workers": 64,
    "reward_workers": 64,
    "eval_interval": 0,
    "overprovision_members": 0,
    "sync_mode": "keep",
}
WARMUP_STEPS = 2


def twin(
    pipeline: dict[str, Any] | None = None, *, scale: float = 1.0, slots: int = 16, replicas: int = 1, steps: int = 8
) -> Any:
    """A scenario for both. All times are `scale` times a step of 20 ms and what goes with it."""
    world = {
        "inference": {
            "replicas": replicas,
            "prefix_reuse": 0.0,
            "decode": {"base_s": 0.02 * scale, "per_sequence_s": 0.0005 * scale, "per_kv_token_s": 0.0},
            "prefill": {"base_s": 0.01 * scale, "per_token_s": 1e-5 * scale},
            "kv_capacity_tokens": 100_000,
            "server": {"slots": slots},
        },
        "learner": {"train": {"base_s": 0.1 * scale}},
        "weights": {"transfer": {"base_s": 0.0, "bytes_per_s": 1e12}},
        "environments": {"reset": constant(0.05 * scale), "close": constant(0.02 * scale)},
        "scoring": {"duration": constant(0.05 * scale)},
    }
    tools = [{"name": "tool", "share": 1.0, "duration": exponential(0.15 * scale)}]
    what = scenario({**PIPELINE, **(pipeline or {})}, world=world, workload=WORKLOAD | {"tools": tools}, steps=steps)
    return what.model_copy(update={"run": what.run.model_copy(update={"warmup_steps": WARMUP_STEPS})})


SCENARIOS: dict[str, dict[str, Any]] = {
    "keep": {},
    "drain": {"pipeline": {"sync_mode": "drain"}},
    "abort_resume": {"pipeline": {"sync_mode": "abort_resume"}},
    "overload": {
        "pipeline": {"max_inflight": 32, "max_staleness": 4, "pipeline_depth": 4, "buffer_capacity": 20}, "slots": 4,
    },
    "two_replicas": {"pipeline": {"max_inflight": 24, "sync_rollout": "rolling"}, "replicas": 2},
    "synchronous": {"pipeline": {"max_staleness": 0, "pipeline_depth": 0, "sync_mode": "drain"}},
}  # fmt: skip
"""Arguments of `twin`. In `overload` eight requests compete for each slot of the server."""
