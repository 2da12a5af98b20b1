"""Meshes of eight devices against one: the same tokens, the same parameters; every way of weight sync with real generation.

The checks run in `mesh_checks.py`, a program of its own with eight devices that are one processor.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKS = Path(__file__).parent / "mesh_checks.py"
ROOT = Path(__file__).parents[2]


def checked(what, folder):
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    command = [sys.executable, str(CHECKS), what]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400, cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_mesh_of_any_shape_samples_and_trains_as_one_device(tmp_path):
    found = checked("layouts", tmp_path)
    layouts = found["layouts"]
    assert layouts.pop("moved") > 0.01
    for name, layout in layouts.items():
        assert layout["same_tokens"], name
        assert layout["log_probs"] < 1e-4, name
        assert layout["params_apart"] < 1e-5, name
        assert layout["compilations"] == 0, name
        assert layout["held"] == [1, 0], name  # in the store, before and after the engines took the weights
    assert layouts["apart"]["versions"] == [3, 3]

    everything = list(range(8))
    where = {name: (layout["engine_devices"], layout["learner_devices"]) for name, layout in layouts.items()}
    assert where == {
        "one": ([[0]], [0]),
        "colocated": ([everything], everything),
        "apart": ([[0, 1], [2, 3]], [4, 5, 6, 7]),
        "ragged": ([[0, 1, 2, 3, 4, 5]], [6, 7]),
    }
    split = {name: layout["split"] for name, layout in layouts.items()}
    # Of one block's seven projections all are divided by two; eight and six divide the inner width alone, and no heads.
    assert split == {"one": 0, "apart": 7, "colocated": 3, "ragged": 3}

    refusals = found["refusals"]
    assert "there are 8 devices (cpu)" in refusals["too_many"]
    assert "learner_devices = 0" in refusals["only_one"]
    assert "both above 0" in refusals["only_one"]
    assert "a multiple of 2 (world.inference.replicas = 2)" in refusals["not_divisible"]
    assert "in each of 2 processes" in refusals["not_in_each_process"]
    assert "cannot be divided among 2 processes" in refusals["learner_not_in_each_process"]


@pytest.mark.real_clock
def test_every_way_of_weight_sync_generates_with_the_weights_that_it_says(tmp_path):
    runs = checked("syncs", tmp_path)
    assert len(runs) == 7
    for name, run in runs.items():
        assert run["steps"] == run["published"] == 4, name
        assert run["samples"] == 24, name
        assert run["newest"] < 4, name  # the last step's weights are published when there is nothing left to sample
        assert run["versions"] > 1, name
        assert run["backwards"] == 0, name
        assert run["looked"] > 10, name
        assert run["apart"] < 1e-3 < run["apart_of_others"], name
        if name.startswith("drain"):
            assert run["answers_of_several"] == 0, name
    assert runs["drain_episodes all_at_once"]["samples_of_several"] == 0
