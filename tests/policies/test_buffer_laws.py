"""The buffer against a list that is sorted anew at every question."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from harness.core.errors import LawError
from pipeline.policies.buffer import Buffered, GroupBuffer
from pipeline.policies.kinds import OnFull, OrderPolicy

SORT = {
    OrderPolicy.OLDEST_VERSION: lambda entry: (entry[1].oldest_version, entry[1].group),
    OrderPolicy.FIFO: lambda entry: entry[0],
    OrderPolicy.FRESHEST: lambda entry: (-entry[1].oldest_version, entry[1].group),
}


class BufferMachine(RuleBasedStateMachine):
    @initialize(capacity=st.integers(1, 6), order=st.sampled_from(OrderPolicy), on_full=st.sampled_from(OnFull))
    def build(self, capacity, order, on_full):
        self.buffer = GroupBuffer(capacity=capacity, order=order, on_full=on_full)
        self.capacity, self.order, self.on_full = capacity, order, on_full
        self.held: list[tuple[int, Buffered]] = []
        self.arrivals = 0

    def model(self):
        return [item for _, item in sorted(self.held, key=SORT[self.order])]

    @rule(group=st.integers(0, 30), version=st.integers(0, 5))
    def put(self, group, version):
        item = Buffered(group, version, version, 9)
        if any(held.group == group for _, held in self.held):
            with pytest.raises(LawError):
                self.buffer.put(item)
            return
        put = self.buffer.put(item)
        self.arrivals += 1
        if len(self.held) < self.capacity:
            assert put == (True, None)
            self.held.append((self.arrivals, item))
        elif self.on_full is OnFull.BLOCK:
            assert put.blocked
        else:
            self.held.append((self.arrivals, item))
            victim = min(self.held, key=lambda entry: (entry[1].oldest_version, entry[1].group))
            self.held.remove(victim)
            assert put == (victim[1] is not item, victim[1])
            assert not put.blocked

    @rule(count=st.integers(0, 7))
    def take(self, count):
        if count > len(self.held):
            with pytest.raises(LawError):
                self.buffer.take(count)
            return
        expected = self.model()[:count]
        assert list(self.buffer.take(count)) == expected
        self.held = [entry for entry in self.held if entry[1] not in expected]

    @rule(group=st.integers(0, 30))
    def remove(self, group):
        found = [entry for entry in self.held if entry[1].group == group]
        if not found:
            with pytest.raises(LawError):
                self.buffer.remove(group)
            return
        assert self.buffer.remove(group) == found[0][1]
        self.held.remove(found[0])

    @invariant()
    def agrees(self):
        assert list(self.buffer.in_order()) == self.model()
        assert len(self.buffer) == len(self.held) <= self.capacity
        assert self.buffer.full == (len(self.held) == self.capacity)
        assert all(item.group in self.buffer for _, item in self.held)


TestBuffer = BufferMachine.TestCase
TestBuffer.settings = settings(max_examples=50, stateful_step_count=40, deadline=None, derandomize=True)


def test_a_full_buffer_does_not_make_room_for_what_is_older_than_all_it_holds():
    buffer = GroupBuffer(capacity=1, order=OrderPolicy.FIFO, on_full=OnFull.DROP_OLDEST)
    buffer.put(Buffered(1, 5, 5, 5))
    put = buffer.put(Buffered(2, 4, 4, 5))
    assert not put.entered
    assert put.evicted is not None
    assert put.evicted.group == 2
