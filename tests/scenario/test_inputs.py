"""Scaled inputs: a law in another unit is the same law, and what is not scaled is untouched."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pydantic import TypeAdapter

import harness
from harness.core.errors import ConfigError
from harness.costs.laws import Law
from harness.run import PipelineConfig, simulate_once
from harness.scenario.inputs import calibrated_inputs, scaled

if TYPE_CHECKING:
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


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_every_input_can_be_scaled_alone_and_back(path: Path) -> None:
    scenario = harness.load(path)
    inputs = calibrated_inputs(scenario)
    assert len({one.path for one in inputs}) == len(inputs) > 0
    for one in inputs:
        assert scaled(scenario, one.path, 1.0) == scenario
        other = scaled(scenario, one.path, 1.1)
        type(scenario).model_validate(other.model_dump(mode="json"))
        if "tokens" not in one.path and "turns" not in one.path:
            assert other != scenario


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
