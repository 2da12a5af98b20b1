"""Tables that are made from what was recorded, when the run is over: they cost the run itself nothing.

The same functions serve a record in memory and one that is turned from parts into tables (`harness.trace.parts`): intervals go
through them a piece at a time. What is held whole is a row an episode, a row a failed piece of work, a row a group.

What became of an episode is told by the order of the log. A group's verdict falls with its `GROUP_RELEASE`, or else its `DROP`.
A member that ends after the verdict is surplus; one that ends before it without a sample has failed; all others share the fate
of their group: trained with the `STEP` that used it, or dropped for a reason. Evaluation has groups of its own. A `ROLLBACK`
takes back the steps above the version that it names, and what was taken for a step that was not completed: those are lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from harness.core.accounts import Fate
from harness.core.events import EventKind
from harness.core.lanes import State
from harness.core.work import Status, WorkKind
from harness.trace.online import EVALUATION_GROUPS, UNUSABLE_ENDS
from harness.trace.tables import (
    CAUSE_OF,
    COUNTER_POINTS,
    COUNTERS,
    INTERVALS,
    LANES,
    LINKS,
    SAMPLES,
    Cause,
    Counter,
    Flag,
    Link,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from harness.trace.store import Manifest

FOLLOWED = (
    EventKind.ROLLBACK,
    EventKind.GROUP_ADMIT, EventKind.EPISODE_START, EventKind.EPISODE_END, EventKind.GROUP_RELEASE, EventKind.BUFFER_PUT,
    EventKind.CONSUME, EventKind.DROP, EventKind.STEP,
)  # fmt: skip
"""Kinds of events of which samples and links are made."""

SLOT_ROLES = ("rollout", "evaluation")
"""Roles of lanes whose entity is an episode."""

_POOLS = {"rollout": "slots"}
_ROW = "row"
_UNUSABLE = sorted(UNUSABLE_ENDS)
_WORK_OF: dict[WorkKind, State] = {
    WorkKind.TOOL_CALL: State.TOOL_EXEC,
    WorkKind.ENV_RESET: State.ENV_RESET,
    WorkKind.ENV_CLOSE: State.ENV_CLOSE,
    WorkKind.REWARD: State.REWARD,
    WorkKind.TRAIN_STEP: State.TRAIN,
    WorkKind.LOG_PROBS: State.LOG_PROBS,
    WorkKind.CHECKPOINT: State.CHECKPOINT,
}
"""Work that a lane is in a state for, with the same entity."""

_FLAG_OF = {
    Status.FAILED: Flag.FAILED, Status.INFRA: Flag.INFRA, Status.TIME_LIMIT: Flag.TIME_LIMIT, Status.CANCELLED: Flag.CANCELLED,
}  # fmt: skip


def derived(events: pl.LazyFrame, intervals: pl.LazyFrame, lanes: pl.DataFrame, manifest: Manifest) -> Derived:
    """Everything that follows from what was recorded.

    Args:
        events: the log.
        intervals: as they were recorded.
        lanes: as they knew themselves.
        manifest: of the record: its end, its mark, its configuration.

    """
    placed = lanes_placed(lanes, manifest)
    slots = _lanes_of(placed, SLOT_ROLES)
    followed = _followed(events.filter(_is_kind(FOLLOWED)).collect(engine="streaming"))
    homes = _homes(intervals, slots)
    samples = followed.select(SAMPLES.names()).cast(dict(SAMPLES))  # type: ignore[arg-type]  # a schema is a mapping of types
    return Derived(
        lanes=placed,
        samples=samples,
        links=_links(events, followed, homes, placed),
        counters=_counters(events, intervals, followed, slots, placed, manifest),
        intervals=_intervals(intervals, _failures(events, intervals), samples, slots, manifest),
    )


class Derived:
    """Tables that follow from the log, the intervals and the lanes. `intervals` is still to be collected, or sunk."""

    __slots__ = ("counters", "intervals", "lanes", "links", "samples")

    def __init__(
        self, lanes: pl.DataFrame, samples: pl.DataFrame, links: pl.DataFrame, counters: pl.DataFrame, intervals: pl.LazyFrame
    ) -> None:
        self.lanes = lanes
        self.samples = samples
        self.links = links
        self.counters = counters
        self.intervals = intervals


def _is_kind(kinds: Iterable[EventKind]) -> pl.Expr:
    return pl.col("kind").is_in([int(kind) for kind in kinds])


def _lanes_of(lanes: pl.DataFrame, roles: Iterable[str]) -> list[int]:
    return lanes.filter(pl.col("role").is_in(list(roles)))["lane"].to_list()


# ── lanes ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def lanes_placed(lanes: pl.DataFrame, manifest: Manifest) -> pl.DataFrame:
    """Where each lane stood, and which purchased unit it used."""
    slots = _at(manifest.config, "pipeline", "slots_per_replica")
    holds = pl.col("chips") > 0
    return lanes.with_columns(
        pool=pl.col("role").replace(_POOLS),
        process=pl.lit(manifest.process, pl.UInt16),
        host=pl.lit(manifest.host),
        capacity=pl.when(pl.col("role") == "inference").then(slots or 1).otherwise(1).cast(pl.UInt32),
        chip_lane=_chip_lanes(holds, shared="chips" in lanes["role"]),
    ).select(LANES.names())


def _chip_lanes(holds: pl.Expr, *, shared: bool) -> pl.Expr:
    """A lane that holds chips is a unit of its own. Shared ones are `chips/0`, …: replica i takes turns on the i-th."""
    own = pl.when(holds).then(holds.cum_sum().cast(pl.Int32) - 1)
    if not shared:
        return own.otherwise(-1).cast(pl.Int32)
    replica = pl.col("name").str.strip_prefix("replica/").cast(pl.Int32, strict=False)
    shown = own.when(pl.col("role") == "inference").then(replica).when(pl.col("role") == "learner").then(-2)
    return shown.otherwise(-1).cast(pl.Int32)


def _at(config: Mapping[str, Any], *path: str) -> Any:
    """A value of the configuration, None where it has none."""
    value: Any = config
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


# ── samples ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _of_kind(events: pl.DataFrame, kind: EventKind, **columns: str) -> pl.DataFrame:
    """First event of a kind for each entity, with its columns renamed: `new="old"`."""
    return (
        events.filter(pl.col("kind") == int(kind))
        .select(**{new: pl.col(old) for new, old in columns.items()})
        .unique(next(iter(columns)), keep="first", maintain_order=True)
    )


def _followed(events: pl.DataFrame) -> pl.DataFrame:
    """Follow each episode through the log; `SAMPLES` and, beside it, places in the log."""
    went_back = pl.col("kind") == int(EventKind.ROLLBACK)
    log = events.with_row_index(_ROW).with_columns(job=went_back.cum_sum())
    floors = log.filter(went_back).select(job=pl.col("job") - 1, floor=pl.col("entity").reverse().cum_min().reverse())
    starts = (
        log.filter(pl.col("kind") == int(EventKind.EPISODE_START))
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
        log, EventKind.EPISODE_END, episode="entity", ended_ns="time_ns", reason="a", turns="b", tokens="c",
        oldest_version="d", newest_version="e", end_row=_ROW,
    )  # fmt: skip
    steps = log.filter(pl.col("kind") == int(EventKind.STEP)).select(used_step="entity", job="job", step_row=_ROW)
    by_group = (
        _of_kind(log, EventKind.GROUP_ADMIT, group="entity", task="a", dispatch="b"),
        _of_kind(log, EventKind.GROUP_RELEASE, group="entity", released_ns="time_ns", release_row=_ROW),
        _of_kind(log, EventKind.BUFFER_PUT, group="entity", put_ns="time_ns"),
        _of_kind(
            log, EventKind.CONSUME, group="entity", used_ns="time_ns", used_step="a", lag="b", lag_in_flight="c",
            lag_in_queue="d", job="job",
        ),
        _of_kind(log, EventKind.DROP, group="entity", dropped_ns="time_ns", drop_reason="a", drop_row=_ROW),
    )  # fmt: skip
    joined = starts.join(ends, on="episode", how="left", maintain_order="left")
    for part in by_group:
        joined = joined.join(part, on="group", how="left", maintain_order="left")
    joined = joined.join(steps, on=["used_step", "job"], how="left", maintain_order="left")
    joined = joined.join(floors, on="job", how="left", maintain_order="left")
    verdict = pl.min_horizontal("release_row", "drop_row")
    in_time = pl.col("end_row") < pl.col("release_row")
    usable = ~pl.col("reason").is_in(_UNUSABLE)
    return joined.with_columns(
        fate=_fate(verdict),
        used_version=pl.col("used_step") - 1,
        waited_ns=pl.when(in_time & usable).then(pl.col("released_ns") - pl.col("ended_ns")),
    )


def _fate(verdict: pl.Expr) -> pl.Expr:
    ended, number = pl.col("end_row").is_not_null(), pl.lit
    gone_back = pl.col("used_step") > pl.when(pl.col("step_row").is_null()).then(-1).otherwise("floor")
    lost = (pl.col("drop_reason") == int(Fate.LOST)) | (gone_back & pl.col("floor").is_not_null())
    return (
        pl.when(lost & ((pl.col("end_row") < verdict) | ~ended))
        .then(number(int(Fate.LOST)))
        .when(~ended)
        .then(None)
        .when(pl.col("group") >= EVALUATION_GROUPS)
        .then(number(int(Fate.EVALUATION)))
        .when(pl.col("end_row") > verdict)
        .then(number(int(Fate.SURPLUS)))
        .when(pl.col("reason").is_in(_UNUSABLE))
        .then(number(int(Fate.FAILED)))
        .when(pl.col("drop_reason").is_not_null())
        .then(pl.col("drop_reason"))
        .when(pl.col("step_row").is_not_null())
        .then(number(int(Fate.TRAINED)))
    )


# ── intervals ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _homes(intervals: pl.LazyFrame, slots: list[int]) -> pl.DataFrame:
    """The slot of each episode."""
    mine = intervals.filter((pl.col("entity") >= 0) & pl.col("lane").is_in(slots))
    return mine.group_by(episode="entity").agg(home=pl.col("lane").first()).collect(engine="streaming")


def _failures(events: pl.LazyFrame, intervals: pl.LazyFrame) -> pl.DataFrame:
    """Intervals whose work did not end well: (lane, t0_ns) and the flag."""
    states = {int(kind): int(state) for kind, state in _WORK_OF.items()}
    failed = (
        events.filter(
            (pl.col("kind") == int(EventKind.WORK_END)) & (pl.col("b") != int(Status.OK)) & pl.col("a").is_in(list(states))
        )
        .select(
            "entity",
            state=pl.col("a").replace_strict(states, return_dtype=pl.UInt8),
            over_ns="time_ns",
            flag=pl.col("b").replace_strict(
                {int(status): int(flag) for status, flag in _FLAG_OF.items()}, default=0, return_dtype=pl.UInt16
            ),
        )
        .collect(engine="streaming")
    )
    inside = (pl.col("t0_ns") < pl.col("over_ns")) & (pl.col("over_ns") <= pl.col("t1_ns"))
    return (
        intervals.filter(pl.col("state").is_in(sorted(set(states.values()))))
        .join(failed.lazy(), on=["entity", "state"], how="inner")
        .filter(inside)
        .group_by("lane", "t0_ns")
        .agg(pl.col("flag").bitwise_or())
        .collect(engine="streaming")
    )


def _intervals(
    intervals: pl.LazyFrame, failures: pl.DataFrame, samples: pl.DataFrame, slots: list[int], manifest: Manifest
) -> pl.LazyFrame:
    causes = {int(state): int(cause) for state, cause in CAUSE_OF.items()}
    fates = samples.lazy().select(played="episode", fate="fate").drop_nulls()
    cut = (pl.col("t1_ns") == manifest.end_ns) & pl.lit(not manifest.cut)
    flags = (
        pl.col("flag").fill_null(0)
        + pl.when(cut).then(int(Flag.CUT)).otherwise(0)
        + pl.when(pl.col("t0_ns") < manifest.mark_ns).then(int(Flag.WARM_UP)).otherwise(0)
    )
    return (
        intervals.with_columns(played=pl.when(pl.col("lane").is_in(slots)).then("entity"))
        .join(failures.lazy(), on=["lane", "t0_ns"], how="left", maintain_order="left")
        .join(fates, on="played", how="left", maintain_order="left")
        .with_columns(
            cause=pl.col("state").replace_strict(causes, default=int(Cause.NONE), return_dtype=pl.UInt8),
            flags=flags.cast(pl.UInt16),
            fate=pl.col("fate").fill_null(-1),
        )
        .select(INTERVALS.names())
        .cast(dict(INTERVALS))  # type: ignore[arg-type]  # a schema is a mapping of types
    )


# ── links ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _links(events: pl.LazyFrame, followed: pl.DataFrame, homes: pl.DataFrame, lanes: pl.DataFrame) -> pl.DataFrame:
    members = (
        followed.filter((pl.col("end_row") < pl.col("release_row")) & ~pl.col("reason").is_in(_UNUSABLE))
        .join(homes, on="episode", how="inner", maintain_order="left")
        .with_columns(last=pl.col("end_row") == pl.col("end_row").max().over("group"))
    )
    closers = members.filter("last").select("group", "put_ns", "used_ns", closer="home")
    awaited = (
        members.filter(~pl.col("last"))
        .join(closers, on="group", how="inner", maintain_order="left")
        .select(
            src_lane="home",
            src_ns="ended_ns",
            dst_lane="closer",
            dst_ns="released_ns",
            kind=pl.lit(int(Link.MEMBER_AWAITED)),
            key="episode",
        )
    )
    learner = lanes.filter(pl.col("role") == "learner").select(learner="lane").head(1)
    used = (
        closers.filter(pl.col("put_ns").is_not_null() & pl.col("used_ns").is_not_null())
        .join(learner, how="cross")
        .select(
            src_lane="closer",
            src_ns="put_ns",
            dst_lane="learner",
            dst_ns="used_ns",
            kind=pl.lit(int(Link.GROUP_USED)),
            key="group",
        )
    )
    sync = events.filter(_is_kind((EventKind.SYNC_START, EventKind.SYNC_INSTALL))).collect(engine="streaming")
    ordered = _of_kind(sync, EventKind.SYNC_START, version="entity", ordered_ns="time_ns")
    replicas = lanes.filter(pl.col("role") == "inference").select(name="name", replica="lane")
    installed = (
        sync.filter(pl.col("kind") == int(EventKind.SYNC_INSTALL))
        .select(name=pl.format("replica/{}", "a"), version="entity", installed_ns="time_ns")
        .join(ordered, on="version", how="inner", maintain_order="left")
        .join(replicas, on="name", how="inner", maintain_order="left")
        .join(learner, how="cross")
        .select(
            src_lane="learner",
            src_ns="ordered_ns",
            dst_lane="replica",
            dst_ns="installed_ns",
            kind=pl.lit(int(Link.VERSION_INSTALLED)),
            key="version",
        )
    )
    parts = [part.cast(dict(LINKS)) for part in (used, installed, awaited)]  # type: ignore[arg-type]  # as above
    return pl.concat(parts).sort("dst_ns", "kind", "key", "dst_lane")


# ── counters ────────────────────────────────────────────────────────────────────────────────────────────────────────────────

_IN_STATE: tuple[tuple[Counter, frozenset[State]], ...] = (
    (Counter.REQUESTS_RUNNING, frozenset({State.GENERATE})),
    (Counter.REQUESTS_QUEUED, frozenset({State.GEN_QUEUE})),
    (Counter.TOOLS_BUSY, frozenset({State.TOOL_EXEC})),
    (Counter.TOOLS_QUEUED, frozenset({State.TOOL_QUEUE})),
    (Counter.ENVIRONMENTS_QUEUED, frozenset({State.ENV_QUEUE})),
    (Counter.SCORING_BUSY, frozenset({State.REWARD})),
    (Counter.SCORING_QUEUED, frozenset({State.REWARD_QUEUE})),
    (Counter.SLOTS_BUSY, frozenset(State) - {State.NO_WORK, State.GATED}),
)
"""How many slots are in some state."""


def _counters(
    events: pl.LazyFrame,
    intervals: pl.LazyFrame,
    followed: pl.DataFrame,
    slots: list[int],
    lanes: pl.DataFrame,
    manifest: Manifest,
) -> pl.DataFrame:
    width = max(1, -(-(manifest.end_ns + 1) // COUNTER_POINTS))
    steps = [*_event_steps(events, followed), *_interval_steps(intervals, slots, manifest)]
    span = pl.col("t_ns") // width
    counted = (
        pl.concat([_summed(part, span) for part in steps])
        .group_by("counter", "span")
        .agg(pl.col("t_ns").max(), pl.col("step").sum())
        .collect(engine="streaming")
        .sort("counter", "span")
        .with_columns(value=pl.col("step").cum_sum().over("counter").cast(pl.Float64), lane=pl.lit(-1, pl.Int64))
        .select(COUNTERS.names())
    )
    read = pl.concat(
        [
            part.with_columns(span=span)
            .group_by("counter", "lane", "span")
            .agg(pl.col("t_ns").max(), pl.col("value").get(pl.col("t_ns").arg_max()))
            .select(COUNTERS.names())
            for part in _readings(events, lanes)
        ]
    ).collect(engine="streaming")
    table = pl.concat([counted, _with_share(read, manifest)]).sort("counter", "lane", "t_ns")
    before = pl.col("value").shift(1).over("counter", "lane")
    return table.filter(pl.col("value") != before.fill_null(0.0)).cast(dict(COUNTERS))  # type: ignore[arg-type]  # as above


def _summed(part: pl.LazyFrame, span: pl.Expr) -> pl.LazyFrame:
    return part.group_by("counter", span.alias("span")).agg(pl.col("t_ns").max(), pl.col("step").sum().cast(pl.Int64))


def _step(t_ns: str, counter: Counter, step: int) -> list[pl.Expr]:
    return [
        pl.col(t_ns).alias("t_ns"),
        pl.lit(int(counter), pl.UInt16).alias("counter"),
        pl.lit(step, pl.Int64).alias("step"),
    ]


def _event_steps(events: pl.LazyFrame, followed: pl.DataFrame) -> list[pl.LazyFrame]:
    put = followed.lazy().filter(pl.col("put_ns").is_not_null()).select(entity="group").unique()
    over = events.filter(_is_kind((EventKind.CONSUME, EventKind.DROP)))
    return [
        events.filter(_is_kind([EventKind.BUFFER_PUT])).select(_step("time_ns", Counter.BUFFER_GROUPS, 1)),
        over.join(put, on="entity", how="semi").select(_step("time_ns", Counter.BUFFER_GROUPS, -1)),
        events.filter(_is_kind([EventKind.GROUP_ADMIT])).select(_step("time_ns", Counter.GROUPS_OPEN, 1)),
        over.select(_step("time_ns", Counter.GROUPS_OPEN, -1)),
        events.filter(_is_kind([EventKind.EPISODE_START])).select(_step("time_ns", Counter.EPISODES_RUNNING, 1)),
        events.filter(_is_kind([EventKind.EPISODE_END])).select(_step("time_ns", Counter.EPISODES_RUNNING, -1)),
    ]


def _interval_steps(intervals: pl.LazyFrame, slots: list[int], manifest: Manifest) -> list[pl.LazyFrame]:
    steps = []
    for counter, states in _IN_STATE:
        mine = intervals.filter(pl.col("lane").is_in(slots) & pl.col("state").is_in(sorted(states)))
        steps.append(mine.select(_step("t0_ns", counter, 1)))
        steps.append(mine.filter(pl.col("t1_ns") < manifest.end_ns).select(_step("t1_ns", counter, -1)))
    return steps


def _readings(events: pl.LazyFrame, lanes: pl.DataFrame) -> list[pl.LazyFrame]:
    """Values that some event says: (t_ns, counter, lane, value)."""
    number = pl.col("name").str.strip_prefix("replica/").cast(pl.Int64, strict=False)
    replicas = (
        lanes.filter(pl.col("role") == "inference").select(entity=number, lane=pl.col("lane").cast(pl.Int64)).drop_nulls()
    )
    decodes = events.filter(
        _is_kind([EventKind.WORK_START]) & (pl.col("a") == int(WorkKind.DECODE))
    ).join(replicas.lazy(), on="entity", how="inner")  # fmt: skip

    def reading(rows: pl.LazyFrame, counter: Counter, value: str, lane: pl.Expr) -> pl.LazyFrame:
        return rows.select(
            t_ns="time_ns", counter=pl.lit(int(counter), pl.UInt16), lane=lane, value=pl.col(value).cast(pl.Float64)
        )

    nobody = pl.lit(-1, pl.Int64)
    return [
        reading(decodes, Counter.BATCH, "c", pl.col("lane")),
        reading(decodes, Counter.KV_TOKENS, "d", pl.col("lane")),
        reading(events.filter(_is_kind([EventKind.STEP])), Counter.LEARNER_VERSION, "d", nobody),
        reading(events.filter(_is_kind([EventKind.PUBLISHED])), Counter.PUBLISHED_VERSION, "entity", nobody),
    ]


def _with_share(read: pl.DataFrame, manifest: Manifest) -> pl.DataFrame:
    capacity = _at(manifest.config, "world", "inference", "kv_capacity_tokens")
    if not isinstance(capacity, int) or capacity < 1:
        return read
    share = read.filter(pl.col("counter") == int(Counter.KV_TOKENS)).with_columns(
        counter=pl.lit(int(Counter.KV_SHARE), pl.UInt16), value=pl.col("value") / capacity
    )
    return pl.concat([read, share])
