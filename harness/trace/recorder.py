"""The recorder: what a run leaves behind, as cheaply as pure Python can keep it.

Theory of operation
-------------------
Rows are appended *flat* to two lists: `append_event` and `append_interval` are the bare `list.extend`. Keeping each row as a
tuple would cost more than all the rest, because the garbage collector looks at every living tuple; a Python function round
the append would cost as much again (measured on the coding agent scenario, beyond a recorder that forgets: tuples 14 %, a
function that packs on the way 5 %, flat lists at most 2 %).

An unpacked event takes about 150 bytes and an interval 100. `spill` packs them to 64 and 40; whoever runs something long
calls it now and then, say after every learner step. A packed block of events is the block of the canonical log
(`harness.core.events`), so that the rolling hash eats whole blocks.
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
    from collections.abc import Callable

    from numpy.typing import NDArray

    from harness.core.events import Event

EVENT_FIELDS = 8
INTERVAL_FIELDS = 5


class TraceRecorder:
    """Keeps every event and interval of a run, in memory.

    Attributes:
        append_event: keep one event.
        append_interval: keep one lane interval.

    """

    enabled = True

    def __init__(self) -> None:
        self._events = _Rows(EVENT_FIELDS)
        self._intervals = _Rows(INTERVAL_FIELDS)
        self._digest = bytes(16)
        self._hashed = 0
        self.append_event: Callable[[Event], None] = self._events.flat.extend
        self.append_interval: Callable[[tuple[int, int, int, int, int]], None] = self._intervals.flat.extend

    def spill(self) -> None:
        """Pack what has come since the last time.

        Raises:
            LawError: a row is not made of signed 64-bit integers, or has too many or too few of them.

        """
        self._events.spill()
        self._intervals.spill()

    def events(self) -> NDArray[np.int64]:
        """All events so far, one a row, in the field order of `harness.core.events`."""
        return self._events.array()

    def intervals(self) -> NDArray[np.int64]:
        """All closed intervals so far: (t0_ns, t1_ns, lane, state, entity) rows in the order in which they closed."""
        return self._intervals.array()

    @property
    def event_count(self) -> int:
        """Events kept so far."""
        return len(self._events)

    @property
    def interval_count(self) -> int:
        """Intervals kept so far."""
        return len(self._intervals)

    def log_hash(self) -> str:
        """Hash of the log so far, 32 hex digits; blocks that were hashed before are not hashed again."""
        self._events.spill()
        for block in self._events.blocks[self._hashed :]:
            self._digest = blake2b(self._digest + block, digest_size=16).digest()
        self._hashed = len(self._events.blocks)
        tail = self._events.tail()
        return blake2b(self._digest + tail, digest_size=16).hexdigest() if tail else self._digest.hex()


class _Rows:
    """Rows of integers: the newest flat in a list, the older ones packed in blocks of `BLOCK_EVENTS` rows."""

    __slots__ = ("_fields", "_pack", "blocks", "flat")

    def __init__(self, fields: int) -> None:
        self.flat: list[int] = []
        self.blocks: list[bytes] = []
        self._fields = fields
        self._pack = Struct(f"<{BLOCK_EVENTS * fields}q").pack

    def __len__(self) -> int:
        return len(self.blocks) * BLOCK_EVENTS + len(self.flat) // self._fields

    def spill(self) -> None:
        """Pack all whole blocks."""
        flat, size = self.flat, BLOCK_EVENTS * self._fields
        whole = len(flat) // size * size
        packed = [self._packed(self._pack, flat[i : i + size]) for i in range(0, whole, size)]
        self.blocks += packed
        del flat[:whole]

    def tail(self) -> bytes:
        """What does not fill a block."""
        if len(self.flat) % self._fields:
            raise LawError(f"recorded rows must have {self._fields} fields each, not {len(self.flat)} in {len(self)} rows")
        return self._packed(Struct(f"<{len(self.flat)}q").pack, self.flat)

    def array(self) -> NDArray[np.int64]:
        self.spill()
        flat = np.frombuffer(b"".join([*self.blocks, self.tail()]), dtype="<i8")
        return flat.astype(np.int64, copy=sys.byteorder != "little").reshape(-1, self._fields)

    def _packed(self, pack: Callable[..., bytes], flat: list[int]) -> bytes:
        try:
            return pack(*flat)
        except error:
            bad = next(i for i, value in enumerate(flat) if not fits(value))
            row = flat[bad - bad % self._fields :][: self._fields]
            raise LawError(f"recorded fields are signed 64-bit integers, not {flat[bad]!r}, in row {row!r}") from None


def fits(value: object) -> bool:
    """Whether it can be recorded: a signed 64-bit integer."""
    return isinstance(value, int) and -(1 << 63) <= value < 1 << 63


def hash_of(events: NDArray[np.int64]) -> str:
    """Hash of a log that was read back: equal to `harness.core.events.log_hash` of the same events."""
    digest = bytes(16)
    for start in range(0, len(events), BLOCK_EVENTS):
        block = np.ascontiguousarray(events[start : start + BLOCK_EVENTS], dtype="<i8").tobytes()
        digest = blake2b(digest + block, digest_size=16).digest()
    return digest.hex()
