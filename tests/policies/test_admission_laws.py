"""The four admission laws against a slow model that recounts a list of facts at every question."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from harness.core.errors import LawError
from pipeline.policies.admission import TargetStepAdmission, WindowAdmission, make_admission, window_quota
from pipeline.policies.kinds import AdmissionKind


class Facts:
    """The obvious model: every group with where it stands and in which window it started or was carried."""

    def __init__(self, kind, B, k, S, D, tau, x):
        self.kind, self.B, self.k, self.S, self.D, self.x = kind, B, k, S, D, x
        self.tau = Fraction(repr(tau))
        self.t = self.p = 0
        self.where: dict[int, str] = {}
        self.in_window: set[int] = set()

    def groups(self, *places):
        return [group for group, place in self.where.items() if place in places]

    def left_side(self):
        if self.kind is AdmissionKind.INFLIGHT:
            return len(self.groups("running"))
        if self.kind is AdmissionKind.WINDOW:
            return len([group for group in self.in_window if self.where[group] != "gone"])
        return len(self.groups("running", "buffered", "trained"))

    def right_side(self):
        return {
            AdmissionKind.LEAD: (self.D + self.p + 1) * self.B,
            AdmissionKind.TARGET_STEP: (self.t + 1 + self.D) * self.B,
            AdmissionKind.WINDOW: (1 + self.tau) * self.k * self.B,
            AdmissionKind.INFLIGHT: max(1, self.S) * self.B,
        }[self.kind]

    def accepts(self):
        return self.left_side() - len(self.groups("running")) < self.right_side()

    def may_start(self):
        return self.accepts() and self.left_side() < self.right_side() + self.x


class AdmissionMachine(RuleBasedStateMachine):
    """Any order of legal events; every illegal one is refused without a trace."""

    @initialize(
        kind=st.sampled_from(AdmissionKind),
        B=st.integers(1, 4),
        k=st.integers(1, 4),
        S=st.integers(0, 4),
        D=st.integers(0, 4),
        tau=st.sampled_from((0.0, 0.1, 0.3, 0.5, 1.0)),
        x=st.integers(0, 3),
    )
    def build(self, kind, B, k, S, D, tau, x):
        self.law = make_admission(
            kind,
            groups_per_step=B,
            steps_per_sync=k,
            max_staleness=S,
            pipeline_depth=D,
            window_fraction=tau,
            overprovision_groups=x,
        )
        self.facts = Facts(kind, B, k, S, D, tau, x)
        self.next = 0

    def snapshot(self):
        law = self.law
        return (
            law.running,
            law.buffered,
            law.accepted,
            law.credit(),
            law.may_start(),
            law.accepts(),
            law.surplus(),
            law.t,
            law.p,
        )

    def refuses(self, event):
        before = self.snapshot()
        with pytest.raises(LawError):
            event()
        assert self.snapshot() == before

    @rule(count=st.integers(1, 8))
    def start(self, count):
        for _ in range(count):
            if not self.facts.may_start():
                self.refuses(lambda: self.law.started(self.next))
                return
            self.law.started(self.next)
            self.facts.where[self.next] = "running"
            self.facts.in_window.add(self.next)
            self.next += 1

    def pick(self, data, *places):
        return data.draw(st.sampled_from(self.facts.groups(*places)))

    @precondition(lambda self: self.facts.groups("running"))
    @rule(data=st.data())
    def complete(self, data):
        group = self.pick(data, "running")
        if not self.facts.accepts():
            self.refuses(lambda: self.law.entered(group))
            self.law.finished_surplus(group)
            self.facts.where[group] = "gone"
            return
        self.law.entered(group)
        self.facts.where[group] = "buffered"

    @precondition(lambda self: self.facts.groups("running"))
    @rule(data=st.data(), how=st.sampled_from(("failed", "filtered", "dropped")))
    def lose(self, data, how):
        group = self.pick(data, "running")
        getattr(self.law, how)(group)
        self.facts.where[group] = "gone"
        self.refuses(lambda: getattr(self.law, how)(group))

    @precondition(lambda self: self.facts.groups("buffered"))
    @rule(data=st.data())
    def drop(self, data):
        group = self.pick(data, "buffered")
        self.refuses(lambda: self.law.failed(group))
        self.law.dropped(group)
        self.facts.where[group] = "gone"

    @precondition(lambda self: len(self.facts.groups("buffered")) >= self.facts.B)
    @rule()
    def step(self):
        for group in self.facts.groups("buffered")[: self.facts.B]:
            self.law.trained(group)
            self.facts.where[group] = "trained"
            self.refuses(lambda group=group: self.law.trained(group))
        self.facts.t += 1
        self.law.stepped(self.facts.t)
        self.refuses(lambda: self.law.stepped(self.facts.t))

    @rule(data=st.data())
    def publish(self, data):
        self.refuses(lambda: self.law.published(self.facts.t + 1))
        version = data.draw(st.integers(self.facts.p, self.facts.t))
        self.law.published(version)
        if version > self.facts.p:
            self.facts.p = version
            self.facts.in_window = set(self.facts.groups("running", "buffered"))

    @rule()
    def resume(self):
        running, buffered = self.facts.groups("running"), self.facts.groups("buffered")
        trained = len(self.facts.groups("trained"))
        self.law.rebuild(self.facts.t, self.facts.p, trained=trained, buffered=buffered, running=running)
        self.facts.in_window = {*running, *buffered}

    @invariant()
    def agrees(self):
        law, facts = self.law, self.facts
        assert law.running == len(facts.groups("running"))
        assert law.buffered == len(facts.groups("buffered"))
        assert law.accepted == len(facts.groups("buffered", "trained"))
        assert law.may_start() == facts.may_start()
        assert law.may_start() == (law.credit() > 0)
        assert law.accepts() == facts.accepts()
        assert set(law.surplus()) == (set() if facts.accepts() or not facts.x else set(facts.groups("running")))


TestAdmission = AdmissionMachine.TestCase
TestAdmission.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)


def test_credit_of_a_lost_group_is_back_at_once():
    for kind in AdmissionKind:
        law = make_admission(kind, groups_per_step=2, steps_per_sync=1, max_staleness=1, pipeline_depth=1)
        group = 0
        while law.may_start():
            law.started(group)
            group += 1
        law.failed(0)
        assert law.may_start(), kind


def test_carried_groups_take_their_share_of_the_next_window():
    law = WindowAdmission(groups_per_step=4, steps_per_sync=1, window_fraction=0.5)
    for group in range(6):
        law.started(group)
        law.entered(group)
    assert not law.may_start()
    for group in range(4):
        law.trained(group)
    law.stepped(1)
    assert not law.may_start(), "the quota is renewed by the publish, not by the step"
    law.published(1)
    assert law.credit() == 6 - 2


def test_the_window_reads_tau_as_the_decimal_that_was_written():
    assert window_quota(10, 1, 0.1) == 11, "not 12, which 1.1 * 10 = 11.000000000000002 would give"
    assert window_quota(10, 1, 0.01) == 11, "a part of a group is a group more"


def test_each_group_is_made_for_a_named_step():
    law = TargetStepAdmission(groups_per_step=2, pipeline_depth=1)
    targets = []
    group = 0
    while law.may_start():
        targets.append(law.target_step)
        law.started(group)
        group += 1
    assert targets == [1, 1, 2, 2]
    law.failed(3)
    assert law.target_step == 2


def test_a_resume_without_its_counters_would_be_a_burst():
    law = make_admission(AdmissionKind.LEAD, groups_per_step=4, steps_per_sync=1, max_staleness=1, pipeline_depth=1)
    law.rebuild(10, 10, trained=40, buffered=[100, 101])
    assert law.credit() == 2 * 4 - 2
    law.rebuild(10, 10, trained=0, buffered=[100, 101])
    assert law.credit() == 48 - 2


def test_a_resume_in_the_middle_of_a_window_goes_on_counting():
    law = make_admission(AdmissionKind.WINDOW, groups_per_step=4, steps_per_sync=3, max_staleness=2, pipeline_depth=0)
    law.rebuild(10, 10, trained=40, buffered=[100, 101], since_due=4)
    assert law.credit() == 3 * 4 - 4 - 2
    law.dropped(100)
    assert law.credit() == 3 * 4 - 4 - 1
    law.stepped(11)
    law.published(11)
    assert law.credit() == 3 * 4 - 1
