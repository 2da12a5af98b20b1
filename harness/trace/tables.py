"""The tables of a run record, with declared types. Live and simulated runs have the same.

A *record* is five tables and a manifest. `events` and `intervals` are what was recorded; `lanes` says what the lane numbers
mean; `samples` follows each episode from start to use and is derived from `events`. Instants are nanoseconds since the run
began.

The version is `major.minor`: a minor step adds columns or tables, a major step changes the meaning of existing ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from harness.core.events import EventKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    from numpy.typing import NDArray

    from harness.core.lanes import Lane

SCHEMA_VERSION = "1.0"

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

INTERVALS = pl.Schema({"t0_ns": pl.Int64, "t1_ns": pl.Int64, "lane": pl.UInt32, "state": pl.UInt8, "entity": pl.Int64})
"""What each lane did, from and to; `entity` is -1 for nothing."""

LANES = pl.Schema(
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
    }
)
"""One row an episode, in the order of their first start. What has not happened is null. Use and drop are those of its group."""

SCHEMAS = {"events": EVENTS, "intervals": INTERVALS, "lanes": LANES, "samples": SAMPLES}


def _from_rows(rows: NDArray[np.int64], schema: pl.Schema) -> pl.DataFrame:
    columns = {name: pl.Series(name, rows[:, i]) for i, name in enumerate(schema)}
    return pl.DataFrame(columns).cast(dict(schema))  # type: ignore[arg-type]  # a schema is a mapping of types


def events_table(rows: NDArray[np.int64]) -> pl.DataFrame:
    """The log as a table."""
    return _from_rows(rows, EVENTS)


def intervals_table(rows: NDArray[np.int64]) -> pl.DataFrame:
    """The intervals as a table."""
    return _from_rows(rows, INTERVALS)


def rows_of(table: pl.DataFrame) -> NDArray[np.int64]:
    """A table of integers as rows again."""
    return table.select(pl.all().cast(pl.Int64)).to_numpy(order="c")


def lanes_table(lanes: Iterable[Lane]) -> pl.DataFrame:
    """What each lane is."""
    rows = [(lane.index, lane.name, lane.role, lane.chips, lane.joined_ns, lane.left_ns) for lane in lanes]
    return pl.DataFrame(rows, schema=LANES, orient="row")


def _of_kind(events: pl.DataFrame, kind: EventKind, **columns: str) -> pl.DataFrame:
    """First event of a kind for each entity, with its columns renamed: `new="old"`."""
    return (
        events.filter(pl.col("kind") == int(kind))
        .select(**{new: pl.col(old) for new, old in columns.items()})
        .unique(next(iter(columns)), keep="first", maintain_order=True)
    )


def samples_table(events: pl.DataFrame) -> pl.DataFrame:
    """Follow each episode through the log."""
    starts = (
        events.filter(pl.col("kind") == int(EventKind.EPISODE_START))
        .group_by("entity", maintain_order=True)
        .agg(
            group=pl.col("a").first(),
            member=pl.col("b").first(),
            attempts=pl.len(),
            started_ns=pl.col("time_ns").first(),
            born_version=pl.col("d").last(),
        )
        .rename({"entity": "episode"})
    )
    ends = _of_kind(
        events,
        EventKind.EPISODE_END,
        episode="entity",
        ended_ns="time_ns",
        reason="a",
        turns="b",
        tokens="c",
        oldest_version="d",
        newest_version="e",
    )
    released = _of_kind(events, EventKind.GROUP_RELEASE, group="entity", released_ns="time_ns")
    used = _of_kind(
        events,
        EventKind.CONSUME,
        group="entity",
        used_ns="time_ns",
        used_step="a",
        lag="b",
        lag_in_flight="c",
        lag_in_queue="d",
    )
    dropped = _of_kind(events, EventKind.DROP, group="entity", dropped_ns="time_ns", drop_reason="a")
    joined = starts.join(ends, on="episode", how="left", maintain_order="left")
    for part in (released, used, dropped):
        joined = joined.join(part, on="group", how="left", maintain_order="left")
    return joined.select(SAMPLES.names()).cast(dict(SAMPLES))  # type: ignore[arg-type]  # a schema is a mapping of types
