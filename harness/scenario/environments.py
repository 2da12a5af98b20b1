"""Sandboxes, tools and scoring: how long they take and how they fail. How many there are is a knob of the pipeline."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from harness.costs.laws import Law, Record

Probability = Annotated[float, Field(ge=0, le=1)]


class Environments(Record):
    """Sandboxes: how long they take to start and stop, and how they fail. How many there are is a knob of the pipeline."""

    reset: Law = Field(description="Seconds to start and reset an environment.")
    reset_infra_failure: Probability = Field(default=0.0, description="Probability that a start fails; a retry draws anew.")
    reset_hang: Probability = Field(default=0.0, description="Probability that a start never returns.")
    close: Law = Field(description="Seconds to tear an environment down.")


class Scoring(Record):
    """Rewards."""

    duration: Law = Field(description="Seconds to score one episode.")
    time_limit_s: float | None = Field(default=None, gt=0, description="Scoring that takes as long or longer ends there.")
    failure: Probability = Field(default=0.0, description="Probability that scoring an episode fails.")


class Tool(Record):
    """One kind of tool call. `ToolCall.tool` is its index in the table."""

    name: str = Field(min_length=1, description="Name, unique in the table.")
    share: float = Field(gt=0, le=1, description="Share of all calls. The shares add up to 1.")
    duration: Law = Field(description="Seconds of a call; with `agent_run`, its weight in the run.")
    time_limit_s: float | None = Field(
        default=None, gt=0, description="A call that takes this long or longer ends there, timed out."
    )
    failure: Probability = Field(default=0.0, description="Probability that a call fails in itself; a retry would fail again.")
    infra_failure: Probability = Field(default=0.0, description="Probability that what it runs on fails; a retry draws anew.")
    hang: Probability = Field(default=0.0, description="Probability that a call never returns.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        total = self.failure + self.infra_failure + self.hang
        if total > 1:
            raise ValueError(f"failure, infra_failure and hang add up to {total:g}, above 1")
        return self
