"""Agents: from observations to token ids, and from the policy's ids to text.

An agent is a tokenizer and a chat format. The format's glue (turn markers, role names) belongs to the observation: the policy
reads it and is not trained on it. An answer is what the policy made up to and with the end-of-turn token.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Tokenizer(Protocol):
    """Text to token ids and back (`pipeline.numerics.tokenizers`)."""

    @property
    def vocab_size(self) -> int:
        """Ids are below it."""

    @property
    def end_id(self) -> int:
        """The token that ends a turn."""

    @property
    def pad_id(self) -> int:
        """A token that never stands in a sequence."""

    def encode(self, text: str, /, *, special: bool = True, source: str = "") -> list[int]:
        """Token ids; with `special`, names of special tokens stand for them. `source` is for the error."""

    def decode(self, ids: Sequence[int], /) -> str:
        """The text, without special tokens that only mark turns."""


class Agent(Protocol):
    """What an episode needs of a chat format over a tokenizer."""

    tokenizer: Tokenizer

    def first(
        self, prompt: str | list[dict[str, str]], tools: Callable[[], Sequence[dict[str, Any]]] | None = None, /
    ) -> list[int]:
        """Tokens of the first prompt, up to where the policy begins to speak. `tools` gives the schemas of its tools."""

    def observation(self, text: str, /, *, closed: bool = True) -> list[int]:
        """Tokens of an observation, from the end of the answer before it (`closed`: it had its end-of-turn token)."""

    def text(self, tokens: list[int], /) -> str:
        """The text of an answer."""


class PlainAgent:
    """For character models: each message is its text and the end-of-turn token. No roles, no tool descriptions."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._end = tokenizer.end_id

    def first(
        self, prompt: str | list[dict[str, str]], tools: Callable[[], Sequence[dict[str, Any]]] | None = None, /
    ) -> list[int]:
        """The messages, one after the other."""
        texts = [prompt] if isinstance(prompt, str) else [message["content"] for message in prompt]
        tokens: list[int] = []
        for text in texts:
            tokens += self.tokenizer.encode(text, special=False, source="the prompt")
            tokens.append(self._end)
        return tokens

    def observation(self, text: str, /, *, closed: bool = True) -> list[int]:
        """The text and the end of the turn."""
        tokens = self.tokenizer.encode(text, special=False, source="an observation")
        tokens.append(self._end)
        return tokens if closed else [self._end, *tokens]

    def text(self, tokens: list[int], /) -> str:
        """The answer without its end."""
        if tokens and tokens[-1] == self._end:
            tokens = tokens[:-1]
        return self.tokenizer.decode(tokens)


_TOOLS = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n{tools}\n</tools>\n\n"
    "For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:\n"
    '<tool_call>\n{{"name": <function-name>, "arguments": <args-json-object>}}\n</tool_call>'
)


class QwenAgent:
    """The chat format of the Qwen family: `<|im_start|>role`, a newline, the text, `<|im_end|>`.

    Text from outside is encoded apart from the markers, so that a tool's output cannot end a turn.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._end = tokenizer.end_id
        self._opening = tokenizer.encode("<|im_start|>assistant\n")
        self._newline = tokenizer.encode("\n")

    def _message(self, role: str, text: str) -> list[int]:
        encode = self.tokenizer.encode
        body = encode(text, special=False, source=f"a message of the {role}")
        return [*encode(f"<|im_start|>{role}\n"), *body, self._end, *self._newline]

    def first(
        self, prompt: str | list[dict[str, str]], tools: Callable[[], Sequence[dict[str, Any]]] | None = None, /
    ) -> list[int]:
        """System message with the tools, then the conversation."""
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        system = messages.pop(0)["content"] if messages and messages[0]["role"] == "system" else ""
        schemas = tools() if tools is not None else ()
        if schemas:
            lines = "\n".join([json.dumps({"type": "function", "function": schema}) for schema in schemas])
            system = "\n\n".join([part for part in (system, _TOOLS.format(tools=lines)) if part])
        tokens = self._message("system", system) if system else []
        for message in messages:
            tokens += self._message(message["role"], message["content"])
        return tokens + self._opening

    def observation(self, text: str, /, *, closed: bool = True) -> list[int]:
        """A turn of the user, and the opening of the next answer."""
        glue = self._newline if closed else [self._end, *self._newline]
        return [*glue, *self._message("user", text), *self._opening]

    def text(self, tokens: list[int], /) -> str:
        """The answer without its end."""
        if tokens and tokens[-1] == self._end:
            tokens = tokens[:-1]
        return self.tokenizer.decode(tokens)
