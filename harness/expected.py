"""What closed forms say of a scenario: where `harness.analysis.by_hand` meets the pipeline's configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.analysis import by_hand
from pipeline.constraints import outstanding_groups
from pipeline.policies.kinds import AdmissionKind, Placement, SyncRollout

if TYPE_CHECKING:
    from harness.analysis.by_hand import Expectation
    from harness.scenario.schema import Scenario
    from pipeline.config import PipelineConfig


def expected(scenario: Scenario[PipelineConfig]) -> Expectation:
    """What closed forms say of a scenario, without a simulation (`harness.analysis.by_hand`)."""
    config, server = scenario.pipeline, scenario.world.inference.server
    by_step = config.admission is not AdmissionKind.INFLIGHT
    settings = by_hand.Knobs(
        members_planned=config.members_planned,
        members_needed=config.members_needed,
        groups_per_step=config.groups_per_step,
        steps_per_sync=config.steps_per_sync,
        outstanding_groups=outstanding_groups(config) if by_step else max(1, config.max_staleness) * config.groups_per_step,
        whole_credit=by_step,
        chunk_groups=config.chunk_groups,
        max_inflight=config.max_inflight,
        env_workers=config.env_workers,
        tool_workers=config.tool_workers,
        reward_workers=config.reward_workers,
        slots=server.slots if server is not None else config.slots_per_replica,
        chunk_steps=config.decode_chunk_steps,
        rolling=config.sync_rollout is SyncRollout.ROLLING,
        checkpoint_interval=config.checkpoint_interval,
        tool_limit_s=min(config.deadlines.tool_s, config.deadlines.step_s),
        episode_limit_s=config.deadlines.episode_s,
        buffer_groups=config.buffer_capacity,
        colocated=config.placement is Placement.COLOCATED,
        evaluates=config.eval_interval > 0,
        drifts=bool(scenario.schedules),
    )
    return by_hand.expect(scenario.world, scenario.workload, settings)
