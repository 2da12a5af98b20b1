"""The inference side of a world: replicas, their memory and their step times."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from harness.costs.laws import Record
from harness.costs.step_time import DecodeLaw, PrefillLaw
from harness.scenario.chips import FROM_CHIP, not_required

Share = Annotated[float, Field(ge=0, le=1)]


class Server(Record):
    """An inference server that schedules itself, such as vLLM or SGLang, instead of the pipeline's own engine."""

    slots: int = Field(ge=1, le=1 << 20, description="Requests that a replica's server computes at once; the rest wait in it.")


class Inference(Record):
    """Replicas of the inference engine."""

    model_config = not_required("kv_capacity_tokens", "decode", "prefill")

    replicas: int = Field(ge=1, le=4096, description="Replicas, each a slice of its own.")
    chips_per_replica: int = Field(ge=1, description="Chips of one replica.")
    kv_capacity_tokens: int = Field(
        ge=1, description=f"Tokens of context that one replica's KV cache holds; absent: {FROM_CHIP}."
    )
    prefix_reuse: Share = Field(
        default=1.0, description="Share of an episode's earlier context that the prefix cache still holds at its next turn."
    )
    decode: DecodeLaw = Field(description=f"Time of decode steps; absent: {FROM_CHIP}.")
    prefill: PrefillLaw = Field(description=f"Time of prefills; absent: {FROM_CHIP}.")
    server: Server | None = Field(default=None, description="Replicas that schedule themselves; absent: the pipeline's engine.")
