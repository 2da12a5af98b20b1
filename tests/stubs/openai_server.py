"""A server like vLLM or SGLang on the loopback interface: continuous batching of its own, tokens that can be foretold, failures
on request. It ends with the nursery that it runs in.

Its scheduling is the obvious one: a loop with one turn a step, in which every running request gets its token. What is served is
the same law as in the simulated world, reached in another way.
"""

from __future__ import annotations

import json
import math
from collections import deque
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

import h11
import trio


def token_after(sequence: list[int]) -> int:
    """The token that follows a sequence: it depends on all of it, so that a lost or doubled one shows."""
    return (sum(sequence) * 31 + len(sequence)) % 997 + 3


def log_prob_of(token: int) -> float:
    return -1.0 / token


def continuation(prompt: list[int], count: int) -> list[int]:
    made: list[int] = []
    for _ in range(count):
        made.append(token_after(prompt + made))
    return made


@dataclass
class Timing:
    """Seconds of its steps, as in `harness.costs.step_time`, and its room."""

    step_s: float = 0.001
    per_sequence_s: float = 0.0
    per_kv_token_s: float = 0.0
    prefill_s: float = 0.0
    per_prompt_token_s: float = 0.0
    slots: int = 8


@dataclass
class Sequence:
    """A request that the server holds."""

    id: str
    prompt: list[int]
    max_tokens: int
    stop_tokens: tuple[int, ...]
    send: Any
    made: list[int] = field(default_factory=list)
    finish: str = ""


class StubServer:
    """What it did is in its attributes.

    Attributes:
        url: its address, once it runs.
        failures: taken one by one by the next generations: a status as a number, `("disconnect", n)` after n tokens, `"hang"`,
            or the name of a kind of garbage; None for none.
        seen: (path, body) of everything that was asked.
        headers: of the last request.
        steps: that it made.

    """

    def __init__(self, timing: Timing | None = None, *, dialect: str = "vllm", cumulative: bool = True) -> None:
        self.timing = timing or Timing()
        self.dialect = dialect
        self.cumulative = cumulative
        self.url = ""
        self.failures: deque[Any] = deque()
        self.orders: dict[str, Any] = {}  # path → status or "hang" with which it is refused
        self.retry_after = ""
        self.seen: list[tuple[str, Any]] = []
        self.headers: dict[str, str] = {}
        self.steps = 0
        self.version = "default"
        self.paused = False
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.most_running = 0
        self._aborted: set[str] = set()
        self._bell = trio.Event()
        self._quiet = trio.Event()
        self._busy = False

    @asynccontextmanager
    async def serve(self):
        """Serve while the block runs."""
        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, self._connection, listeners)
            self.url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
            nursery.start_soon(self._engine)
            yield self
            nursery.cancel_scope.cancel()

    # ── the engine ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _engine(self) -> None:
        timing = self.timing
        due = trio.current_time()
        while True:
            self._drop_aborted()
            self._busy = False
            self._quiet.set()
            if self.paused or not (self.waiting or self.running):
                self._bell = trio.Event()
                await self._bell.wait()
                due = trio.current_time()
                continue
            self._busy = True
            self._quiet = trio.Event()
            fresh = []
            while self.waiting and len(self.running) < timing.slots:
                fresh.append(self.waiting.popleft())
                self.running.append(fresh[-1])
            self.most_running = max(self.most_running, len(self.running))
            if fresh:
                due += timing.prefill_s + timing.per_prompt_token_s * sum(len(one.prompt) for one in fresh)
                await trio.sleep_until(due)
                continue
            held = sum(len(one.prompt) + len(one.made) for one in self.running)
            due += timing.step_s + timing.per_sequence_s * len(self.running) + timing.per_kv_token_s * held
            await trio.sleep_until(due)
            self.steps += 1
            for one in list(self.running):
                token = token_after(one.prompt + one.made)
                one.made.append(token)
                if token in one.stop_tokens:
                    one.finish = "stop"
                elif len(one.made) >= one.max_tokens:
                    one.finish = "length"
                if one.id in self._aborted:
                    one.finish = one.finish or "abort"
                if one.finish:
                    self.running.remove(one)
                one.send.send_nowait((token, one.finish))

    def _drop_aborted(self) -> None:
        for one in [*self.running, *self.waiting]:
            if one.id in self._aborted:
                (self.running if one in self.running else self.waiting).remove(one)
                one.finish = "abort"
                one.send.send_nowait((None, "abort"))
        self._aborted.clear()

    # ── HTTP ────────────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _connection(self, stream: trio.SocketStream) -> None:
        connection = h11.Connection(h11.SERVER)
        try:
            while True:
                request = await self._next(connection, stream)
                if not isinstance(request, h11.Request):
                    return
                body = b""
                while isinstance(event := await self._next(connection, stream), h11.Data):
                    body += event.data
                await self._answer(connection, stream, request, json.loads(body) if body else {})
                if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                    return
                connection.start_next_cycle()
        except (trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError):
            return

    async def _next(self, connection: h11.Connection, stream: trio.SocketStream) -> Any:
        while (event := connection.next_event()) is h11.NEED_DATA:
            connection.receive_data(await stream.receive_some())
        return event

    async def _answer(self, connection: Any, stream: Any, request: h11.Request, body: Any) -> None:
        target = urlsplit(request.target.decode())
        self.headers = {name.decode(): value.decode() for name, value in request.headers}
        self.seen.append((target.path, body | {key: values[0] for key, values in parse_qs(target.query).items()}))
        if target.path in ("/v1/completions", "/generate"):
            await self._generate(connection, stream, body)
            return
        refusal = self.orders.get(target.path)
        if refusal == "hang":
            await trio.sleep_forever()
        if refusal is not None:
            await self._reply(connection, stream, refusal, {"error": {"code": refusal}})
            return
        answer = await self._obey(target.path, body)
        await self._reply(connection, stream, 404 if answer is None else 200, answer or {})

    async def _obey(self, path: str, body: Any) -> dict[str, Any] | None:
        if path in ("/pause", "/pause_generation"):
            self.paused = True
            await self._quiet.wait()
        elif path in ("/resume", "/continue_generation"):
            self.paused = False
            self._bell.set()
        elif path == "/abort_requests":
            self._aborted.update(name.removeprefix("cmpl-").removesuffix("-0") for name in body["request_ids"])
            self._abort_now()
        elif path == "/abort_request":
            self._aborted.add(body["rid"])
            self._abort_now()
        elif path in ("/update_weight_version", "/update_weights_from_disk"):
            self.version = body.get("new_version") or body["weight_version"]
            return {"success": True}
        elif path not in ("/collective_rpc", "/reset_prefix_cache"):
            return None
        return {"status": "ok"}

    def _abort_now(self) -> None:
        if not self._busy:
            self._drop_aborted()

    async def _reply(self, connection: Any, stream: Any, status: int, body: Any, headers: Any = ()) -> None:
        data = json.dumps(body).encode()
        fields = [("content-type", "application/json"), ("content-length", str(len(data))), *headers]
        await stream.send_all(
            connection.send(h11.Response(status_code=status, headers=fields))
            + connection.send(h11.Data(data=data))
            + connection.send(h11.EndOfMessage())
        )

    async def _generate(self, connection: Any, stream: Any, body: Any) -> None:
        failure = self.failures.popleft() if self.failures else None
        if isinstance(failure, int):
            extra = [("retry-after", self.retry_after)] if self.retry_after else []
            await self._reply(connection, stream, failure, {"error": {"code": failure}}, extra)
            return
        if failure == "hang":
            await trio.sleep_forever()
        send, receive = trio.open_memory_channel[Any](math.inf)
        one = self._sequence(body, send)
        self.waiting.append(one)
        self._bell.set()
        await stream.send_all(
            connection.send(
                h11.Response(status_code=200, headers=[("content-type", "text/event-stream"), ("transfer-encoding", "chunked")])
            )
        )
        told: list[int] = []
        try:
            async for token, finish in receive:
                if isinstance(failure, tuple) and len(told) >= failure[1]:
                    await stream.aclose()
                    return
                new = [] if token is None else [token]
                told += new
                data = self._spoil(failure, self._event(told, new, finish))
                await stream.send_all(connection.send(h11.Data(data=data)))
                if finish:
                    break
            await stream.send_all(connection.send(h11.Data(data=b"data: [DONE]\n\n")) + connection.send(h11.EndOfMessage()))
        finally:
            if not one.finish:  # the client has gone
                self._aborted.add(one.id)
                self._abort_now()

    def _sequence(self, body: Any, send: Any) -> Sequence:
        if self.dialect == "vllm":
            return Sequence(
                self.headers["x-request-id"], body["prompt"], body["max_tokens"], tuple(body.get("stop_token_ids", ())), send
            )
        sampling = body["sampling_params"]
        return Sequence(
            body["rid"], body["input_ids"], sampling["max_new_tokens"], tuple(sampling.get("stop_token_ids", ())), send
        )

    def _event(self, told: list[int], new: list[int], finish: str) -> dict[str, Any]:
        if self.dialect == "vllm":
            log_probs = {
                "tokens": [f"token_id:{token}" for token in new],
                "token_logprobs": [log_prob_of(token) for token in new],
            }
            return {
                "choices": [{"index": 0, "text": "", "token_ids": new, "logprobs": log_probs, "finish_reason": finish or None}]
            }
        shown = told if self.cumulative else new
        return {
            "text": "",
            "meta_info": {
                "output_token_logprobs": [[log_prob_of(token), token, None] for token in shown],
                "completion_tokens": len(told),
                "finish_reason": {"type": finish} if finish else None,
                "weight_version": self.version,
            },
        }

    def _spoil(self, failure: Any, event: dict[str, Any]) -> bytes:
        if failure == "not json":
            return b"data: {\n\n"
        if failure == "not an event":
            return b"<html>gateway</html>\n\n"
        if failure == "an error":
            return b'data: {"error": {"message": "no", "code": 400}}\n\n'
        if failure == "an error of a server":
            return b'data: {"error": {"message": "no", "code": 503}}\n\n'
        if isinstance(failure, str) and self.dialect == "vllm":
            choice = event["choices"][0]
            if failure == "no log-probs":
                choice["logprobs"] = None
            elif failure == "nan":
                choice["logprobs"]["token_logprobs"] = [math.nan]
            elif failure == "two tokens, one log-prob":
                choice["token_ids"] = choice["token_ids"] * 2
            elif failure == "too many":
                choice["token_ids"] = choice["token_ids"] * 50
                choice["logprobs"]["token_logprobs"] = choice["logprobs"]["token_logprobs"] * 50
            elif failure == "no ids":
                choice["token_ids"] = ["a"]
            elif failure == "too short":
                choice["finish_reason"] = "length"
            elif failure == "unknown end":
                choice["finish_reason"] = "tired"
            elif failure == "no choices":
                del event["choices"]
        return b"data: " + json.dumps(event).encode() + b"\n\n"
