"""Transfers that share one sender: by hand, against a slow model, and in the order that replicas take weights."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.work import Publish
from harness.costs.link import SharedLink
from harness.engines import sim, virtual

S = 10**9


def ends_ns(transfers, *, alone, sender, base_ns=0, engine=sim.run):
    """When each of (start_ns, bytes) has ended."""
    ends = {}

    async def one(rt, index, start_ns, size):
        await rt.sleep(start_ns)
        await rt.perform(Publish(1, index, size))
        ends[index] = rt.now()

    async def main(rt):
        async with rt.nursery() as nursery:
            for index, (start_ns, size) in enumerate(transfers):
                nursery.start_soon(one, rt, index, start_ns, size)

    engine(main, performers={Publish: SharedLink(base_ns, alone, sender)}, seed=0)
    return [ends[index] for index in range(len(transfers))]


def slow_model(transfers, alone, sender):
    """Processor sharing with a cap, one arrival or end after the other, in exact fractions: when each would end."""
    left, now, ends = {}, Fraction(0), {}
    starts = sorted((Fraction(start), index) for index, (start, _) in enumerate(transfers))
    while len(ends) < len(transfers):
        rate = min(Fraction(alone), Fraction(sender) / len(left)) / S if left else None
        events = [(now + size / rate, 0, index) for index, size in left.items()] if left else []
        events += [(start, 1, index) for start, index in starts[:1]]
        at, arrives, index = min(events)
        left = {key: size - (at - now) * rate for key, size in left.items()} if left else left
        now = at
        if arrives:
            starts.pop(0)
            left[index] = Fraction(transfers[index][1])
        else:
            ends[index] = now
            del left[index]
    return [ends[index] for index in range(len(transfers))]


def test_alone_a_transfer_goes_at_its_own_rate():
    assert ends_ns([(0, 100)], alone=50.0, sender=1000.0) == [2 * S]


def test_all_at_once_they_share_what_the_sender_has():
    assert ends_ns([(0, 100)] * 4, alone=50.0, sender=100.0) == [4 * S] * 4
    assert ends_ns([(0, 100)] * 2, alone=50.0, sender=100.0) == [2 * S] * 2  # just enough for two


def test_one_that_comes_later_slows_the_other_only_while_both_are_there():
    # alone 1 s of 2, then both at half for 2 s, then the second alone for its other half
    assert ends_ns([(0, 200), (1 * S, 200)], alone=100.0, sender=100.0) == [3 * S, 4 * S]


def test_what_comes_before_the_bytes_is_not_shared():
    assert ends_ns([(0, 100)] * 2, alone=100.0, sender=100.0, base_ns=S) == [3 * S] * 2


transfers_drawn = st.lists(st.tuples(st.integers(0, 5 * S), st.integers(1, 500)), min_size=1, max_size=7)


@settings(max_examples=80, deadline=None)
@given(transfers=transfers_drawn, alone=st.sampled_from((10.0, 100.0)), feeds=st.sampled_from((0.5, 1.0, 1.5, 3.0)))
def test_against_a_slow_model(transfers, alone, feeds):
    """Each end is the model's rounded up; every earlier end that was rounded may move it by a nanosecond."""
    got = ends_ns(transfers, alone=alone, sender=feeds * alone)
    for mine, exact in zip(got, slow_model(transfers, alone, feeds * alone), strict=True):
        assert abs(mine - exact) <= 1 + len(transfers) * 2


@pytest.mark.parametrize("sender", [60.0, 100.0, 1000.0])
def test_both_engines_agree(sender):
    transfers = [(0, 100), (0, 100), (S // 3, 70), (S, 130), (S, 5)]
    on_sim, on_trio = (ends_ns(transfers, alone=50.0, sender=sender, engine=engine) for engine in (sim.run, virtual.run))
    assert on_sim == on_trio


def test_the_link_is_never_faster_than_its_sender():
    """Work conservation: while somebody always transfers, all bytes take at least bytes / sender."""
    ends = ends_ns([(0, 100)] * 9, alone=50.0, sender=120.0)
    assert max(ends) >= 900 / 120 * S
    assert max(ends) == pytest.approx(900 / 120 * S, abs=2)
