"""The recorder: what a run leaves behind, as cheaply as pure Python can keep it.

Theory of operation
-------------------
Rows are appended *flat* to two lists with `list.extend`, and packed into bytes block by block. Keeping each row as a tuple
would cost more than all the rest: the garbage collector looks at every living tuple (measured per event, collector
included: 0.4 µs for `list.append` of tuples, 1.0 µs for `array.extend`, 0.1 µs for a flat list and 0.1 µs for packing it
later). A packed event takes 64 bytes, a packed interval 40.

A block of events is the block of the canonical log (`harness.core.events`), so that the rolling hash eats whole blocks.
Intervals are packed when an event finds that there are enough of them: `append_interval` itself is the bare C method.
"""

from __future__ import annotations

import sys
from hashlib import blake2b
from struct import Struct, error
from typing import TYPE_CHECKING

import numpy as np

from harness.core.errors import LawError
from harness.core.events import BLOCK_EVENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from harness.core.events import Event

EVENT_FIELDS = 8
INTERVAL_FIELDS = 5
BLOCK_INTERVALS = 4096
"""Intervals in a packed block. Larger blocks hold more unpacked integers in memory, smaller ones pack more often."""


class TraceRecorder:
    """Keeps every event and interval of a run, in memory.

    Attributes:
        append_event: keep one event.
        append_interval: keep one lane interval.

    """

    enabled = True

    def __init__(self) -> None:
        self._event_blocks: list[bytes] = []
        self._interval_blocks: list[bytes] = []
        self._events: list[int] = []
        self._intervals: list[int] = []
        self._digest = bytes(16)
        self._hashed = 0
        self.append_interval: Callable[[tuple[int, int, int, int, int]], None] = self._intervals.extend
        self.append_event = self._make_append()

    def _make_append(self) -> Callable[[Event], None]:
        events, event_blocks, intervals = self._events, self._event_blocks, self._intervals
        extend = events.extend
        full, many = BLOCK_EVENTS * EVENT_FIELDS, BLOCK_INTERVALS * INTERVAL_FIELDS
        pack = Struct(f"<{full}q").pack
        spill = self._spill_intervals

        def append_event(event: Event) -> None:
            extend(event)
            if len(events) >= full:
                event_blocks.append(_packed(pack, events, EVENT_FIELDS))
                events.clear()
            if len(intervals) >= many:
                spill()

        return append_event

    def _spill_intervals(self) -> None:
        self._interval_blocks.append(_packed(Struct(f"<{len(self._intervals)}q").pack, self._intervals, INTERVAL_FIELDS))
        self._intervals.clear()

    def events(self) -> NDArray[np.int64]:
        """All events so far, one a row, in the field order of `harness.core.events`."""
        return _rows(self._event_blocks, self._events, EVENT_FIELDS)

    def intervals(self) -> NDArray[np.int64]:
        """All closed intervals so far: (t0_ns, t1_ns, lane, state, entity) rows in the order in which they closed."""
        return _rows(self._interval_blocks, self._intervals, INTERVAL_FIELDS)

    @property
    def event_count(self) -> int:
        """Events kept so far."""
        return len(self._event_blocks) * BLOCK_EVENTS + len(self._events) // EVENT_FIELDS

    def log_hash(self) -> str:
        """Hash of the log so far, 32 hex digits; blocks that were hashed before are not hashed again."""
        for block in self._event_blocks[self._hashed :]:
            self._digest = blake2b(self._digest + block, digest_size=16).digest()
        self._hashed = len(self._event_blocks)
        if not self._events:
            return self._digest.hex()
        tail = Struct(f"<{len(self._events)}q").pack(*self._events)
        return blake2b(self._digest + tail, digest_size=16).hexdigest()


def hash_of(events: NDArray[np.int64]) -> str:
    """Hash of a log that was read back: equal to `harness.core.events.log_hash` of the same events."""
    digest = bytes(16)
    for start in range(0, len(events), BLOCK_EVENTS):
        block = np.ascontiguousarray(events[start : start + BLOCK_EVENTS], dtype="<i8").tobytes()
        digest = blake2b(digest + block, digest_size=16).digest()
    return digest.hex()


def _packed(pack: Callable[..., bytes], flat: list[int], fields: int) -> bytes:
    """Pack a whole number of rows, or name the row that is none."""
    try:
        if len(flat) % fields == 0:
            return pack(*flat)
    except error:
        pass
    row = next((flat[i : i + fields] for i in range(0, len(flat), fields) if not _fits(flat[i : i + fields], fields)), flat[:0])
    raise LawError(f"a recorded row must be {fields} signed 64-bit integers; the first of this block that is not: {row!r}")


def _fits(row: list[int], fields: int) -> bool:
    return len(row) == fields and all(isinstance(value, int) and -(1 << 63) <= value < 1 << 63 for value in row)


def _rows(blocks: Iterable[bytes], rest: list[int], fields: int) -> NDArray[np.int64]:
    tail = _packed(Struct(f"<{len(rest)}q").pack, rest, fields)
    flat = np.frombuffer(b"".join([*blocks, tail]), dtype="<i8")
    return flat.astype(np.int64, copy=sys.byteorder != "little").reshape(-1, fields)
