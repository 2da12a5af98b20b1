"""What episodes are like: turns, tokens, tools, success."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from harness.costs.laws import Law, Record
from harness.scenario.arrivals import Arrivals
from harness.scenario.counts import CountLaw
from harness.scenario.environments import Tool


class AgentRun(Record):
    """The wall-clock time of a whole agent run, where that is what was measured, split over the turns of an episode.

    The tools of an episode take `tool_share` of a draw of `duration`, divided among its calls in proportion to draws of the
    tools' own laws; the rest of a run is the model's own time, which the simulated engine takes by itself.
    """

    duration: Law = Field(description="Seconds of a whole agent run, model included. Its atoms are time limits.")
    tool_share: float = Field(gt=0, le=1, description="Share of it that is not the model's.")


class Success(Record):
    """Whether episodes succeed: the probability differs from task to task.

    logit(p of a task) = logit(`median`) - `spread` · z, with z standard normal and the same for all episodes of the task.
    A harder task (z high) also has the longer episodes, as far as `Workload.task_correlation` says.
    """

    median: float = Field(gt=0, lt=1, description="Probability of success on the median task.")
    spread: float = Field(default=0.0, ge=0, le=20, description="Standard deviation over tasks of the log-odds of success.")


class Workload(Record):
    """What the episodes are like."""

    tasks: int = Field(ge=1, description="Distinct tasks; after the last one the first comes again, as a new dispatch.")
    turns: CountLaw = Field(description="Turns of an episode.")
    prompt_tokens: CountLaw = Field(description="Tokens of the first prompt.")
    response_tokens: CountLaw = Field(description="Tokens that the model generates in a turn.")
    observation_tokens: CountLaw = Field(description="Tokens of a tool's answer.")
    max_context_tokens: int = Field(
        default=32_768, ge=2, description="Longest context: an episode that reaches it ends there. Every replica must hold it."
    )
    task_correlation: float = Field(
        default=0.0, ge=0, lt=1, description="Correlation of length (in normal scores) between episodes of one task."
    )
    response_correlation: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Correlation of `response_tokens` (in normal scores) between answers to one task, whichever the episode.",
    )
    agent_run: AgentRun | None = Field(
        default=None, description="Where whole runs were measured; absent: tools' laws are absolute."
    )
    success: Success = Success(median=0.5)
    arrivals: Arrivals | None = Field(
        default=None, description="A stream of tasks from outside; absent: all are at hand. A live run ignores it."
    )
    tools: tuple[Tool, ...] = Field(strict=False, min_length=1, description="Kinds of tool calls.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [tool.name for tool in self.tools]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two tools are called {twice[0]!r}")
        total = sum(tool.share for tool in self.tools)
        if abs(total - 1) > 1e-6:
            raise ValueError(f"the shares of the tools add up to {total:g}, not 1")
        return self
