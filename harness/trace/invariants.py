"""What holds in every run record, live or simulated. A breach is an error that names the ids.

Lanes
    the intervals of a lane follow each other without gap or overlap, from the instant when it joined to the one when it left.
Order
    the log's time never goes back; kinds and states are known.
Work
    starts and ends of work alternate in number: no more ends than starts, for each entity and kind, and as many in the end.
Episodes
    an episode ends after it started and once for each start; so started = ended + in flight, for each of them.
Groups
    admitted, released, put, and consumed or dropped, in this order, each at most once; nothing is consumed that was not
    released. The depth that a put reports is between 1 and the capacity, and not above what came in and has not gone out.
Versions
    steps and published versions grow, from the version on that a rollback went back to; nothing is published or installed that
    no step has made.
Books
    episodes by fate, as the log tells them, are those that the run counted; so are those in flight, but for what was admitted
    in the last instant and had not begun when it ended. Links run forward; a counter has one value at a time.
Lag
    in flight + in queue, and within the bound where one is given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from harness.core.accounts import Fate
from harness.core.errors import TraceError
from harness.core.events import EventKind
from harness.core.lanes import STATES

if TYPE_CHECKING:
    from harness.trace.store import Books, RunRecord

_ROW = "row"


def check_record(
    record: RunRecord, *, capacity: int | None = None, max_lag: int | None = None, initial_version: int = 0
) -> None:
    """Check everything.

    Args:
        record: of a whole run, or of one that was cut (`manifest.complete` false), where work may still be open.
        capacity: of the buffer, in groups; None where it is not bounded.
        max_lag: bound on the lag at consumption, in optimizer steps; None where stale groups are trained.
        initial_version: of the weights at the start; above 0 after a resume.

    Raises:
        TraceError: the first law that does not hold, with the ids.

    """
    check_intervals(record.intervals, record.lanes, record.manifest.end_ns)
    check_events(
        record.events,
        end_ns=record.manifest.end_ns,
        complete=record.manifest.complete,
        capacity=capacity,
        max_lag=max_lag,
        initial_version=initial_version,
    )
    check_derived(record, initial_version=initial_version)


def check_derived(record: RunRecord, *, initial_version: int = 0) -> None:
    """What is derived agrees with what was recorded. Ids: what the row is of."""
    lanes = record.lanes["lane"].to_list()
    links = record.links.with_row_index(_ROW)
    _none(links.filter(pl.col("src_ns") > pl.col("dst_ns")), "a link arrives after it left", "key", "src_ns", "dst_ns")
    strangers = links.filter(~pl.col("src_lane").is_in(lanes) | ~pl.col("dst_lane").is_in(lanes))
    _none(strangers, "a link is between lanes of the record", "key", "src_lane", "dst_lane")
    counters = record.counters.with_row_index(_ROW)
    late = (pl.col("t_ns") < 0) | (pl.col("t_ns") > record.manifest.end_ns)
    _none(counters.filter(late), "a counter changes while the run lasts", "counter", "t_ns")
    back = pl.col("t_ns") <= pl.col("t_ns").shift(1).over("counter", "lane")
    _none(counters.filter(back), "a counter has one value at a time", "counter", "t_ns")
    books = record.manifest.books
    if books is None:
        return
    books.check()
    went_back = record.events.filter(pl.col("kind") == int(EventKind.ROLLBACK)).height
    if initial_version == 0 and not went_back and not record.manifest.cut:  # else some of it is in other logs, or taken back
        _check_books(record, books)


def _check_books(record: RunRecord, books: Books) -> None:
    samples = record.samples.drop_nulls("fate").group_by("fate").len().iter_rows()
    counted = {Fate(fate).name.lower(): episodes for fate, episodes in samples}
    begun = record.samples["fate"].null_count()  # and in flight
    if counted != books.episodes or begun > books.episodes_in_flight:
        differ = tuple(fate for fate in counted.keys() | books.episodes if counted.get(fate) != books.episodes.get(fate))
        raise TraceError("episodes by fate in the log are those of the books", differ, f"{counted}, {books.episodes}")


def check_intervals(intervals: pl.DataFrame, lanes: pl.DataFrame, end_ns: int) -> None:
    """Every lane's intervals partition its presence. Ids: the lane's name and the row of the first bad interval."""
    rows = intervals.with_row_index(_ROW).join(lanes, on="lane", how="left", maintain_order="left")
    _none(rows.filter(pl.col("name").is_null()), "an interval belongs to a lane of the record", "lane")
    _none(rows.filter(pl.col("state") >= STATES), "a lane is in a known state", "name", "state")
    _none(rows.filter(pl.col("t0_ns") > pl.col("t1_ns")), "an interval ends after it began", "name", "t0_ns", "t1_ns")
    _none(
        lanes.with_row_index(_ROW).filter((pl.col("joined_ns") < 0) | (pl.col("joined_ns") > _left(end_ns))),
        "a lane leaves after it joined",
        "name",
    )
    previous = pl.col("t1_ns").shift(1).over("lane")
    began = rows.with_columns(due=previous.fill_null(pl.col("joined_ns")))
    _none(
        began.filter(pl.col("t0_ns") != pl.col("due")),
        "a lane's intervals follow each other without gap or overlap",
        "name",
        "t0_ns",
        "due",
    )
    last = rows.group_by("lane").agg(pl.col("t1_ns").last(), pl.col(_ROW).last())
    ends = lanes.join(last, on="lane", how="left", maintain_order="left").with_columns(
        last=pl.col("t1_ns").fill_null(pl.col("joined_ns")), due=_left(end_ns)
    )
    # The open interval of a lane that never left is not in the table: it may stop short of the end, never go beyond.
    short = (pl.col("left_ns") >= 0) & (pl.col("last") != pl.col("due"))
    _none(
        ends.filter(short | (pl.col("last") > pl.col("due"))),
        "a lane's last interval ends when the lane leaves",
        "name",
        "last",
        "due",
    )


def _left(end_ns: int) -> pl.Expr:
    return pl.when(pl.col("left_ns") >= 0).then("left_ns").otherwise(end_ns)


def check_events(
    events: pl.DataFrame,
    *,
    end_ns: int,
    complete: bool = True,
    capacity: int | None = None,
    max_lag: int | None = None,
    initial_version: int = 0,
) -> None:
    """The laws of the log. Ids: the entity and the row of the first event that breaks one."""
    log = events.with_row_index(_ROW)
    _none(log.filter(~pl.col("kind").is_in([int(kind) for kind in EventKind])), "an event is of a known kind", "entity", "kind")
    back = pl.col("time_ns") < pl.col("time_ns").shift(1).fill_null(0)
    _none(log.filter(back | (pl.col("time_ns") > end_ns)), "time never goes back", "entity", "time_ns")
    _check_work(log, complete=complete)
    _check_episodes(log)
    _check_groups(log)
    _check_depth(log, capacity)
    _check_versions(log, initial_version)
    _check_lag(log, max_lag)


def _check_work(log: pl.DataFrame, *, complete: bool) -> None:
    starts, ends = int(EventKind.WORK_START), int(EventKind.WORK_END)
    work = log.filter(pl.col("kind").is_in([starts, ends])).with_columns(
        open=pl.when(pl.col("kind") == starts).then(1).otherwise(-1).cum_sum().over("entity", "a")
    )
    _none(work.filter(pl.col("open") < 0), "work ends once, and after it started", "entity", "a")
    _none(
        work.filter((pl.col("kind") == ends) & (pl.col("d") > pl.col("time_ns"))),
        "a server begins before the work ends",
        "entity",
        "d",
    )
    if complete:
        last = work.group_by("entity", "a", maintain_order=True).agg(pl.col("open").last(), pl.col(_ROW).last())
        _none(last.filter(pl.col("open") != 0), "work that started ends", "entity", "a")


def _check_episodes(log: pl.DataFrame) -> None:
    starts, ends = int(EventKind.EPISODE_START), int(EventKind.EPISODE_END)
    episodes = log.filter(pl.col("kind").is_in([starts, ends])).with_columns(
        open=pl.when(pl.col("kind") == starts).then(1).otherwise(-1).cum_sum().over("entity")
    )
    _none(episodes.filter(pl.col("open") < 0), "an episode ends once, and after it started", "entity")
    _none(episodes.filter(pl.col("open") > 1), "an episode starts again only after it ended", "entity")
    ended = episodes.filter(pl.col("kind") == ends)
    _none(ended.filter((pl.col("b") < 0) | (pl.col("c") < 0)), "turns and tokens are counts", "entity", "b", "c")
    _none(ended.filter(pl.col("d") > pl.col("e")), "an episode's oldest version is not above its newest", "entity", "d", "e")


_STAGES = (EventKind.GROUP_ADMIT, EventKind.GROUP_RELEASE, EventKind.BUFFER_PUT)
_ENDS = (EventKind.CONSUME, EventKind.DROP)


def _check_groups(log: pl.DataFrame) -> None:
    kinds = (*_STAGES, *_ENDS)
    groups = (
        log.filter(pl.col("kind").is_in([int(kind) for kind in kinds]))
        .group_by("entity", maintain_order=True)
        .agg(
            pl.col(_ROW).last(),
            *(pl.col(_ROW).filter(pl.col("kind") == int(kind)).first().alias(kind.name) for kind in kinds),
            *((pl.col("kind") == int(kind)).sum().alias(f"n_{kind.name}") for kind in kinds),
        )
    )
    for kind in kinds:
        _none(groups.filter(pl.col(f"n_{kind.name}") > 1), f"a group has one {kind.name} at most", "entity")
    _none(groups.filter(pl.col("n_CONSUME") + pl.col("n_DROP") > 1), "a group is consumed or dropped, never both", "entity")
    for kind, before in (
        (EventKind.GROUP_RELEASE, EventKind.GROUP_ADMIT),
        (EventKind.BUFFER_PUT, EventKind.GROUP_RELEASE),
        (EventKind.CONSUME, EventKind.GROUP_RELEASE),
    ):
        early = pl.col(before.name).is_null() | (pl.col(before.name) > pl.col(kind.name))
        _none(
            groups.filter(pl.col(kind.name).is_not_null() & early),
            f"a group's {kind.name} comes after its {before.name}",
            "entity",
        )
    over = pl.min_horizontal(*(pl.col(kind.name) for kind in _ENDS))
    for kind in _STAGES:
        _none(groups.filter(pl.col(kind.name) > over), f"a group that is over has no {kind.name}", "entity")


def _check_depth(log: pl.DataFrame, capacity: int | None) -> None:
    waiting = _waiting(log)
    put = waiting.filter(pl.col("kind") == int(EventKind.BUFFER_PUT))
    _none(put.filter(pl.col("a") < 1), "a buffer holds what was just put into it", "entity", "a")
    _none(put.filter(pl.col("a") > pl.col("depth")), "a buffer holds no more than came in and has not gone out", "entity", "a")
    if capacity is not None:
        _none(put.filter(pl.col("a") > capacity), f"a buffer never holds more than its capacity of {capacity}", "entity", "a")


def _waiting(log: pl.DataFrame) -> pl.DataFrame:
    """Puts, and the consumption or drop of what was put, with the number of groups between them after each (`depth`)."""
    puts = log.filter(pl.col("kind") == int(EventKind.BUFFER_PUT))
    moves = log.filter(pl.col("kind").is_in([int(kind) for kind in (EventKind.BUFFER_PUT, *_ENDS)]))
    inside = moves.join(puts.select("entity"), on="entity", how="semi", maintain_order="left")
    step = pl.when(pl.col("kind") == int(EventKind.BUFFER_PUT)).then(1).otherwise(-1)
    return inside.with_columns(depth=step.cum_sum())


def little(log: pl.DataFrame, end_ns: int) -> tuple[int, int]:
    """Both sides of Little's law for groups between put and use: (area under the depth, sum of the waits), in group-ns.

    They are equal on every record that obeys the laws above, with the waits that are open at the end cut there.
    Source: the area form, Stidham, "A last word on L = λW", Operations Research 22(2), 1974.
    """
    waiting = _waiting(log.with_row_index(_ROW) if _ROW not in log.columns else log)
    until = pl.col("time_ns").shift(-1).fill_null(end_ns)
    area = waiting.select((pl.col("depth") * (until - pl.col("time_ns"))).sum()).item()
    spans = waiting.group_by("entity").agg(began=pl.col("time_ns").first(), ended=pl.col("time_ns").last(), moves=pl.len())
    over = pl.when(pl.col("moves") > 1).then("ended").otherwise(end_ns)
    return int(area), int(spans.select((over - pl.col("began")).sum()).item())


def _check_versions(log: pl.DataFrame, initial: int) -> None:
    step, published, back = int(EventKind.STEP), int(EventKind.PUBLISHED), int(EventKind.ROLLBACK)
    rolled = pl.col("kind") == back  # steps and publications count on from the version that was gone back to
    made = pl.when(pl.col("kind") == step).then("d").when(rolled).then("entity").forward_fill().fill_null(initial)
    log = log.with_columns(made=made, before=made.shift(1).fill_null(initial))
    _none(
        log.filter(
            rolled & ((pl.col("a") != pl.col("before")) | (pl.col("entity") > pl.col("a")) | (pl.col("entity") < initial))
        ),
        "a rollback goes back from the version that there is",
        "entity",
        "a",
    )
    _none(
        log.filter((pl.col("kind") == step) & (pl.col("d") <= pl.col("before"))), "a step makes a newer version", "entity", "d"
    )
    # The first publication may be of the initial weights themselves.
    news = log.filter(pl.col("kind").is_in([published, back])).with_columns(
        before=pl.col("entity").shift(1).fill_null(initial - 1), replaced=pl.col("entity").shift(1).fill_null(pl.col("a"))
    )
    news = news.filter(pl.col("kind") == published)
    _none(news.filter(pl.col("entity") <= pl.col("before")), "published versions grow", "entity", "a")
    _none(news.filter(pl.col("a") != pl.col("replaced")), "a publication names the version that it replaces", "entity", "a")
    moved = log.filter(pl.col("kind").is_in([published, int(EventKind.SYNC_INSTALL), int(EventKind.SYNC_START)]))
    _none(
        moved.filter(pl.col("entity") > pl.col("made")), "no version is published before a step has made it", "entity", "made"
    )


def _check_lag(log: pl.DataFrame, max_lag: int | None) -> None:
    used = log.filter(pl.col("kind") == int(EventKind.CONSUME))
    parts = (pl.col("c") < 0) | (pl.col("d") < 0) | (pl.col("c") + pl.col("d") != pl.col("b"))
    _none(used.filter(parts), "lag = lag in flight + lag in queue", "entity", "b", "c", "d")
    if max_lag is not None:
        _none(used.filter(pl.col("b") > max_lag), f"no group is consumed with a lag above {max_lag}", "entity", "b")


def _none(rows: pl.DataFrame, law: str, *columns: str) -> None:
    """No row breaks the law, or the first columns of the ones that do are named."""
    if rows.is_empty():
        return
    first = rows.row(0, named=True)
    detail = ", ".join(f"{name} {first[name]}" for name in columns[1:])
    where = f"row {first[_ROW]}" if first[_ROW] is not None else ""
    ids = tuple(dict.fromkeys(rows[columns[0]].to_list()))
    raise TraceError(law, ids, "; ".join(part for part in (where, detail) if part))
