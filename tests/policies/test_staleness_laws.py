"""What the learner takes, against brute force over every chunk it could take."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.errors import LawError
from pipeline.policies.buffer import Buffered
from pipeline.policies.kinds import StalePolicy
from pipeline.policies.staleness import Consumption

FAST = settings(max_examples=200, deadline=None, derandomize=True)


@st.composite
def situations(draw):
    S, B, t = draw(st.integers(0, 3)), draw(st.integers(1, 4)), draw(st.integers(0, 5))
    versions = st.integers(max(0, t - S - 1), t)
    order = [Buffered(group, version, version, t) for group, version in enumerate(draw(st.lists(versions, max_size=7)))]
    running = draw(st.lists(versions, max_size=4))
    taken = draw(st.integers(0, B - 1))
    return S, B, t, draw(st.permutations(order)), running, draw(st.integers(1, B - taken)), taken


def usable_in_time(versions, t, S, B, places):
    """Whether jobs of unit length with deadlines v + S all find a place: `places` at t, then B at each step. By trying."""
    at, left = t, places
    for version in sorted(versions):
        while left == 0:
            at, left = at + 1, B
        if at > version + S:
            return False
        left -= 1
    return True


@FAST
@given(situations())
def test_wait_takes_a_chunk_exactly_when_some_chunk_leaves_all_else_usable(situation):
    S, B, t, order, running, want, taken = situation
    pull = Consumption(StalePolicy.WAIT, max_staleness=S, groups_per_step=B).pull(t, order, running, want=want, taken=taken)
    left = B - taken - want

    def fits(chunk):
        rest = [item.oldest_version for item in order if item.group not in chunk] + running
        fresh = all(t - item.oldest_version <= S for item in order if item.group in chunk)
        return fresh and usable_in_time(rest, t, S, B, left)

    possible = [set(chunk) for chunk in combinations([item.group for item in order], want) if fits(set(chunk))]
    too_old = any(t - version > S for version in [*running, *(item.oldest_version for item in order)])
    assert pull.drop == ()
    if pull.take:
        assert set(pull.take) in possible or too_old
        assert len(pull.take) == want
    else:
        assert not possible
    first = [item.group for item in order[:want]]
    if set(first) in possible:
        assert list(pull.take) == first, "the order of the buffer is kept where it may be"


@FAST
@given(situations())
def test_drop_and_train(situation):
    S, B, t, order, running, want, taken = situation
    drop = Consumption(StalePolicy.DROP, max_staleness=S, groups_per_step=B).pull(t, order, running, want=want, taken=taken)
    fresh = [item.group for item in order if t - item.oldest_version <= S]
    assert set(drop.drop) == {item.group for item in order} - set(fresh)
    assert list(drop.take) == (fresh[:want] if len(fresh) >= want else [])
    train = Consumption(StalePolicy.TRAIN, max_staleness=S, groups_per_step=B).pull(t, order, running, want=want, taken=taken)
    assert train.drop == ()
    assert list(train.take) == ([item.group for item in order[:want]] if len(order) >= want else [])


def test_a_waiting_learner_says_for_which_version():
    consumption = Consumption(StalePolicy.WAIT, max_staleness=1, groups_per_step=2)
    fresh = [Buffered(5, 3, 3, 3), Buffered(6, 3, 3, 3)]
    assert consumption.pull(3, fresh, [2], want=2, taken=0).waits_for_version == 2
    assert consumption.pull(3, fresh, [3], want=2, taken=0).take == (5, 6)
    assert consumption.pull(3, fresh, [2], want=1, taken=0).take == (5,), "one place is kept for it"


def test_more_than_the_batch_has_room_for_is_not_asked():
    consumption = Consumption(StalePolicy.DROP, max_staleness=1, groups_per_step=2)
    with pytest.raises(LawError):
        consumption.pull(0, [], [], want=2, taken=1)
