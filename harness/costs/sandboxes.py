"""Tools, sandboxes and scoring in modelled time. What hangs waits until it is cancelled.

A killed worker is free at once, an abandoned one when its time is up. Where nothing can be down and nothing is limited a call
is one wait of known length. Else it passes a gate (`harness.costs.limits`), and is as long as the outages that it meets make it
(`harness.costs.calendars`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.core.events import EventKind
from harness.core.perform import Timed, TimedFrom
from harness.core.work import EnvClose, EnvReset, Outcome, Reward, Status, ToolCall, WorkKind
from harness.costs.calendars import SURVIVES, Outages
from harness.costs.limits import Rate, Starts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.core.host import VirtualRuntime
    from harness.core.perform import Performers
    from harness.core.runtime import Runtime
    from harness.costs.episodes import SimulatedEpisode
    from harness.costs.limits import Gate
    from harness.scenario.schema import Scenario

    Duration = Callable[[Any], tuple[int, Outcome]]

_DONE = Outcome()
_ENDS = [Outcome(status=status) for status in Status]  # a Status is its number

OUTAGE, REFUSED = "outage", "refused"
"""Classes of failures in `Outcome.error`."""


def sandbox_performers(scenario: Scenario[Any], seed: int) -> Performers:
    """What performs tool calls, starts and stops of environments, and scoring."""
    outages = Outages.of(scenario, seed)
    rates = [Rate.of(tool) for tool in scenario.workload.tools]
    starts = Starts.of(scenario.world.environments)
    calls: Any = Timed(call)
    resets: Any = Timed(reset)
    if any(rate is not None for rate in rates):
        calls = Exposed(call, outages, rates)
    elif outages.touches(WorkKind.TOOL_CALL):
        calls = TimedFrom(lambda work, now_ns: met(outages, work, work.turn, work.tool, now_ns, *call(work)))
    if outages.calendars or starts is not None:  # each episode begins with a start, which sees to it that outages are logged
        resets = Exposed(reset, outages, [starts])
    return {
        ToolCall: calls,
        EnvReset: resets,
        EnvClose: SimulatedClose(),
        Reward: SimulatedReward(
            outages if outages.touches(WorkKind.REWARD) else None, on_loop=scenario.world.scoring.runs_on == "loop"
        ),
    }


def call(work: ToolCall) -> tuple[int, Outcome]:
    """A tool call takes the planned time; a retry draws anew."""
    episode: SimulatedEpisode = work.payload
    turn, plan = work.turn, episode.plan
    if work.attempt == 0:
        return plan.tool_ns[turn], _ENDS[plan.tool_status[turn]]
    ns, status = episode.model.retry(
        WorkKind.TOOL_CALL, episode.task, episode.dispatch, episode.member, turn, work.attempt, work.tool
    )
    return ns, _ENDS[status]


def reset(work: EnvReset) -> tuple[int, Outcome]:
    """A start takes the planned time; a retry draws anew."""
    episode: SimulatedEpisode = work.payload
    if work.attempt == 0:
        return episode.plan.reset_ns, _ENDS[episode.plan.reset_status]
    ns, status = episode.model.retry(WorkKind.ENV_RESET, episode.task, episode.dispatch, episode.member, 0, work.attempt)
    return ns, _ENDS[status]


def score(work: Reward) -> tuple[int, Outcome]:
    """Scoring takes the planned time; a retry draws anew."""
    episode: SimulatedEpisode = work.payload
    if work.attempt == 0:
        ns, status = episode.plan.reward_ns, episode.plan.reward_status
    else:
        ns, status = episode.model.retry(WorkKind.REWARD, episode.task, episode.dispatch, episode.member, 0, work.attempt)
    return ns, Outcome(status=Status(status), result=episode.plan.reward)


def met(outages: Outages, work: Any, turn: int, tool: int, at_ns: int, ns: int, outcome: Outcome) -> tuple[int, Outcome]:
    """Duration and outcome of work that begins now, with the outages that it meets."""
    episode: SimulatedEpisode = work.payload
    homes = episode.homes
    if homes is None:
        homes = episode.homes = outages.homes(episode.task, episode.dispatch, episode.member)
    if outages.calm(work.KIND, tool, homes, at_ns, at_ns + ns):
        return ns, outcome
    key = (episode.task, episode.dispatch, episode.member, turn, work.attempt)
    ns, fate = outages.meet(work.KIND, tool, homes, at_ns, ns, key)
    return (ns, outcome) if fate == SURVIVES else (ns, Outcome(status=Status.INFRA, error=OUTAGE))


class Exposed:
    """Tool calls or starts that can be refused, queue, or meet outages. A killed worker is free at once.

    Args:
        duration: nanoseconds and outcome of work that nothing disturbs.
        outages: of the world.
        gates: by number of the tool; of starts, the only one. None where there is none.

    """

    def __init__(self, duration: Duration, outages: Outages, gates: Sequence[Gate | None]) -> None:
        self._duration = duration
        self._outages = outages
        self._gates = gates

    async def __call__(self, rt: Runtime, work: Any, /) -> Outcome:
        """Pass the gate, and take as long as the outages allow."""
        self._outages.watch(rt)
        turn, tool = (work.turn, work.tool) if work.KIND is WorkKind.TOOL_CALL else (0, 0)
        gate = self._gates[tool]
        if gate is None:
            ns, outcome = met(self._outages, work, turn, tool, rt.now(), *self._duration(work))
            await rt.sleep(ns)
            return outcome
        if not await gate.enter(rt, work.entity):
            rt.emit(EventKind.REFUSED, work.entity, work.KIND, tool, work.attempt, *gate.load)
            await rt.sleep(gate.refuse_ns)
            return Outcome(status=Status.INFRA, error=REFUSED)
        try:
            started_ns = rt.now()
            ns, outcome = self._duration(work)
            ns, outcome = met(self._outages, work, turn, tool, started_ns, gate.stretched(ns), outcome)
            await rt.sleep(ns)
        finally:
            gate.leave()
        return Outcome(status=outcome.status, result=outcome.result, started_ns=started_ns, error=outcome.error)

    async def gone(self, rt: Runtime, work: Any, /) -> None:
        """The worker is free."""


class _Lingering:
    """A performer whose abandoned worker goes on until its time is up."""

    def __init__(self) -> None:
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
    """Scores, on threads that cannot be killed, or on the event loop, which nothing else has meanwhile.

    Args:
        outages: that scoring depends on; None where there are none.
        on_loop: whether it computes on the event loop.

    """

    def __init__(self, outages: Outages | None, *, on_loop: bool = False) -> None:
        super().__init__()
        self._outages = outages
        self._on_loop = on_loop

    async def __call__(self, rt: VirtualRuntime, work: Reward, /) -> Outcome:
        """Take the planned time, or as long as the outages allow."""
        ns, outcome = score(work)
        if self._outages is not None:
            self._outages.watch(rt)
            ns, outcome = met(self._outages, work, 0, 0, rt.now(), ns, outcome)
        if self._on_loop:
            await rt.occupy(ns)
        else:
            await self._spend(rt, (work.entity, work.attempt), ns)
        return outcome

    async def gone(self, rt: Runtime, work: Reward, /) -> None:
        """Wait until the thread has ended."""
        await self._linger(rt, (work.entity, work.attempt))
