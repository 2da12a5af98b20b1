"""The same scenario twice: live against the stub server over HTTP on the system clock, and on `sim` with the modelled server.

Both run the pipeline's own actors. Episodes follow the plans that the simulated world draws; tools, environments, rewards and
the learner take their drawn times in either, so that what can differ is generation.
"""

from __future__ import annotations

import threading
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import trio
from openai_server import StubServer, Timing
from trio.testing import MockClock

from harness.costs.world import SimulatedWorld
from harness.engines import live, sim
from harness.run import hardware
from harness.summaries import summarise
from pipeline.build import Pipeline
from pipeline.data import Generation, Task
from pipeline.live_config import ServerTable
from pipeline.performers.openai import external_performers

if TYPE_CHECKING:
    from harness.costs.episodes import SimulatedEpisode, SimulatedSource

JUMP_AFTER_S = 0.002
"""Real seconds without anything to do after which the clock jumps. What goes over the loopback interface is there at once."""


class PlannedEpisode:
    """A simulated episode whose requests are real: a prompt of the planned length, and a cap that is the planned answer."""

    def __init__(self, plan: SimulatedEpisode) -> None:
        self._plan = plan

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plan, name)

    def prompt(self, turn: int, context_tokens: int, observed_tokens: int, /) -> tuple[int, int, int, Any]:
        plan = self._plan
        cached, new, cap, answer = plan.prompt(turn, context_tokens, observed_tokens)
        key = (plan.task, plan.dispatch, plan.member, turn)
        return cached, new, cap, Generation([1 + plan.task % 900] * (cached + new), answer, key)


class PlannedSource:
    """The simulated source, with real requests."""

    def __init__(self, source: SimulatedSource) -> None:
        self.next_task = source.next_task
        self._driver = source.driver

    def driver(self, task: Any, member: int, version: int, /) -> PlannedEpisode:
        return PlannedEpisode(self._driver(task, member, version))


def timing(scenario: Any) -> Timing:
    """The scenario's laws, for the stub."""
    inference = scenario.world.inference
    decode, prefill = inference.decode, inference.prefill
    return Timing(
        step_s=decode.base_s, per_sequence_s=decode.per_sequence_s, per_kv_token_s=decode.per_kv_token_s,
        prefill_s=prefill.base_s, per_prompt_token_s=prefill.per_token_s, slots=inference.server.slots,
    )  # fmt: skip


@contextmanager
def served(servers: list[StubServer]):
    """The stub servers in a thread and a trio of their own, as far from the client as one process allows."""
    ready, stop = threading.Event(), trio.Event()
    tokens: list[Any] = []

    async def serve_all() -> None:
        async with trio.open_nursery() as nursery:
            started = []
            for server in servers:
                up = trio.Event()
                started.append(up)
                nursery.start_soon(_serve_one, server, up, stop)
            for up in started:
                await up.wait()
            tokens.append(trio.lowlevel.current_trio_token())
            ready.set()

    thread = threading.Thread(target=trio.run, args=(serve_all,))
    thread.start()
    ready.wait(10)
    try:
        yield
    finally:
        tokens[0].run_sync_soon(stop.set)
        thread.join(10)


async def _serve_one(server: StubServer, up: trio.Event, stop: trio.Event) -> None:
    async with server.serve():
        up.set()
        await stop.wait()


async def run_pipeline(rt: Any, scenario: Any, world: SimulatedWorld, kept: list[Any], *, real: bool) -> None:
    source: Any = PlannedSource(world.source) if real else world.source
    pipeline = Pipeline(rt, scenario.pipeline, hardware(scenario), source)
    await pipeline.run(steps=scenario.run.learner_steps, warmup_steps=scenario.run.warmup_steps, at_end=kept.append)


def simulated(scenario: Any, seed: int) -> Any:
    """The summary of a run on `sim`."""
    world, kept = SimulatedWorld(scenario, seed, Task), []

    async def main(rt: Any) -> None:
        await run_pipeline(rt, scenario, world, kept, real=False)

    sim.run(main, performers=world.performers, seed=seed)
    return summarise(kept[0], seed)


def lived(scenario: Any, seed: int) -> Any:
    """The summary of a run against stub servers in a thread of their own, on the system clock.

    A transfer takes no time in the scenarios, as a stub takes a version as soon as it is told.
    """
    world, kept = SimulatedWorld(scenario, seed, Task), []
    servers = [StubServer(timing(scenario)) for _ in range(scenario.world.inference.replicas)]

    async def main(rt: Any) -> None:
        await run_pipeline(rt, scenario, world, kept, real=True)

    with served(servers):
        outside = external_performers(ServerTable(urls=[server.url for server in servers]), seed=seed)
        live.run(main, performers={**world.performers, **outside}, seed=seed)
    return summarise(kept[0], seed)


def lived_in_no_time(scenario: Any, seed: int) -> Any:
    """The same on a clock that jumps when both sides wait: HTTP and all, but what the host takes for it is not counted."""
    world, kept = SimulatedWorld(scenario, seed, Task), []
    servers = [StubServer(timing(scenario)) for _ in range(scenario.world.inference.replicas)]

    async def main(rt: Any) -> None:
        async with AsyncExitStack() as stack:
            for server in servers:
                await stack.enter_async_context(server.serve())
            outside = external_performers(ServerTable(urls=[server.url for server in servers]), seed=seed)
            rt._performers = {**world.performers, **outside}  # their addresses are known only now
            await run_pipeline(rt, scenario, world, kept, real=True)

    live.run(main, seed=seed, clock=MockClock(autojump_threshold=JUMP_AFTER_S))
    return summarise(kept[0], seed)


def compared(scenario: Any, seed: int, living: Any = lived) -> dict[str, float]:
    """Tokens and groups a second of both, and how far the live run is from the simulated one."""
    ours, real = simulated(scenario, seed), living(scenario, seed)
    return {
        "tokens_s_simulated": ours.tokens_made / ours.window_s,
        "tokens_s_live": real.tokens_made / real.window_s,
        "tokens_error": (real.tokens_made / real.window_s) / (ours.tokens_made / ours.window_s) - 1,
        "groups_s_simulated": ours.groups / ours.window_s,
        "groups_s_live": real.groups / real.window_s,
        "groups_error": (real.groups / real.window_s) / (ours.groups / ours.window_s) - 1,
        "seconds": real.window_s,
    }
