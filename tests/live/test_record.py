"""A live run's record is like a simulated one's and keeps the same laws: with failures, cancelled work and weight syncs in it.

Time is a mock clock's, and the policy speaks from a script; actors, environments, host performers and engine are the real ones.
"""

from __future__ import annotations

import polars as pl
import pytest
from live_world import SHORT, Counted, counted, play
from tiny_world import scenario as tiny_scenario
from trio.testing import MockClock

from harness.core.events import EventKind
from harness.core.work import Status
from harness.engines import live
from harness.live_record import FAILED, LiveRecord
from harness.run import record_once, simulate_once
from harness.trace.invariants import check_record, little
from harness.trace.store import read_record
from harness.watch import SHORTEST_S, StallWatch

S = 1_000_000_000


class Ragged(Counted):
    """Some environments fail to start, some hang in a step until their deadline, the others take their time."""

    async def reset(self):
        if self.number % 7 == 3:
            raise RuntimeError("no sandbox")
        return await super().reset()

    async def step(self, action):
        await self.host.sleep(1000.0 if self.number % 5 == 2 else 0.5 + self.number % 4)
        return await super().step(action)


class Recorded:
    """Records what `play` plays."""

    def __init__(self, what, folder):
        self.record = LiveRecord(what, folder, 0, 0)
        self.report = None

    def ready(self, pipeline):
        self.record.watch(pipeline.rt.lanes)
        pipeline.rt.background(self.spill, pipeline.rt, name="record")
        run = pipeline.run
        pipeline.run = lambda **options: run(at_end=self.end, **options)

    async def spill(self, rt):
        while True:
            await rt.sleep(S)
            self.record.recorder.spill()

    def end(self, report):
        self.report = report
        self.record.end(report)


PIPELINE = {
    "max_staleness": 2, "pipeline_depth": 2, "steps_per_sync": 1, "sync_mode": "abort_resume", "eval_interval": 2,
    "eval_episodes": 4,
}  # fmt: skip
CHANGES = {"buffer_capacity": 8, **PIPELINE}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """(folder, what recorded it, what was played)."""
    folder = tmp_path_factory.mktemp("run")
    recorded = Recorded(tiny_scenario(CHANGES), folder)
    played = play(counted(Ragged), pipeline=PIPELINE, retry=1, ready=recorded.ready, memory=recorded.record.recorder)
    recorded.record.write()  # checks every law
    return folder, recorded, played


def test_it_has_failures_cancelled_work_and_syncs_and_keeps_every_law(run):
    folder, recorded, _ = run
    record = read_record(folder / "record")
    kinds = set(record.events["kind"])
    assert {EventKind.RETRY, EventKind.SYNC_INSTALL, EventKind.PUBLISHED, EventKind.EVALUATED, EventKind.STEP} <= kinds
    ends = record.events.filter(pl.col("kind") == int(EventKind.WORK_END))
    assert {Status.OK, Status.CANCELLED} <= set(ends["b"])
    check_record(record, capacity=8, max_lag=2)
    area, waits = little(record.events, recorded.report.end_ns)
    assert area == waits > 0
    assert (record.manifest.clock, record.manifest.cut) == ("monotonic", "")
    assert sorted(path.name for path in folder.iterdir()) == ["record"]


def test_it_says_what_the_run_said_of_itself(run):
    folder, recorded, played = run
    record = read_record(folder / "record")
    assert record.events.filter(pl.col("kind") == int(EventKind.STEP)).height == recorded.report.versions[0] == 8
    assert record.samples.filter(pl.col("used_ns").is_not_null()).height >= len(played.samples())
    lanes = {lane.name: lane for lane in recorded.report.lanes}
    for name, spent in recorded.report.lane_ns.items():
        own = record.intervals.filter(pl.col("lane") == lanes[name].index)
        assert own.select((pl.col("t1_ns") - pl.col("t0_ns")).sum()).item() == sum(spent), name


def test_its_tables_are_those_of_a_simulated_run(run, tmp_path):
    folder, _, _ = run
    live_record = read_record(folder / "record")
    record_once(tiny_scenario(), 0, tmp_path / "simulated")
    simulated = read_record(tmp_path / "simulated")
    for name in ("events", "intervals", "lanes", "samples"):
        assert getattr(live_record, name).schema == getattr(simulated, name).schema
    assert sorted(path.name for path in (folder / "record").iterdir()) == sorted(
        path.name for path in (tmp_path / "simulated").iterdir()
    )
    assert live_record.manifest.schema_version == simulated.manifest.schema_version


def test_a_run_that_failed_leaves_a_record_that_says_so(tmp_path):
    recorded = Recorded(tiny_scenario(CHANGES), tmp_path)

    def failing(own):
        async def train(rt, work):
            if work.entity == 3:
                raise ZeroDivisionError("a bug")
            return await own_train(rt, work)

        kind = next(kind for kind in own if kind.__name__ == "TrainStep")
        own_train = own[kind]
        return {kind: train}

    with pytest.raises(BaseExceptionGroup):
        play(counted(), pipeline=PIPELINE, ready=recorded.ready, memory=recorded.record.recorder, replaced=failing)
    recorded.record.write()
    record = read_record(tmp_path / "record")
    assert record.manifest.cut == FAILED
    assert record.events.filter(pl.col("kind") == int(EventKind.STEP)).height == 2


def test_recording_changes_nothing_of_a_run(tmp_path):
    """The same pipeline in virtual time, recorded in files and not at all."""
    what = tiny_scenario(random=True)
    record = LiveRecord(what, tmp_path, 1, 0)
    first = simulate_once(what, 1, recorder=record.recorder, at_end=record.end)
    assert first == simulate_once(what, 1)
    record.write()
    assert read_record(tmp_path / "record").manifest.cut == ""


# ── stalls ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def stalls_of(tool_s, *, until_s=400, look_s=1):
    """(instant in s, what was said) of each look that told of a stall, and how many stalls, while tools take so long each."""
    told = []

    class Slow(Counted):
        async def step(self, action):
            await self.host.sleep(tool_s(self.number))
            return await super().step(action)

    async def look(rt, pipeline, watch):
        while True:
            await rt.sleep(look_s * S)
            said = watch.look()
            if said:
                told.append((rt.now() // S, said, watch.stalls))

    def ready(pipeline):
        def finished():
            return pipeline.versions.t, pipeline.accounts.admitted, len(pipeline.groups.running)

        pipeline.rt.background(look, pipeline.rt, pipeline, StallWatch(pipeline.rt, finished), name="look")

    with pytest.raises(BaseExceptionGroup, match=r".*"):
        play(
            counted(Slow),
            ready=ready,
            steps=10_000,
            limit_s=until_s,
            pipeline={"deadlines": SHORT | {"tool_s": 100.0, "step_s": 200.0}},
        )
    return told


def test_a_run_that_gets_on_is_never_told_of():
    assert stalls_of(lambda number: 1.0) == []


def test_a_stall_is_told_in_half_a_minute_with_who_waits_on_what():
    told = stalls_of(lambda number: 1.0 if number < 20 else 45.0, until_s=200)
    assert told
    _, said, _ = told[0]
    for words in (
        "4 rollout lane(s) in tool_exec, slot/",
        "4 rollout lane(s) in tool_queue",
        "1 learner lane(s) in wait_batch",
    ):
        assert words in said


class Clockwork:
    """A pipeline in name: it finishes something at given seconds."""

    def __init__(self, seconds):
        self.seconds = seconds

    def stalls(self, until_s):
        """Seconds at which a stall was told of for the first time."""
        told = []

        async def main(rt):
            rt.lane("learner", "learner")
            watch = StallWatch(rt, lambda: sum(second * S <= rt.now() for second in self.seconds))
            for second in range(1, until_s + 1):
                await rt.sleep(S)
                before = watch.stalls
                if watch.look() and watch.stalls > before:
                    told.append(second)

        live.run(main, clock=MockClock(autojump_threshold=0))
        return told


def test_each_stall_counts_once_and_what_is_usual_is_learnt():
    shortest = int(SHORTEST_S)
    assert Clockwork([]).stalls(500) == [shortest + 1]
    assert Clockwork(range(1, 500)).stalls(500) == []
    # After a wait of 40 s that ended well, only one of more than 120 s is unusual.
    assert Clockwork([10, 50, 90, 300]).stalls(299) == [10 + shortest + 1, 90 + 121]
