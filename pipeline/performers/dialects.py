"""What servers understand and say: requests and answers as plain data, one dialect for each kind of server.

vLLM
    `POST /v1/completions` with the prompt as token ids; server-sent events, each with the tokens that are new. Its control
    endpoints exist when it was started with `VLLM_SERVER_DEV_MODE=1`. The log-probabilities are those of the raw logits unless
    it was started with `--logprobs-mode processed_logprobs`, which is needed for temperatures other than 1.
SGLang
    `POST /generate` with `input_ids`; events that repeat all tokens so far, or only the new ones if it was started so.

An answer is read strictly. What is missing, not finite, too long or not JSON is `Garbage`, with the field in which it stands.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


class Garbage(Exception):
    """A server's answer is not what it should be: the field, and what is wrong with it."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where} {problem}")
        self.where = where


class Refused(Exception):
    """The server reports an error of its own in the middle of an answer."""

    def __init__(self, code: int) -> None:
        super().__init__(f"error {code}")
        self.code = code


@dataclass(frozen=True, slots=True)
class Ask:
    """One request for tokens.

    Attributes:
        id: unique; an abort names it.
        model: name of the model.
        prompt: token ids, those already made included.
        max_tokens: cap on new tokens.
        temperature: of the sampling; 0 is greedy.
        seed: of the sampling.
        stop_tokens: ids that end a turn.

    """

    id: str
    model: str
    prompt: list[int]
    max_tokens: int
    temperature: float
    seed: int
    stop_tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """What one event of an answer brings.

    Attributes:
        tokens: ids that are new.
        log_probs: one for each.
        finish: `stop` (its end-of-turn token), `length` (the cap), `abort`, or empty while it goes on.
        version: of the weights, where the server says it; -1 else.

    """

    tokens: list[int]
    log_probs: list[float]
    finish: str = ""
    version: int = -1


@dataclass(frozen=True, slots=True)
class Call:
    """A POST of JSON.

    Attributes:
        path: below the base URL.
        body: JSON-able.
        params: of the query.
        headers: beside the usual ones.
        needed: whether a refusal is a failure.

    """

    path: str
    body: dict[str, Any]
    params: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    needed: bool = True


class Dialect(Protocol):
    """How to talk to one kind of server."""

    def generate(self, ask: Ask, /) -> Call:
        """The request; its answer is a stream of events."""

    def piece(self, event: dict[str, Any], before: int, /) -> Piece | None:
        """Read an event; None where it brings nothing. `before`: tokens that this stream has brought so far.

        Raises:
            Garbage: it is not what it should be.
            Refused: it is an error.

        """

    def abort(self, request: str, /) -> Call:
        """End one request with what it has."""

    def pause(self) -> Call:
        """Make no further step; keep requests and their caches."""

    def resume(self) -> Call:
        """Go on."""

    def update(self, version: int, path: str, /, *, running: bool) -> Sequence[Call]:
        """Take the weights of a folder; without one only note the version. `running`: requests are paused in the server."""


def parse_event(data: str) -> dict[str, Any]:
    """The JSON object of an event. Raises `Garbage`."""
    try:
        event = json.loads(data)
    except ValueError:
        raise Garbage("an event", f"is not JSON: {data[:40]!r}") from None
    if not isinstance(event, dict):
        raise Garbage("an event", f"is not an object: {data[:40]!r}")
    if event.get("error"):
        error = event["error"]
        code = error.get("code") if isinstance(error, dict) else None
        raise Refused(code if isinstance(code, int) else 500)
    return event


class VLLM:
    """vLLM.

    Read in its repository: `entrypoints/openai/completion/serving.py` at 030ea52e (stream, `return_token_ids`, the engine's id
    `cmpl-{X-Request-Id}-0`), `entrypoints/serve/dev/rlhf/api_router.py` at 0100a212 (`/pause`, `/resume`, `/abort_requests`,
    `/update_weight_version`; in release 0.16 it is `entrypoints/serve/rlhf`), both of 2026. Weights of a folder are reloaded
    through `/collective_rpc`, whose method is the worker's `reload_weights`.
    """

    def generate(self, ask: Ask, /) -> Call:
        """`POST /v1/completions`."""
        body: dict[str, Any] = {
            "model": ask.model,
            "prompt": ask.prompt,
            "max_tokens": ask.max_tokens,
            "temperature": ask.temperature,
            "seed": ask.seed,
            "stream": True,
            "logprobs": 1,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "skip_special_tokens": False,
            "add_special_tokens": False,
        }
        if ask.stop_tokens:
            body["stop_token_ids"] = list(ask.stop_tokens)
        return Call("/v1/completions", body, headers={"X-Request-Id": ask.id})

    def piece(self, event: dict[str, Any], before: int, /) -> Piece | None:
        """`choices[0]`, with `token_ids`, or `logprobs.tokens` as `token_id:N` from servers that do not know the former."""
        choices = _field(event, "choices", list)
        if not choices:
            return None
        choice: Any = choices[0]
        if not isinstance(choice, dict):
            raise Garbage("choices[0]", "is not an object")
        finish = choice.get("finish_reason") or ""
        log_probs = choice.get("logprobs")
        tokens = choice.get("token_ids")
        if tokens is None and isinstance(log_probs, dict) and isinstance(log_probs.get("tokens"), list):
            tokens = [_token_of(token) for token in log_probs["tokens"]]
        if tokens is None:
            raise Garbage("choices[0].token_ids", "is missing")
        _check_tokens(tokens, "choices[0].token_ids")
        if not tokens:
            return Piece([], [], finish) if finish else None
        if not isinstance(log_probs, dict):
            raise Garbage("choices[0].logprobs", "is missing")
        values: Any = log_probs.get("token_logprobs")
        _check_log_probs(values, len(tokens), "choices[0].logprobs.token_logprobs")
        return Piece(tokens, [float(value) for value in values], finish)

    def abort(self, request: str, /) -> Call:
        """By the engine's own id: prefix, ours, and the number of the prompt."""
        return Call("/abort_requests", {"request_ids": [f"cmpl-{request}-0"]}, needed=False)

    def pause(self) -> Call:
        """Freeze; the default would abort."""
        return Call("/pause", {}, {"mode": "keep"})

    def resume(self) -> Call:
        """Go on."""
        return Call("/resume", {})

    def update(self, version: int, path: str, /, *, running: bool) -> Sequence[Call]:
        """Reload on all workers, and forget prefixes of old weights; the caches of paused requests stay."""
        if not path:
            return [Call("/update_weight_version", {"new_version": str(version)})]
        return [
            Call("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": path}}),
            Call("/reset_prefix_cache", {}, needed=False),
        ]


class SGLang:
    """SGLang.

    Read in its repository, 2026: `srt/entrypoints/http_server.py` and `srt/managers/io_struct.py` (`AbortReq`,
    `PauseGenerationReqInput` with `abort`, `retract` and `in_place`, `UpdateWeightFromDiskReqInput`; 0.5.5 still paused without
    a mode). `output_token_logprobs` holds (log-probability, id, text) for each token.
    """

    def generate(self, ask: Ask, /) -> Call:
        """`POST /generate`."""
        sampling: dict[str, Any] = {
            "max_new_tokens": ask.max_tokens,
            "temperature": ask.temperature,
            "sampling_seed": ask.seed,
            "skip_special_tokens": False,
        }
        if ask.stop_tokens:
            sampling["stop_token_ids"] = list(ask.stop_tokens)
        body = {"rid": ask.id, "input_ids": ask.prompt, "sampling_params": sampling, "return_logprob": True, "stream": True}
        return Call("/generate", body)

    def piece(self, event: dict[str, Any], before: int, /) -> Piece | None:
        """`meta_info`: all tokens so far, or those that are new; `completion_tokens` tells which."""
        meta = _field(event, "meta_info", dict)
        rows = meta.get("output_token_logprobs")
        if not isinstance(rows, list):
            raise Garbage("meta_info.output_token_logprobs", "is missing")
        made = meta.get("completion_tokens")
        if not isinstance(made, int) or made < before:
            raise Garbage("meta_info.completion_tokens", f"is {made!r} after {before} tokens")
        if len(rows) == made:
            rows = rows[before:]
        elif len(rows) != made - before:
            raise Garbage("meta_info.output_token_logprobs", f"has {len(rows)} entries for {made - before} new tokens")
        if any(not isinstance(row, list) or len(row) < 2 for row in rows):
            raise Garbage("meta_info.output_token_logprobs", "has an entry that is no (log-probability, id)")
        tokens, values = [row[1] for row in rows], [row[0] for row in rows]
        _check_tokens(tokens, "meta_info.output_token_logprobs")
        _check_log_probs(values, len(tokens), "meta_info.output_token_logprobs")
        reason = meta.get("finish_reason")
        finish = reason.get("type", "") if isinstance(reason, dict) else (reason or "")
        if not tokens and not finish:
            return None
        version = str(meta.get("weight_version", ""))
        return Piece(tokens, [float(value) for value in values], finish, int(version) if version.isdecimal() else -1)

    def abort(self, request: str, /) -> Call:
        """By our own id."""
        return Call("/abort_request", {"rid": request}, needed=False)

    def pause(self) -> Call:
        """Stay in place, with the caches."""
        return Call("/pause_generation", {"mode": "in_place"})

    def resume(self) -> Call:
        """Go on."""
        return Call("/continue_generation", {})

    def update(self, version: int, path: str, /, *, running: bool) -> Sequence[Call]:
        """From the disk. The cache is flushed unless requests that stay in place use it, with which it refuses to."""
        if not path:
            return [Call("/update_weight_version", {"new_version": str(version), "abort_all_requests": False})]
        body = {"model_path": path, "weight_version": str(version), "flush_cache": not running}
        return [Call("/update_weights_from_disk", body)]


DIALECTS: dict[str, Dialect] = {"vllm": VLLM(), "sglang": SGLang()}
"""By the name that `live.server.dialect` takes."""


def _field(event: dict[str, Any], name: str, kind: type[Any]) -> Any:
    value = event.get(name)
    if not isinstance(value, kind):
        raise Garbage(name, "is missing" if value is None else f"is a {type(value).__name__}")
    return value


def _token_of(token: Any) -> Any:
    """The number in `token_id:N`; anything else as it is, and refused."""
    head, _, number = str(token).partition(":")
    return int(number) if head == "token_id" and number.isdecimal() else token


def _check_tokens(tokens: Any, where: str) -> None:
    if not isinstance(tokens, list):
        raise Garbage(where, "is not a list")
    for token in tokens:
        if type(token) is not int or token < 0:
            raise Garbage(where, f"holds {token!r}, which is no token id")


def _check_log_probs(values: Any, wanted: int, where: str) -> None:
    if not isinstance(values, list):
        raise Garbage(where, "is missing")
    if len(values) != wanted:
        raise Garbage(where, f"has {len(values)} entries for {wanted} tokens")
    for value in values:
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value) or value > 0:
            raise Garbage(where, f"holds {value!r}, which is no log-probability")
