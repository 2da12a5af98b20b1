"""KV admission: against a slow obvious cache, whatever comes."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappush

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.errors import LawError
from pipeline.policies.kinds import KvPolicy
from pipeline.policies.kv import make_kv_room


@dataclass
class Asked:
    """A request, and how many tokens it will make."""

    number: int
    arrives: int  # chunk before which it comes
    kv_tokens: int
    reserved_tokens: int
    left: int
    entered: int = 0
    first_in: int = -1


@st.composite
def loads(draw):
    """A cache, a chunk and requests that fit it one by one."""
    capacity = draw(st.integers(1, 400))
    requests = []
    for number in range(draw(st.integers(1, 10))):
        reserved = draw(st.integers(1, capacity))
        context = draw(st.integers(0, reserved))
        left = draw(st.integers(0, reserved - context))
        requests.append(Asked(number, draw(st.integers(0, 20)), context, reserved, left))
    return capacity, draw(st.integers(1, 40)), draw(st.integers(1, 6)), requests


@settings(max_examples=200)
@given(load=loads(), policy=st.sampled_from(KvPolicy))
def test_the_cache_never_overflows_and_everybody_is_served(load, policy):
    capacity, chunk, seats, requests = load
    room = make_kv_room(policy, capacity, chunk)
    waiting, running, progress, pushed_out, tickets = [], {}, 0, 0, 0
    left = sorted(requests, key=lambda r: r.arrives)
    work = sum(-(-r.left // chunk) + 1 for r in requests)
    now = 0

    def held(r):
        return r.kv_tokens + progress - r.entered

    def leave(ticket):
        r = running.pop(ticket)
        r.kv_tokens = held(r)
        room.used -= r.kv_tokens
        room.promised -= r.reserved_tokens
        return r

    while left or waiting or running:
        while left and left[0].arrives <= now:
            r = left.pop(0)
            heappush(waiting, (r.arrives, r.number, 0, r))
        before, first = len(waiting), waiting[0][3] if waiting else None
        admitted = room.admit(waiting, running, seats - len(running), progress)
        assert len(waiting) + len(admitted) == before
        if first is not None and not running:
            assert admitted[0] is first, "alone, the first is let in"
        for r in admitted:
            tickets += 1
            r.entered, running[tickets] = progress, r
            r.first_in = tickets if r.first_in < 0 else r.first_in
        assert room.used == sum(map(held, running.values())) <= capacity
        assert room.promised == sum(r.reserved_tokens for r in running.values())

        def need(some):
            return sum(min(held(r) + chunk, r.reserved_tokens) for r in some)

        order = list(running.values())
        victims = room.crowded_out(running, progress)
        assert victims == order[::-1][: len(victims)], "the youngest go"
        assert not admitted or not victims, "nobody is let in to go at once"
        if policy is KvPolicy.RESERVE:
            assert not victims
            assert room.promised <= capacity
        stay = order[: len(order) - len(victims)]
        if order:
            assert stay, "the oldest stays"
            assert need(stay) <= capacity or len(stay) == 1
            assert not victims or need([*stay, victims[-1]]) > capacity, "nobody goes for nothing"
        for r in victims:
            ticket = next(t for t, other in running.items() if other is r)
            leave(ticket)
            pushed_out += 1
            heappush(waiting, (-pushed_out, r.number, 0, r))
        spare = room.room(running, progress)
        assert spare == capacity - room.promised if policy is KvPolicy.RESERVE else 0 <= spare <= capacity - need(stay)
        steps = chunk if any(r.left >= chunk for r in running.values()) else max([r.left for r in running.values()], default=0)
        for ticket in list(running):
            r = running[ticket]
            made = min(steps, r.left)
            r.left -= made
            room.used += made
            if r.left == 0 or made < steps:
                r.kv_tokens = held(r) + made
                r.entered = progress
                leave(ticket)
        progress += steps
        assert room.used == sum(map(held, running.values())) <= capacity
        now += 1
        assert now <= 21 + work, "somebody gets on with every chunk"


@pytest.mark.parametrize(("capacity", "preempts"), [(100, True), (500, True), (1000, True), (2000, True), (6500, False)])
def test_a_cache_that_is_far_too_small_still_gets_on(capacity, preempts):
    """A published simulator livelocks below 1,000 blocks. Here the oldest always makes its chunk, and so ends."""
    room = make_kv_room(KvPolicy.GROW, capacity, 16)
    waiting, running, progress, pushed_out, ended, tickets = [], {}, 0, 0, 0, 0
    for number in range(64):
        heappush(waiting, (0, number, 0, Asked(number, 0, 20, 100, 80)))
    chunks = 0
    while waiting or running:
        for r in room.admit(waiting, running, 64 - len(running), progress):
            tickets += 1
            r.entered, running[tickets] = progress, r
        for r in room.crowded_out(running, progress):
            ticket = next(t for t, other in running.items() if other is r)
            del running[ticket]
            r.left -= progress - r.entered
            r.kv_tokens += progress - r.entered
            room.used -= r.kv_tokens
            room.promised -= r.reserved_tokens
            pushed_out += 1
            heappush(waiting, (-pushed_out, r.number, 0, r))
        progress += 16
        room.used += 16 * len(running)
        for ticket, r in list(running.items()):
            if progress - r.entered == r.left:
                del running[ticket]
                room.used -= 100
                room.promised -= 100
                ended += 1
        chunks += 1
    assert ended == 64
    assert room.used == room.promised == 0
    assert chunks <= 64 * 5, "at worst one after the other"
    assert (pushed_out > 0) is preempts


def test_a_cache_that_holds_nothing_is_none():
    with pytest.raises(LawError, match="cache of 0"):
        make_kv_room(KvPolicy.GROW, 0, 1)
