"""What is derived from a record agrees with what the run said of itself, and older records are read as if they were new."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import polars as pl
import pytest

from harness.core.accounts import Fate
from harness.core.errors import DataError, TraceError
from harness.core.events import EventKind
from harness.core.lanes import State
from harness.run import load, simulate_once
from harness.trace import parts
from harness.trace.invariants import check_record
from harness.trace.online import EVALUATION_GROUPS, UNUSABLE_ENDS
from harness.trace.reader import Record, open_record
from harness.trace.recorder import TraceRecorder
from harness.trace.store import MANIFEST, Books, Manifest, books_of, read_record, take_record, write_record
from harness.trace.tables import (
    CAUSE_OF,
    JOINED_LANES,
    RECORDED_INTERVALS,
    SCHEMA_VERSION,
    SCHEMAS,
    Cause,
    Counter,
    Flag,
    Link,
    rows_of,
)
from pipeline.data import EVALUATION_GROUPS as PIPELINE_EVALUATION_GROUPS
from pipeline.data import USABLE, Ended

sys.path[:0] = [str(Path(__file__).parents[1] / "pipeline"), str(Path(__file__).parents[1] / "invariants")]

from sometimes import SCENARIOS  # noqa: E402


def recorded(scenario, seed=1):
    """(report, record) of a run."""
    recorder, taken = TraceRecorder(), []

    def at_end(report):
        manifest = Manifest(
            seed=seed, clock="virtual", end_ns=report.end_ns, mark_ns=report.start_ns, complete=False,
            config=scenario.model_dump(mode="json"), books=books_of(report.accounts),
        )  # fmt: skip
        taken.extend([report, take_record(recorder, report.lanes, manifest)])

    simulate_once(scenario, seed, warmup_steps=1, recorder=recorder, at_end=at_end)
    return taken


@pytest.fixture(
    scope="module", params=["trouble", "stale", "filtered", "quorum", "slow learner", "shared chips", "lost slices"]
)
def run(request):
    return recorded(SCENARIOS[request.param]())


def test_the_codes_are_those_of_the_pipeline():
    assert {Ended(code) for code in UNUSABLE_ENDS} == set(Ended) - set(USABLE)
    assert EVALUATION_GROUPS == PIPELINE_EVALUATION_GROUPS
    assert all(CAUSE_OF.get(state, Cause.NONE) in set(Cause) for state in State)


def test_fates_that_are_read_off_the_log_are_those_of_the_books(run):
    report, record = run
    accounts = report.accounts
    for episode, fate in record.samples.select("episode", "fate").iter_rows():
        if fate is not None:  # the books of what was open have been closed since
            assert fate == accounts.fate_of(episode), f"episode {episode}"
    books = record.manifest.books
    books.check()
    counted = {Fate(fate).name.lower(): n for fate, n in record.samples.drop_nulls("fate")["fate"].value_counts().iter_rows()}
    assert counted == books.episodes
    assert books.admitted == record.samples.height
    assert sum(row.episodes for row in Record(record).waste() if row.fate is not None) == sum(books.episodes.values())


def test_slot_time_is_split_by_fate_and_cause(run):
    report, record = run
    rows = record.intervals
    slots = record.lanes.filter(pl.col("role") == "rollout")["lane"].to_list()
    mine = rows.filter(pl.col("lane").is_in(slots))
    assert mine.filter((pl.col("fate") >= 0) & (pl.col("entity") < 0)).is_empty()
    assert rows.filter(~pl.col("lane").is_in(slots) & (pl.col("fate") >= 0) & (pl.col("fate") != Fate.EVALUATION)).is_empty()
    for state, cause in CAUSE_OF.items():
        assert rows.filter(pl.col("state") == int(state))["cause"].is_in([int(cause)]).all()
    late = rows.filter(pl.col("flags") & int(Flag.CUT) != 0)
    assert (late["t1_ns"] == report.end_ns).all()
    assert rows.filter(pl.col("t0_ns") < report.start_ns).height == rows.filter(pl.col("flags") & int(Flag.WARM_UP) != 0).height


def test_flags_name_the_work_that_failed():
    _, record = recorded(SCENARIOS["trouble"]())
    failed = record.events.filter((pl.col("kind") == int(EventKind.WORK_END)) & (pl.col("a") == 3))
    wanted = {1: Flag.FAILED, 2: Flag.INFRA, 3: Flag.TIME_LIMIT}
    calls = record.intervals.filter(pl.col("state") == int(State.TOOL_EXEC))
    for status, flag in wanted.items():
        over = failed.filter(pl.col("b") == status).select("entity", t1_ns="time_ns")
        flagged = calls.filter(pl.col("flags") & int(flag) != 0).select("entity", "t1_ns")
        assert over.height > 0
        assert sorted(flagged.iter_rows()) == sorted(over.iter_rows())


def test_counters_are_what_the_events_say(run):
    _, record = run
    depth, changes = 0, []
    put = set()
    for time_ns, kind, entity, *_ in record.events.iter_rows():
        if kind == EventKind.BUFFER_PUT:
            put.add(entity)
            depth += 1
        elif kind in (EventKind.CONSUME, EventKind.DROP) and entity in put:
            put.discard(entity)
            depth -= 1
        else:
            continue
        changes.append((time_ns, depth))
    counted = Record(record).counter(Counter.BUFFER_GROUPS)
    known = dict(changes)  # the last value of an instant
    assert all(known[at_ns] == value for at_ns, value in counted)
    assert (counted[-1][1] if counted else 0) == depth
    for counter in (Counter.SLOTS_BUSY, Counter.EPISODES_RUNNING, Counter.TOOLS_BUSY):
        values = [value for _, value in Record(record).counter(counter)]
        assert min(values) >= 0
        assert max(values) > 0


def test_links_run_forward_between_known_lanes(run):
    _, record = run
    links, reader = record.links, Record(record)
    assert links.filter(pl.col("src_ns") > pl.col("dst_ns")).is_empty()
    lanes = {lane.lane: lane for lane in reader.lanes()}
    for link in reader.links(Link.GROUP_USED):
        assert lanes[link.src_lane].role == "rollout"
        assert lanes[link.dst_lane].role == "learner"
    used = record.events.filter(pl.col("kind") == int(EventKind.CONSUME)).height
    assert used >= len(list(reader.links(Link.GROUP_USED))) > 0
    awaited = list(reader.links(Link.MEMBER_AWAITED))
    groups = list(reader.groups())
    assert len(awaited) == sum(group.samples - 1 for group in groups)
    assert sum(link.dst_ns - link.src_ns for link in awaited) == pytest.approx(1e9 * sum(group.waiting_s for group in groups))


def test_every_chip_lane_is_paid_and_role_lanes_map_onto_them(run):
    report, record = run
    units = Record(record).chip_lanes()
    assert sum(unit.chips for unit in units) == report.chips
    users = [user for unit in units for user in unit.users]
    assert {lane.name for lane in report.lanes if lane.role in ("inference", "learner")} == set(users)


def test_staleness_has_its_two_parts(run):
    _, record = run
    for episode in Record(record).episodes():
        if episode.lag is not None:
            assert episode.lag == episode.lag_in_flight + episode.lag_in_queue
            assert episode.used_version - episode.lag <= episode.used_version


def test_a_record_in_parts_has_the_same_tables(run, tmp_path):
    """Written while the run goes on, or kept in memory: one record."""
    report, record = run
    manifest = record.manifest
    recorder = parts.PartsRecorder(tmp_path / "r.parts", dataclasses.replace(manifest, counts={}, events_hash=""))
    for event in rows_of(record.events).tolist():
        recorder.append_event(tuple(event))
    for interval in rows_of(record.intervals.select(RECORDED_INTERVALS.names())).tolist():
        recorder.append_interval(tuple(interval))
    recorder.close()
    parts.write_parts(tmp_path / "r.parts", tmp_path / "r", manifest, report.lanes)
    read = read_record(tmp_path / "r")
    assert read.manifest == manifest
    for name in SCHEMAS:
        assert getattr(read, name).equals(getattr(record, name)), name


def test_a_derived_table_that_lies_is_named(run):
    _, record = run
    check_record(record)
    late = record.links.with_columns(src_ns=pl.col("dst_ns") + 1)
    with pytest.raises(TraceError, match="a link arrives after it left"):
        check_record(dataclasses.replace(record, links=late))
    nowhere = record.links.with_columns(dst_lane=pl.lit(9999, pl.UInt32))
    with pytest.raises(TraceError, match="between lanes of the record"):
        check_record(dataclasses.replace(record, links=nowhere))
    twice = pl.concat([record.counters, record.counters.tail(1)])
    with pytest.raises(TraceError, match="one value at a time"):
        check_record(dataclasses.replace(record, counters=twice))
    beyond = record.counters.with_columns(t_ns=pl.col("t_ns") + record.manifest.end_ns + 1)
    with pytest.raises(TraceError, match="while the run lasts"):
        check_record(dataclasses.replace(record, counters=beyond))


def test_books_that_the_log_does_not_tell_are_named():
    _, record = recorded(SCENARIOS["stale"]())
    books = record.manifest.books
    episodes = books.episodes | {"stale": books.episodes["stale"] - 1, "failed": books.episodes.get("failed", 0) + 1}
    manifest = dataclasses.replace(record.manifest, books=dataclasses.replace(books, episodes=episodes))
    with pytest.raises(TraceError, match="episodes by fate in the log are those of the books"):
        check_record(dataclasses.replace(record, manifest=manifest))


def test_episodes_in_flight_that_the_books_do_not_know_are_named():
    """Books may know more: what was admitted in the last instant begins when its task has its turn, which may be never."""
    _, record = recorded(SCENARIOS["stale"]())

    def with_in_flight(more):
        books = record.manifest.books
        in_flight, admitted = books.episodes_in_flight + more, books.admitted + more
        books = dataclasses.replace(books, episodes_in_flight=in_flight, admitted=admitted)
        return dataclasses.replace(record, manifest=dataclasses.replace(record.manifest, books=books))

    assert record.manifest.books.episodes_in_flight > 0
    check_record(with_in_flight(1))
    with pytest.raises(TraceError, match="episodes by fate in the log are those of the books"):
        check_record(with_in_flight(-1))


# ── versions ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def as_written_by_1_0(record, folder):
    """The files of a record as version 1.0 wrote them."""
    write_record(record, folder)
    for name in ("links", "counters"):
        (folder / f"{name}.parquet").unlink()
    record.intervals.select(RECORDED_INTERVALS.names()).write_parquet(folder / "intervals.parquet")
    record.lanes.select(JOINED_LANES.names()).write_parquet(folder / "lanes.parquet")
    record.samples.drop("task", "dispatch", "waited_ns", "put_ns", "used_version", "fate").write_parquet(
        folder / "samples.parquet"
    )
    kept = (
        "seed", "clock", "end_ns", "mark_ns", "complete", "cut", "config", "versions", "events_hash", "counts",
    )  # fmt: skip
    said = json.loads((folder / MANIFEST).read_text())
    said["counts"] = {name: said["counts"][name] for name in ("events", "intervals", "lanes", "samples")}
    (folder / MANIFEST).write_text(json.dumps({key: said[key] for key in kept} | {"schema_version": "1.0"}))


def test_a_record_of_version_1_0_is_read_whole(run, tmp_path):
    _, record = run
    as_written_by_1_0(record, tmp_path / "old")
    read = open_record(tmp_path / "old").tables
    for name in SCHEMAS:
        assert getattr(read, name).equals(getattr(record, name)), name
    assert read.manifest.books is None
    assert read.manifest.mode == "simulated"
    assert read.manifest.schema_version == SCHEMA_VERSION


def test_an_unknown_major_version_is_refused_and_a_newer_minor_one_is_read(run, tmp_path):
    _, record = run
    folder = write_record(record, tmp_path / "run")
    said = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(said | {"schema_version": "2.0"}))
    with pytest.raises(DataError, match="schema that this version cannot read"):
        read_record(folder)
    (folder / MANIFEST).write_text(json.dumps(said | {"schema_version": "1.99", "something_new": 1}))
    assert read_record(folder).events.equals(record.events)


def test_books_that_do_not_add_up_are_refused(run, tmp_path):
    _, record = run
    books = dataclasses.replace(record.manifest.books, made_tokens=record.manifest.books.made_tokens + 1)
    folder = write_record(
        dataclasses.replace(record, manifest=dataclasses.replace(record.manifest, books=books)), tmp_path / "run"
    )
    with pytest.raises(TraceError, match="tokens made = tokens on the books"):
        read_record(folder)
    with pytest.raises(TraceError, match="a fate is a known one"):
        Books(1, 0, {"vanished": 1}).check()


def test_the_shipped_scenario_has_a_record_that_is_read_back(tmp_path):
    scenario = load(Path(__file__).parents[2] / "scenarios" / "synchronous.toml")
    _, record = recorded(scenario.model_copy(update={"run": scenario.run.model_copy(update={"learner_steps": 2})}))
    reader = open_record(write_record(record, tmp_path / "run"))
    assert reader.manifest.config_hash == record.manifest.config_hash
    assert len(reader.lanes()) == record.lanes.height
    assert sum(1 for _ in reader.intervals()) == record.intervals.height
