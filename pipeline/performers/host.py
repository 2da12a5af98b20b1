"""Host performers: what environments, tools and rewards do on this machine, outside the accelerators.

`async def` methods run in the loop, plain ones on threads (`pipeline.performers.threads`). Whatever a user's code raises or
returns ends as an `Outcome`: a failed episode is data, and never the end of the run. An environment that was built is closed
exactly once: whoever takes it out of its episode closes it, and nobody else gets it. One that is built after its caller has
gone (a constructor that hung) is closed when it turns up.
"""

from __future__ import annotations

import logging
import traceback
from collections import Counter
from functools import partial
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

import trio

from harness.core.work import EnvClose, EnvReset, Outcome, Reward, Status, ToolCall
from pipeline.environments.environment import BaseTaskEnv, InfraFailure, ThreadsLostError
from pipeline.environments.episode import Fault, Garbage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from pipeline.environments.episode import LiveEpisode
    from pipeline.performers.threads import Job, Threads

LOG = logging.getLogger("rollout_harness")

_DONE = Outcome()
_INFRA = (InfraFailure, OSError, trio.TooSlowError)
_LATE_CLOSE_S = 30.0
_ASYNC, _INLINE, _THREAD = range(3)


class EpisodeHost:
    """The loop, as one episode's environment sees it (`pipeline.environments.environment.Host`).

    Attributes:
        phase: what the episode does now, for messages.
        jobs: calls of it that were given up and still run.

    """

    __slots__ = ("_entity", "_name", "_threads", "jobs", "phase")

    def __init__(self, threads: Threads, entity: int, name: str) -> None:
        self._threads = threads
        self._entity = entity
        self._name = name
        self.phase = ""
        self.jobs: list[Job] = []

    async def in_thread(self, fn: Callable[..., Any], /, *args: Any) -> Any:
        """Call a function that blocks, on a thread."""
        return await self.on_thread(fn, *args)

    async def on_thread(
        self, fn: Callable[..., Any], /, *args: Any, late: Callable[[Any], object] | None = None, closing: bool = False
    ) -> Any:
        """The same; `late` gets the result if it comes when nobody waits any more, and what is `closing` is always done."""
        label = ("episode", self._entity, self._name, self.phase)
        return await self._threads.run(
            label, fn, *args, late=late, given_up=self.jobs.append, closing=closing or self.phase == "close"
        )  # fmt: skip

    async def together(self, calls: Sequence[Callable[[], Awaitable[Any]]], /) -> list[Any]:
        """Run several at once; their results in order."""
        results: list[Any] = [None] * len(calls)

        async def one(index: int) -> None:
            results[index] = await calls[index]()

        try:
            async with trio.open_nursery() as nursery:
                for index in range(len(calls)):
                    nursery.start_soon(one, index)
        except BaseExceptionGroup as group:
            raise _first(group) from None
        return results

    async def sleep(self, seconds: float, /) -> None:
        """Let time pass."""
        await trio.sleep(seconds)

    async def gone(self) -> None:
        """Return when the threads of calls that were given up are free again."""
        jobs, self.jobs = self.jobs, []
        if len(jobs) == 1:
            await self._threads.gone(jobs[0])
        elif jobs:
            await self.together([partial(self._threads.gone, job) for job in jobs])


def _first(group: BaseExceptionGroup[Any]) -> BaseException:
    """The failure that counts in a group: the first that is no cancellation, or else the cancellation."""
    leaves: list[BaseException] = []
    todo: list[BaseException] = [group]
    while todo:
        failure = todo.pop()
        if isinstance(failure, BaseExceptionGroup):
            todo.extend(reversed(failure.exceptions))
        else:
            leaves.append(failure)
    return next((leaf for leaf in leaves if not isinstance(leaf, trio.Cancelled)), leaves[0])


class HostWork:
    """What the four performers share.

    Args:
        threads: of this run.

    Attributes:
        faults: how often each fault came, with the infrastructure's among them.

    """

    def __init__(self, threads: Threads) -> None:
        self.threads = threads
        self.faults: Counter[str] = Counter()
        self._told: set[tuple[str, str, Status]] = set()
        self._places: dict[tuple[type, str], int] = {}

    async def invoke(self, environment: BaseTaskEnv, method: str, *args: Any) -> Any:
        """Call a method where it belongs."""
        key = (environment.__class__, method)
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = _place(environment, method)
        if place == _ASYNC:
            return await getattr(environment, method)(*args)
        if place == _INLINE:
            return getattr(environment, method)(*args)
        host: EpisodeHost = environment.host  # type: ignore[assignment]  # set by us
        return await host.on_thread(getattr(environment, method), *args, closing=method == "close")

    def failure(
        self, episode: LiveEpisode, fault: Fault, failure: BaseException, environment: BaseTaskEnv | None = None
    ) -> Outcome:
        """What an exception out of a user's code means. Raises what is not his: cancellations, interrupts, lost threads.

        When the call was cancelled, its environment is told.
        """
        if isinstance(failure, BaseExceptionGroup):  # of a nursery in the user's code
            cancelled = failure.subgroup(trio.Cancelled)
            failure = _first(failure if cancelled is None else cancelled)
        if isinstance(failure, trio.Cancelled):
            episode.cut_off = True
            if environment is not None:
                self.kill(episode, environment)
        if isinstance(failure, ThreadsLostError) or not isinstance(failure, Exception | SystemExit):
            raise failure
        if isinstance(failure, Garbage):
            fault = failure.fault
        status = Status.INFRA if isinstance(failure, _INFRA) else Status.FAILED
        self.faults[fault] += 1
        if (key := (episode.name, str(fault), status)) not in self._told:
            self._told.add(key)
            LOG.warning("%s", _message(episode.name, fault, status, failure))
        return Outcome(status=status, error=str(fault))

    async def close(self, environment: BaseTaskEnv) -> None:
        """Close it. Whoever calls this has taken it out of its episode."""
        await self.invoke(environment, "close")

    async def close_late(self, episode: LiveEpisode, environment: BaseTaskEnv) -> None:
        """Close an environment whose episode has gone on without it."""
        environment.host = episode.host
        try:
            with trio.move_on_after(_LATE_CLOSE_S, shield=True):
                await self.close(environment)
        except BaseException as failure:
            self.failure(episode, Fault.CLOSE, failure)

    def kill(self, episode: LiveEpisode, environment: BaseTaskEnv) -> None:
        """A call of this environment is given up: tell it."""
        try:
            environment.kill()
        except Exception as failure:
            self.failure(episode, Fault.KILL, failure)


def _place(environment: BaseTaskEnv, method: str) -> int:
    """Where a method runs; ours are quick."""
    function = getattr(environment, method)
    if iscoroutinefunction(function):
        return _ASYNC
    return _INLINE if getattr(function, "__func__", None) is getattr(BaseTaskEnv, method) else _THREAD


def _message(name: str, fault: Fault, status: Status, failure: BaseException) -> str:
    """What, where, what is allowed, what to do."""
    frames = traceback.extract_tb(failure.__traceback__)
    where = f"{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else name
    if isinstance(failure, Garbage):
        what, where, allowed, do = f"{name}: {failure}", name, failure.allowed, failure.do
    elif fault is Fault.CUT_OFF:
        what, where = f"{name}.step was cut off at its deadline and cannot be called again", name
        allowed, do = "a step within deadlines.tool_s", "raise the deadline, or set repeatable = True on the class"
    else:
        what = f"{name}: {fault} raised {type(failure).__name__}: {str(failure)[:512]}"
        allowed = "exceptions, each of which ends its episode as failed; InfraFailure and OSError are tried again"
        do = "mend the environment, or raise InfraFailure where trying again may help"
    effect = "this attempt failed and is tried again" if status is Status.INFRA else "the episode counts as failed, not as zero"
    return f"{what}\n  where:   {where}\n  effect:  {effect}; told once, counted always\n  allowed: {allowed}\n  do:      {do}"


class _HostPerformer:
    """Base of the four: the worker is free when the threads of given-up calls are."""

    def __init__(self, work: HostWork) -> None:
        self._work = work

    async def gone(self, rt: Any, work: Any, /) -> None:
        """Wait for the threads."""
        host: EpisodeHost | None = work.payload.host
        if host is not None:
            await host.gone()


class ResetPerformer(_HostPerformer):
    """Builds an environment and resets it."""

    async def __call__(self, rt: Any, work: EnvReset, /) -> Outcome:
        """Do it. An environment left by an attempt before is closed first."""
        episode: LiveEpisode = work.payload
        if episode.host is None:
            episode.host = EpisodeHost(self._work.threads, work.entity, episode.name)
        left = episode.take()
        if left is not None:
            await self._close(episode, left)
        fault = Fault.CONSTRUCTOR
        try:
            episode.host.phase = "constructor"
            episode.begin(await self._build(rt, episode))
            fault = Fault.RESET
            episode.host.phase = "reset"
            assert episode.environment is not None
            episode.prompted(await self._work.invoke(episode.environment, "reset"))
        except BaseException as failure:
            outcome = self._work.failure(episode, fault, failure, episode.environment)
            left = episode.take()
            if left is not None:
                await self._close(episode, left)
            return outcome
        return _DONE

    async def _build(self, rt: Any, episode: LiveEpisode) -> BaseTaskEnv:
        if episode.inline:
            return episode.build()

        def late(environment: BaseTaskEnv) -> None:
            try:
                rt.background(self._work.close_late, episode, environment, name=f"close {episode.name}")
            except RuntimeError:  # the run is over but for its last steps
                LOG.warning("%s was built when the run had ended, and is not closed", episode.name)

        built: BaseTaskEnv = await episode.host.on_thread(episode.build, late=late)
        return built

    async def _close(self, episode: LiveEpisode, environment: BaseTaskEnv) -> None:
        episode.host.phase = "close"
        try:
            await self._work.close(environment)
        except BaseException as failure:
            self._work.failure(episode, Fault.CLOSE, failure, environment)


class StepPerformer(_HostPerformer):
    """Steps an environment with the agent's answer; a tool call is a step."""

    async def __call__(self, rt: Any, work: ToolCall, /) -> Outcome:
        """Do it."""
        episode: LiveEpisode = work.payload
        environment = episode.environment
        assert environment is not None
        episode.host.phase = "step"
        try:
            if episode.misread is not None:
                raise episode.misread
            if episode.cut_off and not environment.repeatable:
                return self._work.failure(episode, Fault.CUT_OFF, StepCutOffError())
            episode.stepped(await self._work.invoke(environment, "step", episode.action))
        except BaseException as failure:
            return self._work.failure(episode, Fault.STEP, failure, environment)
        return _DONE


class StepCutOffError(Exception):
    """A step was cut off and cannot be called again."""


class ScorePerformer(_HostPerformer):
    """Scores an episode."""

    async def __call__(self, rt: Any, work: Reward, /) -> Outcome:
        """Do it."""
        episode: LiveEpisode = work.payload
        assert episode.environment is not None
        episode.host.phase = "score"
        try:
            reward = episode.scored(await self._work.invoke(episode.environment, "score"))
        except BaseException as failure:
            return self._work.failure(episode, Fault.SCORE, failure, episode.environment)
        return Outcome(result=reward)


class ClosePerformer(_HostPerformer):
    """Closes an environment, if one was built."""

    async def __call__(self, rt: Any, work: EnvClose, /) -> Outcome:
        """Do it. Called a second time it does nothing."""
        episode: LiveEpisode = work.payload
        environment = episode.take()
        if environment is None:
            return _DONE
        episode.host.phase = "close"
        try:
            await self._work.close(environment)
        except BaseException as failure:
            return self._work.failure(episode, Fault.CLOSE, failure, environment)
        return _DONE


def host_performers(threads: Threads) -> tuple[HostWork, dict[type[Any], Any]]:
    """The four performers of a run, and what they share: the faults that were counted."""
    work = HostWork(threads)
    return work, {
        EnvReset: ResetPerformer(work),
        ToolCall: StepPerformer(work),
        Reward: ScorePerformer(work),
        EnvClose: ClosePerformer(work),
    }
