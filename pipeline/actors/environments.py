"""Environments: a pool of sandboxes, each held for a whole episode, and the reset that begins it.

A sandbox is occupied while the model generates. `close` runs exactly once for every sandbox that was taken, whatever happened,
shielded and under its own deadline; the permit goes with it and is free when the sandbox is really gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.core.events import EventKind
from harness.core.lanes import State
from harness.core.work import EnvClose, EnvReset, Status
from pipeline.data import Ended
from pipeline.policies.retries import FailureKind

if TYPE_CHECKING:
    from harness.core.primitives import Permits
    from harness.core.runtime import Runtime
    from pipeline.actors.shared import DeadlinesNs, EpisodeRun

RESET_PHASE, TOOL_PHASE, REWARD_PHASE, GENERATION_PHASE = 1, 2, 3, 4
"""Phase codes of `RETRY` events."""


class Environments:
    """Starts and stops sandboxes."""

    def __init__(self, rt: Runtime, pool: Permits, deadlines: DeadlinesNs) -> None:
        self._rt = rt
        self._deadlines = deadlines
        self.pool = pool

    async def acquire(self, run: EpisodeRun) -> None:
        """Take a sandbox for an episode."""
        if not self.pool.try_acquire():
            run.lane.to(State.ENV_QUEUE, run.episode)
            await self.pool.acquire(run.episode)

    async def reset(self, run: EpisodeRun) -> Ended | None:
        """Start the sandbox; None when it is ready, else how the episode ended. Infrastructure failures are retried."""
        rt = self._rt
        while True:
            run.lane.to(State.ENV_RESET, run.episode)
            with rt.move_on_after(self._deadlines.reset) as limit:
                outcome = await rt.perform(EnvReset(run.episode, run.attempts.attempt, payload=run.driver))
            if not limit.cancelled_caught and outcome.status is Status.OK:
                return None
            data = not limit.cancelled_caught and outcome.status is Status.FAILED
            ended = await back_off(rt, run, FailureKind.DATA if data else FailureKind.INFRA, RESET_PHASE)
            if ended is not None:
                return Ended.TIMED_OUT if limit.cancelled_caught else ended

    async def close(self, run: EpisodeRun) -> None:
        """Tear the sandbox down; past the deadline it is abandoned, and its place stays taken until it is gone."""
        rt = self._rt
        run.lane.to(State.ENV_CLOSE, run.episode)
        with rt.move_on_after(self._deadlines.close, shield=True):
            await rt.perform(EnvClose(run.episode, payload=run.driver), permit=self.pool)


async def back_off(rt: Runtime, run: EpisodeRun, kind: FailureKind, phase: int) -> Ended | None:
    """After a failure: wait and return None to try again, or how the episode ended."""
    delay_ns = run.attempts.failed(kind)
    if delay_ns is None:
        return Ended.FAILED_INFRA if kind is FailureKind.INFRA else Ended.FAILED_DATA
    rt.emit(EventKind.RETRY, run.episode, phase, run.attempts.attempt, delay_ns)
    run.lane.to(State.BACKOFF, run.episode)
    await rt.sleep(delay_ns)
    return None
