from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.errors import LawError
from harness.core.events import BLOCK_EVENTS, MemoryRecorder, log_hash
from harness.core.lanes import Lanes, State
from harness.trace.recorder import TraceRecorder, hash_of

properties = settings(derandomize=True, deadline=None, max_examples=60)
word = st.integers(-(2**63), 2**63 - 1)
events = st.tuples(*[word] * 8)
intervals = st.tuples(*[word] * 5)


@properties
@given(st.lists(st.one_of(events, intervals, st.none()), max_size=40), st.integers(0, 3 * BLOCK_EVENTS))
def test_it_keeps_what_the_plain_recorder_keeps(rows, before):
    """The plain recorder of the core is the model; `before` equal rows move the random ones across block edges, None spills."""
    ours, model = TraceRecorder(), MemoryRecorder()
    for recorder in (ours, model):
        for _ in range(before):
            recorder.append_event((1,) * 8)
        for row in rows:
            if row is not None:
                recorder.append_event(row) if len(row) == 8 else recorder.append_interval(row)
            elif recorder is ours:
                ours.spill()
    assert [tuple(row) for row in ours.events().tolist()] == model.events
    assert [tuple(row) for row in ours.intervals().tolist()] == model.intervals
    assert (ours.event_count, ours.interval_count) == (len(model.events), len(model.intervals))
    assert ours.log_hash() == log_hash(model.events) == hash_of(ours.events())


@pytest.mark.parametrize("count", [0, 1, BLOCK_EVENTS - 1, BLOCK_EVENTS, BLOCK_EVENTS + 1, 3 * BLOCK_EVENTS])
def test_the_hash_rolls(count):
    """Asking for the hash in between changes nothing."""
    log = [(i, 99, -i, 2**62 + i, 0, 0, 0, -1) for i in range(count)]
    recorder = TraceRecorder()
    for i, event in enumerate(log):
        recorder.append_event(event)
        if i % 700 == 0:
            assert recorder.log_hash() == log_hash(log[: i + 1])
    assert recorder.log_hash() == log_hash(log)


def test_spilling_frees_what_was_unpacked():
    """Rows take little more than 64 bytes each when they are spilled now and then."""
    tracemalloc.start()
    try:
        recorder = TraceRecorder()
        for i in range(50_000):
            recorder.append_event((10**12 + i, 99, 10**9 + i, 10**6 + i, 0, 0, 0, 0))
            if i % 2000 == 0:
                recorder.spill()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert recorder.event_count == 50_000
    assert held < 50_000 * 80


@pytest.mark.parametrize("bad", ["x", 0.5, 2**63, None])
def test_a_field_that_does_not_fit_is_named_with_its_row(bad):
    recorder = TraceRecorder()
    recorder.append_event((0,) * 8)
    recorder.append_event((1, 2, 3, 4, 5, 6, 7, bad))
    with pytest.raises(LawError) as caught:
        recorder.events()
    assert f"not {bad!r}, in row {[1, 2, 3, 4, 5, 6, 7, bad]!r}" in str(caught.value)


def test_rows_of_another_length_are_refused():
    recorder = TraceRecorder()
    recorder.append_event((0,) * 8)
    recorder.append_event((1, 2, 3))
    with pytest.raises(LawError, match="8 fields each, not 11 in 1 rows"):
        recorder.log_hash()


def test_it_is_the_sink_of_lanes():
    now = [0]
    recorder = TraceRecorder()
    lanes = Lanes(lambda: now[0], recorder.append_interval)
    lane = lanes.add("learner", "learner", chips=4)
    now[0] = 3
    lane.to(State.TRAIN, 7)
    now[0] = 10
    lanes.close()
    assert recorder.intervals().tolist() == [[0, 3, 0, State.NO_WORK, -1], [3, 10, 0, State.TRAIN, 7]]
