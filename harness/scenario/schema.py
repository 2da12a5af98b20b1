"""What a scenario is: a world, a workload, a pipeline configuration and a run, with the unit of every number.

The pipeline's own table is handed in as a type by the composition root, so that this package knows no pipeline:
`Scenario[PipelineConfig]`. Everything is frozen, and no unknown field is taken.
"""

from __future__ import annotations

from typing import Any, Generic, Literal, Self, TypeVar

from pydantic import BaseModel, Field, model_validator
from typing_extensions import TypeVar as TypeVarWithDefault

from harness.core.errors import ConfigError
from harness.costs.catalogue import CATALOGUE
from harness.costs.laws import Record
from harness.costs.roofline import Efficiencies, Model
from harness.scenario.chips import Chip, Derivable, or_text, work_out
from harness.scenario.environments import Environments, Outage, Scoring, check_outages
from harness.scenario.fleet import Preemption
from harness.scenario.host import Host
from harness.scenario.inference import Inference
from harness.scenario.learner import CheckpointStore, Learner, Switch, Weights
from harness.scenario.prices import Prices
from harness.scenario.schedules import Schedule, check_schedules
from harness.scenario.workload import Workload


class World(Record):
    """Everything outside the pipeline: chips, engines, sandboxes."""

    chip: Chip | None = Field(
        default=None,
        description="The chips of replicas and learner: a name of the catalogue, or a table of figures.",
        json_schema_extra=or_text(*CATALOGUE),
    )
    model: Model | None = Field(default=None, description="The policy's sizes, where step times are to follow from them.")
    roofline: Efficiencies | None = Field(default=None, description="How much of the chips' peaks is reached; absent: all.")
    derived: tuple[Derivable, ...] = Field(
        default=(),
        strict=False,
        description="Written by the program: what follows from chip and model, worked out at each load.",
    )
    inference: Inference
    learner: Learner
    weights: Weights
    checkpoint: CheckpointStore | None = None
    preemption: Preemption | None = Field(default=None, description="Slices that are taken away and replaced; absent: none.")
    environments: Environments
    scoring: Scoring
    outages: tuple[Outage, ...] = Field(
        default=(), strict=False, description="What is down now and then, and takes all that depends on it down with it."
    )
    switch: Switch | None = Field(default=None, description="What taking turns on the same chips costs.")
    host: Host = Host()
    prices: Prices | None = None

    @model_validator(mode="before")
    @classmethod
    def _work_out(cls, data: Any) -> Any:
        known = isinstance(data, dict) and data.keys() <= cls.model_fields.keys()  # else say first what is misspelt
        return work_out(data) if known else data

    @model_validator(mode="after")
    def _slices(self) -> Self:
        if self.chip is not None:
            self.chip.check_slice(self.inference.chips_per_replica, "world.inference.chips_per_replica")
            if self.learner.chips % self.learner.slices:
                raise ConfigError(
                    "does not divide into slices of one shape",
                    field="world.learner.chips",
                    value=self.learner.chips,
                    allowed=f"a multiple of world.learner.slices = {self.learner.slices}",
                    remedy="change one of them",
                )
            self.chip.check_slice(self.learner.chips // self.learner.slices, "world.learner.chips")
        return self

    def check_shared_chips(self) -> None:
        """Whether learner and replicas can take turns on their chips.

        Raises:
            ConfigError: what stands against it.

        """
        of_replicas = self.inference.replicas * self.inference.chips_per_replica
        if self.learner.chips != of_replicas:
            raise ConfigError(
                "must be all chips where learner and replicas share them",
                field="world.learner.chips",
                value=self.learner.chips,
                allowed=f"{of_replicas}, the chips of all replicas",
                remedy=f'set it to {of_replicas}, or pipeline.placement = "disaggregated"',
            )
        if self.switch is None:
            raise ConfigError(
                "is missing", field="world.switch", remedy='add it: what changing roles costs; or placement = "disaggregated"'
            )
        if self.learner.compile_s:
            raise ConfigError(
                'is not modelled together with pipeline.placement = "colocated"',
                field="world.learner.compile_s",
                value=self.learner.compile_s,
                allowed="0",
                remedy="count it into world.inference.compile.start_s",
            )
        if self.preemption is not None:
            raise ConfigError(
                'is not modelled together with pipeline.placement = "colocated"',
                field="world.preemption",
                remedy='remove the table, or set pipeline.placement = "disaggregated"',
            )

    def with_chips(
        self, *, replicas: int | None = None, chips_per_replica: int | None = None, learner_chips: int | None = None
    ) -> Self:
        """The same world with its chips split differently; what follows from them is worked out anew.

        Raises:
            ConfigError: a slice that nobody sells, or one too small for the weights.

        """
        data = self.model_dump()
        for table, key, value in (
            ("inference", "replicas", replicas),
            ("inference", "chips_per_replica", chips_per_replica),
            ("learner", "chips", learner_chips),
        ):
            if value is not None:
                data[table][key] = value
        return type(self).model_validate(data)

    def derived_in_words(self) -> str:
        """What was worked out from chip and model, in one sentence; empty where nothing was."""
        if not self.derived or self.chip is None:
            return ""
        inference, learner, transfer = self.inference, self.learner, self.weights.transfer
        said = {
            "inference.decode": f"decode {1e3 * inference.decode.step_s(1, 0):.3g} ms a step and more with batch and context",
            "inference.prefill": f"prefill {1e6 * inference.prefill.per_token_s:.3g} us a token",
            "inference.kv_capacity_tokens": f"a KV cache of {inference.kv_capacity_tokens:,} tokens a replica",
            "learner.train": f"training {1e6 * learner.train.per_token_s:.3g} us a token on {learner.chips} chips",
            "learner.log_probs": f"log-probs {1e6 * learner.log_probs.per_token_s:.3g} us a token" if learner.log_probs else "",
            "weights.weights_bytes": f"{self.weights.weights_bytes / 1e9:.4g} GB of weights",
            "weights.transfer.bytes_per_s": f"transfer at {transfer.bytes_per_s / 1e9:.3g} GB/s over {transfer.path}",
            "weights.transfer.sender_bytes_per_s": f"{(transfer.sender_bytes_per_s or 0) / 1e9:.3g} GB/s for all that share",
        }
        bounds = ", ".join((self.roofline or Efficiencies()).bounds)
        optimistic = f"; {bounds} at 1 (the roof itself: a bound, not a prediction)" if bounds else ""
        return f"worked out from {self.chip.label}: {', '.join(said[path] for path in self.derived)}{optimistic}"

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
    answer: str = Field(default="", description="What it answered when it was last looked at, in words.")
    world: World
    workload: Workload
    pipeline: PipelineT
    live: LiveT | None = Field(default=None, description="What a live run needs; a simulated run ignores it.")
    run: RunPlan = RunPlan()
    schedules: tuple[Schedule, ...] = Field(
        default=(), strict=False, description="Numbers of world and workload that change with the learner's steps."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.check()
        check_schedules(self)
        return self

    def check(self) -> None:
        """What must hold between the tables, whatever the values of the schedules.

        Raises:
            ConfigError: names the field, its value, what is allowed and what to do.

        """
        longest, room = self.workload.max_context_tokens, self.world.inference.kv_capacity_tokens
        if longest > room:
            raise ConfigError(
                "is longer than a replica's KV cache",
                field="workload.max_context_tokens",
                value=longest,
                allowed=f"at most world.inference.kv_capacity_tokens = {room}",
                remedy="lower it, or give a replica more memory",
            )
        check_outages(self.world.outages, self.workload.tools, self.run.max_sim_s)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by parts: a parametrised generic class has no name that a pickle could find."""
        return _rebuild, (type(self.pipeline), type(self.live), dict(self.__dict__))


def _rebuild(pipeline_type: type[BaseModel], live_type: type[Any], parts: dict[str, Any]) -> Any:
    return Scenario[pipeline_type, live_type].model_construct(**parts)  # type: ignore[valid-type]  # known at run time only
