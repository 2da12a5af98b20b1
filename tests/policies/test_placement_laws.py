"""The phases of shared chips: any order of events is either a turn of the cycle or refused without a change."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.errors import LawError
from pipeline.policies.placement import ChipPhase, PlacementPlan

EVENTS = {
    "wanted": lambda plan, replica: plan.wanted(publishing=False),
    "quiesced": lambda plan, replica: plan.quiesced(replica),
    "done": lambda plan, replica: plan.done(),
    "switched": lambda plan, replica: plan.switched(),
}
NEXT = {
    (ChipPhase.ROLLOUT, "wanted"): ChipPhase.QUIESCING,
    (ChipPhase.TO_TRAINING, "switched"): ChipPhase.TRAINING,
    (ChipPhase.TRAINING, "done"): ChipPhase.TO_ROLLOUT,
    (ChipPhase.TO_ROLLOUT, "switched"): ChipPhase.ROLLOUT,
}


@given(
    replicas=st.integers(1, 3),
    events=st.lists(st.tuples(st.sampled_from(sorted(EVENTS)), st.integers(0, 3)), max_size=60),
)
def test_every_event_is_a_turn_of_the_cycle_or_refused(replicas, events):
    plan, phase, missing = PlacementPlan(replicas), ChipPhase.ROLLOUT, set()
    for name, replica in events:
        if phase is ChipPhase.QUIESCING and name == "quiesced" and replica in missing:
            missing.remove(replica)
            assert plan.quiesced(replica) == (not missing)
            phase = phase if missing else ChipPhase.TO_TRAINING
        elif (phase, name) in NEXT:
            asked = EVENTS[name](plan, replica)
            phase = NEXT[phase, name]
            if name == "wanted":
                assert asked == tuple(range(replicas))
                missing = set(asked)
        else:
            with pytest.raises(LawError):
                EVENTS[name](plan, replica)
        assert plan.phase is phase
        assert plan.training == (phase is ChipPhase.TRAINING)


def test_chips_are_not_asked_for_while_a_version_is_on_its_way():
    plan = PlacementPlan(2)
    with pytest.raises(LawError, match="on its way"):
        plan.wanted(publishing=True)
    assert plan.phase is ChipPhase.ROLLOUT


def test_somebody_has_to_share():
    with pytest.raises(LawError):
        PlacementPlan(0)
