"""Outages on absolute time: when what many episodes depend on is down, and what that does to their calls.

Theory of operation
-------------------
A calendar alternates between up and down. Its k-th times are drawn from (seed, outage, host, k) and lie on absolute time, so
they belong to nothing that a pipeline decides: any two configurations of one seed meet the same outages. It is drawn as far as
somebody asks.

**Start.** Unless the outage says otherwise it has come and gone for `CYCLES_BEFORE` mean cycles and a uniform part of one when
the run begins. The share of the time that is down then has the known mean

    down share = 1 - 1 / (1 + E[down] / E[up])

from the first instant on (exactly for constant times, whose phase is uniform; to many digits for others, as an alternating
renewal process forgets how it began), so that the outage time of a run can serve as a control variate.
Source: Cox, "Renewal Theory", 1962, chapter 7.

**Calls.** What an outage does to a call is known when the call begins, as its own duration and all outages are: no task has to
be woken. Of an outage that begins in it a call feels `in_flight`, of one that it begins in `new_calls`. A call that ends at the
instant an outage begins has ended well.
"""

from __future__ import annotations

from bisect import bisect_right
from heapq import heapify, heapreplace
from typing import TYPE_CHECKING, Any

from harness.core.events import EventKind
from harness.core.units import NS_PER_S
from harness.core.work import WorkKind
from harness.costs.draws import HANG_NS, Uniforms
from harness.costs.laws import Constant, sampler
from harness.scenario.environments import ALL_TOOLS, SCORING, STARTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.core.runtime import Runtime
    from harness.scenario.environments import Outage
    from harness.scenario.schema import Scenario

CYCLES_BEFORE = 16
"""Mean cycles that a calendar runs before the run begins. An exponential one has forgotten its beginning after one."""

_TOOL_CALL = WorkKind.TOOL_CALL  # a name looked up on an enum costs five times a global on Python 3.11

_LATEST_NS = 1 << 61
"""Times are cut here, 73 years: beyond any run, and within what an event can hold."""

SURVIVES, FAILS, HANGS = 0, 1, 2
"""What comes of a call: it ends as it would have, later perhaps; it fails; it never returns."""


class Track:
    """The outages of one host, as intervals [start, end) in nanoseconds, in order. Those before the run are left out."""

    def __init__(self, outage: Outage, host: int, seed: int) -> None:
        self._up, self._down = sampler(outage.up), sampler(outage.down)
        self._purpose = f"outage {outage.name}"
        self._uniforms = Uniforms(seed)
        self._host = host
        self._ordinal = 0
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.calm_from = self.calm_until = 0  # a stretch without an outage, the last one that was asked for
        self._until = 0
        if not outage.begins_up:
            phase = float(self._uniforms.draw(1, f"{self._purpose} phase", host)[0])
            cycle_s = outage.up.expected_s() + outage.down.expected_s()
            self._until = -_ns((CYCLES_BEFORE + phase) * cycle_s)

    def reach(self, at_ns: int) -> None:
        """Draw on until the calendar is known up to an instant, inclusive."""
        while self._until <= at_ns:
            u = self._uniforms.draw(2, self._purpose, self._host, self._ordinal)
            self._ordinal += 1
            start = self._until + _ns(self._up(float(u[0])))
            self._until = end = start + _ns(self._down(float(u[1])))
            if end > 0 and end > start:
                self.starts.append(max(start, 0))
                self.ends.append(end)

    def first_ending_after(self, at_ns: int) -> int:
        """Number of the first outage that ends after an instant. It may have begun before."""
        self.reach(at_ns)
        return bisect_right(self.ends, at_ns)

    def next(self, number: int, before_ns: int) -> tuple[int, int] | None:
        """Start and end of an outage, if it starts before an instant."""
        while number >= len(self.starts) and self._until < before_ns:
            self.reach(self._until)
        if number >= len(self.starts) or self.starts[number] >= before_ns:
            return None
        return self.starts[number], self.ends[number]

    def calm(self, t0: int, t1: int) -> bool:
        """Whether no outage touches [t0, t1)."""
        if self.calm_from <= t0 and t1 <= self.calm_until:
            return True
        number = self.first_ending_after(t0)
        found = self.next(number, t1)
        self.calm_from = self.ends[number - 1] if number else 0
        if number < len(self.starts):
            self.calm_until = self.starts[number]
        else:
            self.calm_until = max(self._until, self.calm_from)
        return found is None

    def down_ns(self, t0: int, t1: int) -> int:
        """Nanoseconds within [t0, t1) that are down."""
        number, total = self.first_ending_after(t0), 0
        while (found := self.next(number, t1)) is not None:
            total += min(found[1], t1) - max(found[0], t0)
            number += 1
        return total


class Calendar:
    """All outages of one entry of the world's table.

    Args:
        outage: the entry.
        seed: of the replication.

    Attributes:
        tracks: one for each host.

    """

    def __init__(self, outage: Outage, seed: int) -> None:
        self.outage = outage
        self._uniforms = Uniforms(seed)
        self.tracks = [Track(outage, host, seed) for host in range(outage.hosts)]
        self._everybody = outage.share == 1 and outage.hosts == 1
        self._fail = sampler(outage.fail_after)
        self._fail_draws = not isinstance(outage.fail_after, Constant)

    @property
    def down_share_expected(self) -> float:
        """Mean share of any window in which a host is down, in closed form: 1 - 1 / (1 + E[down] / E[up])."""
        return self.outage.down_share

    def down_ns(self, t0: int, t1: int) -> int:
        """Nanoseconds within [t0, t1) that a host was down, on average over the hosts."""
        return sum(track.down_ns(t0, t1) for track in self.tracks) // len(self.tracks)

    def intervals(self, t0: int, t1: int) -> list[tuple[int, int, int, int]]:
        """(start, end, host, number) of every outage that touches [t0, t1), in order."""
        found = []
        for host, track in enumerate(self.tracks):
            number = track.first_ending_after(t0)
            while (outage := track.next(number, t1)) is not None:
                found.append((*outage, host, number))
                number += 1
        return sorted(found)

    def host_of(self, task: int, dispatch: int, member: int) -> int:
        """The host that an episode depends on; -1 for none."""
        if self._everybody:
            return 0
        outage = self.outage
        u = float(self._uniforms.draw(1, f"host {outage.name}", task, dispatch, member)[0])
        return int(u / outage.share * outage.hosts) if u < outage.share else -1

    def meet(self, host: int, at_ns: int, ns: int, key: tuple[int, ...]) -> tuple[int, int, int]:
        """What becomes of a call.

        Args:
            host: that it depends on.
            at_ns: when it begins.
            ns: how long it would take.
            key: what its draws belong to, beside the seed: kind, task, dispatch, member, turn, attempt.

        Returns:
            Its duration, what comes of it (`SURVIVES`, `FAILS`, `HANGS`), and the instant of the outage that decided that.

        """
        outage, track = self.outage, self.tracks[host]
        number, at, left = track.first_ending_after(at_ns), at_ns, ns
        while (found := track.next(number, at + left)) is not None:
            number += 1
            start, end = found
            effect = outage.new_calls if start <= at_ns else outage.in_flight
            if start > at:
                left -= start - at
                at = start
            if effect == "fail":
                return at + self._failing_ns(key) - at_ns, FAILS, at
            if effect == "hang":
                return HANG_NS, HANGS, at
            if effect == "finish" or ns >= HANG_NS:
                break
            assert outage.slow_factor is not None
            slowed = round(left * outage.slow_factor)
            if at + slowed <= end:
                return at + slowed - at_ns, SURVIVES, at
            left -= round((end - at) / outage.slow_factor)
            at = end
        return min(at + left - at_ns, HANG_NS), SURVIVES, at

    def _failing_ns(self, key: tuple[int, ...]) -> int:
        u = float(self._uniforms.draw(1, f"outage fails {self.outage.name}", *key)[0]) if self._fail_draws else 0.5
        return min(_ns(self._fail(u)), HANG_NS)


class Outages:
    """The world's outages: which calls depend on which, and their record.

    Args:
        outages: the world's table.
        tools: names of the workload's tools, in its order.
        seed: of the replication.

    """

    def __init__(self, outages: Sequence[Outage], tools: Sequence[str], seed: int) -> None:
        self.calendars = tuple(Calendar(outage, seed) for outage in outages)
        self._tracks = [calendar.tracks for calendar in self.calendars]
        self._starts = self._taking(STARTS)
        self._scoring = self._taking(SCORING)
        self._tools = [self._taking(ALL_TOOLS, name) for name in tools]
        self._watched = False

    @classmethod
    def of(cls, scenario: Scenario[Any], seed: int) -> Outages:
        """Those of a scenario."""
        return cls(scenario.world.outages, [tool.name for tool in scenario.workload.tools], seed)

    def _taking(self, *what: str) -> tuple[int, ...]:
        return tuple(i for i, calendar in enumerate(self.calendars) if not set(what).isdisjoint(calendar.outage.takes))

    def touches(self, kind: WorkKind) -> bool:
        """Whether any call of a kind depends on something that can be down."""
        if kind is WorkKind.TOOL_CALL:
            return any(self._tools)
        return bool(self._starts if kind is WorkKind.ENV_RESET else self._scoring)

    def homes(self, task: int, dispatch: int, member: int) -> tuple[int, ...]:
        """The host that an episode depends on, of each outage; -1 for none."""
        return tuple(calendar.host_of(task, dispatch, member) for calendar in self.calendars)

    def calm(self, kind: WorkKind, tool: int, homes: tuple[int, ...], t0: int, t1: int) -> bool:
        """Whether a call that takes [t0, t1) meets no outage: the common case, and quickly said."""
        for i in self._concerned(kind, tool):
            host = homes[i]
            if host >= 0:
                track = self._tracks[i][host]
                if not (track.calm_from <= t0 and t1 <= track.calm_until) and not track.calm(t0, t1):
                    return False
        return True

    def _concerned(self, kind: WorkKind, tool: int) -> tuple[int, ...]:
        if kind is _TOOL_CALL:
            return self._tools[tool]
        return self._starts if kind is WorkKind.ENV_RESET else self._scoring

    def meet(
        self, kind: WorkKind, tool: int, homes: tuple[int, ...], at_ns: int, ns: int, key: tuple[int, ...]
    ) -> tuple[int, int]:
        """Duration and fate of a call that begins now and would take `ns`. The first outage that ends it decides."""
        fate, decided = SURVIVES, 0
        found_ns = 0
        for i in self._concerned(kind, tool):
            if homes[i] < 0:
                continue
            met_ns, met, when = self.calendars[i].meet(homes[i], at_ns, ns, (int(kind), *key))
            if met == SURVIVES:
                ns = met_ns
            elif fate == SURVIVES or when < decided:
                found_ns, fate, decided = met_ns, met, when
        return (ns, SURVIVES) if fate == SURVIVES else (found_ns, fate)

    def watch(self, rt: Runtime) -> None:
        """See to it that outages are in the log, from now to the end of the run. Costs nothing where nothing is recorded."""
        if not self._watched:
            self._watched = True
            if rt.recording and self.calendars:
                rt.background(self._write_down, rt, name="outages")

    async def _write_down(self, rt: Runtime) -> None:
        """Emit the edges in order: ends before starts, then by outage and host."""
        log = _Log(self.calendars, rt.now())
        while True:
            at, begins, outage, host, number = log.take()
            if at >= _LATEST_NS // 4:
                return
            await rt.sleep(at - rt.now())
            rt.emit(EventKind.OUTAGE, outage, begins, host, number)


class _Log:
    """Edges of several tracks in order of time."""

    def __init__(self, calendars: Sequence[Calendar], now_ns: int) -> None:
        self._tracks = {(i, host): track for i, calendar in enumerate(calendars) for host, track in enumerate(calendar.tracks)}
        self._heap = [
            self._start(i, host, track.first_ending_after(now_ns), now_ns) for (i, host), track in self._tracks.items()
        ]
        heapify(self._heap)

    def _start(self, outage: int, host: int, number: int, not_before_ns: int = 0) -> tuple[int, int, int, int, int]:
        found = self._tracks[outage, host].next(number, _LATEST_NS)
        return (max(found[0], not_before_ns) if found else _LATEST_NS, 1, outage, host, number)

    def take(self) -> tuple[int, int, int, int, int]:
        """The next edge: instant, whether it is a start, outage, host, number."""
        edge = self._heap[0]
        _, begins, outage, host, number = edge
        track = self._tracks[outage, host]
        heapreplace(
            self._heap, (track.ends[number], 0, outage, host, number) if begins else self._start(outage, host, number + 1)
        )
        return edge


def _ns(seconds: float) -> int:
    return min(round(seconds * NS_PER_S), _LATEST_NS)
