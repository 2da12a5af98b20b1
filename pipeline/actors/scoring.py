"""Scoring: a pool of reward workers. A reward that fails or hangs makes a failed episode, never a zero."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.core.lanes import State
from harness.core.work import Reward, Status
from pipeline.actors.environments import REWARD_PHASE, back_off
from pipeline.data import Ended
from pipeline.policies.retries import FailureKind

if TYPE_CHECKING:
    from harness.core.primitives import Permits
    from harness.core.runtime import Runtime
    from pipeline.actors.shared import DeadlinesNs, EpisodeRun


class Scoring:
    """Scores episodes."""

    def __init__(self, rt: Runtime, pool: Permits, deadlines: DeadlinesNs) -> None:
        self._rt = rt
        self._reward_ns = deadlines.reward
        self.pool = pool

    async def score(self, run: EpisodeRun) -> float | Ended:
        """The reward of an episode, or how it ended."""
        rt, pool = self._rt, self.pool
        attempt = 0
        while True:
            if not pool.try_acquire():
                run.lane.to(State.REWARD_QUEUE, run.episode)
                await pool.acquire(run.episode)
            run.lane.to(State.REWARD, run.episode)
            with rt.move_on_after(self._reward_ns) as limit:
                outcome = await rt.perform(Reward(run.episode, attempt, run.tokens, run.driver), permit=pool)
            if not limit.cancelled_caught and outcome.status is Status.OK:
                return float(outcome.result)
            data = not limit.cancelled_caught and outcome.status is Status.FAILED
            ended = await back_off(rt, run, FailureKind.DATA if data else FailureKind.INFRA, REWARD_PHASE)
            if ended is not None:
                return Ended.TIMED_OUT if limit.cancelled_caught else ended
            attempt += 1
