"""From measurements to a configuration that is better, as a new user goes: calibrate twice, tune, put the patch over it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import harness
from harness.__main__ import main
from harness.core.errors import ConfigError
from harness.scenario.load import dump

SCENARIOS = Path(__file__).parents[2] / "scenarios"
SMALL = (
    "pipeline.groups_per_step=4", "pipeline.group_size=2", "pipeline.max_inflight=24", "pipeline.buffer_capacity=16",
    "pipeline.sync_mode=keep", "run.learner_steps=5", "run.warmup_steps=1", 'workload.turns={law="constant",value=3}',
)  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_measurements_become_a_scenario_and_its_answer_holds_when_put_over_it(folder, capsys):
    rng = np.random.default_rng(1)
    milliseconds, prompts, answers = rng.lognormal(8.5, 0.3, 300), rng.lognormal(6, 0.2, 300), rng.lognormal(5, 0.2, 300)
    steps = [f"r{i // 20},{'browse' if i % 3 else 'bash'},{x:.1f}" for i, x in enumerate(milliseconds)]
    ended = [f"{step},{'ok' if i % 50 else 'error'}" for i, step in enumerate(steps)]
    Path("tools.csv").write_text("\n".join(["run,tool,ms,status", *ended]))
    requests = (f"{x:.0f},{y:.0f}" for x, y in zip(prompts, answers, strict=True))
    Path("requests.csv").write_text("\n".join(["prompt,answer", *requests]))
    base = str(SCENARIOS / "synchronous.toml")

    of_tools = ["--duration", "ms", "--unit", "ms", "--by", "tool", "--outcome", "status"]
    small = [word for text in SMALL for word in ("--set", text)]
    assert main(["calibrate", "tools.csv", *of_tools, "--base", base, *small, "--out", "tools.toml"]) == 0
    of_requests = ["--input-tokens", "prompt", "--output-tokens", "answer", "--html", "fit.html"]
    assert main(["calibrate", "requests.csv", *of_requests, "--base", "tools.toml", "--out", "mine.toml"]) == 0
    said = capsys.readouterr().out
    assert "times in seconds" in said
    assert "lengths in tokens" in said
    assert "<svg" in Path("fit.html").read_text("utf-8")
    mine = harness.load("mine.toml")
    assert {tool.name for tool in mine.workload.tools} == {"bash", "browse"}
    assert all(tool.duration.mu == pytest.approx(np.log(5), abs=0.1) for tool in mine.workload.tools)

    # in a process of its own: its promise of wall time counts from the start of the process
    asked = "--budget 20s --max-lag 2 --knob max_staleness=0,2 --knob pipeline_depth=0,2 --no-sensitivity --json --out answer"
    tuned = subprocess.run(
        [sys.executable, "-m", "harness", "tune", "mine.toml", *asked.split()], capture_output=True, text=True, check=True
    )
    answer = json.loads(tuned.stdout)
    assert answer["verdict"] == "better"
    assert answer["changed"] == {"pipeline.max_staleness": 2, "pipeline.pipeline_depth": 2}

    rates = [rate_of(capsys), rate_of(capsys, "--patch", "answer/patch.toml")]
    assert rates[1] / rates[0] - 1 > 0.5 * answer["gain"]["low"] > 0


def rate_of(capsys, *options):
    assert main(["simulate", "mine.toml", *options, "--replications", "1", "--json", "--out", "seen"]) == 0
    seen = json.loads(capsys.readouterr().out)
    return seen["measured"]["kept_groups_per_chip_s"]["mean"]


# ── a patch ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_patch_goes_over_the_scenario_and_overrides_over_the_patch(folder):
    path = SCENARIOS / "fully_async.toml"
    Path("patch.toml").write_text("[pipeline]\nmax_staleness = 4\nbuffer_capacity = 99\n")
    plain = harness.load(path)
    patched = harness.load(path, patch="patch.toml", overrides=["pipeline.buffer_capacity=77"])
    assert patched == harness.load(path, overrides=["pipeline.max_staleness=4", "pipeline.buffer_capacity=77"])
    assert patched != plain


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[pipeline]\n\nmax_staleness = -1\n", "patch.toml:3: pipeline.max_staleness"),
        ("[pipeline]\nmax_stale = 1\n", "patch.toml:2: pipeline.max_stale"),
        ("[pipeline]\nmax_staleness = \n", "patch.toml:2: is not valid TOML"),
        ("pipeline = 3\n", "patch.toml:1: pipeline"),
    ],
)
def test_what_is_wrong_in_a_patch_is_said_of_the_patch(folder, text, said):
    Path("patch.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        harness.load(SCENARIOS / "fully_async.toml", patch="patch.toml")
    assert said in str(caught.value)


def test_every_command_that_takes_a_scenario_takes_a_patch(folder, capsys):
    for words in (
        ["simulate", str(SCENARIOS / "mm1.toml")],
        ["tune", str(SCENARIOS / "mm1.toml")],
        ["run", str(SCENARIOS / "cpu_live.toml")],
        ["calibrate", "x.csv", "--duration", "a", "--by", "b", "--base", str(SCENARIOS / "mm1.toml"), "--out", "o.toml"],
    ):
        assert main([*words, "--patch", "nothing.toml"]) == 2
        assert "nothing.toml: there is no such file" in capsys.readouterr().err
    assert os.listdir(folder) == []


# ── from Python ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_readme_from_python_runs(folder, monkeypatch):
    """As it stands there, but for a smaller scenario and budget, and without training for real."""
    text = (SCENARIOS.parent / "README.md").read_text("utf-8")
    (snippet,) = re.findall(r"```python\n(import harness\n.*?)```", text, re.DOTALL)
    lines = [line for line in snippet.splitlines() if "run_live" not in line]
    assert len(lines) == len(snippet.splitlines()) - 1
    small = "\n".join(lines).replace("budget_s=300", "budget_s=6").replace("replications=5", "replications=1")
    asked = Path("small.toml")
    fewer = ("pipeline.max_inflight=16", "pipeline.buffer_capacity=8", "run.learner_steps=2", "pipeline.pipeline_depth=1")
    asked.write_text(dump(harness.load(SCENARIOS / "fully_async.toml", overrides=[*SMALL, *fewer])))
    rows = np.random.default_rng(2).lognormal(1, 0.5, 60)
    Path("tools.csv").write_text("\n".join(["tool,seconds", *(f"bash,{x:.3f}" for x in rows)]))
    names: dict[str, Any] = {}
    exec(small.replace("scenarios/coding_agent.toml", str(asked)), names)
    assert names["scenario"].pipeline.max_staleness == 2
    assert len(names["run"].summaries) == 1
    assert {step.name for step in names["made"].steps} == {"bash"}
    result = names["result"]
    assert isinstance(result, harness.TuneResult)
    assert isinstance(result.effort, harness.Effort)
    assert {"pipeline.tool_workers", "pipeline.max_staleness"} <= set(result.today)
    assert names["once"].learner_steps == 2
    parts = [*result.flatness, *result.points, *result.sensitivity, *result.contributions]
    known = (harness.Flatness, harness.Point, harness.Sensitivity, harness.Contribution)
    assert all(isinstance(part, known) for part in parts)
