"""Chips are lost at every event of a short run, and in worlds in which they hardly come back."""

from __future__ import annotations

import math

import pytest
from lossy_world import LEARNER, NEVER, Taken, lossy
from tiny_world import constant, exponential, play, scenario

from harness.core.accounts import Fate
from harness.core.errors import ActorError
from harness.core.events import EventKind
from harness.core.lanes import State
from harness.core.work import WorkKind
from harness.run import first_failure

REPLICA = 1
SHORT = {"checkpoint_interval": 1, "eval_interval": 2, "sync_mode": "abort_resume", "sync_rollout": "rolling"}
TWO = {"inference": {"replicas": 2}}


def short(**changes):
    return lossy(scenario(SHORT, random=True, world=TWO, steps=3), **changes)


def taken_at(what, slices, at_event, taken, times=1):
    """The run in which slices are taken away at the n-th event."""

    def take(pipeline):
        for _ in range(times):
            for slice_ in slices:
                taken.take(slice_)

    return play(what, 1, performers=taken.performers, at_event=(at_event, take), checks=at_event % 10 == 0)


@pytest.mark.parametrize("slices", [(LEARNER,), (REPLICA,), (LEARNER, REPLICA), (REPLICA, REPLICA + 1)])
def test_lost_at_any_event(slices):
    what = short(provision=constant(0.7))
    events = len(play(what, 1, checks=False).events)
    assert events > 300
    for at_event in range(1, events, 7):
        played = taken_at(what, slices, at_event, Taken())
        assert played.summary.learner_steps == 3
        assert len(played.of(EventKind.ROLLBACK)) == (LEARNER in slices)


@pytest.mark.parametrize("later_s", [0.0, 0.2, 0.9, 3.1, 6.0])
def test_lost_again_on_the_way_back(later_s):
    """At the instant of its return, while weights or the checkpoint are loaded, and soon after."""
    what = short(provision=constant(0.0))
    for at_event in range(60, 350, 31):
        played = taken_at(what, (LEARNER, REPLICA, REPLICA + 1), at_event, Taken(later_s), times=2)
        assert played.summary.learner_steps == 3
        assert len(played.of(EventKind.CAPACITY_LOST)) == 6
