"""Everything that a server can do to a request: what is tried again, what fails, what is kept, and what is said of it."""

from __future__ import annotations

import math
from contextlib import contextmanager

import pytest
from asking import PROMPT, ask
from openai_server import StubServer, Timing, continuation, log_prob_of

from harness.core.errors import ConfigError
from harness.core.work import Status
from pipeline.live_config import ServerTable
from pipeline.performers.openai import ServerError, external_performers, retry_after_s

S = 1_000_000_000
SERVERS = {
    "vllm": StubServer,
    "sglang": lambda *args: StubServer(*args, dialect="sglang"),
    "sglang, only what is new": lambda *args: StubServer(*args, dialect="sglang", cumulative=False),
}


def whole(request, count):
    """The answer is the one that a server without failures gives, to the last token."""
    kept = request.payload
    assert kept.tokens == continuation(kept.prompt, count)
    assert kept.log_probs == [log_prob_of(token) for token in kept.tokens]
    assert request.status is Status.OK
    return True


@contextmanager
def alone(kind):
    """The failure that is meant, however deep in groups."""
    with pytest.RaisesGroup(kind, flatten_subgroups=True, allow_unwrapped=True) as caught:
        yield caught


def generated(server, count=6, **table):
    async def program(asked):
        await asked.generate(count)

    return ask(program, server, **table)


# ── what is tried again ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dialect", SERVERS)
def test_tokens_come_back_with_their_log_probabilities(dialect):
    server = SERVERS[dialect]()
    asked = generated(server, 6)
    assert whole(asked.requests[0], 6)
    assert asked.heard == []
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    "failure", [429, 500, 503, ("disconnect", 0), ("disconnect", 3), ("disconnect", 5), "an error of a server"]
)
@pytest.mark.parametrize("dialect", SERVERS)
def test_overload_and_lost_connections_are_tried_again(dialect, failure):
    server = SERVERS[dialect]()
    server.failures.extend([failure, None])
    asked = generated(server, 6)
    assert whole(asked.requests[0], 6)
    assert asked.heard == []


@pytest.mark.parametrize("dialect", SERVERS)
def test_a_disconnect_keeps_the_tokens_that_came_and_asks_for_the_rest(dialect):
    server = SERVERS[dialect]()
    server.failures.append(("disconnect", 4))
    asked = generated(server, 9)
    assert whole(asked.requests[0], 9)
    bodies = [body for _, body in server.seen]
    prompts = [body.get("prompt") or body["input_ids"] for body in bodies]
    caps = [body.get("max_tokens") or body["sampling_params"]["max_new_tokens"] for body in bodies]
    assert prompts == [PROMPT, PROMPT + continuation(PROMPT, 4)]
    assert caps == [9, 5]


def test_a_server_that_breaks_off_after_every_token_is_asked_for_as_long_as_there_is_progress():
    server = StubServer()
    server.failures.extend([("disconnect", 1)] * 8)
    assert whole(generated(server, 9).requests[0], 9)


def test_tries_are_counted_and_then_the_infrastructure_has_failed():
    server = StubServer()
    server.failures.extend([None, *[503] * 10])

    async def program(asked):
        await asked.generate(2)
        await asked.generate(5)

    asked = ask(program, server)
    assert whole(asked.requests[0], 2)
    assert asked.requests[1].status is Status.INFRA
    assert len(server.seen) == 1 + 4, "the first try and three more"
    assert asked.heard == [f"{server.url}: status 503, 4 times in a row"]


def test_the_back_off_doubles_and_is_bounded():
    server = StubServer(Timing(step_s=0.0))
    server.failures.extend([None, *[503] * 7])
    waits = []

    async def program(asked):
        await asked.generate(1)
        before = asked.rt.now()
        await asked.generate(1)
        waits.append((asked.rt.now() - before) / S)

    ask(program, server, max_retries=7, backoff_s=1.0, backoff_max_s=4.0)
    longest = 1 + 2 + 4 * 5
    assert longest / 2 <= waits[0] <= longest + 0.1


def test_retry_after_is_obeyed():
    server = StubServer()
    server.retry_after = "20"
    server.failures.append(429)
    ended = []

    async def program(asked):
        await asked.generate(2)
        ended.append(asked.rt.now() / S)

    ask(program, server)
    assert 20.0 <= ended[0] < 20.5


def test_retry_after_is_no_longer_than_the_deadline():
    server = StubServer()
    server.retry_after = "1000000"
    server.failures.append(429)

    async def program(asked):
        with asked.rt.move_on_after(30 * S) as limit:
            await asked.generate(2)
        assert limit.cancelled_caught
        assert asked.rt.now() / S == pytest.approx(30.0, abs=0.1)

    ask(program, server)


@pytest.mark.parametrize(("value", "seconds"), [("3", 3.0), ("0.5", 0.5), ("", None), ("soon", None), ("-1", None),
    ("nan", None), ("inf", None), ("Wed, 21 Oct 2015 07:28:00 GMT", None)])  # fmt: skip
def test_what_retry_after_may_hold(value, seconds):
    assert retry_after_s(value) == seconds


def test_a_server_that_is_silent_for_too_long_is_asked_again():
    server = StubServer()
    server.failures.append("hang")

    async def program(asked):
        await asked.generate(3)
        assert asked.rt.now() / S == pytest.approx(50.5, abs=0.6)

    assert whole(ask(program, server).requests[0], 3)


def test_a_deadline_of_ours_ends_a_request_at_a_server_that_hangs():
    server = StubServer()
    server.failures.append("hang")

    async def program(asked):
        with asked.rt.move_on_after(10 * S):
            await asked.generate(3)
        assert asked.rt.now() / S == pytest.approx(10.0, abs=5.1), "the order to abort may take its deadline"

    assert ask(program, server).requests[0].tokens == 0


# ── what fails ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

GARBAGE = {
    "not json": "an event is not JSON",
    "not an event": "the stream holds '<html>gateway</html>', which is no event",
    "no log-probs": "choices[0].logprobs is missing",
    "nan": "choices[0].logprobs.token_logprobs holds nan, which is no log-probability",
    "two tokens, one log-prob": "choices[0].logprobs.token_logprobs has 1 entries for 2 tokens",
    "too many": "the answer is longer than the 6 tokens that were asked for",
    "no ids": "choices[0].token_ids holds 'a', which is no token id",
    "too short": "finish_reason is 'length' after 1 of 6 tokens",
    "unknown end": "finish_reason is 'tired'",
    "no choices": "choices is missing",
}


@pytest.mark.parametrize("failure", GARBAGE)
def test_garbage_fails_as_data_does_and_is_named_with_url_and_field(failure):
    server = StubServer()
    server.failures.append(failure)
    asked = generated(server, 6)
    assert asked.requests[0].status is Status.FAILED
    assert len(server.seen) == 1, "it is not tried again"
    (said,) = asked.heard
    assert said.startswith(f"{server.url}: {GARBAGE[failure]}")


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
def test_a_token_that_our_policy_does_not_have_fails_as_data_does(dialect):
    """Trained on, it would be taken for another one without a word."""

    async def program(asked):
        await asked.generate(6)

    server = StubServer(dialect=dialect)
    known = ask(program, server).requests[0].payload.tokens
    largest = max(known)
    assert ask(program, StubServer(dialect=dialect), vocab_size=largest + 1).requests[0].status is Status.OK
    asked = ask(program, StubServer(dialect=dialect), vocab_size=largest)
    assert asked.requests[0].status is Status.FAILED
    (said,) = asked.heard
    assert f"holds token {largest} and our policy has {largest}: the server has another model" in said


def test_a_refused_request_fails_as_data_does():
    server = StubServer()
    server.failures.append(400)
    asked = generated(server)
    assert asked.requests[0].status is Status.FAILED
    assert asked.heard == [f"{server.url}: the request was refused with 400"]


@pytest.mark.parametrize(
    ("status", "named"), [(401, "live.server.api_key_env"), (403, "live.server.api_key_env"), (404, "live.server.model")]
)
def test_a_refusal_that_concerns_every_request_ends_the_run(status, named):
    server = StubServer()
    server.failures.append(status)
    with alone(ConfigError) as caught:
        generated(server)
    assert named in _text(caught)


def test_a_redirect_is_not_followed():
    server = StubServer()
    server.failures.append(302)
    assert generated(server).requests[0].status is Status.FAILED
    assert len(server.seen) == 1


def test_a_server_that_was_never_there_ends_the_run():
    with alone(ServerError) as caught:
        generated(StubServer(), urls=["http://127.0.0.1:1"])
    assert "http://127.0.0.1:1" in _text(caught)
    assert "live.server.urls" in _text(caught)


def _text(caught):
    return "".join(str(leaf) for leaf in _leaves(caught.value))


def _leaves(failure):
    if isinstance(failure, BaseExceptionGroup):
        return [leaf for inner in failure.exceptions for leaf in _leaves(inner)]
    return [failure]


# ── keys and addresses ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_key_goes_to_the_server_and_into_no_message(monkeypatch):
    monkeypatch.setenv("THE_KEY", "secret-1")
    server = StubServer()
    server.failures.extend([None, "nan", *[503] * 9])

    async def program(asked):
        for _ in range(3):
            await asked.generate(2)

    asked = ask(program, server, api_key_env="THE_KEY")
    assert server.headers["authorization"] == "Bearer secret-1"
    assert len(asked.heard) == 2
    assert not any("secret" in said for said in asked.heard)


@pytest.mark.parametrize("value", [None, "", "line\nbreak", "kéy"])
def test_a_key_that_is_none_is_refused_without_being_shown(monkeypatch, value):
    monkeypatch.delenv("THE_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("THE_KEY", value)
    with pytest.raises(ConfigError, match=r"live\.server\.api_key_env") as caught:
        external_performers(ServerTable(urls=["http://127.0.0.1:1"], api_key_env="THE_KEY"))
    assert not value or value not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["ftp://host", "host:8000", "http://", "file:///etc/passwd", "http://host/?a=b", "http://me:secret@host"]
)
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(ValueError, match=r"base URL|credentials") as caught:
        ServerTable(urls=[url])
    assert "me:secret" not in str(caught.value).split("[type=")[0]


def test_no_address_is_refused():
    with pytest.raises(ConfigError, match=r"live\.server\.urls"):
        external_performers(ServerTable())


def test_there_is_one_address_for_each_replica():
    with pytest.raises(ConfigError, match=r"live\.server\.urls: does not fit the number of replicas\n.*2 URLs"):
        external_performers(ServerTable(urls=["http://127.0.0.1:1", "http://127.0.0.1:2"]), replicas=3)


def test_seeds_differ_by_request_and_by_what_is_made():
    server = StubServer()
    server.failures.append(("disconnect", 2))

    async def program(asked):
        await asked.generate(4)
        await asked.generate(4)

    ask(program, server)
    seeds = [body["seed"] for _, body in server.seen]
    assert len(set(seeds)) == 3
    assert all(0 <= seed < 2**31 and math.isfinite(seed) for seed in seeds)
