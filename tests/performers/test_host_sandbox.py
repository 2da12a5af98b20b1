"""An episode that is cut off takes the processes of its tools with it."""

from __future__ import annotations

import os
import signal
import time

import pytest
import trio

from harness.core.work import EnvClose, EnvReset, ToolCall
from harness.engines import live
from pipeline.data import Task
from pipeline.environments import CompactParser, ToolEnvironment
from pipeline.environments.agents import PlainAgent
from pipeline.environments.sandbox import Limits, PythonSandbox, can_isolate
from pipeline.environments.source import LiveSource
from pipeline.live_config import LiveConfig
from pipeline.numerics.tokenizers import CharTokenizer
from pipeline.performers.host import host_performers
from pipeline.performers.threads import Threads

S = 1_000_000_000


class Coder(ToolEnvironment):
    """May run Python."""

    parser = CompactParser()

    def __init__(self, task, **options):
        super().__init__(task, **options)
        self.box = PythonSandbox(Limits(wall_s=60.0), network="none" if can_isolate() else "host")

    @classmethod
    def make_task(cls, rng):
        return rng.random()

    def prompt(self):
        return "p"

    def tools(self):
        return [self.box.tool]

    def verify(self, answer):
        return 1.0


@pytest.mark.real_clock
def test_a_call_that_is_cut_off_ends_its_process_and_a_retry_finds_a_sandbox_as_good_as_new():
    agent = PlainAgent(CharTokenizer())
    source = LiveSource(Coder, LiveConfig(), agent, seed=0)
    pool = Threads(2, 0)
    _, performers = host_performers(pool)

    async def main(rt):
        episode = source.driver(Task(0, 0), 0)
        await rt.perform(EnvReset(0, 0, payload=episode))

        def says(answer):
            asked = episode.prompt(0, 0, 0)[3]
            asked.tokens += [*agent.tokenizer.encode(answer), agent.tokenizer.end_id]
            asked.log_probs += [0.0] * len(asked.tokens)
            asked.versions += [0] * len(asked.tokens)
            asked.finished = True
            return episode.act(0, None)

        says("[python import time; time.sleep(60)]")
        pids = []
        with rt.move_on_after(20 * S) as scope:
            async with rt.nursery() as nursery:
                nursery.start_soon(watch, episode.environment.box, pids, scope)
                await rt.perform(ToolCall(0, 0, 0, 0, episode))
        assert scope.cancelled_caught
        [pid] = pids
        assert not alive(pid)  # `perform` returned when the worker was gone
        assert pool.lost == 0
        says("[python print(6*7)]")
        await rt.perform(ToolCall(0, 0, 0, 1, episode))
        seen = agent.tokenizer.decode(episode.prompt(1, 0, 0)[3].prompt)
        await rt.perform(EnvClose(0, payload=episode))
        return seen

    async def watch(box, pids, scope):
        while not box._running:  # noqa: ASYNC110 - a thread starts it
            await trio.sleep(0.01)
        pids.extend(box._running)
        scope.cancel()

    try:
        began_s = time.monotonic()
        assert live.run(main, performers=performers).endswith("42\n")
        assert time.monotonic() - began_s < 30
    finally:
        pool.close()


def alive(pid):
    try:
        os.killpg(pid, signal.SIG_DFL)
    except ProcessLookupError:
        return False
    return True
