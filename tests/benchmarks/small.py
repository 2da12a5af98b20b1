"""The small pipeline that engines are compared on, and the same model as idiomatic hand-written SimPy.

256 agents run 4 episodes of 20 turns each. A turn waits for one of 128 permits round an exponential generation (mean 2 s),
then for an exponential tool (mean 3 s) under a 30 s timeout. Each finished episode goes into a channel of 64; a learner takes
64 and waits 5 s. Draws are keyed by (agent, episode) and are the same on both sides.

`nested` adds an episode deadline, a generation deadline and a shielded clean-up after each episode, on both sides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import simpy

from harness.core.primitives import Permits
from harness.costs.draws import Uniforms

if TYPE_CHECKING:
    from harness.core.runtime import ReceiveChannel, Runtime, SendChannel

NS = 1_000_000_000
AGENTS, EPISODES, TURNS, PERMITS, CHANNEL, BATCH = 256, 4, 20, 128, 64, 64
GENERATE_S, TOOL_S, TOOL_LIMIT_S, LEARN_S = 2.0, 3.0, 30.0, 5.0
GENERATE_LIMIT_S, EPISODE_LIMIT_S, CLEAN_UP_S = 60.0, 3600.0, 0.5
DRAWS = Uniforms(seed=0)


def draw_episode(agent: int, episode: int) -> tuple[list[int], list[int]]:
    """Generation and tool times of one episode, in ns."""
    u = -np.log1p(-DRAWS.draw(2 * TURNS, "small", agent, episode))
    times = (u * np.repeat((GENERATE_S * NS, TOOL_S * NS), TURNS)).astype(np.int64).tolist()
    return times[:TURNS], times[TURNS:]


# ── on the waist ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def agent(rt: Runtime, number: int, episodes: int, permits: Permits, done: SendChannel[int]) -> None:
    tool_limit = int(TOOL_LIMIT_S * NS)
    for episode in range(episodes):
        generate, tool = draw_episode(number, episode)
        for turn in range(TURNS):
            await permits.acquire(number)
            try:
                await rt.sleep(generate[turn])
            finally:
                permits.release()
            with rt.move_on_after(tool_limit):
                await rt.sleep(tool[turn])
        await done.send(number)


async def nested_agent(rt: Runtime, number: int, episodes: int, permits: Permits, done: SendChannel[int]) -> None:
    tool_limit, generate_limit, episode_limit = int(TOOL_LIMIT_S * NS), int(GENERATE_LIMIT_S * NS), int(EPISODE_LIMIT_S * NS)
    for episode in range(episodes):
        generate, tool = draw_episode(number, episode)
        with rt.move_on_after(episode_limit):
            try:
                for turn in range(TURNS):
                    with rt.move_on_after(generate_limit):
                        await permits.acquire(number)
                        try:
                            await rt.sleep(generate[turn])
                        finally:
                            permits.release()
                    with rt.move_on_after(tool_limit):
                        await rt.sleep(tool[turn])
            finally:
                with rt.cancel_scope(shield=True):
                    await rt.sleep(int(CLEAN_UP_S * NS))
        await done.send(number)


async def learner(rt: Runtime, episodes: int, done: ReceiveChannel[int]) -> None:
    for _ in range(episodes // BATCH):
        for _ in range(BATCH):
            await done.receive()
        await rt.sleep(int(LEARN_S * NS))
    for _ in range(episodes % BATCH):
        await done.receive()


async def program(rt: Runtime, agents: int = AGENTS, episodes: int = EPISODES, *, nested: bool = False) -> int:
    """Run it; returns the instant at which it ended."""
    permits = Permits(rt, PERMITS)
    put, get = rt.channel(CHANNEL)
    body = nested_agent if nested else agent
    async with rt.nursery() as nursery:
        for number in range(agents):
            nursery.start_soon(body, rt, number, episodes, permits, put)
        nursery.start_soon(learner, rt, agents * episodes, get)
    return rt.now()


async def nested_program(rt: Runtime) -> int:
    """The variant with nested deadlines."""
    return await program(rt, nested=True)


# ── by hand ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────

Process = Any


def hand_agent(env: simpy.Environment, number: int, episodes: int, permits: simpy.Resource, done: simpy.Store) -> Process:
    for episode in range(episodes):
        generate, tool = draw_episode(number, episode)
        for turn in range(TURNS):
            with permits.request() as request:
                yield request
                yield env.timeout(generate[turn])
            call = env.timeout(tool[turn])
            yield call | env.timeout(int(TOOL_LIMIT_S * NS))
        yield done.put(number)


def hand_episode(env: simpy.Environment, number: int, episode: int, permits: simpy.Resource) -> Process:
    generate, tool = draw_episode(number, episode)
    try:
        for turn in range(TURNS):
            with permits.request() as request:
                limit = env.timeout(int(GENERATE_LIMIT_S * NS))
                yield request | limit
                if request.triggered:
                    yield env.timeout(generate[turn]) | limit
            yield env.timeout(tool[turn]) | env.timeout(int(TOOL_LIMIT_S * NS))
    except simpy.Interrupt:
        pass
    yield env.timeout(int(CLEAN_UP_S * NS))


def hand_nested_agent(
    env: simpy.Environment, number: int, episodes: int, permits: simpy.Resource, done: simpy.Store
) -> Process:
    for episode in range(episodes):
        run = env.process(hand_episode(env, number, episode, permits))
        yield run | env.timeout(int(EPISODE_LIMIT_S * NS))
        if run.is_alive:
            run.interrupt()
            yield run
        yield done.put(number)


def hand_learner(env: simpy.Environment, episodes: int, done: simpy.Store) -> Process:
    for _ in range(episodes // BATCH):
        for _ in range(BATCH):
            yield done.get()
        yield env.timeout(int(LEARN_S * NS))
    for _ in range(episodes % BATCH):
        yield done.get()


def hand_written(agents: int = AGENTS, episodes: int = EPISODES, *, nested: bool = False) -> int:
    """The same model as plain SimPy; returns the instant at which it ended."""
    env = simpy.Environment()
    permits = simpy.Resource(env, PERMITS)
    done = simpy.Store(env, CHANNEL)
    body = hand_nested_agent if nested else hand_agent
    for number in range(agents):
        env.process(body(env, number, episodes, permits, done))
    end = env.process(hand_learner(env, agents * episodes, done))
    env.run(end)
    return int(env.now)
