"""The synchronous run on JAX, resumed from a file: parameters and optimizer equal those of an uninterrupted run bit for bit.

Environments take a random while for each answer, so that what is in a batch together, and who finishes first, differs in each
run.
One world serves all of them: a resume puts the weights, the optimizer and the pipeline's state where the file says.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from harness.core.work import Publish
from harness.engines import live
from pipeline.build import Pipeline
from pipeline.config import PipelineConfig
from pipeline.live import LiveWorld
from pipeline.live_config import LiveConfig
from pipeline.numerics import saves
from pipeline.numerics.dispatch import Decision
from pipeline.performers.saves import SavePerformer

pytestmark = pytest.mark.real_clock

LIVE = {
    "environment": {"name": "jittery:Jittery"},
    "model": {"hidden_size": 16, "intermediate_size": 16, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 8},
    "sampling": {"max_response_tokens": 6, "max_context_tokens": 32},
    "learner": {"micro_batch_tokens": 128, "learning_rate": 0.01},
}
SYNCHRONOUS = PipelineConfig.model_validate(
    {
        "group_size": 3, "groups_per_step": 2, "max_staleness": 0, "pipeline_depth": 0, "slots_per_replica": 8,
        "decode_chunk_steps": 3, "max_inflight": 6, "checkpoint_interval": 1, "buffer_capacity": 2,
    }
)  # fmt: skip
STEPS, SEED = 4, 3


@pytest.fixture(scope="module")
def world():
    """A live world whose programs are compiled as they are needed."""
    sys.path.insert(0, str(Path(__file__).parent))
    made = LiveWorld(LiveConfig.model_validate(LIVE), SYNCHRONOUS, replicas=1, chips_per_replica=1, learner_chips=1, seed=SEED)
    sys.path.pop(0)
    made.dispatcher.start()
    yield made
    made.stop()


def train(world, folder, loaded=None, *, start=None, config=SYNCHRONOUS):
    """Run to the last step, from a checkpoint or from the state `start`; the learner's arrays at the end."""
    world.dispatcher.run(Decision("learner.restore", {"state": loaded.arrays if loaded else start}))
    state = loaded.state if loaded else None
    saver = saves.Saver(folder, keep=STEPS)
    save = SavePerformer(world.dispatcher, saver)
    first = state.t if state else 0
    if state is None:
        world.source.restore({"given": 0, "again": []})

    async def main(rt):
        world.dispatcher.run(Decision("learner.snapshot", {"version": first}))
        await rt.perform(Publish(first, 0, 0, first))
        pipeline = Pipeline(rt, config, world.hardware, world.source, world.learner.snapshot, state)
        report = await pipeline.run(steps=STEPS, limit_ns=600 * 10**9)
        await save.finish()
        return report

    report = live.run(main, performers={**world.performers, **save.performers()}, seed=SEED)
    saver.close()
    assert report.versions[0] == STEPS
    return saves.on_host(world.dispatcher.run(Decision("learner.state")))


def same(one, other):
    differ = [
        f"{part}/{name}" for part, arrays in one.items() for name, array in arrays.items()
        if array.tobytes() != other[part][name].tobytes()
    ]  # fmt: skip
    assert differ == []


def test_a_synchronous_run_that_is_resumed_has_the_same_parameters_bit_for_bit(world, tmp_path):
    start = saves.on_host(world.dispatcher.run(Decision("learner.state")))
    whole = train(world, tmp_path / "whole", start=start)
    moved = [float(np.abs(whole["params"][name] - array).max()) for name, array in start["params"].items()]
    assert max(moved) > 1e-3
    for cut in (1, 3):
        loaded = saves.load(tmp_path / "whole", cut, like=start)
        assert loaded.state.in_flight == ()
        same(train(world, tmp_path / f"resumed-{cut}", loaded), whole)


@pytest.mark.parametrize("steps_off", [0, 1, 2])
def test_05_on_policy_and_one_and_two_steps_off_reach_four_steps_and_parameters_change(world, tmp_path, steps_off):
    start = saves.on_host(world.dispatcher.run(Decision("learner.state")))
    knobs = {"max_staleness": steps_off, "pipeline_depth": steps_off, "max_inflight": 6, "buffer_capacity": 2 * (steps_off + 1)}
    ended = train(world, tmp_path, start=start, config=SYNCHRONOUS.with_changes(**knobs))
    moved = [float(np.abs(ended["params"][name] - array).max()) for name, array in start["params"].items()]
    assert max(moved) > 1e-3
