"""Typed access to a run record: `open_record(folder)`, then lanes, episodes, groups, counters, links and books.

::

    record = open_record("runs/first/record")
    for group in record.groups():
        print(group.group, group.waiting_s, group.slowest)

The tables themselves (Polars frames) are `record.tables`; what their columns mean stands in `harness.trace.tables`. Instants
are nanoseconds since the run began, spans end in `_s`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from harness.core.accounts import Fate
from harness.core.lanes import State
from harness.trace.store import RunRecord, read_record
from harness.trace.tables import Cause, Counter, Flag, Link

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.trace.store import Books, Manifest


@dataclass(frozen=True, slots=True)
class LaneRow:
    """One unit of capacity. `chip_lane`: the purchased unit that it uses; -1 none, -2 all of them in turn."""

    lane: int
    name: str
    role: str
    pool: str
    process: int
    host: str
    capacity: int
    chips: int
    chip_lane: int
    joined_ns: int
    left_ns: int


@dataclass(frozen=True, slots=True)
class ChipLaneRow:
    """One purchased unit: a replica's slice, or the learner's. `users`: names of the role lanes that use it."""

    chip_lane: int
    name: str
    chips: int
    users: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class IntervalRow:
    """What one lane did for a while. `fate` is that of the episode, None where it is open or there is none."""

    lane: int
    t0_ns: int
    t1_ns: int
    state: State
    entity: int
    cause: Cause
    flags: Flag
    fate: Fate | None


@dataclass(frozen=True, slots=True)
class EpisodeRow:
    """One episode from its start to its use. What has not happened is None.

    Attributes:
        waited_ns: from its end to the release of its group.
        lag: optimizer steps between its group's oldest token and its use: `lag_in_flight` + `lag_in_queue`.

    """

    episode: int
    group: int
    member: int
    task: int | None
    started_ns: int
    ended_ns: int | None
    released_ns: int | None
    used_ns: int | None
    waited_ns: int | None
    turns: int | None
    tokens: int | None
    born_version: int
    used_version: int | None
    lag: int | None
    lag_in_flight: int | None
    lag_in_queue: int | None
    fate: Fate | None


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group that was released.

    Attributes:
        samples: members that it was released with.
        slowest: the episode that it waited for.
        first_ended_ns: when its first sample was there.
        released_ns: when its last one was.
        waiting_s: time that its finished members waited, all together.

    """

    group: int
    samples: int
    slowest: int
    first_ended_ns: int
    released_ns: int
    waiting_s: float

    @property
    def spread_s(self) -> float:
        """From its first sample to its last."""
        return (self.released_ns - self.first_ended_ns) / 1e9


@dataclass(frozen=True, slots=True)
class LinkRow:
    """Something that went from one lane to another."""

    kind: Link
    key: int
    src_lane: int
    src_ns: int
    dst_lane: int
    dst_ns: int


@dataclass(frozen=True, slots=True)
class WasteRow:
    """Episodes of one fate: how many, their tokens, and the slot time that they took. `fate` None: still open."""

    fate: Fate | None
    episodes: int
    tokens: int
    slot_s: float


class Record:
    """A run record, typed.

    Attributes:
        tables: as they were read.

    """

    def __init__(self, tables: RunRecord) -> None:
        self.tables = tables

    @property
    def manifest(self) -> Manifest:
        """What `run.json` says."""
        return self.tables.manifest

    @property
    def books(self) -> Books | None:
        """Episodes and tokens of the whole run by what became of them; None in a record that was cut."""
        return self.manifest.books

    def lanes(self) -> tuple[LaneRow, ...]:
        """Every lane, by its number."""
        return tuple(LaneRow(**row) for row in self.tables.lanes.select(LaneRow.__slots__).iter_rows(named=True))

    def chip_lanes(self) -> tuple[ChipLaneRow, ...]:
        """Every purchased unit."""
        lanes = self.lanes()
        return tuple(
            ChipLaneRow(
                unit.chip_lane, unit.name, unit.chips,
                tuple(lane.name for lane in lanes if lane.chip_lane in (unit.chip_lane, -2) and lane.role != "chips"),
            )
            for unit in lanes if unit.chips
        )  # fmt: skip

    def intervals(self, lane: int | None = None) -> Iterator[IntervalRow]:
        """What lanes did, in the order in which it ended; of one lane, or of all."""
        table = self.tables.intervals
        for row in (table if lane is None else table.filter(pl.col("lane") == lane)).iter_rows(named=True):
            yield IntervalRow(
                row["lane"], row["t0_ns"], row["t1_ns"], State(row["state"]), row["entity"], Cause(row["cause"]),
                Flag(row["flags"]), Fate(row["fate"]) if row["fate"] >= 0 else None,
            )  # fmt: skip

    def episodes(self) -> Iterator[EpisodeRow]:
        """Every episode, in the order of their starts."""
        for row in self.tables.samples.select(EpisodeRow.__slots__).iter_rows(named=True):
            yield EpisodeRow(**row | {"fate": None if row["fate"] is None else Fate(row["fate"])})

    def groups(self) -> Iterator[GroupRow]:
        """Every group that was released, in the order of their release."""
        members = self.tables.samples.filter(pl.col("waited_ns").is_not_null())
        table = members.group_by("group", maintain_order=True).agg(
            samples=pl.len(),
            slowest=pl.col("episode").get(pl.col("waited_ns").arg_min()),
            first_ended_ns=pl.col("ended_ns").min(),
            released_ns=pl.col("released_ns").first(),
            waiting_s=pl.col("waited_ns").sum() / 1e9,
        )
        for row in table.sort("released_ns", "group").iter_rows(named=True):
            yield GroupRow(**row)

    def links(self, kind: Link) -> Iterator[LinkRow]:
        """All links of a kind, in the order of their arrival."""
        for row in self.tables.links.filter(pl.col("kind") == int(kind)).iter_rows(named=True):
            yield LinkRow(**row | {"kind": kind})

    def counter(self, counter: Counter, lane: int = -1) -> tuple[tuple[int, float], ...]:
        """(instant, value) wherever a counter changed; of one lane where it is of lanes."""
        mine = self.tables.counters.filter((pl.col("counter") == int(counter)) & (pl.col("lane") == lane))
        return tuple(mine.select("t_ns", "value").iter_rows())

    def waste(self) -> tuple[WasteRow, ...]:
        """Episodes, tokens and slot time by fate, from the samples and the intervals of the slots."""
        slots = self.tables.lanes.filter(pl.col("role").is_in(["rollout", "evaluation"])).select("lane")
        mine = self.tables.intervals.join(slots, on="lane", how="semi").filter(pl.col("entity") >= 0)
        spent = mine.group_by("fate").agg(slot_ns=(pl.col("t1_ns") - pl.col("t0_ns")).sum())
        fates = self.tables.samples.with_columns(fate=pl.col("fate").fill_null(-1))
        table = fates.group_by("fate").agg(episodes=pl.len(), tokens=pl.col("tokens").fill_null(0).sum())
        return tuple(
            WasteRow(
                Fate(row["fate"]) if row["fate"] >= 0 else None, row["episodes"], row["tokens"], (row["slot_ns"] or 0) / 1e9
            )
            for row in table.join(spent, on="fate", how="left").sort("fate").iter_rows(named=True)
        )


def open_record(folder: str | Path) -> Record:
    """Read a run record, live or simulated, whole or cut.

    Raises:
        DataError: it is not one, was damaged, or has a schema of an unknown major version.
        TraceError: the log is not the one whose hash was written, or the books do not add up.

    """
    return Record(read_record(Path(folder)))
