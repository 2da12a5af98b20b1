"""Slices that are lost and replaced, against a slow obvious model; and the calendars of their losses."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.errors import LawError
from harness.core.units import NS_PER_S
from harness.core.work import Provision
from harness.costs.draws import Uniforms
from harness.costs.fleet import Calendar, SimulatedProvision
from harness.costs.laws import Constant, Exponential
from pipeline.policies.fleet import LEARNER, PATIENCE, Phase, Slices, slice_of


class Model:
    """Sets and lists, no cleverness."""

    def __init__(self, slices, at_once):
        self.there, self.queue, self.ordered = set(slices), [], set()
        self.at_once = at_once or len(slices)

    def order(self):
        now = []
        while self.queue and len(self.ordered) < self.at_once:
            self.queue.sort(key=lambda slice_: slice_ != LEARNER)  # stable: the learner's first, the others as they came
            now.append(self.queue.pop(0))
            self.ordered.add(now[-1])
        return tuple(now)


@settings(max_examples=200, deadline=None)
@given(replicas=st.integers(0, 4), learner=st.booleans(), at_once=st.one_of(st.none(), st.integers(1, 3)), moves=st.data())
def test_the_plan_is_that_of_the_model(replicas, learner, at_once, moves):
    slices = [*([LEARNER] if learner else []), *(slice_of(replica) for replica in range(replicas))]
    if not slices:
        return
    plan, model = Slices(slices, at_once), Model(slices, at_once)
    for _ in range(moves.draw(st.integers(0, 20))):
        slice_ = moves.draw(st.sampled_from(slices))
        phase = plan.phase(slice_)
        assert (phase is Phase.THERE, phase is Phase.ORDERED) == (slice_ in model.there, slice_ in model.ordered)
        if slice_ in model.there:
            model.there.remove(slice_)
            model.queue.append(slice_)
            assert plan.lost(slice_) == model.order()
        elif slice_ in model.ordered:
            model.ordered.remove(slice_)
            model.there.add(slice_)
            assert plan.arrived(slice_) == model.order()
        else:
            for event in (plan.lost, plan.arrived):
                with pytest.raises(LawError, match="wanted"):
                    event(slice_)
        assert len(model.ordered) == min(model.at_once, len(slices) - len(model.there))  # nobody waits for an order in vain


def test_a_plan_in_which_nothing_comes_back_is_refused():
    with pytest.raises(LawError, match="nothing ever comes back"):
        Slices([LEARNER], 0)
    with pytest.raises(LawError, match="none that can be lost"):
        Slices([1]).lost(LEARNER)
    assert Slices([1]).phase(LEARNER) is Phase.THERE


@pytest.mark.parametrize("slices", [[LEARNER], [LEARNER, 1, 2]])
def test_a_fleet_is_given_up_only_when_losses_bring_no_step(slices):
    plan = Slices(slices)

    def lose(times):
        for _ in range(times):
            plan.lost(LEARNER)
            plan.arrived(LEARNER)

    lose(PATIENCE * len(slices))
    assert not plan.hopeless
    plan.stepped(1)
    lose(PATIENCE * len(slices))
    plan.stepped(1)  # once more what had been done before
    assert not plan.hopeless
    lose(1)
    assert "since step 1" in plan.hopeless


def losses(calendar, until_ns):
    found, at = [], -1
    while True:
        ordinal, at = calendar.next(at)
        if at > until_ns:
            return found
        found.append((ordinal, at))


def test_a_calendar_lies_on_absolute_time_whatever_is_asked_of_it():
    law, until = Exponential(law="exponential", mean_s=50.0), 5000 * NS_PER_S
    whole = losses(Calendar(law, Uniforms(3), 2), until)
    assert [ordinal for ordinal, _ in whole] == list(range(len(whole)))
    uniforms = Uniforms(3)
    calendar, other = Calendar(law, uniforms, 2), Calendar(law, uniforms, 5)
    for after in range(4999, 0, -7):  # backwards, and between the questions of another slice
        other.next(after * NS_PER_S)
        assert calendar.next(after * NS_PER_S) == next(
            ((n, at) for n, at in whole if at > after * NS_PER_S), calendar.next(until)
        )
    assert losses(Calendar(law, Uniforms(3), 5), until) != whole
    assert losses(Calendar(law, Uniforms(4), 2), until) != whole


def test_losses_of_a_memoryless_law_are_a_poisson_process():
    """Counts of 400 slices in 20 mean lives: mean and variance are both 20; within four standard errors."""
    uniforms = Uniforms(11)
    law = Exponential(law="exponential", mean_s=100.0)
    counts = [len(losses(Calendar(law, uniforms, slice_), 2000 * NS_PER_S)) for slice_ in range(400)]
    mean = math.fsum(counts) / 400
    variance = math.fsum((count - mean) ** 2 for count in counts) / 399
    assert abs(mean - 20) < 4 * math.sqrt(20 / 400)
    assert abs(variance - 20) < 4 * math.sqrt((20 + 2 * 20**2) / 400)


def test_a_slice_that_comes_back_at_the_instant_of_a_loss_stays():
    calendar = Calendar(Constant(law="constant", value_s=10.0), Uniforms(0), 1)
    assert calendar.next(0) == (0, 10 * NS_PER_S)
    assert calendar.next(10 * NS_PER_S) == (1, 20 * NS_PER_S)


def test_the_delay_of_a_replacement_belongs_to_slice_and_loss():
    law = Exponential(law="exponential", mean_s=30.0)
    one, other = (SimulatedProvision(law, Uniforms(7)) for _ in range(2))
    other.provision(Provision(2, 0))
    assert one.provision(Provision(1, 4)) == other.provision(Provision(1, 4))
    assert len({one.provision(Provision(slice_, loss))[0] for slice_ in range(5) for loss in range(5)}) == 25
