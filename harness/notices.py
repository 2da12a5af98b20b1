"""What a reader must know of a scenario before its figures: knobs and tables that do nothing in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.policies.kinds import KvPolicy, Placement

if TYPE_CHECKING:
    from harness.scenario.inference import Inference
    from harness.scenario.schema import Scenario
    from pipeline.config import PipelineConfig


def largest_batch(inference: Inference) -> int | None:
    """What the shapes that are compiled allow; None where nothing limits it."""
    return inference.compile.batch_buckets[-1] if inference.compile is not None and inference.compile.batch_buckets else None


def notices(scenario: Scenario[PipelineConfig]) -> tuple[str, ...]:
    """What a reader must know of a scenario: knobs that do nothing in it."""
    said = list(scenario.pipeline.notices())
    if scenario.world.derived:
        said.append(scenario.world.derived_in_words())
    if scenario.world.switch is not None and scenario.pipeline.placement is not Placement.COLOCATED:
        said.append('[world.switch] has no effect: pipeline.placement is not "colocated"')
    if scenario.world.prices is None and any(tool.price_usd for tool in scenario.workload.tools):
        said.append("price_usd of tools has no effect: without [world.prices] nothing is said in money")
    config = scenario.pipeline
    if config.placement is Placement.COLOCATED and config.chunk_groups < config.groups_per_step:
        said.append(f"consume_chunk = {config.consume_chunk}: shared chips change hands up to twice for every chunk of a batch")
    preemption = scenario.world.preemption
    if preemption is not None and preemption.learner is not None and not scenario.pipeline.checkpoint_interval:
        said.append("pipeline.checkpoint_interval = 0: every loss of the learner's chips goes back to the start of the run")
    if preemption is not None and preemption.learner is not None and scenario.world.checkpoint is None:
        said.append("a lost learner comes back for free: there is no [world.checkpoint] that says what a restore takes")
    if (
        scenario.world.checkpoint is not None
        and scenario.world.checkpoint.restore is not None
        and (preemption is None or preemption.learner is None)
    ):
        said.append("world.checkpoint.restore has no effect: there is no world.preemption.learner that takes chips away")
    if scenario.pipeline.checkpoint_interval and scenario.world.checkpoint is None:
        said.append(
            "pipeline.checkpoint_interval costs nothing here: there is no [world.checkpoint] that says what a save takes"
        )
    if scenario.world.inference.server is not None:
        said.append(
            "pipeline.slots_per_replica, kv_policy and decode_chunk_steps have no effect: [world.inference.server] schedules "
            "itself"
        )
        return tuple(said)
    return (*said, *_said_of_slots(scenario))


def _said_of_slots(scenario: Scenario[PipelineConfig]) -> tuple[str, ...]:
    wanted, largest = scenario.pipeline.slots_per_replica, largest_batch(scenario.world.inference)
    slots = min(wanted, largest or wanted)
    said = []
    if slots < wanted:
        said.append(f"slots_per_replica = {wanted} is cut to {slots}, the last of world.inference.compile.batch_buckets")
    whole, capacity = slots * scenario.workload.max_context_tokens, scenario.world.inference.kv_capacity_tokens
    if scenario.pipeline.kv_policy is KvPolicy.GROW and whole <= capacity:
        said.append(f"kv_policy has no effect: {slots} contexts of any length fit into {capacity} tokens")
    return tuple(said)
