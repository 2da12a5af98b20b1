"""Two processes train together through the command line: the parameters of one process, a resume, a signal, either's death."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from pipeline.numerics import saves

pytestmark = pytest.mark.real_clock

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FOREVER = "100000"
STARTED = []
LIVE = """
title = "Two processes"
question = "Do they train the same parameters as one?"

[live.environment]
name = "jittery:Jittery"

[live.model]
hidden_size = 16
intermediate_size = 16
layers = 1
heads = 4
kv_heads = 2
head_dim = 8

[live.sampling]
max_response_tokens = 16
max_context_tokens = 64

[live.learner]
micro_batch_tokens = 64
learning_rate = 0.01

[live.checkpoint]
keep = 1000

[pipeline]
group_size = 3
groups_per_step = 2
max_staleness = 0
pipeline_depth = 0
max_inflight = 6
buffer_capacity = 2
slots_per_replica = 8
decode_chunk_steps = 3
checkpoint_interval = 1
"""


class Process(subprocess.Popen):
    """One `harness run`, with its output in files."""

    def __init__(self, folder, name, *words, devices=1):
        self.told = folder / f"{name}.out", folder / f"{name}.err"
        environment = os.environ | {
            "PYTHONPATH": str(HERE),
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
            "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        command = [sys.executable, "-m", "harness", "run", str(folder / "two.toml"), "--json", *map(str, words)]
        with self.told[0].open("w") as out, self.told[1].open("w") as err:
            super().__init__(command, env=environment, stdout=out, stderr=err, cwd=folder)
        STARTED.append(self)

    @property
    def stderr_text(self):
        return self.told[1].read_text()

    def ends(self, within_s):
        """Its exit code."""
        try:
            return self.wait(within_s)
        except subprocess.TimeoutExpired:
            self.kill()
            pytest.fail(f"did not end in {within_s} s: {self.stderr_text}")

    def answer(self):
        """What it printed, which is one JSON object and nothing else."""
        assert self.ends(300) == 0, self.stderr_text
        return json.loads(self.told[0].read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With a scenario: what is simulated in it comes from one that ships."""
    folder = tmp_path_factory.mktemp("two")
    shipped = (ROOT / "scenarios" / "cpu_live.toml").read_text()
    world = shipped[shipped.index("[world.inference]") : shipped.index("[pipeline]")]
    (folder / "two.toml").write_text(LIVE.replace("[pipeline]", world.replace("= 48", "= 64") + "[pipeline]"))
    return folder


@pytest.fixture(autouse=True)
def _nobody_is_left():
    yield
    while STARTED:
        process = STARTED.pop()
        process.kill()
        process.wait()


def pair(folder, *words, devices=1):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    settings = [word for word in words if str(word).startswith("live.")]
    settings = [part for word in settings for part in ("--set", word)]
    others = [word for word in words if not str(word).startswith("live.")]
    common = ["--coordinator", address, "--processes", 2, *settings]
    follower = Process(folder, "follower", *common, "--process", 1, devices=devices)
    return Process(folder, "leader", *common, "--process", 0, *others, devices=devices), follower


def saved(run, step, processes, within_s=300):
    """Wait until a run has saved a step."""
    gives_up_s = time.monotonic() + within_s
    while not (found := saves.steps(run / "checkpoints")) or found[-1] < step:
        assert time.monotonic() < gives_up_s
        assert all(process.poll() is None for process in processes), [process.stderr_text for process in processes]
        time.sleep(0.05)


def params(run, step):
    return saves.load(run / "checkpoints", step).arrays["params"]


def close(one, other):
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_allclose(array, other[name], atol=1e-4, err_msg=name)


def train_alone(folder, steps):
    """What one process comes to."""
    run = folder / f"alone_{steps}"
    assert Process(folder, "alone", "--steps", steps, "--out", run).answer()["step"] == steps
    moved = params(run, 1), params(run, steps)
    assert max(np.abs(array - moved[1][name]).max() for name, array in moved[0].items()) > 1e-3
    return run


def test_two_processes_train_what_one_trains(folder):
    run = folder / "together"
    leader, follower = pair(folder, "--steps", "3", "--out", run)
    answer = leader.answer()
    assert answer["step"] == 3
    assert follower.answer() == {"process": 1, "weights": answer["weights"]}
    close(params(run, 3), params(train_alone(folder, 3), 3))


@pytest.mark.slow
def test_one_dies_the_run_is_resumed_and_a_signal_ends_both(folder):
    run = folder / "shared"
    leader, follower = pair(folder, "--steps", FOREVER, "--out", run)
    saved(run, 2, (leader, follower))
    follower.send_signal(signal.SIGKILL)
    assert leader.ends(90) != 0
    assert "another process is gone" in leader.stderr_text or "tasks are unhealthy" in leader.stderr_text

    reached = saves.steps(run / "checkpoints")[-1]
    leader, follower = pair(folder, "--steps", FOREVER, "--resume", run)
    saved(run, reached + 2, (leader, follower))
    for process in (follower, leader):
        process.terminate()
    answer = leader.answer()
    assert answer["step"] >= reached + 2
    assert answer["stopped"] == "SIGTERM"
    assert follower.answer() == {"process": 1, "weights": answer["weights"]}


@pytest.mark.slow
def test_generation_and_learning_apart_train_the_same_and_the_leader_is_missed(folder):
    run = folder / "apart"
    devices = "live.mesh.rollout_devices=2", "live.mesh.learner_devices=2"
    leader, follower = pair(folder, *devices, "--steps", FOREVER, "--out", run, devices=2)
    saved(run, 2, (leader, follower))
    leader.send_signal(signal.SIGKILL)
    assert follower.ends(90) != 0
    assert "the leading process is gone" in follower.stderr_text or "another task died" in follower.stderr_text
    close(params(run, 2), params(train_alone(folder, 2), 2))


def test_another_scenario_in_one_process_is_refused_by_its_name(folder):
    leader, follower = pair(folder, "--set", "pipeline.group_size=2", "--steps", 1, "--out", folder / "other")
    assert follower.ends(120) != 0
    assert "is not the scenario of process 0" in follower.stderr_text
    assert leader.ends(120) != 0
    assert "process 1 failed: ConfigError: " in leader.stderr_text
