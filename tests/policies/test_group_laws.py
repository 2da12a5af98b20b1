"""A group's members against a dictionary, and the filter."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from harness.core.errors import LawError
from pipeline.policies.filtering import keeps
from pipeline.policies.grouping import GroupState, Verdict
from pipeline.policies.kinds import FilterKind


class GroupMachine(RuleBasedStateMachine):
    @initialize(size=st.integers(1, 5), extra=st.integers(0, 3), data=st.data())
    def build(self, size, extra, data):
        quorum = data.draw(st.integers(0, size))
        self.group = GroupState(7, group_size=size, group_quorum=quorum, overprovision_members=extra)
        self.need = quorum if quorum else size
        self.where = dict.fromkeys(range(size + extra), "planned")
        self.attempts = dict.fromkeys(range(size + extra), 0)
        self.done: list[tuple[int, int, int]] = []
        self.verdict = "open"

    def check(self, decision, *, unneeded=False):
        failed = [m for m, where in self.where.items() if where == "failed"]
        if unneeded:
            self.verdict = "surplus"
        elif len(self.done) >= self.need:
            self.verdict = "released"
        elif len(self.where) - len(failed) < self.need:
            self.verdict = "failed"
        assert decision.verdict.value == self.verdict
        if self.verdict == "open":
            assert decision.members == decision.surplus == ()
            return
        assert list(decision.members) == [member for member, _, _ in self.done]
        assert list(decision.surplus) == [m for m, where in self.where.items() if where in ("running", "planned")]
        if self.verdict == "released":
            assert len(decision.members) == self.need

    def attempt_event(self, legal, event):
        if legal and self.verdict == "open":
            return event()
        before = (self.group.verdict, self.group.waiting, self.group.running)
        with pytest.raises(LawError):
            event()
        assert (self.group.verdict, self.group.waiting, self.group.running) == before
        return None

    @rule(data=st.data())
    def start(self, data):
        member = data.draw(st.integers(0, len(self.where) - 1))
        legal = self.where[member] == "planned"
        self.attempt_event(legal, lambda: self.group.started(member))
        if legal and self.verdict == "open":
            self.where[member] = "running"

    @rule(data=st.data(), oldest=st.integers(0, 3), span=st.integers(0, 3))
    def finish(self, data, oldest, span):
        member = data.draw(st.integers(0, len(self.where) - 1))
        legal = self.where[member] == "running"
        decision = self.attempt_event(legal, lambda: self.group.finished(member, oldest, oldest + span))
        if decision is not None:
            self.where[member] = "finished"
            self.done.append((member, oldest, oldest + span))
            self.check(decision)

    @rule(data=st.data())
    def fail(self, data):
        member = data.draw(st.integers(0, len(self.where) - 1))
        decision = self.attempt_event(self.where[member] in ("running", "planned"), lambda: self.group.failed(member))
        if decision is not None:
            self.where[member] = "failed"
            self.check(decision)

    @precondition(lambda self: len(self.done) + 1 >= self.need or self.verdict != "open")  # rarely, or nothing else happens
    @rule()
    def not_needed_any_more(self):
        decision = self.attempt_event(True, self.group.unneeded)
        if decision is not None:
            self.check(decision, unneeded=True)

    @rule(data=st.data(), waits=st.booleans())
    def retry(self, data, waits):
        member = data.draw(st.integers(0, len(self.where) - 1))
        legal = self.where[member] == "running"
        self.attempt_event(legal, lambda: self.group.retried(member, waits=waits))
        if legal and self.verdict == "open":
            self.attempts[member] += 1
            self.where[member] = "planned" if waits else "running"

    @invariant()
    def agrees(self):
        group = self.group
        assert group.verdict.value == self.verdict
        assert list(group.running) == [m for m, where in self.where.items() if where == "running"]
        planned = [m for m, where in self.where.items() if where == "planned"]
        assert list(group.waiting) == (planned if self.verdict == "open" else [])
        assert [group.attempt(member) for member in self.where] == list(self.attempts.values())
        assert [group.state(member).value for member in self.where] == list(self.where.values())

    @precondition(lambda self: self.done)
    @invariant()
    def versions(self):
        assert self.group.oldest_version == min(oldest for _, oldest, _ in self.done)
        assert self.group.newest_version == max(newest for _, _, newest in self.done)

    @invariant()
    def can_still_end(self):
        """Progress: an open group has somebody to start or to wait for."""
        assert self.verdict != "open" or self.group.waiting or self.group.running


TestGroup = GroupMachine.TestCase
TestGroup.settings = settings(max_examples=60, stateful_step_count=30, deadline=None, derandomize=True)


def test_a_group_that_cannot_reach_its_quorum_fails_at_once():
    group = GroupState(0, group_size=3, group_quorum=2)
    for member in range(3):
        group.started(member)
    assert group.finished(0, 1, 1).verdict is Verdict.OPEN
    assert group.failed(1).verdict is Verdict.OPEN
    decision = group.failed(2)
    assert decision == (Verdict.FAILED, (0,), ())


def test_over_provisioned_members_end_as_surplus():
    group = GroupState(0, group_size=2, overprovision_members=2)
    for member in range(3):
        group.started(member)
    group.finished(2, 5, 6)
    assert group.finished(0, 4, 4) == (Verdict.RELEASED, (2, 0), (1, 3))
    assert (group.oldest_version, group.newest_version) == (4, 6)


def test_an_over_provisioned_group_ends_as_surplus_with_what_it_finished():
    group = GroupState(0, group_size=3)
    group.started(0)
    group.started(1)
    group.finished(1, 2, 2)
    assert group.unneeded() == (Verdict.SURPLUS, (1,), (0, 2))
    with pytest.raises(LawError, match="cannot become surplus"):
        group.unneeded()


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=8))
def test_zero_variance_keeps_exactly_what_has_two_different_rewards(rewards):
    assert keeps(FilterKind.ZERO_VARIANCE, rewards) is (len({*rewards}) > 1)
    assert keeps(FilterKind.NONE, rewards)


@pytest.mark.parametrize("rewards", [[], [float("nan")], [1.0, float("nan")]])
def test_rewards_that_are_none_are_an_error_and_no_zero(rewards):
    with pytest.raises(LawError):
        keeps(FilterKind.ZERO_VARIANCE, rewards)
