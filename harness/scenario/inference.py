"""The inference side of a world: replicas, their memory and their step times."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from harness.core.errors import ConfigError
from harness.costs.laws import Constant, Law, Record
from harness.costs.step_time import DecodeLaw, PrefillLaw
from harness.scenario.chips import FROM_CHIP, not_required

Share = Annotated[float, Field(ge=0, le=1)]


class Server(Record):
    """An inference server that schedules itself, such as vLLM or SGLang, instead of the pipeline's own engine."""

    slots: int = Field(ge=1, le=1 << 20, description="Requests that a replica's server computes at once; the rest wait in it.")
    kv_policy: Literal["reserve", "grow"] = Field(
        default="reserve",
        description="Whether a request reserves KV for its whole cap, or grows; the youngest is preempted when all is full.",
    )


class PrefixCache(Record):
    """Contexts of episodes stay on the replica that served them, in KV room that nobody needs; the oldest go first."""

    on_swap: Literal["drop", "keep"] = Field(
        default="drop", description="What new weights do to contexts that are kept: their keys and values are of the old ones."
    )
    shared_prompts: bool = Field(default=True, description="Whether members of a group find each other's prompt.")


class CompileLaw(Record):
    """XLA compilation on each replica: before it serves, when it first meets a shape, and all of it again after a loss."""

    start_s: float = Field(default=0.0, ge=0, le=86_400, description="Seconds before a replica serves its first request.")
    bucket: Law = Field(
        default=Constant(law="constant", value_s=0.0), description="Seconds to compile one bucket when it is first needed."
    )
    batch_buckets: list[Annotated[int, Field(ge=1)]] = Field(
        default=[],
        max_length=64,
        description="Batches of decode steps that are compiled for, ascending; a batch is rounded up, and none is larger than "
        "the last. Empty: no decode shape is compiled later.",
    )
    prefill_buckets: list[Annotated[int, Field(ge=1)]] = Field(
        default=[],
        max_length=64,
        description="Tokens of prefills that are compiled for, ascending; a longer one takes several calls of the last. "
        "Empty: no prefill shape is compiled later.",
    )
    again_share: Share = Field(
        default=1.0, description="Share of the time that the same compile takes after a loss: below 1 with a cache on disk."
    )
    source: str = Field(default="", description="Where the figures come from.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in ("batch_buckets", "prefill_buckets"):
            sizes = getattr(self, name)
            if sizes != sorted(set(sizes)):
                raise ConfigError(
                    "does not ascend",
                    field=f"world.inference.compile.{name}",
                    value=sizes,
                    allowed="sizes from small to large, each once",
                    remedy=f"write {sorted(set(sizes))}",
                )
        return self


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
    prefix_cache: PrefixCache | None = Field(
        default=None, description="Contexts that each replica keeps between turns; absent: prefix_reuse of them, on any."
    )
    compile: CompileLaw | None = Field(default=None, description="Compilation; absent: everything is compiled before the run.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.prefix_cache is not None and self.prefix_reuse != 1.0:
            raise ConfigError(
                "says how much of a context is found again, and the prefix cache says it as well",
                field="world.inference.prefix_reuse",
                value=self.prefix_reuse,
                allowed="prefix_reuse or [world.inference.prefix_cache]",
                remedy="take one of them out",
            )
        if self.prefix_cache is not None and self.server is not None:
            raise ConfigError(
                "is not modelled for servers that schedule themselves",
                field="world.inference.prefix_cache",
                allowed="[world.inference.prefix_cache] or [world.inference.server]",
                remedy="say with prefix_reuse what their caches find again",
            )
        buckets = self.compile is not None and (self.compile.batch_buckets or self.compile.prefill_buckets)
        if buckets and self.server is not None:
            raise ConfigError(
                "are not seen of servers that schedule themselves",
                field="world.inference.compile",
                value="batch_buckets, prefill_buckets",
                allowed="start_s with [world.inference.server]",
                remedy="take the buckets out",
            )
        return self
