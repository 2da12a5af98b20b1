"""Abort, pause and new weights: what a replica on a server outside does with requests, chips, versions and books."""

from __future__ import annotations

import pytest
from asking import PROMPT, ask
from openai_server import StubServer, Timing, continuation
from test_failures import SERVERS, alone

from harness.core.work import Status
from pipeline.actors.requests import Swap
from pipeline.performers.openai import ServerError
from pipeline.policies.sync import Quiesce

S = 1_000_000_000
SLOW = Timing(step_s=1.0, slots=4)
"""A token a second, so that instants tell what happened."""


async def swap(asked, mode, version, payload=None):
    order = Swap(asked.rt, version, mode, 1000, payload)
    order.go.set()
    asked.replica.order(order)
    await order.done.wait()


def during(actions, *counts, server=None, dialect="vllm", prompts=(), **table):
    """Some generations, and beside them `actions(asked)`."""

    async def program(asked):
        async with asked.rt.nursery() as nursery:
            for i, count in enumerate(counts):
                nursery.start_soon(asked.generate, count, prompts[i] if prompts else [i + 1])
            await actions(asked)

    return ask(program, server or SERVERS[dialect](SLOW), **table)


def whole(request):
    kept = request.payload
    assert kept.tokens == continuation(kept.prompt, kept.max_tokens)
    return True


# ── abort ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dialect", SERVERS)
def test_a_caller_that_is_cancelled_has_its_request_aborted_and_its_tokens_booked(dialect):
    server = SERVERS[dialect](SLOW)

    async def program(asked):
        with asked.rt.move_on_after(round(3.5 * S)):
            await asked.generate(100)
        assert asked.rt.now() / S == pytest.approx(4.0, abs=0.2), "at the end of the step that was running"

    asked = ask(program, server)
    (request,) = asked.requests
    assert request.payload.tokens == continuation(PROMPT, 4)
    assert request.account.tokens == asked.accounts.made_tokens == 4
    assert [path for path, _ in server.seen][1:] == ["/abort_requests" if dialect == "vllm" else "/abort_request"]
    assert server.running == []


def test_a_request_that_waits_in_the_server_is_aborted_at_once():
    server = StubServer(Timing(step_s=1.0, slots=1))

    async def actions(asked):
        await asked.rt.sleep(S // 2)
        with asked.rt.move_on_after(round(2.1 * S)):
            await asked.generate(5, [9])
        assert asked.requests[-1].tokens == 0

    asked = during(actions, 6, server=server)
    assert whole(asked.requests[0])


@pytest.mark.parametrize("refusal", [404, 500, "hang"])
def test_a_server_that_does_not_abort_is_left(refusal):
    """The connection is closed, which ends the request; what came is kept."""
    server = StubServer(SLOW)
    server.orders["/abort_requests"] = refusal

    async def program(asked):
        with asked.rt.move_on_after(round(3.5 * S)):
            await asked.generate(100)
        assert asked.rt.now() / S < 3.5 + 5.2
        await asked.rt.sleep(3 * S)
        assert server.running == [], "the server has seen that nobody listens"

    assert 3 <= ask(program, server).requests[0].tokens <= 9


def test_a_request_that_waits_for_its_next_try_is_let_go_at_once():
    server = StubServer()
    server.failures.extend([None, 503])
    server.retry_after = "1000"

    async def program(asked):
        await asked.generate(1)
        before = asked.rt.now()
        with asked.rt.move_on_after(2 * S):
            await asked.generate(3)
        assert (asked.rt.now() - before) / S == pytest.approx(2.0, abs=0.1)

    ask(program, server)


def test_the_end_of_a_run_aborts_everything_and_books_it():
    async def program(asked):
        for i in range(6):
            asked.engines.submit(asked.request(100, [i]))
        await asked.rt.sleep(round(3.5 * S))

    server = StubServer(SLOW)
    asked = ask(program, server)
    assert sorted(request.tokens for request in asked.requests) == [0, 0, 4, 4, 4, 4]
    assert all(request.done.is_set() for request in asked.requests)
    assert server.running == []


# ── weights ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dialect", SERVERS)
def test_keep_pauses_and_goes_on_with_what_it_has(dialect):
    async def actions(asked):
        await asked.rt.sleep(round(2.5 * S))
        await swap(asked, Quiesce.PAUSE, 1)

    asked = during(actions, 6, 8, dialect=dialect)
    paths = [path for path, _ in asked.server.seen]
    assert paths[2:] == (
        ["/pause", "/update_weight_version", "/resume"]
        if dialect == "vllm"
        else ["/pause_generation", "/update_weight_version", "/continue_generation"]
    )
    for request in asked.requests:
        assert whole(request)
        assert request.payload.versions == [0] * 3 + [1] * (request.tokens - 3)
        assert (request.oldest, request.newest) == (0, 1)
    if dialect == "vllm":
        assert asked.server.seen[2][1] == {"mode": "keep"}


@pytest.mark.parametrize("dialect", SERVERS)
def test_abort_resume_sends_everything_again_behind_the_tokens_it_has(dialect):
    async def actions(asked):
        await asked.rt.sleep(round(2.5 * S))
        await swap(asked, Quiesce.ABORT_REQUESTS, 1)

    asked = during(actions, 6, 8, dialect=dialect)
    for request in asked.requests:
        assert whole(request)
        assert request.resumed
        assert request.payload.versions == [0] * 3 + [1] * (request.tokens - 3)
        assert (request.oldest, request.newest) == (0, 1)
    again = [body for path, body in asked.server.seen if path in ("/v1/completions", "/generate")][2:]
    prompts = sorted(body.get("prompt") or body["input_ids"] for body in again)
    assert prompts == sorted([[1, *continuation([1], 3)], [2, *continuation([2], 3)]])


def test_drain_waits_for_what_is_in_flight_and_sends_nothing_meanwhile():
    async def actions(asked):
        await asked.rt.sleep(round(1.5 * S))
        async with asked.rt.nursery() as nursery:
            nursery.start_soon(swap, asked, Quiesce.FINISH_REQUESTS, 1)
            await asked.rt.sleep(S)
            nursery.start_soon(asked.generate, 2, [7])
            await asked.rt.sleep(S)
            assert len(asked.replica.running) == 1

    asked = during(actions, 6)
    first, second = asked.requests
    assert (first.oldest, first.newest) == (0, 0)
    assert (second.oldest, second.newest) == (1, 1)
    assert [path for path, _ in asked.server.seen] == ["/v1/completions", "/update_weight_version", "/v1/completions"]


def test_a_request_that_only_waited_through_a_swap_is_of_the_new_version():
    server = StubServer(Timing(step_s=1.0, slots=1))

    async def actions(asked):
        await asked.rt.sleep(round(1.5 * S))
        await swap(asked, Quiesce.PAUSE, 1)

    asked = during(actions, 4, 3, server=server)
    versions = sorted((request.oldest, request.newest) for request in asked.requests)
    assert versions == [(0, 1), (1, 1)]


@pytest.mark.parametrize("mode", [Quiesce.PAUSE, Quiesce.ABORT_REQUESTS, Quiesce.FINISH_REQUESTS])
def test_an_idle_server_is_updated_without_more_ado(mode):
    async def program(asked):
        await swap(asked, mode, 1)
        request = await asked.generate(2)
        assert (request.oldest, request.newest) == (1, 1)

    assert [path for path, _ in ask(program).server.seen] == ["/update_weight_version", "/v1/completions"]


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
def test_weights_are_updated_by_the_folder_of_a_checkpoint(dialect, tmp_path):
    async def actions(asked):
        await asked.rt.sleep(round(2.5 * S))
        await swap(asked, Quiesce.PAUSE, 3, tmp_path)

    asked = during(actions, 6, dialect=dialect)
    told = dict(asked.server.seen)
    if dialect == "vllm":
        assert told["/collective_rpc"] == {"method": "reload_weights", "kwargs": {"weights_path": str(tmp_path)}}
    else:
        wanted = {"model_path": str(tmp_path), "weight_version": "3", "flush_cache": False}
        assert told["/update_weights_from_disk"] == wanted


def test_a_caller_that_is_cancelled_in_the_middle_of_a_swap_is_let_go():
    async def actions(asked):
        await asked.rt.sleep(round(2.5 * S))
        order = Swap(asked.rt, 1, Quiesce.PAUSE, 1000, None)
        asked.replica.order(order)
        await order.quiesced.wait()
        with asked.rt.move_on_after(S):
            await asked.generate(3, [9])  # held back
        (long,) = [request for request in asked.requests if request.payload.max_tokens == 50]
        await asked.engines.withdraw(long)  # paused in the server
        assert long.done.is_set()
        order.go.set()
        await order.done.wait()

    asked = during(actions, 50, 6)
    assert {request.payload.max_tokens: request.tokens for request in asked.requests} == {50: 3, 6: 6, 3: 0}


@pytest.mark.parametrize("path", ["/pause", "/update_weight_version", "/resume"])
@pytest.mark.parametrize("refusal", [404, 503, "hang"])
def test_an_order_that_a_server_does_not_take_ends_the_run(path, refusal):
    server = StubServer(SLOW)
    server.orders[path] = refusal

    async def actions(asked):
        await asked.rt.sleep(round(1.5 * S))
        await swap(asked, Quiesce.PAUSE, 1)

    with alone(ServerError) as caught:
        during(actions, 50, server=server, update_timeout_s=20.0)
    assert f"{server.url}{path}" in repr(caught.value)


# ── books ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_tokens_in_flight_are_on_the_books_when_a_balance_is_asked_for():
    async def actions(asked):
        await asked.rt.sleep(round(2.5 * S))
        asked.replica.balance()
        assert asked.accounts.made_tokens == asked.accounts.in_flight_tokens == 2 * 3
        await swap(asked, Quiesce.PAUSE, 1)

    asked = during(actions, 4, 9, 2)
    assert asked.accounts.made_tokens == 15


def test_a_server_that_aborts_on_its_own_is_asked_again():
    async def actions(asked):
        await asked.rt.sleep(round(2.5 * S))
        server._aborted.update(one.id for one in server.running)

    server = StubServer(SLOW)
    asked = during(actions, 6, server=server)
    assert whole(asked.requests[0])
    assert asked.requests[0].status is Status.OK
