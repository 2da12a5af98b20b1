"""The small pipeline of `small.py` on bare trio, without our waist: the opponent on `MockClock`, at its fastest."""

from __future__ import annotations

import math

import trio
import trio.testing
from small import BATCH, CHANNEL, LEARN_S, NS, PERMITS, TOOL_LIMIT_S, TURNS, draw_episode


async def agent(number: int, episodes: int, permits: trio.Semaphore, done: trio.MemorySendChannel[int]) -> None:
    for episode in range(episodes):
        generate, tool = draw_episode(number, episode)
        for turn in range(TURNS):
            async with permits:
                await trio.sleep(generate[turn] / NS)
            with trio.move_on_after(TOOL_LIMIT_S):
                await trio.sleep(tool[turn] / NS)
        await done.send(number)


async def learner(episodes: int, done: trio.MemoryReceiveChannel[int]) -> None:
    for _ in range(episodes // BATCH):
        for _ in range(BATCH):
            await done.receive()
        await trio.sleep(LEARN_S)
    for _ in range(episodes % BATCH):
        await done.receive()


async def program(agents: int, episodes: int) -> int:
    began_s = trio.current_time()
    permits = trio.Semaphore(PERMITS)
    put, get = trio.open_memory_channel[int](CHANNEL)
    async with trio.open_nursery() as nursery:
        for number in range(agents):
            nursery.start_soon(agent, number, episodes, permits, put)
        nursery.start_soon(learner, agents * episodes, get)
    return math.floor((trio.current_time() - began_s) * NS + 0.5)


def run(agents: int, episodes: int) -> int:
    """The instant at which it ended, in ns, up to a float's rounding."""
    return trio.run(program, agents, episodes, clock=trio.testing.MockClock(autojump_threshold=0))
