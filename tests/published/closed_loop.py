"""vLLM on one v6e-8, Llama 3.3 70B: a closed loop through the pipeline's own inference actor.

64 requests of 1,000 tokens in and 1,000 out are always in flight, 3,000 in all. The step-time law of `coding_agent.toml`
was fitted to the 25.35 ms per output token of this row (a test of the shipped scenarios works it out again), so the total says
whether the actor spends the law's time as a real engine does: prefills that stall decodes, slots that are refilled.

A request is an episode of one turn; all 3,000 are the batch of one optimizer step that takes next to no time.

Source: AI-Hypercomputer/tpu-recipes, August 2026.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from published_rows import Row, learner, scenario

from harness.run import load

if TYPE_CHECKING:
    from harness.scenario.schema import Scenario

REQUESTS, IN_FLIGHT, TOKENS = 3_000, 64, 1_000
MEASURED_S, MEASURED_TOKENS_PER_S = 1202.5, 2494.8
SHIPPED = Path(__file__).parents[2] / "scenarios" / "coding_agent.toml"


@dataclass(frozen=True, slots=True)
class Served:
    """What a closed loop took: seconds in all, output tokens a second."""

    total_s: float
    tokens_per_s: float


def closed_loop(
    *, in_flight: int = IN_FLIGHT, requests: int = REQUESTS, input_tokens: int = TOKENS, output_tokens: int = TOKENS
) -> Scenario[Any]:
    """So many requests, so many at a time, on one replica of the shipped scenario."""
    shipped = load(SHIPPED).world.inference
    table = shipped.model_dump(include={"chips_per_replica", "kv_capacity_tokens", "decode", "prefill"}, exclude_none=True)
    return scenario(
        f"closed loop of {in_flight}",
        world={"inference": {**table, "replicas": 1}},
        workload={
            "prompt_tokens": {"law": "constant", "value": input_tokens},
            "response_tokens": {"law": "constant", "value": output_tokens},
            "max_context_tokens": max(2, input_tokens + output_tokens),
        },
        pipeline={
            "group_size": 1,
            "groups_per_step": requests,
            "max_staleness": 0,
            "pipeline_depth": 0,
            "max_inflight": in_flight,
            "buffer_capacity": requests,
            "slots_per_replica": in_flight,
            "decode_chunk_steps": 8,  # a divisor of 1,000: no request waits for the end of its last chunk
        },
    )


def served(**inputs: int) -> Served:
    """Run it."""
    made = closed_loop(**inputs)
    total_s = learner(made, steps=1, warmup_steps=0).wait_s
    return Served(total_s, made.pipeline.groups_per_step * made.workload.response_tokens.value / total_s)


def rows() -> list[Row]:
    """The row that the law was fitted to: its total."""
    found = served()
    fitted = "step-time law, on the 25.35 ms per output token of this row"
    return [
        Row("vLLM on v6e-8, 64 in flight: all 3,000 requests, s", fitted, found.total_s, MEASURED_S, 0.02),
        Row("vLLM on v6e-8, 64 in flight: output tokens/s", fitted, found.tokens_per_s, MEASURED_TOKENS_PER_S, 0.02),
    ]
