from __future__ import annotations

import dataclasses

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.errors import TraceError
from harness.core.events import EventKind as K
from harness.core.lanes import Lanes, State, check_lanes
from harness.trace.invariants import check_record, little

properties = settings(derandomize=True, deadline=None, max_examples=40)
CAPACITY = 3


# Whole records obey the laws


@properties
@given(st.integers(0, 10**6), st.integers(0, 25))
def test_a_run_that_obeys_the_laws_passes(tiny, seed, groups):
    pipeline = tiny(seed, groups)
    check_lanes(pipeline.lanes, 0, pipeline.now_ns)
    record = pipeline.record()
    check_lanes(pipeline.lanes, 0, pipeline.now_ns)
    check_record(record, capacity=CAPACITY, max_lag=25)
    area, waits = little(record.events, record.manifest.end_ns)
    assert area == waits
    sampled = record.samples
    assert sampled.height == 2 * groups
    assert sampled["ended_ns"].null_count() == 0
    used = record.events.filter(pl.col("kind") == int(K.CONSUME))
    assert sampled["used_ns"].drop_nulls().len() == 2 * used.height


@properties
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4), st.sampled_from(list(State)), st.booleans()), max_size=40),
    st.integers(0, 9),
)
def test_random_lanes_partition_their_presence(history, tail_ns):
    """Lanes join and leave at any time; the totals agree with the intervals, and both with the clock."""
    now, intervals = [0], []
    lanes = Lanes(lambda: now[0], intervals.append)
    present = {}
    for pause_ns, slot, state, leave in history:
        now[0] += pause_ns
        lane = present.pop(slot, None) or lanes.add(f"{slot}/{len(lanes.lanes)}", f"role{slot % 2}", chips=slot)
        lane.to(state, slot)
        if leave:
            lane.close()
        else:
            present[slot] = lane
    now[0] += tail_ns
    check_lanes(lanes, 0, now[0])
    lanes.close()
    check_lanes(lanes, 0, now[0])
    for lane in lanes.lanes:
        own = [row for row in intervals if row[2] == lane.index]
        assert sum(t1 - t0 for t0, t1, *_ in own) == lane.left_ns - lane.joined_ns
        for state in State:
            assert sum(row[1] - row[0] for row in own if row[3] == state) == lane.totals[state]


# Every law is broken in turn


def events_with(record, row, **values):
    """The record with some fields of one event changed."""
    index = pl.int_range(pl.len())
    changed = [
        pl.when(index == row).then(value).otherwise(pl.col(name)).cast(record.events.schema[name]).alias(name)
        for name, value in values.items()
    ]
    return dataclasses.replace(record, events=record.events.with_columns(changed))


def without(record, table, row):
    rows = getattr(record, table)
    return dataclasses.replace(record, **{table: pl.concat([rows[:row], rows[row + 1 :]])})


def twice(record, row):
    rows = record.events
    return dataclasses.replace(record, events=pl.concat([rows[: row + 1], rows[row : row + 1], rows[row + 1 :]]))


def nth(record, kind, n=2):
    """Row and entity of the n-th event of a kind."""
    rows = record.events.with_row_index("row").filter(pl.col("kind") == int(kind))
    return rows["row"][n], rows["entity"][n]


def first_consumed(record):
    return record.events.filter(pl.col("kind") == int(K.CONSUME))["entity"][2]


def row_of(record, kind, entity):
    found = record.events.with_row_index("row").filter((pl.col("kind") == int(kind)) & (pl.col("entity") == entity))
    return found["row"][0]


EVENT_BREACHES = {
    "unknown kind": (lambda r, row: events_with(r, row, kind=98), K.STEP, "known kind"),
    "time goes back": (lambda r, row: events_with(r, row, time_ns=-1), K.STEP, "time never goes back"),
    "after the end": (lambda r, row: events_with(r, row, time_ns=10**12), K.STEP, "time never goes back"),
    "work without start": (lambda r, row: without(r, "events", row), K.WORK_START, "work ends once"),
    "work without end": (lambda r, row: without(r, "events", row), K.WORK_END, "work that started ends"),
    "work ends twice": (twice, K.WORK_END, "work ends once"),
    "server from the future": (lambda r, row: events_with(r, row, d=10**12), K.WORK_END, "server begins"),
    "episode ends twice": (twice, K.EPISODE_END, "an episode ends once"),
    "episode never started": (lambda r, row: without(r, "events", row), K.EPISODE_START, "an episode ends once"),
    "episode starts twice": (twice, K.EPISODE_START, "starts again only after"),
    "negative tokens": (lambda r, row: events_with(r, row, c=-1), K.EPISODE_END, "counts"),
    "oldest above newest": (lambda r, row: events_with(r, row, d=9, e=8), K.EPISODE_END, "oldest version"),
    "admitted twice": (twice, K.GROUP_ADMIT, "one GROUP_ADMIT"),
    "released twice": (twice, K.GROUP_RELEASE, "one GROUP_RELEASE"),
    "consumed twice": (twice, K.CONSUME, "one CONSUME"),
    "buffer below one": (lambda r, row: events_with(r, row, a=0), K.BUFFER_PUT, "just put"),
    "buffer above what came": (lambda r, row: events_with(r, row, a=9), K.BUFFER_PUT, "came in and has not gone"),
    "version repeats": (twice, K.STEP, "newer version"),
    "published twice": (twice, K.PUBLISHED, "published versions grow"),
    "wrong predecessor": (lambda r, row: events_with(r, row, a=10**6), K.PUBLISHED, "names the version"),
    "lag does not add up": (lambda r, row: events_with(r, row, b=77), K.CONSUME, "lag in flight + lag in queue"),
    "negative lag": (lambda r, row: events_with(r, row, c=-1, d=1, b=0), K.CONSUME, "lag in flight + lag in queue"),
}


@pytest.mark.parametrize("name", EVENT_BREACHES)
def test_a_broken_event_is_named(record, name):
    breach, kind, law = EVENT_BREACHES[name]
    row, entity = nth(record, kind)
    with pytest.raises(TraceError) as caught:
        check_record(breach(record, row), capacity=CAPACITY)
    assert law in caught.value.law
    assert entity in caught.value.ids


@pytest.mark.parametrize("stage", [K.GROUP_ADMIT, K.GROUP_RELEASE])
def test_a_group_that_skipped_a_stage_is_named(record, stage):
    group = first_consumed(record)
    with pytest.raises(TraceError) as caught:
        check_record(without(record, "events", row_of(record, stage, group)))
    assert f"comes after its {stage.name}" in caught.value.law
    assert caught.value.ids == (group,)


def test_a_group_that_is_dropped_and_consumed_is_named(record):
    group = first_consumed(record)
    put = row_of(record, K.BUFFER_PUT, group)
    with pytest.raises(TraceError) as caught:
        check_record(events_with(record, put, kind=int(K.DROP), a=1))
    assert "consumed or dropped" in caught.value.law
    assert caught.value.ids == (group,)


def test_a_put_after_the_end_is_named(record):
    group = first_consumed(record)
    put, used = row_of(record, K.BUFFER_PUT, group), row_of(record, K.CONSUME, group)
    events = record.events
    late = events[put : put + 1].with_columns(time_ns=pl.lit(events["time_ns"][used], pl.Int64))
    moved = pl.concat([events[:put], events[put + 1 : used + 1], late, events[used + 1 :]])
    with pytest.raises(TraceError) as caught:
        check_record(dataclasses.replace(record, events=moved))
    assert "over has no BUFFER_PUT" in caught.value.law
    assert caught.value.ids == (group,)


def test_a_version_that_nobody_made_is_named(record):
    row, _ = nth(record, K.SYNC_INSTALL)
    with pytest.raises(TraceError) as caught:
        check_record(events_with(record, row, entity=999))
    assert "before a step has made it" in caught.value.law
    assert caught.value.ids == (999,)


def test_bounds_are_checked_where_they_are_given(record):
    full = record.events.filter((pl.col("kind") == int(K.BUFFER_PUT)) & (pl.col("a") == CAPACITY))["entity"].to_list()
    with pytest.raises(TraceError, match="capacity of 2") as caught:
        check_record(record, capacity=CAPACITY - 1)
    assert list(caught.value.ids) == full
    worst = record.events.filter(pl.col("kind") == int(K.CONSUME))["b"].max()
    check_record(record, max_lag=worst)
    with pytest.raises(TraceError, match=f"lag above {worst - 1}"):
        check_record(record, max_lag=worst - 1)


def test_a_cut_record_may_have_open_work(record):
    row, _ = nth(record, K.WORK_END, -1)
    cut = without(record, "events", row)
    manifest = dataclasses.replace(cut.manifest, complete=False)
    check_record(dataclasses.replace(cut, manifest=manifest))


@properties
@given(st.data())
def test_any_change_to_any_interval_is_named(record, data):
    """Intervals are redundant on purpose: no edge can move, no row can go, without a gap or an overlap."""
    row = data.draw(st.integers(0, record.intervals.height - 1))
    lane = record.lanes["name"][record.intervals["lane"][row]]
    how = data.draw(st.sampled_from(["gone", "t0_ns", "t1_ns"]))
    if how == "gone":
        broken = without(record, "intervals", row)
    else:
        by = data.draw(st.integers(-20, 20).filter(bool))
        moved = pl.when(pl.int_range(pl.len()) == row).then(pl.col(how) + by).otherwise(pl.col(how)).alias(how)
        broken = dataclasses.replace(record, intervals=record.intervals.with_columns(moved))
    with pytest.raises(TraceError) as caught:
        check_record(broken)
    assert caught.value.ids[0] == lane


def test_intervals_of_unknown_lanes_and_states_are_named(record):
    fourth = pl.int_range(pl.len()) == 4
    lane = record.intervals.with_columns(lane=pl.when(fourth).then(77).otherwise("lane").cast(pl.UInt32))
    with pytest.raises(TraceError, match=r"a lane of the record \[77\]: row 4"):
        check_record(dataclasses.replace(record, intervals=lane))
    state = record.intervals.with_columns(state=pl.when(fourth).then(200).otherwise("state").cast(pl.UInt8))
    with pytest.raises(TraceError, match=r"known state \[.*\]: row 4; state 200"):
        check_record(dataclasses.replace(record, intervals=state))


def test_lanes_that_lie_are_named():
    now = [0]
    lanes = Lanes(lambda: now[0])
    lanes.add("tool/0", "tool")
    liar = lanes.add("tool/1", "tool")
    now[0] = 10
    check_lanes(lanes, 0, 10)
    liar.totals[State.TOOL_EXEC] += 1
    with pytest.raises(TraceError, match=r"presence \[tool/1\]: 11 ns in 10 ns"):
        check_lanes(lanes, 0, 10)
    liar.totals[State.TOOL_EXEC] -= 1
    lanes.roles["tool"].books[State.REWARD] += 5
    with pytest.raises(TraceError, match=r"occupancy is that of its lanes \[tool, REWARD\]: 5 lane-ns"):
        check_lanes(lanes, 0, 10)
