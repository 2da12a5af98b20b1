"""Inputs that are off: asked in the right order, paired, and a rival is named where one would be the better choice."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from standin import TODAY, Pipeline, problem
from virtual_crew import VirtualCrew

from harness.core.errors import ConfigError
from harness.tuning import search
from harness.tuning.analytic import ByHandSaid
from harness.tuning.bench import Bench, Job
from harness.tuning.plan import CostModel
from harness.tuning.screen import Screen
from harness.tuning.sensitivity import SCALE, off, ranked, sensitivities, sensitivity_jobs
from harness.tuning.state import State

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


OTHER = TODAY | {"pipeline.max_inflight": 256}
ANSWER = TODAY | {"pipeline.max_inflight": 128}
FINAL, SHORT = 40, 7


def compared(rates: dict[str, tuple[float, float, float]], ceiling_lag: int = 99) -> State:
    """A state in which the answer and another setting were compared: in the final, in short runs, and there with an input off.

    Rates are kept groups; the luck of the short runs is part of theirs.
    """
    asked = replace(problem(Pipeline()), inputs=INPUTS[:1])
    cost = CostModel(5)
    bench = Bench(VirtualCrew(Pipeline(), 1, lambda *_: 1.0), cost, 1e9)
    screen = Screen(asked.space, bench, "kept", ceiling_lag, SHORT, (1, 2), 0)
    state = State(asked, bench, screen, "kept", ceiling_lag, False, 1)
    state.finalists, state.final_seeds = [ANSWER, OTHER], tuple(range(10, 18))
    state.final_steps, state.off_steps = FINAL, SHORT
    still = Pipeline(common=0.0, own=0.0)
    for name, settings in (("today", TODAY), ("answer", ANSWER), ("other", OTHER)):
        final, short, under = rates[name]
        for seed in state.final_seeds:
            run = still(TODAY, seed, FINAL)
            bench.runs[Job.of(settings, seed, FINAL)] = replace(run, groups=round(1e4 * final), seed=seed)
            for factor in (0.9, 1.1):
                bench.runs[Job.of(off(settings, INPUTS[0].path, factor), seed, SHORT)] = replace(run, groups=round(1e4 * under))
            bench.runs[Job.of(settings, seed, SHORT)] = replace(run, groups=round(1e4 * short))
    return state


def rivals_of(state: State) -> list[Settings | None]:
    return [one.rival for one in sensitivities(state, ANSWER)]


def test_what_is_better_under_an_input_alone_is_the_rival() -> None:
    state = compared({"today": (1.0, 1.0, 1.0), "answer": (1.5, 1.5, 1.2), "other": (1.4, 1.4, 1.3)})
    assert rivals_of(state) == [{"pipeline.max_inflight": 256}] * 2


def test_todays_settings_can_be_the_rival() -> None:
    state = compared({"today": (1.0, 1.0, 1.3), "answer": (1.1, 1.1, 1.2), "other": (1.0, 1.0, 0.9)})
    assert rivals_of(state) == [{}, {}]


def test_the_luck_of_short_runs_overturns_nothing() -> None:
    state = compared({"today": (1.0, 1.0, 1.0), "answer": (1.5, 1.2, 1.2), "other": (1.4, 1.3, 1.3)})
    assert rivals_of(state) == [None, None]


def test_a_rival_within_the_indifference_zone_is_none() -> None:
    state = compared({"today": (1.0, 1.0, 1.0), "answer": (1.5, 1.5, 1.5), "other": (1.495, 1.495, 1.505)})
    assert rivals_of(state) == [None, None]


def test_what_exceeds_the_ceiling_is_no_rival() -> None:
    rates = {"today": (1.0, 1.0, 1.0), "answer": (1.5, 1.5, 1.2), "other": (1.4, 1.4, 1.3)}
    state = compared(rates, ceiling_lag=0)
    for seed in state.final_seeds:
        job = Job.of(OTHER, seed, FINAL)
        state.bench.runs[job] = replace(state.bench.runs[job], lag_max=1)
    assert rivals_of(state) == [None, None]


def test_inputs_that_there_was_no_time_for_are_left_out() -> None:
    state = compared({"today": (1.0, 1.0, 1.0), "answer": (1.5, 1.5, 1.2), "other": (1.4, 1.4, 1.3)})
    state.problem = replace(state.problem, inputs=INPUTS)
    assert {one.path for one in sensitivities(state, ANSWER)} == {INPUTS[0].path}


def test_what_moves_the_closed_forms_most_is_asked_first() -> None:
    weights = {"world.generate": 0.1, "world.train": 3.0, "world.nothing": 0.0}

    def by_hand(settings: Settings) -> ByHandSaid:
        ((path, factor),) = ((p.removeprefix(SCALE), float(v)) for p, v in settings.items() if p.startswith(SCALE))
        if path == "world.nothing":
            raise ConfigError("closed forms do not know it", field=path)
        return ByHandSaid(rate=1 - weights[path] * (factor - 1), bound=9.0, limits=(), stored=0.0)

    assert [one.path for one in ranked(INPUTS, TODAY, by_hand)] == ["world.train", "world.generate", "world.nothing"]
    assert ranked(INPUTS, TODAY, None) == list(INPUTS)
