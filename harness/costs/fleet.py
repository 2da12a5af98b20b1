"""Slices of chips that are taken away, in modelled time.

Theory. Losses of a slice lie on a calendar of absolute time: the n-th at

    T(n) = T(n - 1) + L(n),   T(-1) = 0,

with L(n) drawn from the law by the key (seed, slice, n). So the calendar does not depend on what runs on the slice, nor on how
many others there are: two configurations lose the same slices at the same instants. A loss that comes while the slice is away,
and its replacement on the way, takes nothing. With a memoryless law the time between a replacement and the next loss
has the law itself; with others it is what is left of the calendar's interval, as for a maintenance plan that does not know of
replacements. The delay of a replacement is drawn by (seed, slice, n) too, n being the loss that made it necessary.

Work of a slice that is taken away meanwhile ends at that instant, as failed infrastructure (`Cut`).
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any

from harness.core.perform import Timed
from harness.core.units import NS_PER_S, ns_from_s
from harness.core.work import Checkpoint, Compile, LogProbs, Outcome, Provision, Restore, Status, TrainStep, Watch
from harness.costs.draws import HANG_NS, Uniforms, duration_ns
from harness.costs.laws import sampler

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from harness.core.perform import Performers
    from harness.core.runtime import Performer, Runtime
    from harness.core.work import Work
    from harness.costs.laws import Law
    from harness.scenario.fleet import Preemption

LEARNER = 0
"""The learner's slice. That of replica i is 1 + i."""

_LATEST_NS = 1 << 61
"""Times are cut here, 73 years: beyond any run."""

_TAKEN = Outcome(status=Status.INFRA, error="preempted")


class Calendar:
    """Instants at which one slice is taken away.

    Args:
        law: of the seconds between two of them.
        uniforms: of the run's seed.
        slice_: its number.

    """

    __slots__ = ("_instants", "_sample", "_slice", "_uniforms")

    def __init__(self, law: Law, uniforms: Uniforms, slice_: int) -> None:
        self._sample = sampler(law)
        self._uniforms = uniforms
        self._slice = slice_
        self._instants: list[int] = []

    def next(self, after_ns: int) -> tuple[int, int]:
        """The first loss after an instant: its ordinal, and when it is in nanoseconds."""
        instants = self._instants
        while not instants or instants[-1] <= after_ns:
            u = float(self._uniforms.draw(1, "preemption", self._slice, len(instants))[0])
            life_ns = min(round(self._sample(u) * NS_PER_S), _LATEST_NS)
            instants.append((instants[-1] if instants else 0) + life_ns)
        ordinal = bisect_right(instants, after_ns)
        return ordinal, instants[ordinal]


class SimulatedWatch:
    """Waits for the next loss of a slice; its outcome's amount is the ordinal."""

    def __init__(self, calendars: Mapping[int, Calendar]) -> None:
        self._calendars = calendars

    async def __call__(self, rt: Runtime, work: Watch, /) -> Outcome:
        """Wait."""
        ordinal, at_ns = self._calendars[work.entity].next(rt.now())
        while (left_ns := at_ns - rt.now()) > 0:
            await rt.sleep(min(left_ns, HANG_NS))
        return Outcome(amount=ordinal)

    async def gone(self, rt: Runtime, work: Work, /) -> None:
        """There is no worker."""


class Cut:
    """Work on a slice that may be taken away meanwhile: it ends with the slice.

    Args:
        inner: performs it on chips that stay.
        calendar: of the slice.

    """

    def __init__(self, inner: Performer | Callable[[Any, Any], Any], calendar: Calendar) -> None:
        self._inner = inner
        self._calendar = calendar

    async def __call__(self, rt: Runtime, work: Work, /) -> Outcome:
        """Do it, or as much of it as there is time for."""
        _, at_ns = self._calendar.next(rt.now())
        outcome = _TAKEN
        with rt.cancel_scope(deadline_ns=at_ns if at_ns - rt.now() < HANG_NS else None):
            outcome = await self._inner(rt, work)
        return outcome

    async def gone(self, rt: Runtime, work: Work, /) -> None:
        """The worker is free."""


class LearnerCompile:
    """Compilation on the learner's chips; that of replicas is left to whoever performs it.

    Args:
        learner: performs it on the learner's chips.
        replicas: on those of replicas, if they compile.

    """

    def __init__(self, learner: Any, replicas: Any) -> None:
        self.learner = learner
        self.replicas = replicas

    async def __call__(self, rt: Runtime, work: Compile, /) -> Outcome:
        """Compile."""
        outcome: Outcome = await (self.learner if work.entity < 0 else self.replicas)(rt, work)
        return outcome

    async def gone(self, rt: Runtime, work: Work, /) -> None:
        """The worker is free."""


def learner_compile(compile_s: float, replicas: Any) -> LearnerCompile:
    """Performs `Compile` where the learner compiles for so many seconds."""
    duration_ns = ns_from_s(compile_s)
    return LearnerCompile(Timed(lambda work: (duration_ns, Outcome())), replicas)


class SimulatedProvision:
    """How long replacements take."""

    def __init__(self, law: Law, uniforms: Uniforms) -> None:
        self._sample = sampler(law)
        self._uniforms = uniforms

    def provision(self, work: Provision) -> tuple[int, Outcome]:
        """From the order until the chips are there."""
        u = float(self._uniforms.draw(1, "provision", work.entity, work.loss)[0])
        return duration_ns(self._sample, u), Outcome()


def preemption_performers(law: Preemption, replicas: int, seed: int, world: Performers) -> Performers:
    """What a world in which slices are lost does differently: performers that replace or join those of `world`."""
    uniforms = Uniforms(seed)
    calendars: dict[int, Calendar] = {}
    changed: dict[type[Work], Any] = {Provision: Timed(SimulatedProvision(law.provision, uniforms).provision)}
    if law.replicas is not None:
        calendars |= {1 + replica: Calendar(law.replicas, uniforms, 1 + replica) for replica in range(replicas)}
    if law.learner is not None:
        calendar = calendars[LEARNER] = Calendar(law.learner, uniforms, LEARNER)
        for kind in (TrainStep, LogProbs, Checkpoint, Restore):
            changed[kind] = Cut(world[kind], calendar)
        compiling = world.get(Compile)
        if isinstance(compiling, LearnerCompile):
            changed[Compile] = LearnerCompile(Cut(compiling.learner, calendar), compiling.replicas)
    changed[Watch] = SimulatedWatch(calendars)
    return changed
