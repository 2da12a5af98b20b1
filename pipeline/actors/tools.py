"""Tools: a pool of workers, each held for one call.

A call that fails in itself, or ends at a time limit of its own, is an answer that the agent sees; only infrastructure failures
and calls past our deadline are tried again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.core.lanes import State
from harness.core.work import Outcome, Status, ToolCall
from pipeline.actors.environments import TOOL_PHASE, back_off
from pipeline.data import Ended
from pipeline.policies.retries import FailureKind

if TYPE_CHECKING:
    from harness.core.primitives import Permits
    from harness.core.runtime import Runtime
    from pipeline.actors.shared import DeadlinesNs, EpisodeRun


class Tools:
    """Calls tools."""

    def __init__(self, rt: Runtime, pool: Permits, deadlines: DeadlinesNs) -> None:
        self._rt = rt
        self._tool_ns = deadlines.tool
        self.pool = pool

    async def call(self, run: EpisodeRun, turn: int, tool: int) -> Outcome | Ended:
        """Call a tool; its outcome, or how the episode ended."""
        rt, pool, lane, episode = self._rt, self.pool, run.lane, run.episode
        attempt = 0
        while True:
            if not pool.try_acquire():
                lane.to(State.TOOL_QUEUE, episode)
                await pool.acquire(episode)
            lane.to(State.TOOL_EXEC, episode)
            with rt.move_on_after(self._tool_ns) as limit:
                outcome = await rt.perform(ToolCall(episode, turn, tool, attempt, run.driver), permit=pool)
            if not limit.cancelled_caught and outcome.status is not Status.INFRA:
                return outcome
            ended = await back_off(rt, run, FailureKind.INFRA, TOOL_PHASE)
            if ended is not None:
                return Ended.TIMED_OUT if limit.cancelled_caught else ended
            attempt += 1
