"""Ctrl-C and SIGTERM at any moment of a real run: a message, an exit code, nothing half-written, and a resume goes on.

Before there is anything to save both end the run with exit code 130. From the first evaluation on it completes what it is at
and saves; then Ctrl-C is 130 and SIGTERM, which asks for no more than that, is 0.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real_clock

HERE = Path(__file__).parent
QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
"""What is compiled runs for a second: compile it quickly."""

INSTANTS = {
    "compilation": "SIGINT:a",
    "warm start": "SIGTERM:b",
    "first evaluation": "SIGINT:c",
    "training": "SIGTERM:d",
    "checkpoint": "SIGINT:e",
    "export": "SIGTERM:d:resume",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """All of them, in one process: what is compiled in the first is found by the others."""
    folder = tmp_path_factory.mktemp("interrupted")
    ran = subprocess.run(
        [sys.executable, "interrupted.py", str(folder), *(f"{instant}:{rest}" for instant, rest in INSTANTS.items())],
        cwd=HERE, env=os.environ | {"PYTHONPATH": str(HERE.parents[1]), "XLA_FLAGS": QUICK}, capture_output=True, text=True,
        timeout=300,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "Traceback" not in ran.stderr, ran.stderr
    told = [json.loads(line) for line in ran.stdout.splitlines()]
    return {run.pop("instant"): run for run in told}


@pytest.mark.parametrize("instant", INSTANTS)
def test_it_ends_in_good_order_and_leaves_nothing_half_written(runs, instant):
    run = runs[instant]
    assert "Traceback" not in run["said"]
    assert not any(name.startswith(".") for name in run["left"]), run["left"]
    assert not any("partial" in name for name in run["saved"]), run["saved"]
    assert run["policy"] in ([], ["config.json", "model.safetensors"])


@pytest.mark.parametrize("instant", ["compilation", "warm start"])
def test_before_there_is_anything_to_save_it_says_so(runs, instant):
    assert runs[instant]["code"] == 130
    assert "interrupted before anything was saved" in runs[instant]["said"]
    assert runs[instant]["saved"] == []


@pytest.mark.parametrize(
    ("instant", "code", "name", "steps"),
    [
        ("first evaluation", 130, "SIGINT", {"step_00000000"}),
        ("training", 0, "SIGTERM", {"step_00000001", "step_00000002"}),
        ("checkpoint", 130, "SIGINT", {"step_00000001", "step_00000002"}),
    ],
)
def test_from_the_first_evaluation_on_it_saves_and_says_how_to_go_on(runs, instant, code, name, steps):
    run = runs[instant]
    assert run["code"] == code
    assert f"stopped by {name}" in run["said"]
    assert "To go on: harness run SCENARIO --resume" in run["said"]
    assert set(run["saved"]) <= steps
    assert run["policy"]


def test_a_resume_goes_on_and_its_policy_takes_the_place_of_the_older_one(runs):
    """The run that SIGTERM stopped was resumed to its last step; then it was interrupted while the policy was written."""
    run = runs["export"]
    assert run["code"] == 130
    assert "saved is step 4" in run["said"]
    assert run["saved"][-1] == "step_00000004"
    assert run["policy"] == ["config.json", "model.safetensors"]
