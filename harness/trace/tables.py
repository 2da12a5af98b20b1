"""The tables of a run record, with declared types. Live and simulated runs have the same.

A *record* is six tables and a manifest. `events` and the first five columns of `intervals` are what was recorded; `lanes` says
what the lane numbers mean. All else is derived from them (`harness.trace.derive`), so that keeping it costs a run nothing:
`cause`, `flags` and `fate` of an interval, `samples`, which follows each episode from its start to its use, `links` between
lanes, and `counters`. Instants are nanoseconds since the run began.

The version is `major.minor`: a minor step adds columns or tables, a major step changes the meaning of existing ones. A record
of an older minor version is read as if it were of this one: what it lacks is derived from what it has.

=======  ==================================================================================================
version  what it has
=======  ==================================================================================================
1.0      `events`, `intervals` (what was recorded), `lanes` (to `left_ns`), `samples` (to `drop_reason`)
1.1      `links`, `counters`; causes, flags and fates of intervals; pool, process, host, capacity and chip
         lane of lanes; task, put, wait for the slowest member, used version and fate of samples; books of
         episodes and tokens in the manifest
=======  ==================================================================================================
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import TYPE_CHECKING

import polars as pl

from harness.core.lanes import State

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    from numpy.typing import NDArray

    from harness.core.lanes import Lane

SCHEMA_VERSION = "1.1"

EVENTS = pl.Schema(
    {
        "time_ns": pl.Int64,
        "kind": pl.UInt8,
        "entity": pl.Int64,
        "a": pl.Int64,
        "b": pl.Int64,
        "c": pl.Int64,
        "d": pl.Int64,
        "e": pl.Int64,
    }
)
"""The canonical log, row by row (`harness.core.events`)."""

RECORDED_INTERVALS = pl.Schema({"t0_ns": pl.Int64, "t1_ns": pl.Int64, "lane": pl.UInt32, "state": pl.UInt8, "entity": pl.Int64})
"""What each lane did, from and to; `entity` is -1 for nothing."""

INTERVALS = pl.Schema([*RECORDED_INTERVALS.items(), ("cause", pl.UInt8()), ("flags", pl.UInt16()), ("fate", pl.Int8())])
"""With what was waited for (`Cause`), what went wrong (`Flag`), and what became of the episode (`Fate`; -1: open, or none)."""

JOINED_LANES = pl.Schema(
    {
        "lane": pl.UInt32,
        "name": pl.String,
        "role": pl.String,
        "chips": pl.UInt32,
        "joined_ns": pl.Int64,
        "left_ns": pl.Int64,
    }
)
"""`left_ns` is -1 for a lane that was still there when the record was taken."""

LANES = pl.Schema(
    [
        *JOINED_LANES.items(),
        ("pool", pl.String()),
        ("process", pl.UInt16()),
        ("host", pl.String()),
        ("capacity", pl.UInt32()),
        ("chip_lane", pl.Int32()),
    ]
)
"""With the resource that a lane is one unit of, the process and the alias of the host that it ran on, how many things it can do
at once (the requests of a replica; 1 else), and the purchased unit whose chips it uses (-1: none; -2: all of them, in turn)."""

SAMPLES = pl.Schema(
    {
        "episode": pl.Int64,
        "group": pl.Int64,
        "member": pl.Int64,
        "attempts": pl.UInt32,
        "started_ns": pl.Int64,
        "born_version": pl.Int64,
        "ended_ns": pl.Int64,
        "reason": pl.Int64,
        "turns": pl.Int64,
        "tokens": pl.Int64,
        "oldest_version": pl.Int64,
        "newest_version": pl.Int64,
        "released_ns": pl.Int64,
        "used_ns": pl.Int64,
        "used_step": pl.Int64,
        "lag": pl.Int64,
        "lag_in_flight": pl.Int64,
        "lag_in_queue": pl.Int64,
        "dropped_ns": pl.Int64,
        "drop_reason": pl.Int64,
        "task": pl.Int64,
        "dispatch": pl.Int64,
        "waited_ns": pl.Int64,
        "put_ns": pl.Int64,
        "used_version": pl.Int64,
        "fate": pl.Int8,
    }
)
"""One row an episode, in the order of their first start. What has not happened is null; use and drop are those of its group.

`waited_ns`: from its end to the release of its group, which waits for the slowest member. `put_ns`: when the group came into
the buffer. `used_version`: of the learner's weights when it was used. `fate`: `harness.core.accounts.Fate`, null while open.
"""

LINKS = pl.Schema(
    {"src_lane": pl.UInt32, "src_ns": pl.Int64, "dst_lane": pl.UInt32, "dst_ns": pl.Int64, "kind": pl.UInt8, "key": pl.Int64}
)
"""What went from one lane to another (`Link`), and when it left and arrived. What had not arrived at the end is not here."""

COUNTERS = pl.Schema({"t_ns": pl.Int64, "counter": pl.UInt16, "lane": pl.Int64, "value": pl.Float64})
"""Values that changed (`Counter`), the last one in each of `COUNTER_POINTS` equal spans of the run; `lane` is -1 where it is of
none. Each counter is 0 before its first row and keeps a row's value until the next one."""

COUNTER_POINTS = 4096

SCHEMAS = {
    "events": EVENTS, "intervals": INTERVALS, "lanes": LANES, "samples": SAMPLES, "links": LINKS, "counters": COUNTERS,
}  # fmt: skip


class Cause(IntEnum):
    """What a lane waited for. Numbers never change; new ones are appended."""

    NONE = 0  # it worked, or nobody can tell
    ENGINE = 1  # a slot, or KV room, of a replica
    TOOLS = 2  # a tool worker
    ENVIRONMENTS = 3  # a sandbox
    SCORING = 4  # a scoring worker
    BUFFER_EMPTY = 5
    BUFFER_FULL = 6
    ADMISSION = 7  # the gate: credit or cap
    STALENESS = 8  # a version that a stale group needs used up first
    WEIGHT_SYNC = 9
    ROLLOUTS = 10  # a request
    RETRY = 11  # the end of a back-off
    HOST = 12  # the event loop
    CHIPS = 13  # the other user of its chips, or a machine that comes
    TURNS = 14  # the end of the slowest episode's turn


CAUSE_OF: dict[State, Cause] = {
    State.GEN_QUEUE: Cause.ENGINE,
    State.TOOL_QUEUE: Cause.TOOLS,
    State.ENV_QUEUE: Cause.ENVIRONMENTS,
    State.REWARD_QUEUE: Cause.SCORING,
    State.WAIT_BATCH: Cause.BUFFER_EMPTY,
    State.BLOCKED_PUT: Cause.BUFFER_FULL,
    State.GATED: Cause.ADMISSION,
    State.STALE_WAIT: Cause.STALENESS,
    State.SYNC_PAUSE: Cause.WEIGHT_SYNC,
    State.SYNC_WAIT: Cause.WEIGHT_SYNC,
    State.WAIT_TASK: Cause.ROLLOUTS,
    State.BACKOFF: Cause.RETRY,
    State.HOST_LAG: Cause.HOST,
    State.DOWN: Cause.CHIPS,
    State.TURN_WAIT: Cause.TURNS,
}


class Flag(IntFlag):
    """What is special about an interval. Bits never change; new ones are appended."""

    FAILED = 1  # its work failed in itself
    INFRA = 2  # what it ran on failed
    TIME_LIMIT = 4  # it ended at a limit of its own
    CANCELLED = 8  # its caller was cancelled: a deadline, a surplus
    CUT = 16  # it was still open when the record was taken
    WARM_UP = 32  # it began before the reported window


class Link(IntEnum):
    """What went from lane to lane. Numbers never change; new ones are appended."""

    GROUP_USED = 1  # key: the group. From the put into the buffer, on the slot that brought it, to its use by the learner
    VERSION_INSTALLED = 2  # key: the version. From the order on the learner's lane to a replica that serves with it
    MEMBER_AWAITED = 3  # key: the episode. From its end to the end of its group's slowest member, on whose slot it is released


class Counter(IntEnum):
    """What is counted. Numbers never change; new ones are appended."""

    BUFFER_GROUPS = 1  # groups in the buffer
    GROUPS_OPEN = 2  # groups admitted and neither consumed nor dropped
    EPISODES_RUNNING = 3  # evaluation included
    REQUESTS_RUNNING = 4  # slots whose request is being served
    REQUESTS_QUEUED = 5
    TOOLS_BUSY = 6
    TOOLS_QUEUED = 7
    ENVIRONMENTS_QUEUED = 8
    SCORING_BUSY = 9
    SCORING_QUEUED = 10
    SLOTS_BUSY = 11  # slots that have an episode
    BATCH = 12  # of a replica: requests in its last chunk
    KV_TOKENS = 13  # of a replica: context held when its last chunk began
    LEARNER_VERSION = 14
    PUBLISHED_VERSION = 15
    KV_SHARE = 16  # of a replica: KV_TOKENS over its capacity, where the manifest says it


def _from_rows(rows: NDArray[np.int64], schema: pl.Schema) -> pl.DataFrame:
    columns = {name: pl.Series(name, rows[:, i]) for i, name in enumerate(schema)}
    return pl.DataFrame(columns).cast(dict(schema))  # type: ignore[arg-type]  # a schema is a mapping of types


def events_table(rows: NDArray[np.int64]) -> pl.DataFrame:
    """The log as a table."""
    return _from_rows(rows, EVENTS)


def intervals_table(rows: NDArray[np.int64]) -> pl.DataFrame:
    """The intervals as they were recorded."""
    return _from_rows(rows, RECORDED_INTERVALS)


def rows_of(table: pl.DataFrame) -> NDArray[np.int64]:
    """A table of integers as rows again."""
    return table.select(pl.all().cast(pl.Int64)).to_numpy(order="c")


def lanes_table(lanes: Iterable[Lane]) -> pl.DataFrame:
    """What each lane is, as it knows itself."""
    rows = [(lane.index, lane.name, lane.role, lane.chips, lane.joined_ns, lane.left_ns) for lane in lanes]
    return pl.DataFrame(rows, schema=JOINED_LANES, orient="row")
