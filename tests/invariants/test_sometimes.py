"""Every state that matters is reached by the scenarios of the tests, and every law holds in all of them, at every event."""

from __future__ import annotations

import pytest
from sometimes import SCENARIOS, STATES, count
from tiny_world import play

from harness.engines import virtual


@pytest.fixture(scope="module")
def reached():
    return count()  # `play` holds the laws at every event of every run


@pytest.mark.parametrize("name", STATES)
def test_it_happens(reached, name):
    assert reached[name], "no scenario reaches it any more: change one, so that it does"


@pytest.mark.parametrize("label", ["trouble", "lost slices", "shared chips", "outages and limits"])
def test_the_record_is_whole_there(label):
    """With all tables, and the invariants of a record."""
    played = play(SCENARIOS[label](), 2)
    assert set(played.record.manifest.counts) == {"events", "intervals", "lanes", "samples", "links", "counters"}


@pytest.mark.slow
@pytest.mark.parametrize("label", SCENARIOS)
@pytest.mark.parametrize("seed", range(3))
def test_real_trio_says_the_same(label, seed):
    what = SCENARIOS[label]()
    assert play(what, seed, engine=virtual.run, checks=False).all_events == play(what, seed, checks=False).all_events
