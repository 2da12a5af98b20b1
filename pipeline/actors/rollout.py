"""Rollout: one episode from its sandbox to its score.

Nothing here decides: who may start is the gate's, which replica serves is the router's, what a failure costs is the retry
policy's. A failed episode is a recorded outcome, never an exception and never a zero reward.

One cancel scope serves all waits of an episode's turns. Its deadline is moved: to the generation's before each generation, to
the nearer of the step's and the call's before each tool call. Two scopes a turn would say the same and cost a third of a turn.
When it expires, the episode is over if it was generating or its step was used up, and else the call is tried again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.core.lanes import State
from harness.core.work import Status, ToolCall
from pipeline.actors.environments import GENERATION_PHASE, TOOL_PHASE, back_off
from pipeline.actors.requests import Request
from pipeline.data import USABLE, Ended, EpisodeResult
from pipeline.environments.base import DONE
from pipeline.policies.retries import FailureKind

if TYPE_CHECKING:
    from harness.core.primitives import Permits
    from harness.core.runtime import CancelScope, Runtime
    from pipeline.actors.engines import Engines
    from pipeline.actors.environments import Environments
    from pipeline.actors.scoring import Scoring
    from pipeline.actors.shared import DeadlinesNs, EpisodeRun, Tally
    from pipeline.actors.stepping import Stepping


_GEN_QUEUE = State.GEN_QUEUE
_TOOL_QUEUE = State.TOOL_QUEUE
_TOOL_EXEC = State.TOOL_EXEC
_INFRA = Status.INFRA
# A name looked up on an enum costs five times a global on Python 3.11.


class Rollout:
    """Plays episodes."""

    def __init__(
        self,
        rt: Runtime,
        engines: Engines,
        environments: Environments,
        tools: Permits,
        scoring: Scoring,
        deadlines: DeadlinesNs,
        tally: Tally,
        stepping: Stepping | None = None,
    ) -> None:
        self._rt = rt
        self._engines = engines
        self._environments = environments
        self._tools = tools
        self._scoring = scoring
        self._deadlines = deadlines
        self._tally = tally
        self._stepping = stepping  # None: each episode goes on by itself

    async def play(self, run: EpisodeRun, started_version: int) -> EpisodeResult:
        """Play one episode. Cancelled, it closes its environment and then raises."""
        ended, reward = Ended.TIMED_OUT, 0.0
        await self._environments.acquire(run)  # a queue in here, and no part of the attempt that the deadline bounds
        with self._rt.move_on_after(self._deadlines.episode):
            try:
                ended, reward = await self._attempt(run)
            finally:
                await self._environments.close(run)
        self._engines.forget(run.episode)
        if run.oldest < 0:
            run.oldest = run.newest = started_version
        sample = run.driver.sample() if ended in USABLE else None
        return EpisodeResult(run.episode, ended, run.turns, run.tokens, run.context, run.oldest, run.newest, reward, sample)

    async def _attempt(self, run: EpisodeRun) -> tuple[Ended, float]:
        ended = await self._play(run) if self._stepping is None else await self._in_step(run, self._stepping)
        if ended in USABLE:
            reward = await self._scoring.score(run)
            return (reward, 0.0) if isinstance(reward, Ended) else (ended, reward)
        return ended, 0.0

    async def _in_step(self, run: EpisodeRun, stepping: Stepping) -> Ended:
        """The same, as one of those that step together."""
        stepping.join(run)
        try:
            return await self._play(run)
        finally:
            stepping.leave(run)

    async def _play(self, run: EpisodeRun) -> Ended:
        """From the start of the environment to the end of the last turn."""
        failed = await self._environments.reset(run)
        return await self._converse(run) if failed is None else failed

    async def _converse(self, run: EpisodeRun) -> Ended:
        """All turns; tool calls that our deadline cut off are tried again."""
        request = Request(run.episode, run.account, run.lane, run.group, run.driver.first_tokens)
        observed = run.driver.first_tokens
        while True:
            with self._rt.cancel_scope() as limit:
                ended = await self._turns(run, request, observed, limit)
            if not limit.cancelled_caught:
                return ended
            if run.tool < 0 or self._rt.now() >= run.step_ends_ns:
                return Ended.TIMED_OUT
            if await back_off(self._rt, run, FailureKind.INFRA, TOOL_PHASE) is not None:
                return Ended.TIMED_OUT
            run.tool_attempt += 1

    async def _regenerate(self, run: EpisodeRun, request: Request) -> Ended | None:
        """An engine outside failed: go on behind the tokens it made; None when the answer is whole, else how the episode ended.

        All of it is one generation, within its one deadline.
        """
        rt, engines = self._rt, self._engines
        while request.status:
            data = request.status is not _INFRA
            ended = await back_off(rt, run, FailureKind.DATA if data else FailureKind.INFRA, GENERATION_PHASE)
            if ended is not None:
                run.tokens += request.tokens
                return ended
            request.again(rt.event())
            run.lane.to(_GEN_QUEUE, run.episode)
            engines.submit(request)
            try:
                await request.done.wait()
            except BaseException:
                await engines.withdraw(request)
                raise
        return None

    async def _turns(self, run: EpisodeRun, request: Request, observed: int, limit: CancelScope) -> Ended:
        """Generate, act, observe, until somebody ends it. Begins with a tool call where one has to be tried again."""
        rt, driver, engines, lane = self._rt, run.driver, self._engines, run.lane
        generation_ns, step_ns, tool_ns = self._deadlines.generation, self._deadlines.step, self._deadlines.tool
        pool, episode, stepping = self._tools, run.episode, self._stepping
        while run.turns < driver.max_turns:
            if run.tool < 0:
                if stepping is not None:
                    limit.deadline_ns = None  # the episode's own bounds this wait
                    await stepping.wait_turn(run)
                request.ask(*driver.prompt(run.turns, run.context, observed), rt.event())
                if request.reserved_tokens > engines.kv_tokens or request.reserved_tokens < request.kv_tokens:
                    return Ended.CONTEXT_LIMIT
                lane.to(_GEN_QUEUE, episode)
                limit.deadline_ns = lane.since_ns + generation_ns
                engines.submit(request)
                try:
                    await request.done.wait()
                except BaseException:
                    await engines.withdraw(request)
                    raise
                if request.status:
                    ended = await self._regenerate(run, request)
                    if ended is not None:
                        return ended
                run.tokens += request.tokens
                run.context += observed + request.tokens
                run.newest = request.newest
                run.oldest = request.oldest
                run.tool = driver.act(run.turns, request.result)
                if run.tool < 0:
                    return Ended.DONE if run.tool == DONE else Ended.TOKEN_LIMIT
                run.step_ends_ns = rt.now() + step_ns
            if not pool.try_acquire():
                limit.deadline_ns = run.step_ends_ns
                lane.to(_TOOL_QUEUE, episode)
                await pool.acquire(episode)
            lane.to(_TOOL_EXEC, episode)
            ends_ns = lane.since_ns + tool_ns
            limit.deadline_ns = ends_ns if ends_ns < run.step_ends_ns else run.step_ends_ns
            self._tally.call(run.tool)
            outcome = await rt.perform(ToolCall(episode, run.turns, run.tool, run.tool_attempt, driver), permit=pool)
            if outcome.started_ns >= 0:
                self._tally.provider_queue_ns += max(outcome.started_ns - ends_ns + tool_ns, 0)
            if outcome.status is _INFRA:  # a call that fails in itself, or ends at a limit of its own, is an answer
                limit.deadline_ns = run.step_ends_ns
                ended = await back_off(rt, run, FailureKind.INFRA, TOOL_PHASE)
                if ended is not None:
                    return ended
                run.tool_attempt += 1
                continue
            run.tool, run.tool_attempt = -1, 0
            observed, over = driver.observe(run.turns, outcome)
            run.turns += 1
            self._tally.turns += 1
            if over:
                if driver.failed:
                    return Ended(driver.failed)
                return Ended.TIME_LIMIT if driver.time_limited else Ended.DONE
        return Ended.TURN_LIMIT
