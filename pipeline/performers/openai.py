"""Engines outside, over HTTP: performers of `Generate`, `Control` and `Publish` for servers that schedule themselves.

Theory of operation
-------------------
Every answer is a stream, so that each token is here as soon as it exists. It is appended to the request's `Generation` with its
log-probability and version at once; whatever then happens to the connection, no token is lost or made twice: the next try asks
for the rest, with prompt and tokens as its prompt.

*What is tried again:* 429, 500, 502, 503, 504, a connection that is refused, lost or silent for too long. It waits as long as
the server asks (`Retry-After`), else with exponential back-off. Tries without any progress are counted; after
`live.server.max_retries` of them the generation has failed as infrastructure does, and the retry policy of the pipeline
decides. The deadline of a generation is the pipeline's: it aborts.

*What is not:* an answer that is garbage, and a refusal of the request itself, fail as data does. A refusal of the key, the
model or the address concerns every request and ends the run with the field to look at; so does a server that never answered.

*Abort.* The order goes to the server, which ends the stream with what it has; where it does not in time, or does not
know the order, the connection is closed, which ends the request just as well.

*Versions.* A server says which weights made a token, or the version that was installed last is noted. An update is sent while
the server is paused or empty, so that tokens of old weights have arrived before.

Only the URLs of the scenario are contacted: no proxy from the environment, no redirect. The key is read from the environment,
and no message holds it, or what a server said.
"""

from __future__ import annotations

import logging
import math
import os
from typing import TYPE_CHECKING, Any

import httpx
import trio

from harness.core.errors import ConfigError, HarnessError
from harness.core.seeds import derive_key
from harness.core.work import Control, Generate, Order, Outcome, Publish, Status
from pipeline.performers.dialects import DIALECTS, Ask, Call, Garbage, Refused, parse_event

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from harness.core.runtime import Runtime
    from harness.core.work import Work
    from pipeline.data import Generation
    from pipeline.live_config import ServerTable

_LOG = logging.getLogger(__name__)

_DONE = Outcome()
_OVERLOAD = frozenset({408, 429, 500, 502, 503, 504})
_FIELDS = {401: "live.server.api_key_env", 403: "live.server.api_key_env", 404: "live.server.model"}

GARBAGE, REFUSED, UNREACHABLE = "server_garbage", "server_refused", "server_unreachable"
"""Classes of `Outcome.error`."""


_LOSSES: dict[type[BaseException], str] = {
    httpx.ConnectError: "no connection",
    httpx.ConnectTimeout: "no connection in time",
    httpx.ReadTimeout: "silence for too long",
    httpx.RemoteProtocolError: "a stream that broke off",
}

_ABORT_S = 5.0
"""How long a server may take to abort a request before its connection is closed, which does the same without its last token."""

_LAST_WORD_S = 1.0
"""How long the end of a stream may take after its last token."""

MAX_EVENT_BYTES = 1 << 24
"""Longest event that is read: a server that repeats 100,000 tokens in each of its events sends 5 MB."""


class ServerError(HarnessError):
    """A server does not do what the run cannot go on without. Says which, and what was asked."""

    exit_code = 2


class _Later(Exception):
    """To be tried again, after `wait_s` where the server says so."""

    def __init__(self, why: str, wait_s: float | None = None) -> None:
        super().__init__(why)
        self.wait_s = wait_s


class _Job:
    """One request on its way."""

    __slots__ = ("aborted", "asked", "base", "ended", "generation", "scope", "started_ns", "streaming", "whole")

    def __init__(self, generation: Generation) -> None:
        self.generation = generation
        self.base = len(generation.tokens)
        self.asked = ""
        self.started_ns = -1
        self.aborted = False
        self.streaming = False
        self.whole = False
        self.ended = trio.Event()
        self.scope = trio.CancelScope()

    def made(self) -> int:
        """Tokens since it was handed over."""
        return len(self.generation.tokens) - self.base


class Servers:
    """The servers of all replicas.

    Args:
        config: the table `[live.server]`.
        seed: of the run.
        stop_tokens: ids that end a turn.
        vocab_size: ids that our policy knows are below it; None where nobody trains on them.
        heard: told of failures, in one line each, with URL and field.

    """

    def __init__(
        self, config: ServerTable, *, seed: int, stop_tokens: tuple[int, ...], vocab_size: int | None,
        heard: Callable[[str], object],
    ) -> None:  # fmt: skip
        self._config = config
        self._dialect = DIALECTS[config.dialect]
        self._urls = [url.rstrip("/") for url in config.urls]
        self._seed = seed
        self._stop_tokens = stop_tokens
        self._vocab_size = vocab_size
        self._heard = heard
        self._headers = _authorisation(config)
        self._versions = [0] * len(self._urls)
        self._answered = [False] * len(self._urls)
        self._jobs: dict[tuple[int, int], _Job] = {}
        self._sent = 0
        self._client: httpx.AsyncClient | None = None

    # ── performers ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def generate(self, rt: Runtime, work: Generate, /) -> Outcome:
        """Perform a `Generate`; its payload is a request whose payload is a `Generation`."""
        request = work.payload
        job = self._jobs[work.replica, request.ticket] = _Job(request.payload)
        request.progress = job.made
        status, error = Status.CANCELLED, ""
        try:
            with job.scope:
                status, error = await self._persist(rt, work.replica, job)
        finally:
            del self._jobs[work.replica, request.ticket]
            job.ended.set()
        if job.whole:  # an abort that came too late
            status, error = Status.OK, ""
        return Outcome(status=status, amount=job.made(), started_ns=job.started_ns, error=error)

    async def control(self, rt: Runtime, work: Control, /) -> Outcome:
        """Perform a `Control`."""
        if work.order == Order.ABORT:
            job = self._jobs.get((work.entity, work.ticket))
            if job is not None:
                await self._abort(rt, work.entity, job)
            return _DONE
        call = self._dialect.pause() if work.order == Order.PAUSE else self._dialect.resume()
        await self._tell(rt, work.entity, call, self._config.control_timeout_s)
        return _DONE

    async def publish(self, rt: Runtime, work: Publish, /) -> Outcome:
        """Perform a `Publish`: its payload is the folder of a checkpoint that the server can read, or nothing of the kind."""
        path = str(work.payload) if isinstance(work.payload, str | os.PathLike) else ""
        running = any(replica == work.replica for replica, _ in self._jobs)
        for call in self._dialect.update(work.entity, path, running=running):
            await self._tell(rt, work.replica, call, self._config.update_timeout_s)
        self._versions[work.replica] = work.entity
        return Outcome(amount=work.weights_bytes)

    # ── generation ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _persist(self, rt: Runtime, replica: int, job: _Job) -> tuple[Status, str]:
        """Try until it is whole, or cannot be."""
        tries = made = 0
        while not job.aborted:
            try:
                if await self._stream(rt, replica, job):
                    return Status.OK, ""
                break  # aborted, as asked
            except Garbage as garbage:
                self._heard(f"{self._urls[replica]}: {garbage}")
                return Status.FAILED, GARBAGE
            except Refused as refused:
                self._heard(f"{self._urls[replica]}: the request was refused with {refused.code}")
                return Status.FAILED, REFUSED
            except _Later as later:
                if job.made() > made:
                    tries, made = 0, job.made()
                if tries >= self._config.max_retries:
                    self._give_up(replica, str(later))
                    return Status.INFRA, UNREACHABLE
                await trio.sleep(self._wait_s(rt, tries, later.wait_s, replica))
                tries += 1
        return Status.CANCELLED, ""

    def _give_up(self, replica: int, why: str) -> None:
        tried = f"{self._urls[replica]}: {why}, {self._config.max_retries + 1} times in a row"
        if not self._answered[replica]:
            raise ServerError(
                f"{tried}; no request was ever answered there: is live.server.urls right, and does the server run?"
            )
        self._heard(tried)

    def _wait_s(self, rt: Runtime, tries: int, asked_s: float | None, replica: int) -> float:
        """As long as the server asks; else exponential back-off, with the upper half at random, so that retries spread."""
        if asked_s is not None:
            return asked_s
        longest = min(self._config.backoff_s * 2.0**tries, self._config.backoff_max_s)
        self._sent += 1
        return longest * (0.5 + 0.5 * rt.rng("server retry", replica, self._sent).random())

    async def _stream(self, rt: Runtime, replica: int, job: _Job) -> bool:
        """One try: True when the answer is whole, False when it was aborted as asked.

        Raises:
            Garbage: the answer is not what it should be.
            Refused: the request is not.
            _Later: overload or a lost connection.

        """
        generation, before = job.generation, len(job.generation.tokens)
        remaining = generation.max_tokens - before
        if remaining <= 0:
            return True
        self._sent += 1
        job.asked = f"{self._seed:x}-{replica}-{self._sent}"
        ask = Ask(
            id=job.asked,
            model=self._config.model,
            prompt=generation.prompt + generation.tokens,
            max_tokens=remaining,
            temperature=generation.temperature,
            seed=derive_key(self._seed, "server sampling", *generation.key, before) & 0x7FFFFFFF,
            stop_tokens=self._stop_tokens,
        )
        call = self._dialect.generate(ask)
        finish = ""
        try:
            async with self._open(rt).stream(
                "POST", self._urls[replica] + call.path, json=call.body, params=call.params, headers=call.headers
            ) as response:
                self._check(replica, response)
                job.streaming = True
                lines = _lines(response)
                try:
                    async for line in lines:
                        finish = self._take(rt, replica, job, line, before)
                        if finish:
                            break
                finally:
                    await _read_out(lines, _LAST_WORD_S if finish else 0.0)
        except (httpx.TransportError, httpx.StreamError, OSError, trio.BrokenResourceError) as lost:
            raise _Later(_said(lost)) from lost
        finally:
            job.streaming = False
        if not finish:
            raise _Later("a stream ended in the middle")
        if finish == "abort" and not job.aborted:
            raise _Later("a request was aborted by somebody else")
        return finish != "abort"

    def _take(self, rt: Runtime, replica: int, job: _Job, line: str, before: int) -> str:
        """Keep what a line of the stream brings; returns why the answer has ended, if it has."""
        if not line.startswith("data:"):
            if line and not line.startswith((":", "event:", "id:", "retry:")):
                raise Garbage("the stream", f"holds {line[:40]!r}, which is no event")
            return ""
        data = line[5:].strip()
        if data == "[DONE]":
            return ""
        generation = job.generation
        try:
            event = parse_event(data)
        except Refused as refused:
            if refused.code in _OVERLOAD or refused.code >= 500:
                raise _Later(f"error {refused.code} in a stream") from None
            raise
        piece = self._dialect.piece(event, len(generation.tokens) - before)
        if piece is None:
            return ""
        made = len(generation.tokens) + len(piece.tokens)
        if made > generation.max_tokens:
            raise Garbage("the answer", f"is longer than the {generation.max_tokens} tokens that were asked for")
        if self._vocab_size is not None and max(piece.tokens, default=0) >= self._vocab_size:
            raise Garbage(
                "the answer",
                f"holds token {max(piece.tokens)} and our policy has {self._vocab_size}: the server has another model",
            )
        if piece.finish not in ("", "stop", "length", "abort"):
            raise Garbage("finish_reason", f"is {piece.finish!r}")
        if piece.finish == "length" and made < generation.max_tokens:
            raise Garbage("finish_reason", f"is 'length' after {made} of {generation.max_tokens} tokens")
        if piece.finish == "stop" and made == before:
            raise Garbage("the answer", "has no token at all")
        if piece.tokens and job.started_ns < 0:
            job.started_ns = rt.now()
        self._answered[replica] = True
        version = piece.version if piece.version >= 0 else self._versions[replica]
        generation.tokens += piece.tokens
        generation.log_probs += piece.log_probs
        generation.versions += [version] * len(piece.tokens)
        generation.finished = piece.finish == "stop"
        job.whole = piece.finish in ("stop", "length")
        return piece.finish

    # ── orders ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _abort(self, rt: Runtime, replica: int, job: _Job) -> None:
        """Have one request ended; returns when it has, soon."""
        job.aborted = True
        obeyed = False
        patience_s = min(self._config.control_timeout_s, _ABORT_S)
        with trio.move_on_after(patience_s):
            if job.streaming:
                obeyed = await self._post(rt, replica, self._dialect.abort(job.asked), patience_s)
            if obeyed:
                await job.ended.wait()
        job.scope.cancel()
        await job.ended.wait()

    async def _tell(self, rt: Runtime, replica: int, call: Call, timeout_s: float) -> None:
        """Give an order that the run cannot go on without, within `timeout_s`, tries and all."""
        why = "no answer"
        with trio.move_on_after(timeout_s):
            for tries in range(self._config.max_retries + 1):
                try:
                    if await self._post(rt, replica, call, timeout_s) or not call.needed:
                        return
                    why = "refused"
                    break
                except _Later as later:
                    why = str(later)
                    if not call.needed:
                        return
                    await trio.sleep(self._wait_s(rt, tries, later.wait_s, replica))
        raise ServerError(
            f"{self._urls[replica]}{call.path}: {why} within {timeout_s:g} s; the server must take this order: "
            f"see live.server.dialect ({self._config.dialect}), and how it was started"
        )

    async def _post(self, rt: Runtime, replica: int, call: Call, timeout_s: float) -> bool:
        """One POST; whether it was obeyed. Raises `_Later`; an order that is not needed never raises."""
        try:
            response = await self._open(rt).post(
                self._urls[replica] + call.path, json=call.body, params=call.params, headers=call.headers, timeout=timeout_s
            )
            if not call.needed:
                return response.is_success
            self._check(replica, response)
            return _obeyed(response)
        except (Garbage, Refused):
            return False
        except (httpx.TransportError, httpx.StreamError, OSError, trio.BrokenResourceError) as lost:
            if not call.needed:
                return False
            raise _Later(_said(lost)) from lost

    # ── connections ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _open(self, rt: Runtime) -> httpx.AsyncClient:
        """The client of this run; it is closed when the run is over."""
        if self._client is None:
            config = self._config
            self._client = httpx.AsyncClient(
                headers=self._headers,
                timeout=httpx.Timeout(config.silence_timeout_s, connect=config.connect_timeout_s, pool=None),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
                follow_redirects=False,
                trust_env=False,
            )
            rt.background(self._keep, self._client, name="connections to servers")
        return self._client

    async def _keep(self, client: httpx.AsyncClient) -> None:
        try:
            await trio.sleep_forever()
        finally:
            self._client = None
            with trio.move_on_after(self._config.control_timeout_s, shield=True):
                await client.aclose()

    def _check(self, replica: int, response: httpx.Response) -> None:
        code = response.status_code
        if code == 200:
            return
        if code in _OVERLOAD:
            raise _Later(f"status {code}", retry_after_s(response.headers.get("retry-after", "")))
        if code in _FIELDS and not self._answered[replica]:
            raise ConfigError(
                f"was refused by {self._urls[replica]} with status {code}",
                field=_FIELDS[code],
                allowed="what the server takes",
                remedy="check the key, the model's name, live.server.dialect and live.server.urls",
            )
        raise Refused(code)


async def _lines(response: httpx.Response) -> AsyncIterator[str]:
    """Lines of an answer, each as soon as it is there. Raises `Garbage` rather than keep a line without an end."""
    rest = b""
    async for chunk in response.aiter_bytes():
        *whole, rest = (rest + chunk).split(b"\n")
        if len(rest) > MAX_EVENT_BYTES:
            raise Garbage("an event", f"is longer than {MAX_EVENT_BYTES} bytes")
        for line in whole:
            yield line.decode("utf-8", "replace").rstrip("\r")


async def _read_out(lines: AsyncIterator[str], patience_s: float) -> None:
    """Bring the iterators of a stream to their end, which they must reach before they are dropped.

    A server that has said its last word closes the stream, and the connection is used again. Where it does not, or nobody wants
    the rest, the wait for more is cancelled, which goes through all of the iterators and closes the connection.
    """
    with trio.move_on_after(patience_s):
        async for _ in lines:
            pass


def retry_after_s(value: str) -> float | None:
    """Seconds that a `Retry-After` header asks for (RFC 9110, 10.2.3); a date is none, as clocks differ; None for nonsense."""
    try:
        seconds = float(value)
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def _obeyed(response: httpx.Response) -> bool:
    """Whether an order was, where the answer says so beside its status."""
    try:
        body = response.json()
    except ValueError:
        return True
    return not isinstance(body, dict) or body.get("success", True) is not False


def _said(lost: BaseException) -> str:
    """What happened to a connection, without what a server said."""
    return _LOSSES.get(type(lost), type(lost).__name__)


def _authorisation(config: ServerTable) -> dict[str, str]:
    if not config.api_key_env:
        return {}
    key = os.environ.get(config.api_key_env, "")
    if not key or not key.isascii() or not key.isprintable():
        raise ConfigError(
            "names a variable that holds no key" if not key else "names a variable whose value cannot be a key",
            field="live.server.api_key_env",
            value=config.api_key_env,
            allowed="the name of an environment variable that is set, in printable ASCII",
            remedy="set it, or leave the field out for a server without a key",
        )
    return {"Authorization": f"Bearer {key}"}


def external_performers(
    config: ServerTable,
    *,
    replicas: int | None = None,
    seed: int = 0,
    stop_tokens: tuple[int, ...] = (),
    vocab_size: int | None = None,
    heard: Callable[[str], object] = _LOG.warning,
) -> dict[type[Work], Any]:
    """Performers of all that a live run asks of servers outside.

    Args:
        config: the table `[live.server]`.
        replicas: replicas of the run, where they are to be compared with the number of URLs.
        seed: of the run; with a generation's key and the number of the token it gives the seed that a server is asked to use.
        stop_tokens: ids that end a turn, beside those that the servers know.
        vocab_size: of our policy; an answer with an id beyond it fails.
        heard: told of each failure in one line that names URL and field.

    Raises:
        ConfigError: no URL, not one for each replica, or no key where one is to be.

    """
    if not config.urls:
        raise ConfigError("is empty", field="live.server.urls", allowed="one base URL for each replica")
    if replicas is not None and replicas != len(config.urls):
        raise ConfigError(
            "does not fit the number of replicas",
            field="live.server.urls",
            value=f"{len(config.urls)} URLs",
            allowed=f"{replicas}, one for each of world.inference.replicas",
        )
    servers = Servers(config, seed=seed, stop_tokens=stop_tokens, vocab_size=vocab_size, heard=heard)
    return {Generate: servers.generate, Control: servers.control, Publish: servers.publish}
