"""Inputs that are off: asked in the right order, paired, and a rival is named where one would be the better choice."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from standin import TODAY, Pipeline, problem
from virtual_crew import VirtualCrew

from harness.tuning import search
from harness.tuning.sensitivity import SCALE, sensitivity_jobs

if TYPE_CHECKING:
    from harness.analysis.summary import RunSummary
    from harness.tuning.space import Settings


@dataclass(frozen=True)
class Given:
    path: str
    doc: str = "an input"


INPUTS = (Given("world.generate"), Given("world.train"), Given("world.nothing"))


@dataclass(frozen=True)
class World:
    """The stand-in with two inputs that matter and one that does not."""

    base: Pipeline = field(default_factory=Pipeline)

    def __call__(self, settings: Settings, seed: int, steps: int) -> RunSummary:
        factor = {path: float(value) for path, value in settings.items() if path.startswith(SCALE)}
        pipeline = replace(
            self.base,
            generate_s=self.base.generate_s * factor.get(f"{SCALE}world.generate", 1.0),
            train_s=self.base.train_s * factor.get(f"{SCALE}world.train", 1.0),
        )
        return pipeline({path: value for path, value in settings.items() if path not in factor}, seed, steps)


def tuned(*, sensitivity: bool | None, budget_s: float = 300.0) -> search.TuneResult:
    world = World()
    crew = VirtualCrew(world, 2, lambda settings, seed, steps: 0.05 * steps)
    asked = replace(problem(world.base), evaluate=world, inputs=INPUTS)
    return search.tune(asked, promise=search.Promise(budget_s), crew=crew, workers=2, sensitivity=sensitivity)


def test_every_input_is_asked_about_down_and_up_and_what_matters_moves_the_answer() -> None:
    result = tuned(sensitivity=None)
    by_path = {(one.path, one.factor): one for one in result.sensitivity}
    assert by_path.keys() == {(given.path, factor) for given in INPUTS for factor in (0.9, 1.1)}
    assert abs(by_path["world.nothing", 1.1].kept.mean) < 0.001
    assert by_path["world.generate", 0.9].kept.mean > 0.05 > -0.05 > by_path["world.generate", 1.1].kept.mean
    assert all(one.gain.mean > 0.2 for one in result.sensitivity)


def test_the_answer_itself_is_the_same_whether_or_not_inputs_are_asked_about() -> None:
    with_it, without = tuned(sensitivity=True), tuned(sensitivity=False)
    assert without.sensitivity == ()
    assert with_it.settings == without.settings
    assert with_it.gain == without.gain


def test_a_short_budget_does_not_ask_unasked() -> None:
    assert tuned(sensitivity=None, budget_s=60.0).sensitivity == ()


def test_every_input_is_looked_at_once_before_any_is_looked_at_twice() -> None:
    jobs = list(sensitivity_jobs(INPUTS, [TODAY], [1, 2], 20))
    first = [job for job in jobs if job.seed == 1]
    assert jobs[: len(first)] == first
    assert len(first) == 1 + 2 * len(INPUTS)
