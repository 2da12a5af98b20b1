from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.errors import LawError
from harness.core.events import BLOCK_EVENTS, MemoryRecorder, log_hash
from harness.core.lanes import Lanes, State
from harness.trace.recorder import BLOCK_INTERVALS, TraceRecorder, hash_of

properties = settings(derandomize=True, deadline=None, max_examples=60)
word = st.integers(-(2**63), 2**63 - 1)
events = st.tuples(*[word] * 8)
intervals = st.tuples(*[word] * 5)


@properties
@given(st.lists(st.one_of(events, intervals), max_size=40), st.integers(0, 3 * BLOCK_EVENTS))
def test_it_keeps_what_the_plain_recorder_keeps(rows, before):
    """The plain recorder of the core is the model; `before` equal rows move the random ones across block edges."""
    ours, model = TraceRecorder(), MemoryRecorder()
    for recorder in (ours, model):
        for _ in range(before):
            recorder.append_event((1,) * 8)
        for row in rows:
            recorder.append_event(row) if len(row) == 8 else recorder.append_interval(row)
    assert [tuple(row) for row in ours.events().tolist()] == model.events
    assert [tuple(row) for row in ours.intervals().tolist()] == model.intervals
    assert ours.event_count == len(model.events)
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


def test_intervals_are_packed_on_the_way():
    recorder = TraceRecorder()
    for i in range(3 * BLOCK_INTERVALS):
        recorder.append_interval((i, i + 1, 0, 0, i))
        if i % 100 == 0:
            recorder.append_event((i, 99, 0, 0, 0, 0, 0, 0))
    assert len(recorder._intervals) < 5 * (BLOCK_INTERVALS + 100)
    assert np.array_equal(recorder.intervals()[:, 4], np.arange(3 * BLOCK_INTERVALS))


@pytest.mark.parametrize("bad", [(1, 2, 3), (1, 2, 3, 4, 5, 6, 7, 0.5), (1, 2, 3, 4, 5, 6, 7, 2**63)])
def test_a_row_that_does_not_fit_is_named(bad):
    recorder = TraceRecorder()
    recorder.append_event((0,) * 8)
    recorder.append_event(bad)
    with pytest.raises(LawError) as caught:
        recorder.events()
    assert "8 signed 64-bit integers" in str(caught.value)
    assert repr(list(bad)) in str(caught.value)


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
