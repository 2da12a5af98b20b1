"""A live run that is killed at random instants and resumed, until it is done. Run as a program of its own: it forks.

Time is the system's and saves are real files; what takes no part in a resume is a stand-in that is quick: a modelled world
whose durations are milliseconds, and a learner whose parameters are a hash of all that it was trained on, in order.

    python killed.py FOLDER SCENARIO.json SEED KILLS [KILLS …]

makes a run for each number of kills, and prints one JSON line for each: how often it was killed, from which steps it was
resumed, the parameters at the end, and for every step of the history that counts, the tasks that were trained in it.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import warnings
from pathlib import Path

import numpy as np

from harness.core.errors import ConfigError
from harness.core.work import TrainStep
from harness.costs.world import SimulatedWorld
from harness.engines import live
from harness.run import hardware
from harness.scenario.schema import Scenario
from pipeline.build import Pipeline
from pipeline.config import PipelineConfig
from pipeline.data import Task
from pipeline.numerics import saves
from pipeline.numerics.dispatch import Dispatcher
from pipeline.performers.saves import SavePerformer

MOST_RUNS = 60


class Learner:
    """Its parameters are a hash of the tasks that it was trained on."""

    def __init__(self, arrays, steps):
        self.params = int(arrays["params"]["hash"]) if arrays else 1
        self.steps = steps
        self.batch = []

    def train(self, groups, *, last):
        self.batch += sorted((group.task.dispatch, group.task.index) for group in groups)
        if last:
            for dispatch, index in self.batch:
                self.params = (self.params * 1_000_003 + dispatch * 7919 + index + 1) % (1 << 61)
            self.steps.append(self.batch)
            self.batch = []

    def state(self):
        return {"params": {"hash": np.int64(self.params), "ballast": np.arange(5000, dtype=np.float32)}}


def run(folder, what, seed):
    """Run to the end, from the newest checkpoint if there is one."""
    try:
        loaded = saves.load(folder)
    except ConfigError:
        loaded = None
    state = loaded.state if loaded else None
    learner = Learner(loaded.arrays if loaded else None, list(state.notes["steps"]) if state else [])
    world = SimulatedWorld(what, seed, Task)
    dispatcher = Dispatcher({"learner.state": learner.state})
    dispatcher.start()
    saver = saves.Saver(folder, keep=2)
    save = SavePerformer(dispatcher, saver)

    async def train(rt, work):
        outcome = await world.performers[TrainStep](rt, work)
        learner.train(work.payload, last=bool(work.last))
        return outcome

    async def main(rt):
        pipeline = Pipeline(rt, what.pipeline, hardware(what), world.source, resume=state)
        pipeline.notes["steps"] = learner.steps
        report = await pipeline.run(steps=what.run.learner_steps, limit_ns=600 * 10**9, save_at_end=True)
        await save.finish()
        return report

    live.run(main, performers={**world.performers, TrainStep: train, **save.performers()}, seed=seed)
    saver.close()


def summary(folder, killed, resumed):
    """What the last checkpoint says of the whole history."""
    loaded = saves.load(folder)
    state = loaded.state
    return {
        "killed": killed,
        "resumed": resumed,
        "params": int(loaded.arrays["params"]["hash"]),
        "steps": state.notes["steps"],
        "t": state.t,
        "given": state.source["given"],
        "again": state.source["again"],
        "in_flight": [[task.index, task.dispatch] for task in state.in_flight],
        "held": [[group.task.index, group.task.dispatch] for group in state.groups],
        "settled": state.books.settled,
        "admitted": state.books.admitted,
    }


def main():
    what = Scenario[PipelineConfig].model_validate(json.loads(Path(sys.argv[2]).read_text()))
    saves._orbax()  # what every child would import
    told = []
    for kills in map(int, sys.argv[4:]):
        folder = Path(sys.argv[1]) / str(kills)
        told.append((folder, *history(folder, what, int(sys.argv[3]), kills)))
    for each in told:  # after the last fork: what reads a checkpoint has threads
        print(json.dumps(summary(*each)))


def history(folder, what, seed, kills):
    """One run, killed so many times if it lasts."""
    chance = random.Random(seed)
    killed, resumed = 0, []
    for _ in range(MOST_RUNS):
        found = saves.steps(folder)
        resumed.append(found[-1] if found else 0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # JAX warns of a fork; here it has no threads yet
            child = os.fork()
        if child == 0:
            code = 1
            try:
                run(folder, what, seed)
                code = 0
            finally:
                sys.stderr.flush()
                os._exit(code)
        if killed < kills:
            time.sleep(chance.uniform(0.15, 0.9))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if status == 0:
            break
        if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
            sys.exit("a run failed by itself")
        killed += 1
    return killed, resumed


if __name__ == "__main__":
    main()
