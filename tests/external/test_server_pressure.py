"""The modelled server under KV pressure: against one that is obvious, and in whole pipelines, with preemption and without."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tiny_world import S, count, geometric, play, scenario

from harness.core.accounts import Accounts
from harness.core.events import EventKind, describe, first_difference
from harness.core.work import Control, Generate, Order, Status
from harness.costs.server import WATERMARK, SimulatedServers
from harness.costs.step_time import DecodeLaw, PrefillLaw
from harness.engines import sim, virtual
from pipeline.actors.requests import Request

DECODE = DecodeLaw(base_s=0.010, per_sequence_s=0.002, per_kv_token_s=1e-5)
PREFILL = PrefillLaw(base_s=0.003, per_token_s=1e-4)


def obvious(requests, slots, kv_tokens):
    """One turn of the loop a step, in seconds: when each ends, and how often somebody was pushed out."""
    waiting = sorted((arrival, i) for i, (arrival, *_) in enumerate(requests))
    front, running, made, ends, now, pushed_out = [], [], dict.fromkeys(range(len(requests)), 0), {}, 0.0, 0

    def held(i):
        return requests[i][1] + made[i]

    while waiting or front or running:
        if not running and not front and waiting[0][0] > now + 1e-9:
            now = waiting[0][0]
        fresh = []
        while len(running) < slots:
            if not front and not (waiting and waiting[0][0] <= now + 1e-9):
                break
            i = front[-1] if front else waiting[0][1]
            room = kv_tokens - sum(map(held, running)) - len(running) - int(kv_tokens * WATERMARK)
            if running and held(i) + 1 > room:
                break
            (front if front else waiting).pop(-1 if front else 0)
            running.append(i)
            fresh.append(i)
        if fresh:
            now += PREFILL.prefill_s(sum(held(i) for i in fresh))
            continue
        while len(running) > 1 and sum(map(held, running)) + len(running) > kv_tokens:
            front.append(running.pop())
            pushed_out += 1
        now += DECODE.step_s(len(running), sum(map(held, running)))
        for i in list(running):
            made[i] += 1
            if made[i] == requests[i][2]:
                ends[i] = now
                running.remove(i)
    return [ends[i] for i in range(len(requests))], pushed_out


def modelled(requests, slots, kv_tokens, engine=sim.run, actions=None):
    """When each ends, with its outcome; KV is watched at every event."""
    servers = SimulatedServers(DECODE, PREFILL, slots=slots, kv_tokens=kv_tokens, replicas=1, grows=True)
    ended, accounts, asked = {}, Accounts(), {}

    async def main(rt):
        async def one(i, arrival_s, prompt, length):
            request = asked[i] = Request(i, accounts.admit(i), rt.lane(f"slot/{i}", "rollout"))
            request.ask(0, prompt, kv_tokens - prompt, length, rt.event())
            request.ticket = i
            await rt.sleep(round(arrival_s * S))
            outcome = await rt.perform(Generate(i, 0, prompt, kv_tokens - prompt, request))
            ended[i] = (rt.now() / S, outcome)
            assert servers._servers[0]._kv_used <= kv_tokens

        async with rt.nursery() as nursery:
            for i, request in enumerate(requests):
                nursery.start_soon(one, i, *request)
            if actions is not None:
                await actions(rt, asked)

    engine(main, performers={Generate: servers.generate, Control: servers.control})
    server = servers._servers[0]
    assert (server._kv_used, server._kv_free, len(server._running)) == (0, kv_tokens, 0), "nothing is left behind"
    return [ended[i] for i in range(len(requests))], server._pushed_out


REQUESTS = st.lists(
    st.tuples(st.floats(0.0, 0.3).map(lambda s: round(s, 4)), st.integers(1, 60), st.integers(1, 25)), min_size=1, max_size=12
)


@settings(max_examples=60)
@given(requests=REQUESTS, slots=st.integers(1, 6), kv_tokens=st.sampled_from([85, 120, 200, 10_000]))
def test_it_ends_when_the_obvious_server_does(requests, slots, kv_tokens):
    arrivals = sorted(arrival for arrival, *_ in requests)
    assume(all(b - a > 1e-6 for a, b in pairwise(arrivals)))
    wanted, pushed_out = obvious(requests, slots, kv_tokens)
    assume(all(abs(end - arrival) > 1e-6 for end in wanted for arrival in arrivals))
    got, counted = modelled(requests, slots, kv_tokens)
    assert counted == pushed_out
    for i, (end_s, outcome) in enumerate(got):
        assert outcome.status is Status.OK
        assert outcome.amount == requests[i][2]
        assert end_s == pytest.approx(wanted[i], abs=1e-6)


@settings(max_examples=40)
@given(
    requests=REQUESTS, kv_tokens=st.sampled_from([85, 120]), orders=st.lists(
        st.tuples(st.integers(1, 400), st.integers(-2, 11)), max_size=6),
)  # fmt: skip
def test_orders_keep_the_books_and_both_engines_agree(requests, kv_tokens, orders):
    """Aborts and pauses at any time, also of those who were pushed out: progress never runs back, no token is made twice."""

    async def actions(rt, asked):
        seen = {}
        for at_ms, what in sorted(orders):
            await rt.sleep(at_ms * 1_000_000 - rt.now())
            await rt.perform(
                Control(0, Order.ABORT, what) if what >= 0 else Control(0, Order.PAUSE if what == -1 else Order.RESUME)
            )
            for i, request in asked.items():
                if request.progress is not None:
                    made = request.progress()
                    assert seen.get(i, 0) <= made <= requests[i][2]
                    seen[i] = made
        await rt.perform(Control(0, Order.RESUME))

    one = modelled(requests, 4, kv_tokens, sim.run, actions)
    assert one == modelled(requests, 4, kv_tokens, virtual.run, actions)
    for (_, outcome), (_, _, length) in zip(one[0], requests, strict=True):
        assert outcome.amount == length if outcome.status is Status.OK else outcome.amount <= length


@pytest.mark.parametrize("router", ["round_robin", "sticky", "least_loaded"])
@pytest.mark.parametrize("kv_policy", ["reserve", "grow"])
def test_overload_in_a_whole_pipeline(router, kv_policy):
    """Two servers with room for one or two contexts each, under eight episodes: the run ends, laws hold, both engines agree."""
    what = scenario(
        {"router_policy": router, "sync_mode": "abort_resume"}, random=True, steps=3,
        world={"inference": {"replicas": 2, "kv_capacity_tokens": 120, "server": {"slots": 8, "kv_policy": kv_policy}}},
        workload={"max_context_tokens": 110, "response_tokens": geometric(40.0, 60), "turns": count(2)},
    )  # fmt: skip
    one, other = (play(what, 1, engine=engine, checks=engine is sim.run) for engine in (sim.run, virtual.run))
    first = first_difference(one.all_events, other.all_events)
    assert first is None, f"{first}: {describe(one.all_events[first])} | {describe(other.all_events[first])}"
    assert (len(one.of(EventKind.PREEMPT)) > 3) is (kv_policy == "grow")
    served = {event[4] for event in one.all_events if event[1] == EventKind.WORK_START and event[3] == Generate.KIND}
    assert served == {0, 1}
