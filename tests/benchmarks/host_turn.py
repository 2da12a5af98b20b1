"""Host time of a turn on the live engine, where the engine is instant and tools only sleep: what the event loop itself costs.

`pipeline_turn_us` runs the pipeline's own actors: admission, groups, rollout, deadlines, lanes, accounts, the inference actor.
`bare_turn_us` is a minimal trio loop that does the same on the outside and nothing else: a nursery of episodes, a channel to an
engine task that answers each request, a deadline round each step. `sync_env_turn_us` has environments that block a thread.

Time is that of the whole process on the processor, divided by turns.
"""

from __future__ import annotations

import gc
import random
import time
from typing import Any

import trio

from harness.core.perform import Timed
from harness.core.work import (
    Decode,
    EnvClose,
    EnvReset,
    Outcome,
    Prefill,
    Publish,
    Reward,
    ToolCall,
    TrainStep,
)
from harness.engines import live
from pipeline.build import Hardware, Pipeline
from pipeline.config import PipelineConfig
from pipeline.data import Task
from pipeline.performers.threads import Threads

TURNS, GROUP = 10, 8
TURNS_PER_S = 2000  # offered to the loop, whatever the number of episodes: a tool call takes episodes / TURNS_PER_S on average


class Episode:
    """A driver that always calls a tool, for a fixed number of turns."""

    first_tokens, max_turns, time_limited, failed = 32, TURNS, False, 0

    def __init__(self, number: int, sleep_s: float) -> None:
        self._random = random.Random(number)
        self._sleep_s = sleep_s

    def prompt(self, turn, context_tokens, observed_tokens, /):
        return context_tokens, observed_tokens, 64, None

    def act(self, turn, result, /):
        return 0

    def observe(self, turn, outcome, /):
        return 16, turn + 1 >= TURNS

    def sample(self):
        return None

    @property
    def sleep_ns(self) -> int:
        return int(self._sleep_s * 1e9 * (0.5 + self._random.random()))


class Source:
    def __init__(self, sleep_s: float) -> None:
        self._given = 0
        self._sleep_s = sleep_s

    def next_task(self):
        self._given += 1
        return Task(self._given, 0)

    def driver(self, task, member, version, /):
        return Episode(task.index * 1000 + member, self._sleep_s)


async def instant(rt: Any, work: Any) -> Outcome:
    return Outcome()


async def gone(rt: Any, work: Any) -> None:
    return None


class Instant:
    """Done at once; its worker is free."""

    async def __call__(self, rt, work, /):
        return Outcome(result=1.0)

    async def gone(self, rt, work, /):
        return None


async def decode(rt, work):
    return Outcome(completed=tuple([(ticket, 1) for ticket in work.payload]), amount=1)


def performers() -> dict[Any, Any]:
    return {
        Prefill: instant,
        Decode: decode,
        ToolCall: Timed(lambda work: (work.payload.sleep_ns, Outcome())),
        EnvReset: Instant(),
        EnvClose: Instant(),
        Reward: Instant(),
        TrainStep: instant,
        Publish: instant,
    }


async def pipeline_of(rt: Any, episodes: int, source: Source, steps: int, warmup_steps: int = 0) -> Any:
    """Play with so many episodes at once, and report."""
    groups = episodes // GROUP
    config = PipelineConfig(
        group_size=GROUP, groups_per_step=groups, buffer_capacity=4 * groups, max_inflight=groups * GROUP,
        env_workers=groups * GROUP, tool_workers=groups * GROUP, slots_per_replica=groups * GROUP,
    )  # fmt: skip
    hardware = Hardware(1, 1, groups * GROUP, 10**9, 1, 1)
    return await Pipeline(rt, config, hardware, source).run(steps=steps, warmup_steps=warmup_steps)


def pipeline_turn_us(episodes: int, steps: int, extra: Any = None, recorder: Any = None) -> float:
    """Microseconds on the processor a turn, with so many episodes at once."""
    source = Source(episodes / TURNS_PER_S)
    gc.collect()
    began = time.process_time()
    report = live.run(pipeline_of, episodes, source, steps, performers=performers() | (extra or {}), recorder=recorder)
    spent = time.process_time() - began
    return spent / report.tally.turns * 1e6


def bare_turn_us(episodes: int, rounds: int) -> float:
    """The same of the minimal loop: so many episodes at once, each place playing `rounds` of them one after the other."""
    turns = 0

    async def place(number: int, ask: trio.MemorySendChannel) -> None:
        for round_ in range(rounds):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(episode, number * rounds + round_, ask)

    async def episode(number: int, ask: trio.MemorySendChannel) -> None:
        nonlocal turns
        source = random.Random(number)
        for _ in range(TURNS):
            with trio.move_on_after(600):
                done = trio.Event()
                await ask.send(done)
                await done.wait()
                await trio.sleep(episodes / TURNS_PER_S * (0.5 + source.random()))
            turns += 1

    async def engine(asked: trio.MemoryReceiveChannel) -> None:
        async for done in asked:
            done.set()

    async def main() -> None:
        ask, asked = trio.open_memory_channel(episodes)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(engine, asked)
            async with trio.open_nursery() as players:
                for number in range(episodes):
                    players.start_soon(place, number, ask)
            nursery.cancel_scope.cancel()

    gc.collect()
    began = time.process_time()
    trio.run(main)
    return (time.process_time() - began) / turns * 1e6


def blocking_turn_us(episodes: int, steps: int) -> float:
    """As `pipeline_turn_us`, where the end of each tool call is a function that blocks, on a thread of the live pool."""
    threads = Threads(64)

    class Blocking:
        async def __call__(self, rt, work, /):
            await rt.sleep(work.payload.sleep_ns)
            await threads.run(("episode", work.entity), time.sleep, 0)
            return Outcome()

        async def gone(self, rt, work, /):
            return None

    try:
        return pipeline_turn_us(episodes, steps, {ToolCall: Blocking()})
    finally:
        threads.close()
