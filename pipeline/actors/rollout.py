"""Rollout: one episode from its sandbox to its score.

Nothing here decides: who may start is the gate's, which replica serves is the router's, what a failure costs is the retry
policy's. A failed episode is a recorded outcome, never an exception and never a zero reward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.core.lanes import State
from pipeline.actors.inference import Request
from pipeline.data import USABLE, Ended, EpisodeResult

if TYPE_CHECKING:
    from harness.core.runtime import Runtime
    from pipeline.actors.environments import Environments
    from pipeline.actors.inference import Engines
    from pipeline.actors.scoring import Scoring
    from pipeline.actors.shared import DeadlinesNs, EpisodeRun, Tally
    from pipeline.actors.tools import Tools


class Rollout:
    """Plays episodes."""

    def __init__(
        self, rt: Runtime, engines: Engines, environments: Environments, tools: Tools, scoring: Scoring, deadlines: DeadlinesNs, tally: Tally
    ) -> None:
        self._rt = rt
        self._engines = engines
        self._environments = environments
        self._tools = tools
        self._scoring = scoring
        self._deadlines = deadlines
        self._tally = tally

    async def play(self, run: EpisodeRun, started_version: int) -> EpisodeResult:
        """Play one episode. Cancelled, it closes its environment and then raises."""
        ended, reward = Ended.TIMED_OUT, 0.0
        with self._rt.move_on_after(self._deadlines.episode):
            await self._environments.acquire(run)
            try:
                ended, reward = await self._attempt(run)
            finally:
                await self._environments.close(run)
        self._engines.forget(run.episode)
        if run.oldest < 0:
            run.oldest = run.newest = started_version
        return EpisodeResult(run.episode, ended, run.turns, run.tokens, run.context, run.oldest, run.newest, reward)

    async def _attempt(self, run: EpisodeRun) -> tuple[Ended, float]:
        failed = await self._environments.reset(run)
        if failed is not None:
            return failed, 0.0
        ended = await self._turns(run)
        if ended in USABLE:
            reward = await self._scoring.score(run)
            return (reward, 0.0) if isinstance(reward, Ended) else (ended, reward)
        return ended, 0.0

    async def _turns(self, run: EpisodeRun) -> Ended:
        """Generate, act, observe, until somebody ends it."""
        rt, driver, engines = self._rt, run.driver, self._engines
        step_ns = self._deadlines.step
        observed = driver.first_tokens
        for turn in range(driver.max_turns):
            request = self._request(run, turn, observed)
            if not engines.fits(request):
                return Ended.CONTEXT_LIMIT
            if not await self._generate(run, request):
                return Ended.TIMED_OUT
            run.context += observed + request.tokens
            tool = driver.act(turn, request.result)
            if tool < 0:
                return Ended.DONE
            with rt.move_on_after(step_ns) as limit:
                outcome = await self._tools.call(run, turn, tool)
            if limit.cancelled_caught:
                return Ended.TIMED_OUT
            if isinstance(outcome, Ended):
                return outcome
            observed, over = driver.observe(turn, outcome)
            if over:
                return Ended.TIME_LIMIT if driver.time_limited else Ended.DONE
        return Ended.TURN_LIMIT

    def _request(self, run: EpisodeRun, turn: int, observed: int) -> Request:
        cached, new, cap, payload = run.driver.prompt(turn, run.context, observed)
        return Request(run.episode, cached, new, cap, payload, run.account, run.lane, self._rt.event())

    async def _generate(self, run: EpisodeRun, request: Request) -> bool:
        """One turn's tokens; False when they did not come in time."""
        run.lane.to(State.GEN_QUEUE, run.episode)
        with self._rt.move_on_after(self._deadlines.generation) as limit:
            await self._engines.generate(request)
        run.turns += 1
        self._tally.turns += 1
        run.tokens += request.tokens
        if request.oldest >= 0:
            run.newest = request.newest
            if run.oldest < 0:
                run.oldest = request.oldest
        return not limit.cancelled_caught
