"""SIGKILL at random instants of a live run, saves under way included; resumed each time from what lies on the disk.

Each task is trained once or is in one place at the end, and the run makes its steps: no credit is lost. In the synchronous
configuration the parameters are those of a run that was never killed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytestmark = pytest.mark.real_clock

MS = 0.001


def exponential(mean_s):
    return {"law": "exponential", "mean_s": mean_s}


def scenario(tmp_path, steps, **pipeline):
    """A world of milliseconds."""
    what = {
        "title": "killed",
        "question": "is each task used once?",
        "world": {
            "inference": {
                "replicas": 2,
                "chips_per_replica": 1,
                "kv_capacity_tokens": 10_000,
                "decode": {"base_s": MS, "weights_s": 0.0, "per_sequence_s": 0.0, "per_kv_token_s": 0.0},
                "prefill": {"base_s": MS, "per_token_s": 0.0},
            },
            "learner": {"chips": 1, "train": {"base_s": 10 * MS}},
            "weights": {"weights_bytes": 1000, "transfer": {"base_s": 5 * MS, "bytes_per_s": 1e12}},
            "environments": {"reset": exponential(3 * MS), "close": exponential(MS)},
            "scoring": {"duration": exponential(2 * MS)},
        },
        "workload": {
            "tasks": 37,
            "turns": {"law": "geometric", "mean": 2.0, "max": 4},
            "prompt_tokens": {"law": "constant", "value": 10},
            "response_tokens": {"law": "geometric", "mean": 8.0, "max": 20},
            "observation_tokens": {"law": "constant", "value": 5},
            "max_context_tokens": 1000,
            "tools": [{"name": "tool", "share": 1.0, "duration": exponential(5 * MS)}],
        },
        "pipeline": {
            "group_size": 2, "groups_per_step": 3, "max_inflight": 24, "buffer_capacity": 12, "decode_chunk_steps": 4,
            "checkpoint_interval": 1, **pipeline,
        },
        "run": {"learner_steps": steps, "warmup_steps": 0},
    }  # fmt: skip
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps(what))
    return path


def runs(tmp_path, what, *kills):
    program = Path(__file__).with_name("killed.py")
    arguments = [sys.executable, program, tmp_path, what, "5", *map(str, kills)]
    ran = subprocess.run(arguments, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return [json.loads(line) for line in ran.stdout.splitlines()]


def exactly_once(result, groups_per_step):
    """All that was ever given out was trained, is held finished, or would be issued again; nothing was dropped here."""
    trained = [(index, dispatch) for step in result["steps"] for dispatch, index in step]
    assert len(trained) == result["t"] * groups_per_step
    places = Counter(trained)
    for where in ("in_flight", "held"):
        places.update(tuple(task) for task in result[where])
    again = {tuple(task) for task in result["again"]}
    given = [(n % 37, n // 37) for n in range(result["given"])]
    assert places == Counter(task for task in given if task not in again)
    assert set(result["settled"]) <= {"trained", "lost"}
    assert result["settled"]["trained"] == 2 * len(trained)


def test_killed_at_random_instants_each_task_is_used_once(tmp_path):
    what = scenario(tmp_path, 90, max_staleness=3, pipeline_depth=3, steps_per_sync=2, stale_policy="wait", consume_chunk=1)
    (result,) = runs(tmp_path, what, 6)
    assert result["t"] == 90
    assert result["killed"] >= 3
    assert sorted(result["resumed"]) == result["resumed"]
    exactly_once(result, 3)


def test_the_synchronous_run_has_the_parameters_of_one_that_was_never_killed(tmp_path):
    what = scenario(tmp_path, 25, max_staleness=0, pipeline_depth=0)
    result, whole = runs(tmp_path, what, 4, 0)
    assert (whole["killed"], whole["resumed"]) == (0, [0])
    assert result["killed"] >= 2
    assert result["steps"] == whole["steps"]
    assert result["params"] == whole["params"]
    exactly_once(result, 3)
