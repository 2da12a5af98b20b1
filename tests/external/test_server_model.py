"""The modelled server: against a slow obvious one, on both virtual engines, and in whole pipelines."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tiny_configs import scenarios
from tiny_world import S, count, geometric, play, scenario

from harness.core.accounts import Accounts
from harness.core.events import EventKind, describe, first_difference
from harness.core.lanes import State
from harness.core.work import Control, Generate, Order, Status, WorkKind
from harness.costs.server import SimulatedServers
from harness.costs.step_time import DecodeLaw, PrefillLaw
from harness.engines import sim, virtual
from pipeline.actors.requests import Request

MS = 1_000_000
DECODE = DecodeLaw(base_s=0.010, per_sequence_s=0.002, per_kv_token_s=1e-5)
PREFILL = PrefillLaw(base_s=0.003, per_token_s=1e-4)


# ── against the obvious ─────────────────────────────────────────────────────────────────────────────────────────────────────


def obvious(requests, slots, kv_tokens):
    """One turn of the loop a step and one token a request and step, in seconds: when each ends."""
    waiting = sorted((arrival, i) for i, (arrival, *_) in enumerate(requests))
    running, ends, now = {}, {}, 0.0
    free = kv_tokens
    while waiting or running:
        if not running and waiting[0][0] > now + 1e-9:
            now = waiting[0][0]
        fresh = []
        while waiting and waiting[0][0] <= now + 1e-9 and len(running) < slots and sum(requests[waiting[0][1]][1:]) <= free:
            _, i = waiting.pop(0)
            running[i] = 0
            free -= sum(requests[i][1:])
            fresh.append(i)
        if fresh:
            now += PREFILL.prefill_s(sum(requests[i][1] for i in fresh))
            continue
        now += DECODE.step_s(len(running), sum(requests[i][1] + made for i, made in running.items()))
        for i in list(running):
            running[i] += 1
            if running[i] == requests[i][2]:
                ends[i] = now
                del running[i]
                free += sum(requests[i][1:])
    return [ends[i] for i in range(len(requests))]


def modelled(requests, slots, kv_tokens, actions=None, engine=sim.run):
    """When each ends, with its outcome; `actions(rt, servers, progress)` runs beside them."""
    servers = SimulatedServers(DECODE, PREFILL, slots=slots, kv_tokens=kv_tokens, replicas=1)
    ended, accounts = {}, Accounts()

    async def main(rt):
        progress = {}

        async def one(i, arrival_s, prompt, length):
            request = Request(i, accounts.admit(i), rt.lane(f"slot/{i}", "rollout"))
            request.ask(0, prompt, length, length, rt.event())
            request.ticket = i
            progress[i] = request
            await rt.sleep(round(arrival_s * S))
            outcome = await rt.perform(Generate(i, 0, prompt, length, request))
            ended[i] = (rt.now() / S, outcome)

        async with rt.nursery() as nursery:
            for i, request in enumerate(requests):
                nursery.start_soon(one, i, *request)
            if actions is not None:
                await actions(rt, progress)

    engine(main, performers={Generate: servers.generate, Control: servers.control})
    return [ended[i] for i in range(len(requests))]


REQUESTS = st.lists(
    st.tuples(st.floats(0.0, 0.3).map(lambda s: round(s, 4)), st.integers(1, 60), st.integers(1, 25)), min_size=1, max_size=12
)


@settings(max_examples=60)
@given(requests=REQUESTS, slots=st.integers(1, 4), kv_tokens=st.sampled_from([90, 200, 10_000]))
def test_it_ends_when_the_obvious_server_does(requests, slots, kv_tokens):
    """Nanoseconds are rounded once a stretch, so an arrival within a hair of a step's end may fall on either side of it."""
    arrivals = sorted(arrival for arrival, *_ in requests)
    assume(all(b - a > 1e-6 for a, b in pairwise(arrivals)))
    wanted = obvious(requests, slots, kv_tokens)
    assume(all(abs(end - arrival) > 1e-6 for end in wanted for arrival in arrivals))
    got = modelled(requests, slots, kv_tokens)
    for i, (end_s, outcome) in enumerate(got):
        assert outcome.status is Status.OK
        assert outcome.amount == requests[i][2]
        assert end_s == pytest.approx(wanted[i], abs=1e-6)


@given(
    requests=REQUESTS, slots=st.integers(1, 4), orders=st.lists(st.tuples(st.integers(1, 400), st.integers(-2, 11)), max_size=6)
)
@settings(max_examples=60)
def test_orders_keep_the_books_and_both_engines_agree(requests, slots, orders):
    """Aborts and pauses at any time: nobody is forgotten, no token is made twice, progress never runs back."""

    async def actions(rt, progress):
        seen = {}
        for at_ms, what in sorted(orders):
            await rt.sleep(at_ms * MS - rt.now())
            if what >= 0:
                await rt.perform(Control(0, Order.ABORT, what))
            else:
                await rt.perform(Control(0, Order.PAUSE if what == -1 else Order.RESUME))
            for i, request in progress.items():
                if request.progress is not None:
                    assert seen.get(i, 0) <= request.progress() <= requests[i][2]
                    seen[i] = request.progress()
        await rt.perform(Control(0, Order.RESUME))

    on_sim = modelled(requests, slots, 10_000, actions)
    assert on_sim == modelled(requests, slots, 10_000, actions, engine=virtual.run)
    aborted = {what for _, what in orders if what >= 0}
    for i, (_, outcome) in enumerate(on_sim):
        if outcome.status is Status.OK:
            assert outcome.amount == requests[i][2]
        else:
            assert i in aborted
            assert outcome.status is Status.CANCELLED
            assert 0 <= outcome.amount < requests[i][2]


def test_a_pause_stops_at_the_end_of_a_step_and_costs_its_own_time_alone():
    async def actions(rt, progress):
        await rt.sleep(35 * MS)
        await rt.perform(Control(0, Order.PAUSE))
        assert rt.now() == pytest.approx(first + 3 * step, abs=step)
        at = progress[0].progress()
        paused = rt.now()
        await rt.sleep(S)
        assert progress[0].progress() == at
        await rt.perform(Control(0, Order.RESUME))
        lost.append(rt.now() - paused)

    lost = []
    step = round(DECODE.step_s(1, 10) * S)
    first = round(PREFILL.prefill_s(10) * S)
    ((plain_s, _),) = modelled([(0.0, 10, 9)], 2, 1000)
    ((paused_s, _),) = modelled([(0.0, 10, 9)], 2, 1000, actions)
    assert paused_s - plain_s == pytest.approx(lost[0] / S, abs=1e-8)


def test_there_is_no_event_for_each_token():
    """The time of a run does not grow with the length of its answers."""
    served = []

    def counting(length):
        events = [0]
        decode = DecodeLaw(base_s=0.01)

        class Counted(DecodeLaw):
            def chunk_ns(self, *args):
                events[0] += 1
                return super().chunk_ns(*args)

        servers = SimulatedServers(Counted(**decode.model_dump()), PREFILL, slots=4, kv_tokens=10**9, replicas=1)

        async def main(rt):
            accounts = Accounts()

            async def one(i):
                request = Request(i, accounts.admit(i), rt.lane(f"slot/{i}", "rollout"))
                request.ask(0, 5, length, length, rt.event())
                request.ticket = i
                await rt.perform(Generate(i, 0, 5, length, request))

            async with rt.nursery() as nursery:
                for i in range(8):
                    nursery.start_soon(one, i)

        sim.run(main, performers={Generate: servers.generate, Control: servers.control})
        served.append(events[0])

    counting(100)
    counting(100_000)
    assert served[0] == served[1]


# ── in whole pipelines ──────────────────────────────────────────────────────────────────────────────────────────────────────

SERVER = {"inference": {"replicas": 2, "server": {"slots": 3}}}
MODES = ["drain", "drain_episodes", "abort_resume", "keep"]
BUSY = {
    "max_staleness": 3, "pipeline_depth": 3, "buffer_capacity": 8, "max_inflight": 16, "env_workers": 16,
    "overprovision_members": 1, "eval_interval": 2, "router_policy": "round_robin",
}  # fmt: skip
TROUBLE = {"environments": {"reset_infra_failure": 0.1, "reset_hang": 0.05}, "scoring": {"failure": 0.1}}
LIMITS = {"build_s": 3.0, "reset_s": 3.0, "tool_s": 4.0, "step_s": 9.0, "generation_s": 1.5}


def same_log(what, seed):
    on_sim, on_trio = (play(what, seed, **options).all_events for options in ({"checks": False}, {"engine": virtual.run}))
    at = first_difference(on_sim, on_trio)
    assert at is None, f"event {at}: {describe(on_sim[at])} on sim, {describe(on_trio[at])} on virtual"
    return on_sim


@pytest.mark.parametrize("trouble", [False, True], ids=["fine", "trouble"])
@pytest.mark.parametrize(
    ("mode", "rollout"),
    [*((mode, "all_at_once") for mode in MODES), *((mode, "rolling") for mode in MODES if "_ep" not in mode)],
)
def test_both_engines_leave_the_same_log(mode, rollout, trouble):
    knobs = {**BUSY, "sync_mode": mode, "sync_rollout": rollout, **({"deadlines": LIMITS} if trouble else {})}
    long = {"response_tokens": geometric(60.0, 150)}
    world = {**SERVER, **(TROUBLE if trouble else {})}
    log = same_log(scenario(knobs, random=True, steps=5, world=world, workload=long), 5)
    assert sum(event[1] == EventKind.WORK_START and event[3] == WorkKind.GENERATE for event in log) > 50
    assert not any(event[3] in (WorkKind.PREFILL, WorkKind.DECODE) for event in log if event[1] == EventKind.WORK_START)


@settings(max_examples=10)
@given(what=scenarios(most_steps=4), slots=st.integers(1, 4), seed=st.integers(0, 1000))
def test_both_engines_leave_the_same_log_of_any_configuration(what, slots, seed):
    assume(what is not None)
    inference = what.world.inference
    server = type(inference).model_fields["server"].annotation.__args__[0](slots=slots)
    world = what.world.model_copy(update={"inference": inference.model_copy(update={"server": server})})
    same_log(what.model_copy(update={"world": world}), seed)


@pytest.mark.parametrize("mode", MODES)
def test_what_a_swap_does_to_running_requests(mode):
    long = {"response_tokens": geometric(150.0, 300)}
    played = play(scenario({**BUSY, "sync_mode": mode}, world=SERVER, workload=long, steps=8), 3)
    held = [event[4] for event in played.of(EventKind.SYNC_INSTALL)]
    orders = dict.fromkeys(Order, 0) | _counted(event[4] for event in played.works(WorkKind.CONTROL))
    assert len(held) >= 8
    assert (sum(held) > 0) is (mode in ("keep", "abort_resume"))
    assert (orders[Order.PAUSE] > 0) is (mode == "keep")
    assert orders[Order.PAUSE] == orders[Order.RESUME]
    mixed = [event for event in played.of(EventKind.EPISODE_END) if event[6] != event[7]]
    assert bool(mixed) is (mode != "drain_episodes")
    aborted = sum(event[4] == Status.CANCELLED for event in played.works(WorkKind.GENERATE, ends=True))
    assert aborted > 0
    assert played.report.lane_ns["replica/0"][State.GENERATE] > 0


def _counted(values):
    counts = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    return counts


def test_the_synchronous_baseline_to_the_nanosecond():
    """As with our own engine: all episodes run in step, so prefill and decode take what they take there."""
    knobs = {
        "group_size": 2, "groups_per_step": 2, "consume_chunk": 0, "max_staleness": 0, "pipeline_depth": 0, "steps_per_sync": 1,
        "sync_mode": "drain",
    }  # fmt: skip
    played = play(scenario(knobs, world={"inference": {"server": {"slots": 8}}}, steps=5))
    own = play(scenario(knobs, steps=5))
    assert [event[0] for event in played.of(EventKind.STEP)] == [event[0] for event in own.of(EventKind.STEP)]


def test_fewer_slots_than_requests_make_a_queue_in_the_server():
    shape = {"turns": count(1)}
    slow = play(scenario(BUSY, world={"inference": {"server": {"slots": 1}}}, workload=shape, steps=6), 1)
    fast = play(scenario(BUSY, world={"inference": {"server": {"slots": 8}}}, workload=shape, steps=6), 1)
    assert slow.summary.kept_groups_per_chip_s < fast.summary.kept_groups_per_chip_s
