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


def test_whenever_it_is_interrupted_it_ends_in_good_order_and_a_resume_goes_on(tmp_path):
    """One test: its runs share a process, so that what is compiled in the first is found by the others."""
    runs = interrupted(tmp_path)
    for instant, run in runs.items():
        nothing_half_written(instant, run)
    for instant in ("compilation", "warm start"):
        said_that_nothing_was_saved(runs[instant])
    saved_and_said_how_to_go_on(runs["first evaluation"], 130, "SIGINT", {"step_00000000"})
    saved_and_said_how_to_go_on(runs["training"], 0, "SIGTERM", {"step_00000001", "step_00000002"})
    saved_and_said_how_to_go_on(runs["checkpoint"], 130, "SIGINT", {"step_00000001", "step_00000002"})
    went_on_and_replaced_the_policy(runs["export"])


def interrupted(folder):
    ran = subprocess.run(
        [sys.executable, "interrupted.py", str(folder), *(f"{instant}:{rest}" for instant, rest in INSTANTS.items())],
        cwd=HERE, env=os.environ | {"PYTHONPATH": str(HERE.parents[1]), "XLA_FLAGS": QUICK}, capture_output=True, text=True,
        timeout=300,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "Traceback" not in ran.stderr, ran.stderr
    told = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [run["instant"] for run in told] == list(INSTANTS)
    return {run.pop("instant"): run for run in told}


def nothing_half_written(instant, run):
    assert "Traceback" not in run["said"], instant
    assert not any(name.startswith(".") for name in run["left"]), (instant, run["left"])
    assert not any("partial" in name for name in run["saved"]), (instant, run["saved"])
    assert run["policy"] in ([], ["config.json", "model.safetensors"]), instant


def said_that_nothing_was_saved(run):
    assert run["code"] == 130
    assert "interrupted before anything was saved" in run["said"]
    assert run["saved"] == []


def saved_and_said_how_to_go_on(run, code, name, steps):
    assert run["code"] == code
    assert f"stopped by {name}" in run["said"]
    assert "To go on: harness run SCENARIO --resume" in run["said"]
    assert run["saved"]
    assert set(run["saved"]) <= steps
    assert run["policy"]


def went_on_and_replaced_the_policy(run):
    """The run that SIGTERM had stopped was resumed to its last step; then it was interrupted while the policy was written."""
    assert run["code"] == 130
    assert "saved is step 4" in run["said"]
    assert run["saved"][-1] == "step_00000004"
    assert run["policy"] == ["config.json", "model.safetensors"]
