"""The canonical event log: what happened, in an encoding that is the same everywhere.

One event is eight signed 64-bit integers in this order::

    time_ns, kind, entity, a, b, c, d, e

`kind` is an `EventKind`; what `a` to `e` hold for each kind stands below and nowhere else. The encoding is little-endian
`<8q`, 64 bytes an event, and the log's hash is BLAKE2b-128 rolled over blocks: h₀ = 16 zero bytes,
hᵢ = BLAKE2b-128(hᵢ₋₁ ‖ blockᵢ), a block being 1,024 events (the last one shorter). Two logs that differ are compared
block by block, then event by event, so that the first difference is named.

==================  =======================================================================================
kind                entity; a, b, c, d, e
==================  =======================================================================================
WORK_START          the work's entity; work kind, its three cost fields, 0
WORK_END            the work's entity; work kind, status, amount, server start (-1 none), completed ids (count)
GROUP_ADMIT         group; task, dispatch, target step, version published, episodes started
EPISODE_START       episode; group, member, attempt, version published, 0
EPISODE_END         episode; reason code, turns, tokens, oldest version, newest version
GROUP_RELEASE       group; members released, tokens, oldest version, version of the learner, 0
BUFFER_PUT          group; depth after it, 0, 0, 0, 0
DROP                group; reason code, tokens, lag in versions, depth after it, 0
CONSUME             group; step, lag, lag in flight, lag in queue, tokens
STEP                step; groups, samples, tokens, version after it, 0
SYNC_START          version; sync mode code, replicas, 0, 0, 0
SYNC_INSTALL        version; replica, requests held, 0, 0, 0
PUBLISHED           version; previous version, 0, 0, 0, 0
RETRY               episode; phase code, attempt, back-off in ns, 0, 0
CHECKPOINTED        version; 0 …
EVALUATED           version; episodes, lost, 0, 0, 0
PREEMPT             episode; replica, tokens of KV given up, requests that run on, 0, 0
CAPACITY_LOST       slice (0 the learner's, 1 + i that of replica i); ordinal of the loss, chips, 0, 0, 0
CAPACITY_BACK       slice; ordinal of the loss, ns since it, version that it came back with, 0, 0
OUTAGE              outage (its place in the world's table); 1 at its start and 0 at its end, host, ordinal, 0, 0
REFUSED             the work's entity; work kind, tool, attempt, calls waiting, calls being served
ROLLBACK            version that the learner went back to; version before, steps lost, groups that came with it, tasks issued
                    again, ordinal of the rollback
PHASE               step; 1 where shared chips now train and 0 where they generate, requests held meanwhile, 0, 0, 0
ARRIVAL             ordinal of a task that comes from outside; tasks waiting after it, 1 if it was turned away, 0, 0, 0
USER                free
==================  =======================================================================================
"""

from __future__ import annotations

from enum import IntEnum
from hashlib import blake2b
from struct import Struct
from typing import Protocol

BLOCK_EVENTS = 1024
_EVENT = Struct("<8q")

Event = tuple[int, int, int, int, int, int, int, int]


class EventKind(IntEnum):
    """Kinds of events. Numbers never change; new kinds are appended."""

    WORK_START = 1
    WORK_END = 2
    GROUP_ADMIT = 3
    EPISODE_START = 4
    EPISODE_END = 5
    GROUP_RELEASE = 6
    BUFFER_PUT = 7
    DROP = 8
    CONSUME = 9
    STEP = 10
    SYNC_START = 11
    SYNC_INSTALL = 12
    PUBLISHED = 13
    RETRY = 14
    CHECKPOINTED = 15
    EVALUATED = 16
    PREEMPT = 17
    CAPACITY_LOST = 18
    CAPACITY_BACK = 19
    OUTAGE = 20
    REFUSED = 21
    ROLLBACK = 22
    PHASE = 23
    ARRIVAL = 24
    USER = 99


class Recorder(Protocol):
    """Takes what a run leaves behind. `append_event` and `append_interval` are `list.append` in the fast case."""

    @property
    def enabled(self) -> bool:
        """Whether anything is kept."""

    def append_event(self, event: Event, /) -> object:
        """Keep one event."""

    def append_interval(self, interval: tuple[int, int, int, int, int], /) -> object:
        """Keep one lane interval."""


class NullRecorder:
    """Keeps nothing."""

    enabled = False

    def append_event(self, event: Event, /) -> None:
        """Forget it."""

    def append_interval(self, interval: tuple[int, int, int, int, int], /) -> None:
        """Forget it."""


class MemoryRecorder:
    """Keeps everything in two lists."""

    enabled = True

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.intervals: list[tuple[int, int, int, int, int]] = []
        self.append_event = self.events.append
        self.append_interval = self.intervals.append


def encode(events: list[Event]) -> bytes:
    """The canonical bytes of some events."""
    pack = _EVENT.pack
    return b"".join([pack(*event) for event in events])


def block_hashes(events: list[Event]) -> list[bytes]:
    """The rolling hash after each block."""
    digest = bytes(16)
    hashes = []
    for start in range(0, len(events), BLOCK_EVENTS):
        digest = blake2b(digest + encode(events[start : start + BLOCK_EVENTS]), digest_size=16).digest()
        hashes.append(digest)
    return hashes


def log_hash(events: list[Event]) -> str:
    """Hash of a whole log, 32 hex digits."""
    hashes = block_hashes(events)
    return (hashes[-1] if hashes else bytes(16)).hex()


def first_difference(left: list[Event], right: list[Event]) -> int | None:
    """Index of the first event that differs (or is missing on one side); None when the logs are equal."""
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return None if len(left) == len(right) else min(len(left), len(right))


def describe(event: Event) -> str:
    """One event, for a person."""
    time_ns, kind, entity, *rest = event
    return f"{time_ns} ns {EventKind(kind).name} {entity} {tuple(rest)}"
