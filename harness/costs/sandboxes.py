"""Tools, sandboxes and scoring in modelled time. What hangs waits until it is cancelled.

A killed worker is free at once, an abandoned one when its time is up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.core.work import EnvClose, EnvReset, Outcome, Reward, Status, ToolCall, WorkKind

if TYPE_CHECKING:
    from harness.core.runtime import Runtime
    from harness.costs.episodes import SimulatedEpisode
    from harness.costs.workload import WorkloadModel

_DONE = Outcome()
_ENDS = [Outcome(status=status) for status in Status]  # a Status is its number


class SimulatedTools:
    """Tool calls, and starts of environments. A killed worker is free at once."""

    def __init__(self, model: WorkloadModel) -> None:
        self._model = model

    def call(self, work: ToolCall) -> tuple[int, Outcome]:
        """Take the planned time; a retry draws anew."""
        episode: SimulatedEpisode = work.payload
        turn, plan = work.turn, episode.plan
        if work.attempt == 0:
            return plan.tool_ns[turn], _ENDS[plan.tool_status[turn]]
        ns, status = self._model.retry(
            WorkKind.TOOL_CALL, episode.task, episode.dispatch, episode.member, turn, work.attempt, work.tool
        )
        return ns, _ENDS[status]

    def reset(self, work: EnvReset) -> tuple[int, Outcome]:
        """Take the planned time; a retry draws anew."""
        episode: SimulatedEpisode = work.payload
        if work.attempt == 0:
            return episode.plan.reset_ns, _ENDS[episode.plan.reset_status]
        ns, status = self._model.retry(WorkKind.ENV_RESET, episode.task, episode.dispatch, episode.member, 0, work.attempt)
        return ns, _ENDS[status]


class _Lingering:
    """A performer whose abandoned worker goes on until its time is up."""

    def __init__(self, model: WorkloadModel) -> None:
        self._model = model
        self._until: dict[tuple[int, int], int] = {}

    async def _spend(self, rt: Runtime, key: tuple[int, int], ns: int) -> None:
        until = rt.now() + ns
        try:
            await rt.sleep(ns)
        except rt.cancelled:
            self._until[key] = until
            raise

    async def _linger(self, rt: Runtime, key: tuple[int, int]) -> None:
        await rt.sleep(self._until.pop(key) - rt.now())


class SimulatedClose(_Lingering):
    """Teardown of environments."""

    async def __call__(self, rt: Runtime, work: EnvClose, /) -> Outcome:
        """Take the planned time."""
        await self._spend(rt, (work.entity, 0), work.payload.plan.close_ns)
        return _DONE

    async def gone(self, rt: Runtime, work: EnvClose, /) -> None:
        """Wait until the sandbox is really gone."""
        await self._linger(rt, (work.entity, 0))


class SimulatedReward(_Lingering):
    """Scores, on threads that cannot be killed."""

    async def __call__(self, rt: Runtime, work: Reward, /) -> Outcome:
        """Take the planned time; a retry draws anew."""
        episode: SimulatedEpisode = work.payload
        if work.attempt == 0:
            ns, status = episode.plan.reward_ns, episode.plan.reward_status
        else:
            ns, status = self._model.retry(WorkKind.REWARD, episode.task, episode.dispatch, episode.member, 0, work.attempt)
        await self._spend(rt, (work.entity, work.attempt), ns)
        return Outcome(status=Status(status), result=episode.plan.reward)

    async def gone(self, rt: Runtime, work: Reward, /) -> None:
        """Wait until the thread has ended."""
        await self._linger(rt, (work.entity, work.attempt))
