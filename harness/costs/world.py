"""The simulated world: performers that let modelled time pass, and episodes that follow a drawn plan.

Everything an engine needs to run a pipeline in virtual time. Nothing here knows a pipeline: performers see work records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.core.perform import Timed
from harness.core.work import Arrive, Checkpoint, EnvClose, EnvReset, LogProbs, Publish, Reward, ToolCall, TrainStep
from harness.costs.arrivals import SimulatedArrivals
from harness.costs.episodes import SimulatedSource
from harness.costs.inference import inference_performers
from harness.costs.learning import SimulatedLearner
from harness.costs.sandboxes import SimulatedClose, SimulatedReward, SimulatedTools
from harness.costs.workload import WorkloadModel, max_count

if TYPE_CHECKING:
    from harness.core.perform import Performers
    from harness.scenario.schema import Scenario


class SimulatedWorld:
    """Everything outside the pipeline, for one replication.

    Args:
        scenario: world and workload.
        seed: of the replication.
        make_task: the pipeline's own task type, called with (index, dispatch).

    """

    def __init__(self, scenario: Scenario[Any], seed: int, make_task: Any) -> None:
        self.model = WorkloadModel.of(scenario, seed)
        inference = scenario.world.inference
        self.source = SimulatedSource(
            self.model,
            make_task,
            max_count(scenario.workload.response_tokens),
            scenario.workload.max_context_tokens,
            inference.prefix_reuse,
        )
        learner = SimulatedLearner(scenario, seed)
        tools = SimulatedTools(self.model)
        self.performers: Performers = {
            **inference_performers(inference),
            ToolCall: Timed(tools.call),
            EnvReset: Timed(tools.reset),
            EnvClose: SimulatedClose(self.model),
            Reward: SimulatedReward(self.model),
            TrainStep: Timed(learner.train),
            LogProbs: Timed(learner.log_probs),
            Publish: Timed(learner.publish),
            Checkpoint: Timed(learner.checkpoint),
        }
        if scenario.workload.arrivals is not None:
            self.performers[Arrive] = Timed(SimulatedArrivals(scenario.workload.arrivals, seed).arrive)
