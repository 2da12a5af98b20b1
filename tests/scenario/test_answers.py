"""What a scenario says that it answers stands in the report, and the answers of theory hold."""

from __future__ import annotations

from pathlib import Path
from textwrap import wrap

import pytest

from harness.analysis.statistics import ratio_interval
from harness.run import load, simulate_once
from tests.scenario.test_shipped import FOLDER, NAMES

REPORT = Path(__file__).parents[2] / "reports" / "scenarios.md"


@pytest.mark.parametrize("name", NAMES)
def test_a_scenario_has_an_answer_and_the_report_has_it(name):
    scenario = load(FOLDER / f"{name}.toml")
    assert len(scenario.answer) > 20
    if name == "cpu_live":  # trained, not simulated: its figures are in reports/live.md
        return
    report = REPORT.read_text("utf-8")
    assert f"## {name}\n" in report
    assert "\n".join(wrap(scenario.answer, 128)) in report


@pytest.mark.parametrize(("name", "theory_s"), [("mm1", 4.0), ("mmc", 0.28603)])
def test_queues_wait_as_long_as_theory_says(name, theory_s):
    """M/M/1: rho / (mu (1 - rho)). M/M/8: Erlang C, 0.45764, over 8 - 6.4. Shorter than shipped."""
    scenario = load(FOLDER / f"{name}.toml", overrides=["run.learner_steps=10"])
    runs = [simulate_once(scenario, seed) for seed in range(100, 106)]
    waited = ratio_interval([run.episode_ns["tool_queue"] / 1e9 for run in runs], [run.episodes for run in runs], 0.99)
    assert waited.low < theory_s < waited.high
    assert waited.half_width < 0.8 * theory_s
