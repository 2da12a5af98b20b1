"""What a scenario is: a world, a workload, a pipeline configuration and a run, with the unit of every number.

The pipeline's own table is handed in as a type by the composition root, so that this package knows no pipeline:
`Scenario[PipelineConfig]`. Everything is frozen, and no unknown field is taken.
"""

from __future__ import annotations

from typing import Any, Generic, Literal, Self, TypeVar

from pydantic import BaseModel, Field, model_validator
from typing_extensions import TypeVar as TypeVarWithDefault

from harness.core.errors import ConfigError
from harness.costs.laws import Record
from harness.scenario.environments import Environments, Scoring
from harness.scenario.inference import Inference
from harness.scenario.learner import CheckpointStore, Learner, Weights
from harness.scenario.prices import Prices
from harness.scenario.workload import Workload


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
