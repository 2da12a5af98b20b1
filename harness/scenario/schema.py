"""What a scenario is: a world, a workload, a pipeline configuration and a run, with the unit of every number.

The pipeline's own table is handed in as a type by the composition root, so that this package knows no pipeline:
`Scenario[PipelineConfig]`. Everything is frozen, and no unknown field is taken.
"""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import BaseModel, Field, model_validator
from typing_extensions import TypeVar as TypeVarWithDefault

from harness.core.errors import ConfigError
from harness.costs.laws import Law, Record
from harness.costs.step_time import DecodeLaw, PrefillLaw, TrainLaw, TransferLaw

Probability = Annotated[float, Field(ge=0, le=1)]

MAX_COUNT = 1_000_000
"""Largest cap of a law of counts: its cumulative probabilities are kept as a table."""


class ConstantCount(Record):
    """Always the same number."""

    law: Literal["constant"] = "constant"
    value: int = Field(ge=0, description="The number.")


class GeometricCount(Record):
    """1, 2, 3, …: another one follows with the same probability each time."""

    law: Literal["geometric"] = "geometric"
    mean: float = Field(ge=1, description="Mean before the cap.")
    max: int = Field(ge=1, le=MAX_COUNT, description="Larger draws count as this.")


class LognormalCount(Record):
    """A lognormal number, rounded to the nearest integer and kept within `min` and `max`."""

    law: Literal["lognormal"] = "lognormal"
    mean: float = Field(gt=0, description="Mean before rounding and caps.")
    cv: float = Field(gt=0, le=10, description="Coefficient of variation before rounding and caps.")
    min: int = Field(default=1, ge=0, description="Smaller draws count as this.")
    max: int = Field(ge=1, le=MAX_COUNT, description="Larger draws count as this.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min ({self.min}) is above max ({self.max})")
        return self


CountLaw = Annotated[ConstantCount | GeometricCount | LognormalCount, Field(discriminator="law")]
"""Any law of counts (turns, tokens), told apart by its field `law`."""


class Server(Record):
    """An inference server that schedules itself, such as vLLM or SGLang, instead of the pipeline's own engine."""

    slots: int = Field(ge=1, le=1 << 20, description="Requests that a replica's server computes at once; the rest wait in it.")


class Inference(Record):
    """Replicas of the inference engine."""

    replicas: int = Field(ge=1, le=4096, description="Replicas, each a slice of its own.")
    chips_per_replica: int = Field(ge=1, description="Chips of one replica.")
    kv_capacity_tokens: int = Field(ge=1, description="Tokens of context that one replica's KV cache holds.")
    prefix_reuse: Probability = Field(
        default=1.0, description="Share of an episode's earlier context that the prefix cache still holds at its next turn."
    )
    decode: DecodeLaw
    prefill: PrefillLaw
    server: Server | None = Field(default=None, description="Replicas that schedule themselves; absent: the pipeline's engine.")


class Learner(Record):
    """The learner's chips and passes."""

    chips: int = Field(ge=1, description="Chips of the learner.")
    train: TrainLaw
    log_probs: TrainLaw | None = Field(default=None, description="Pass for old log-probabilities; absent: the rollouts' own.")


class Weights(Record):
    """A weight version on its way to the replicas."""

    weights_bytes: int = Field(ge=0, description="Bytes of one weight version.")
    transfer: TransferLaw = Field(description="Time for one replica to receive and install a version.")


class CheckpointStore(Record):
    """Saving and restoring the learner's state."""

    state_bytes: int = Field(ge=0, description="Bytes of weights and optimizer state.")
    save: TransferLaw = Field(description="Time that the learner is held up by a save.")


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


class Prices(Record):
    """Dated prices, given by the user. Absent: nothing is said in money."""

    chip_hour_usd: float = Field(ge=0, description="US dollars for one chip for one hour.")
    sandbox_hour_usd: float = Field(default=0.0, ge=0, description="US dollars for one environment for one hour.")
    source: str = Field(default="", description="Where the prices come from, and when.")


class World(Record):
    """Everything outside the pipeline: chips, engines, sandboxes."""

    inference: Inference
    learner: Learner
    weights: Weights
    checkpoint: CheckpointStore | None = None
    environments: Environments
    scoring: Scoring
    prices: Prices | None = None

    @property
    def chips(self) -> int:
        """All chips paid for."""
        return self.inference.replicas * self.inference.chips_per_replica + self.learner.chips


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
    agent_run: AgentRun | None = Field(
        default=None, description="Where whole runs were measured; absent: tools' laws are absolute."
    )
    success: Success = Success(median=0.5)
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


class RunPlan(Record):
    """How long and how often to run."""

    learner_steps: int = Field(default=20, ge=1, description="Optimizer steps in the reported window of a replication.")
    warmup_steps: int = Field(default=4, ge=0, description="Optimizer steps before it that are not reported.")
    replications: int = Field(default=5, ge=1, description="Independent repetitions, each with a seed of its own.")
    seed: int = Field(default=0, ge=0, lt=2**62, description="Seed of the first replication; the others count up from it.")
    max_sim_s: float = Field(default=30 * 86_400.0, gt=0, description="Simulated seconds after which a run is stopped.")


PipelineT = TypeVar("PipelineT", bound=BaseModel)
LiveT = TypeVarWithDefault("LiveT", default=Any)


class Scenario(Record, Generic[PipelineT, LiveT]):
    """A whole scenario."""

    schema_version: Literal[1] = Field(default=1, description="Version of this format.")
    title: str = Field(min_length=1, description="One line.")
    question: str = Field(min_length=1, description="The question that this scenario asks.")
    world: World
    workload: Workload
    pipeline: PipelineT
    live: LiveT | None = Field(default=None, description="What a live run needs; a simulated run ignores it.")
    run: RunPlan = RunPlan()

    @model_validator(mode="after")
    def _check(self) -> Self:
        longest, room = self.workload.max_context_tokens, self.world.inference.kv_capacity_tokens
        if longest > room:
            raise ConfigError(
                "is longer than a replica's KV cache",
                field="workload.max_context_tokens",
                value=longest,
                allowed=f"at most world.inference.kv_capacity_tokens = {room}",
                remedy="lower it, or give a replica more memory",
            )
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by parts: a parametrised generic class has no name that a pickle could find."""
        return _rebuild, (type(self.pipeline), type(self.live), dict(self.__dict__))


def _rebuild(pipeline_type: type[BaseModel], live_type: type[Any], parts: dict[str, Any]) -> Any:
    return Scenario[pipeline_type, live_type].model_construct(**parts)  # type: ignore[valid-type]  # known at run time only
