"""The simulated world: performers that let modelled time pass, and episodes that follow a drawn plan.

Everything an engine needs to run a pipeline in virtual time. Nothing here knows a pipeline: performers see work records.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from harness.core.perform import Timed
from harness.core.work import Arrive, Checkpoint, Compile, LogProbs, Publish, Restore, Switch, TrainStep
from harness.costs.arrivals import SimulatedArrivals
from harness.costs.episodes import SimulatedSource
from harness.costs.fleet import learner_compile, preemption_performers
from harness.costs.inference import inference_performers
from harness.costs.learning import SimulatedLearner
from harness.costs.sandboxes import sandbox_performers
from harness.costs.schedules import Drifting, drifting_learner
from harness.costs.workload import WorkloadModel

if TYPE_CHECKING:
    from harness.core.perform import Performers
    from harness.scenario.schema import Scenario


class SimulatedWorld:
    """Everything outside the pipeline, for one replication.

    Args:
        scenario: world and workload.
        seed: of the replication.
        make_task: the pipeline's own task type, called with (index, dispatch).
        colocated: whether learner and replicas take turns on the same chips.

    """

    def __init__(self, scenario: Scenario[Any], seed: int, make_task: Any, *, colocated: bool = False) -> None:
        inference = scenario.world.inference
        models = Drifting(scenario, partial(WorkloadModel.of, seed=seed))
        self.model = models.at(0)
        self.source = SimulatedSource(models, make_task, inference.prefix_reuse)
        learner = SimulatedLearner(scenario, seed, colocated=colocated)
        self.performers: Performers = {
            **inference_performers(inference, seed),
            **sandbox_performers(scenario, seed),
            TrainStep: Timed(learner.train),
            LogProbs: Timed(learner.log_probs),
            Publish: learner.publisher,
            Switch: Timed(learner.switch),
            Checkpoint: Timed(learner.checkpoint),
            Restore: Timed(learner.restore),
        }
        if scenario.schedules:
            self.performers |= drifting_learner(
                scenario, lambda then: SimulatedLearner(then, seed, colocated=colocated), self.performers
            )
        if scenario.workload.arrivals is not None:
            self.performers[Arrive] = Timed(SimulatedArrivals(scenario.workload.arrivals, seed).arrive)
        if scenario.world.learner.compile_s:
            self.performers[Compile] = learner_compile(scenario.world.learner.compile_s, self.performers.get(Compile))
        preemption = scenario.world.preemption
        if preemption is not None:
            self.performers |= preemption_performers(preemption, inference.replicas, seed, self.performers)
