"""Lanes: units of capacity, each in exactly one state at every instant.

For any lane and window the times in its states add up to the window exactly: integer nanoseconds, no sampling. `to` is
the one verb; it costs a few additions when nothing is recorded and one appended tuple when something is.

Beside each lane's own clock, `Lanes` keeps for every role the running integral of how many of its lanes were in each
state. An interval in which somebody waited can be charged to what the others were doing in it ("blame") by subtracting
two snapshots of these integrals, without looking at any lane.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

from harness.core.errors import LawError, TraceError

if TYPE_CHECKING:
    from collections.abc import Callable


class State(IntEnum):
    """States of a lane. Numbers are part of the record's format: they never change, new ones are appended."""

    NO_WORK = 0
    GENERATE = 1
    TOOL_EXEC = 2
    REWARD = 3
    TRAIN = 4
    SYNC_SEND = 5
    SYNC_RECV = 6
    CHECKPOINT = 7
    EVAL = 8
    COMPILE = 9
    WAIT_TASK = 10
    GEN_QUEUE = 11
    TOOL_QUEUE = 12
    REWARD_QUEUE = 13
    WAIT_BATCH = 14
    BLOCKED_PUT = 15
    GATED = 16
    SYNC_PAUSE = 17
    SYNC_WAIT = 18
    HOST_LAG = 19
    BACKOFF = 20
    DOWN = 21
    UNTRACED = 22
    ENV_QUEUE = 23
    ENV_RESET = 24
    ENV_CLOSE = 25
    PREFILL = 26
    REPREFILL = 27
    LOG_PROBS = 28
    RESTORE = 29
    STALE_WAIT = 30
    SWITCH = 31  # chips change from one role to the other
    PROVISION = 32  # a replacement for lost chips is on its way
    TURN_WAIT = 33  # an episode waits for the others to end their turn


STATES = max(State) + 1


class IntervalSink(Protocol):
    """Where closed intervals go: (t0_ns, t1_ns, lane, state, entity)."""

    def __call__(self, interval: tuple[int, int, int, int, int], /) -> object:
        """Take one interval."""


LANE = 1 << 88
"""One lane in a role's books. Instants stay below 2^62 ns (146 years) and lanes below 2^25, so offsets never reach half."""


class RoleClock:
    """How many lanes of one role are in each state, integrated over time (lane-nanoseconds).

    The integral of a state's count up to t is count · t + offset, with offset the sum of the instants at which lanes left it
    minus those at which lanes entered it. Both are kept in one whole number, count · `LANE` + offset, so that a transition is
    one addition on either side: + (`LANE` - now) where a lane enters, - (`LANE` - now) where it leaves.
    """

    __slots__ = ("books", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.books = [0] * STATES

    def count(self, state: State) -> int:
        """Lanes that are in a state now."""
        return (self.books[state] + LANE // 2) // LANE

    def snapshot(self, now_ns: int) -> list[int]:
        """Lane-nanoseconds by state up to `now_ns`."""
        return [count * now_ns + book - count * LANE for book in self.books for count in ((book + LANE // 2) // LANE,)]


class Lane:
    """One unit of capacity.

    Attributes:
        index: its number in the run.
        name: unique within the run, `replica/0`.
        role: `rollout`, `inference`, `learner`, `tool`, …
        chips: how many chips stand still when it does; 0 for lanes that hold none.
        state: the state it is in now.
        entity: what it is busy with, -1 for nothing.
        totals: nanoseconds by state of closed intervals.

    """

    __slots__ = (
        "_books",
        "_now",
        "_sink",
        "chips",
        "entity",
        "index",
        "joined_ns",
        "left_ns",
        "name",
        "role",
        "since_ns",
        "state",
        "totals",
    )

    def __init__(
        self, index: int, name: str, role: RoleClock, chips: int, now: Callable[[], int], sink: IntervalSink | None
    ) -> None:
        self.index = index
        self.name = name
        self.role = role.name
        self.chips = chips
        self.state = State.NO_WORK
        self.entity = -1
        self.totals = [0] * STATES
        self._now = now
        self._books = role.books
        self._sink = sink
        self.joined_ns = self.since_ns = now()
        self.left_ns = -1
        role.books[0] += LANE - self.joined_ns

    def to(self, state: State, entity: int = -1) -> None:
        """Leave the present state now and enter `state`, working on `entity`."""
        now = self._now()
        old = self.state
        since = self.since_ns
        self.totals[old] += now - since
        if self._sink is not None and now != since:
            self._sink((since, now, self.index, old, self.entity))
        self.since_ns = now
        self.entity = entity
        self.state = state
        books = self._books
        entry = LANE - now
        books[old] -= entry
        books[state] += entry

    def now(self) -> int:
        """The time of the clock that it runs on."""
        return self._now()

    def spent_ns(self, now_ns: int) -> list[int]:
        """Nanoseconds by state up to now, the open interval included."""
        spent = list(self.totals)
        if self.left_ns < 0:
            spent[self.state] += now_ns - self.since_ns
        return spent

    def close(self, at_ns: int | None = None) -> None:
        """The lane leaves the run, now or at this instant; its last interval is written."""
        if self.left_ns >= 0:
            return
        if at_ns is None:
            at_ns = self._now()
        now, self._now = self._now, lambda: at_ns  # on a real clock time has moved on since somebody looked
        self.to(State.NO_WORK)
        self._now = now
        self._books[0] -= LANE - at_ns
        self.left_ns = at_ns


class SharedLane(Lane):
    """A lane of a role that shares its chips with another: while it holds them, the chips' own lanes show what it does.

    Attributes:
        shown_on: lanes of the chips.
        holds: whether its role has them.

    """

    __slots__ = ("holds", "shown_on")

    shown_on: tuple[Lane, ...]
    holds: bool

    def to(self, state: State, entity: int = -1) -> None:
        """Enter `state`, and the chips with it."""
        super().to(state, entity)
        if self.holds:
            for chips in self.shown_on:
                chips.to(state, entity)

    def hold_chips(self, *, held: bool) -> None:
        """Its role comes to have the chips, which show its state from now on, or has them no more."""
        self.holds = held
        if held:
            for chips in self.shown_on:
                chips.to(self.state, self.entity)

    def close(self, at_ns: int | None = None) -> None:
        """The lane leaves the run; those of the chips are closed for themselves."""
        self.holds = False
        super().close(at_ns)


class Lanes:
    """All lanes of a run."""

    def __init__(self, now: Callable[[], int], sink: IntervalSink | None = None) -> None:
        self._now = now
        self._sink = sink
        self._names: set[str] = set()
        self._vacant: dict[str, Lane] = {}
        self.lanes: list[Lane] = []
        self.roles: dict[str, RoleClock] = {}

    def add(self, name: str, role: str, chips: int = 0) -> Lane:
        """A new lane, in state `NO_WORK` from now on; or the vacant one of this name, in the state that it is in."""
        if self._vacant and (vacant := self._vacant.pop(name, None)) is not None:
            return vacant
        if name in self._names:
            raise LawError(f"two lanes are called {name!r}")
        self._names.add(name)
        clock = self.roles.get(role)
        if clock is None:
            clock = self.roles[role] = RoleClock(role)
        lane = Lane(len(self.lanes), name, clock, chips, self._now, self._sink)
        self.lanes.append(lane)
        return lane

    def add_shared(self, name: str, role: str, shown_on: tuple[Lane, ...], *, holds: bool) -> SharedLane:
        """A new lane of a role that shares chips with another, without chips of its own.

        Args:
            name: unique within the run.
            role: of the lane.
            shown_on: lanes of the chips, made with `add`.
            holds: whether this role has the chips at the beginning.

        """
        if name in self._names:
            raise LawError(f"two lanes are called {name!r}")
        self._names.add(name)
        lane = SharedLane(len(self.lanes), name, self.role(role), 0, self._now, self._sink)
        lane.shown_on, lane.holds = shown_on, holds
        self.lanes.append(lane)
        return lane

    def role(self, role: str) -> RoleClock:
        """The occupancy clock of a role; one that has no lane yet is all zeros."""
        clock = self.roles.get(role)
        if clock is None:
            clock = self.roles[role] = RoleClock(role)
        return clock

    def vacate(self) -> None:
        """Every actor is gone. Those that come after them take the lanes up again, by name; until then they have no work.

        Lanes that hold chips keep their state: whoever answers for the chips knows what they do.
        """
        for lane in self.lanes:
            if not lane.chips and lane.state is not State.NO_WORK:
                lane.to(State.NO_WORK)
            self._vacant[lane.name] = lane

    def close(self, at_ns: int | None = None) -> None:
        """End every lane at one instant: now, or this one."""
        if at_ns is None:
            at_ns = self._now()
        for lane in self.lanes:
            lane.close(at_ns)


def check_lanes(lanes: Lanes, start_ns: int, end_ns: int) -> None:
    """The same law for a run that was not recorded: a lane's totals are its presence, a role's integrals its lanes' totals.

    Args:
        lanes: of the run.
        start_ns: when the run began; no lane joined before.
        end_ns: now.

    Raises:
        TraceError: with the names of the lanes, or the role.

    """
    for lane in lanes.lanes:
        totals = lane.spent_ns(end_ns)
        presence = (lane.left_ns if lane.left_ns >= 0 else end_ns) - lane.joined_ns
        if lane.joined_ns < start_ns or lane.since_ns > end_ns or min(totals) < 0 or sum(totals) != presence:
            raise TraceError("a lane's times add up to its presence", (lane.name,), f"{sum(totals)} ns in {presence} ns")
    for name, clock in lanes.roles.items():
        own = [lane.spent_ns(end_ns) for lane in lanes.lanes if lane.role == name]
        sums = [sum(column) for column in zip(*own, strict=True)] if own else [0] * STATES
        integrals = clock.snapshot(end_ns)
        for state in State:
            if sums[state] != integrals[state]:
                raise TraceError(
                    "a role's occupancy is that of its lanes",
                    (name, state.name),
                    f"{integrals[state]} lane-ns, its lanes have {sums[state]}",
                )
