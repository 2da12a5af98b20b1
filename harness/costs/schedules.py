"""A scenario over training: the records that hold at a learner step, worked out when somebody asks for them."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from harness.core.perform import Timed
from harness.core.work import Checkpoint, LogProbs, Publish, TrainStep
from harness.scenario import schedules

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.core.perform import Performers
    from harness.costs.learning import SimulatedLearner
    from harness.scenario.schema import Scenario

T = TypeVar("T")

MOST_KEPT = 8
"""Models of the latest values that are kept. Those in use stay alive with their episodes."""


class Drifting(Generic[T]):
    """Something made of a scenario, for each step of a run. Without schedules it is one and the same.

    Args:
        scenario: with or without schedules.
        make: makes it of the scenario as it is at a step.

    """

    def __init__(self, scenario: Scenario[Any], make: Callable[[Scenario[Any]], T]) -> None:
        self._scenario = scenario
        self._make = make
        self._kept: OrderedDict[tuple[float | None, ...], T] = OrderedDict()
        self._only = make(scenario) if not scenario.schedules else None

    def at(self, step: int) -> T:
        """The one of a learner step."""
        if self._only is not None:
            return self._only
        values = schedules.values_at(self._scenario, step)
        found = self._kept.get(values)
        if found is None:
            found = self._kept[values] = self._make(schedules.with_values(self._scenario, values))
            if len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return found


def drifting_learner(
    scenario: Scenario[Any], make: Callable[[Scenario[Any]], SimulatedLearner], performers: Performers
) -> dict[type, Timed]:
    """Of the learner's performers those whose laws have a schedule: each piece of work takes the law of its own step.

    Args:
        scenario: with schedules.
        make: the learner of a scenario.
        performers: as they are without schedules; only those that let a computed time pass can follow one.

    """
    learners = Drifting(scenario, make)
    by_table = {
        "world.learner.train": (TrainStep, lambda work: learners.at(work.entity).train(work)),
        "world.learner.log_probs": (LogProbs, lambda work: learners.at(work.entity).log_probs(work)),
        "world.weights.transfer": (Publish, lambda work: learners.at(work.entity).publish(work)),
        "world.checkpoint.save": (Checkpoint, lambda work: learners.at(work.entity).checkpoint(work)),
    }
    paths = [schedule.path for schedule in scenario.schedules]
    return {
        kind: Timed(duration)
        for table, (kind, duration) in by_table.items()
        if any(path.startswith(f"{table}.") for path in paths) and isinstance(performers.get(kind), Timed)
    }
