"""A whole live run as a program calls it: what is heard, logged and recorded, and the same after a resume."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import harness
from harness.core.errors import ConfigError
from harness.core.events import EventKind
from harness.trace.invariants import check_record
from harness.trace.parts import PartsRecorder
from harness.trace.store import Manifest, read_record

pytestmark = pytest.mark.real_clock

SCENARIO = Path(__file__).parents[2] / "scenarios" / "cpu_live.toml"
SMALL = (
    "live.environment.name='jittery:Jittery'", "live.environment.options={}", "live.model.hidden_size=16",
    "live.model.intermediate_size=16", "live.model.layers=1", "live.model.heads=2", "live.model.kv_heads=1",
    "live.model.head_dim=8", "live.sampling.max_response_tokens=6", "live.sampling.max_context_tokens=24",
    "live.learner.micro_batch_tokens=24", "live.learner.warm_start_steps=0", "live.environment.train_tasks=64",
    "live.environment.eval_tasks=4", "workload.max_context_tokens=24", "pipeline.group_size=2", "pipeline.groups_per_step=2",
    "pipeline.max_inflight=8", "pipeline.buffer_capacity=4", "pipeline.slots_per_replica=4", "pipeline.decode_chunk_steps=4",
    "pipeline.eval_interval=2", "pipeline.eval_episodes=4", "pipeline.checkpoint_interval=1", "run.learner_steps=3",
)  # fmt: skip


class Kept:
    """A user's logger."""

    def __init__(self):
        self.told, self.closed = [], 0

    def log_scalar(self, event, value, *, step):
        self.told.append((event, step))

    def close(self):
        self.closed += 1


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of three steps, resumed to five beside what a killed one left: (folder, [(result, phases, logger), …])."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    sys.path.insert(0, str(Path(__file__).parent))
    scenario = harness.load(SCENARIO, overrides=SMALL)
    done = []
    for options in ({"out": folder}, {"resume": folder, "steps": 5}):
        kept, heard = Kept(), []
        result = harness.run_live(scenario, loggers=[kept], heard=heard.append, **options)
        done.append((result, heard, kept))
        killed = PartsRecorder(folder / "record-2.parts", Manifest(seed=0, clock="monotonic", end_ns=0))
        killed.append_event((7,) + (int(EventKind.USER),) + (0,) * 6)
        killed.close()
    sys.path.pop(0)
    return folder, done


def test_each_phase_is_heard_in_its_order(runs):
    _, done = runs
    for _, heard, _ in done:
        phases = list(dict.fromkeys(glance.phase for glance in heard))
        assert phases[:2] == ["loading", "compiling"]
        assert phases[-1] == "saving"
        assert "training" in phases
        compiling = [glance for glance in heard if glance.phase == "compiling"]
        assert [glance.step for glance in compiling] == list(range(compiling[0].steps))
        assert all(glance.detail for glance in compiling)
        steps = [glance.step for glance in heard if glance.phase == "training"]
        assert steps == sorted(steps)
    assert done[1][1][-2].step == 5


def test_a_logger_hears_of_every_step_once_and_is_closed_once(runs):
    folder, done = runs
    for (_, _, kept), steps in zip(done, ([1, 2, 3], [4, 5]), strict=True):
        for event in ("train/reward", "run/tokens_per_s", "idle/all"):
            assert [step for name, step in kept.told if name == event] == steps
        assert kept.closed == 1
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["event"] == "train/reward"] == [1, 2, 3, 4, 5]


def test_both_are_recorded_and_what_was_left_is_a_record_too(runs):
    folder, done = runs
    for name, (result, _, _), first in (("record", done[0], 0), ("record-3", done[1], 3)):
        record = read_record(folder / name)
        check_record(record, capacity=4, max_lag=1, initial_version=first)
        steps = record.events.filter(record.events["kind"] == int(EventKind.STEP))["entity"].to_list()
        assert steps == list(range(first + 1, result.step + 1))
        assert result.summary.events_hash == record.manifest.events_hash
        assert (record.manifest.cut, record.manifest.clock) == ("", "monotonic")
    assert read_record(folder / "record-2").manifest.cut == "the run was killed"


def test_a_run_that_cannot_begin_closes_its_loggers(tmp_path):
    kept = Kept()
    simulated = harness.load(SCENARIO.with_name("fully_async.toml"))
    with pytest.raises(ConfigError, match="simulator only"):
        harness.run_live(simulated, out=tmp_path / "run", loggers=[kept])
    assert (kept.closed, kept.told) == (1, [])
    assert not (tmp_path / "run").exists()
