"""Scaled inputs: a law in another unit is the same law, and what is not scaled is untouched."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pydantic import TypeAdapter

import harness
from harness.core.errors import ConfigError
from harness.costs.laws import Law
from harness.costs.workload import count_sampler, cumulative_counts
from harness.run import PipelineConfig, simulate_once
from harness.scenario.counts import ConstantCount, CountLaw
from harness.scenario.inputs import calibrated_inputs, scaled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.scenario.schema import Scenario

SCENARIOS = sorted((Path(__file__).parents[2] / "scenarios").glob("*.toml"))
LAWS = TypeAdapter(Law)
EXAMPLES = [
    {"law": "constant", "value_s": 3.0},
    {"law": "exponential", "mean_s": 2.0, "max_s": 9.0},
    {"law": "lognormal", "mu": 1.0, "sigma": 0.7, "max_s": 30.0},
    {"law": "normal", "mean_s": 10.0, "sd_s": 2.0},
    {"law": "gamma", "shape": 2.0, "mean_s": 4.0},
    {"law": "empirical", "probabilities": [0.0, 0.5, 1.0], "values_s": [1.0, 2.0, 9.0]},
    {
        "law": "body_tail",
        "body": {"law": "lognormal", "mu": 0.0, "sigma": 0.5},
        "threshold_s": 2.0,
        "tail": {"law": "pareto", "shape": 0.2, "scale_s": 1.5},
        "tail_weight": 0.1,
    },
    {
        "law": "mixture",
        "parts": [{"weight": 0.7, "of": {"law": "exponential", "mean_s": 2.0}}],
        "atoms": [{"at_s": 30.0, "weight": 0.3}],
    },
]


def with_law(law: dict[str, object]) -> Scenario[PipelineConfig]:
    scenario = harness.load(SCENARIOS[0].parent / "one_step_async.toml")
    environments = scenario.world.environments.model_copy(update={"reset": LAWS.validate_python(law)})
    return scenario.model_copy(update={"world": scenario.world.model_copy(update={"environments": environments})})


@pytest.mark.parametrize("law", EXAMPLES, ids=lambda law: str(law["law"]))
@pytest.mark.parametrize("factor", [0.9, 1.1, 3.0])
def test_quantiles_and_mean_of_a_scaled_law_are_scaled(law: dict[str, object], factor: float) -> None:
    scenario = with_law(law)
    before = scenario.world.environments.reset
    after = scaled(scenario, "world.environments.reset", factor).world.environments.reset
    assert after.expected_s() == pytest.approx(factor * before.expected_s(), rel=1e-6)
    for u in (0.01, 0.3, 0.5, 0.8, 0.97):
        assert after.quantile(u) == pytest.approx(factor * before.quantile(u), rel=1e-6)


@pytest.mark.parametrize("law", EXAMPLES, ids=lambda law: str(law["law"]))
def test_a_law_scaled_there_and_back_is_the_same(law: dict[str, object]) -> None:
    scenario = with_law(law)
    back = scaled(scaled(scenario, "world.environments.reset", 1.1), "world.environments.reset", 1 / 1.1)
    assert numbers(back) == pytest.approx(numbers(scenario), rel=1e-12)


def numbers(scenario: Scenario[PipelineConfig]) -> list[float]:
    """All numbers of a scenario in their order, but for what says where they come from."""

    def walk(node: object) -> Iterator[float]:
        if isinstance(node, dict):
            for key in node.keys() - {"derived"}:
                yield from walk(node[key])
        elif isinstance(node, list | tuple):
            for item in node:
                yield from walk(item)
        elif isinstance(node, int | float):
            yield float(node)

    return list(walk(scenario.model_dump(include={"world", "workload", "schedules"})))


def exact(scenario: Scenario[PipelineConfig], path: str) -> bool:
    """Whether an input is made of whole numbers, which do not come back."""
    return getattr(getattr(scenario.workload, path.rpartition(".")[2], None), "law", "") in ("constant", "empirical")


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_every_input_can_be_scaled_alone_and_back(path: Path) -> None:
    scenario = harness.load(path)
    inputs = calibrated_inputs(scenario)
    assert len({one.path for one in inputs}) == len(inputs) > 0
    for one in inputs:
        assert scaled(scenario, one.path, 1.0) == scenario
        other = scaled(scenario, one.path, 1.1)
        assert other != scenario
        assert type(scenario).model_validate(other.model_dump()) == other, "lost when it is written out and read again"
        assert numbers(scaled(other, one.path, 1 / 1.1)) == pytest.approx(numbers(scenario), rel=1e-12) or exact(
            other, one.path
        )


SHAPES = [
    {"law": "constant", "value": 2},
    {"law": "constant", "value": 1},
    {"law": "empirical", "probabilities": [0.0, 0.5, 0.8, 1.0], "values": [1, 1, 4, 9]},
    {"law": "empirical", "probabilities": [0.0, 0.5, 1.0], "values": [100, 3000, 9000]},
    {"law": "geometric", "mean": 4.0, "max": 100_000},
    {"law": "lognormal", "mean": 300.0, "cv": 0.8, "max": 100_000},
]


def mean_count(law: object) -> float:
    """Mean of a law of counts from its cumulative probabilities."""
    if isinstance(law, ConstantCount):
        return law.value
    lowest, table = cumulative_counts(law)
    return lowest + sum(1 - below for below in table)


def with_turns(scenario: Scenario[PipelineConfig], law: dict[str, object]) -> Scenario[PipelineConfig]:
    turns = TypeAdapter(CountLaw).validate_python(law)
    return scenario.model_copy(update={"workload": scenario.workload.model_copy(update={"turns": turns})})


@pytest.mark.parametrize("law", SHAPES, ids=str)
@pytest.mark.parametrize("factor", [0.9, 1.1, 1.7])
def test_the_mean_of_a_scaled_count_is_scaled_and_none_is_below_one(law: dict[str, object], factor: float) -> None:
    before = with_turns(harness.load(SCENARIOS[0].parent / "one_step_async.toml"), law)
    after = scaled(before, "workload.turns", factor).workload.turns
    ones = {"constant": 1.0 if law.get("value") == 1 else 0.0, "empirical": 0.5 if law.get("values", [0])[0] == 1 else 0.0}
    if factor < 1 and ones.get(str(law["law"])):
        assert mean_count(after) >= factor * mean_count(before.workload.turns)
        assert count_sampler(after)(0.0) == 1
    else:
        assert mean_count(after) == pytest.approx(factor * mean_count(before.workload.turns), rel=1e-3)
    assert [count_sampler(after)(u / 50) for u in range(50)] == sorted(count_sampler(after)(u / 50) for u in range(50))


def with_schedule(path: str, *points: list[float]) -> Scenario[PipelineConfig]:
    scenario = harness.load(SCENARIOS[0].parent / "one_step_async.toml")
    data = scenario.model_dump() | {"schedules": [{"path": path, "points": points}]}
    return type(scenario).model_validate(data)


def test_what_a_schedule_makes_of_an_input_is_scaled_with_it() -> None:
    scenario = with_schedule("world.learner.train.base_s", [3, 10.0], [6, 20.0])
    slow = scaled(scenario, "world.learner.train", 1.1)
    assert [value for _, value in slow.schedules[0].points] == pytest.approx([11.0, 22.0])
    assert slow.world.learner.train.per_token_s == pytest.approx(1.1 * scenario.world.learner.train.per_token_s)
    assert scaled(scenario, "world.inference.decode", 1.1).schedules == scenario.schedules
    jitter = with_schedule("world.learner.train.cv", [3, 0.2])
    assert scaled(jitter, "world.learner.train", 1.1).schedules == jitter.schedules


def test_what_all_receivers_share_is_slower_too() -> None:
    scenario = harness.load(SCENARIOS[0].parent / "one_step_async.toml")
    shared = scenario.world.weights.transfer.model_copy(update={"shares_sender_link": True, "sender_bytes_per_s": 4e9})
    weights = scenario.world.weights.model_copy(update={"transfer": shared})
    scenario = scenario.model_copy(update={"world": scenario.world.model_copy(update={"weights": weights})})
    assert scaled(scenario, "world.weights.transfer", 2.0).world.weights.transfer.sender_bytes_per_s == 2e9


def test_probabilities_that_add_up_to_one_at_most_still_do() -> None:
    scenario = harness.load(SCENARIOS[0].parent / "one_step_async.toml")
    tool = scenario.workload.tools[0].model_copy(update={"failure": 0.6, "infra_failure": 0.3, "hang": 0.05})
    workload = scenario.workload.model_copy(update={"tools": (tool, *scenario.workload.tools[1:])})
    often = scaled(scenario.model_copy(update={"workload": workload}), f"workload.tools.{tool.name}.failure", 1.5)
    type(tool).model_validate(often.workload.tools[0].model_dump())
    assert often.workload.tools[0].failure == pytest.approx(0.65)


def test_what_is_not_scaled_meets_the_same_luck() -> None:
    scenario = harness.load(SCENARIOS[0].parent / "one_step_async.toml")
    slow = scaled(scenario, "world.learner.train", 1.1)
    quick, slower = (simulate_once(one, 3, learner_steps=4, warmup_steps=0) for one in (scenario, slow))
    assert slower.window_s > quick.window_s
    assert slower.tokens_trained == quick.tokens_trained


def test_an_unknown_input_is_refused() -> None:
    scenario = harness.load(SCENARIOS[0].parent / "one_step_async.toml")
    for path, factor in (("world.nothing", 1.1), ("workload.tools.nothing.duration", 1.1), ("world.learner.train", -1.0)):
        with pytest.raises(ConfigError):
            scaled(scenario, path, factor)
