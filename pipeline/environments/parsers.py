"""Parsers: from an agent's text to the tools that it calls, and back for their outputs.

A text without a call is a final answer. A call that cannot be read is an error that the agent gets to see; the episode goes on.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call.

    Attributes:
        name: of the tool; empty when the call could not be read.
        arguments: by name, or one text where the form has no names.
        error: what is wrong with it, in the words that the agent reads.

    """

    name: str
    arguments: dict[str, Any] | str
    error: str = ""


class Parser(Protocol):
    """Finds calls, and writes outputs."""

    def parse(self, text: str, /) -> list[Call]:
        """The calls in an answer, in order; none when it is a final answer."""

    def answer(self, text: str, /) -> str:
        """The final answer in a text without calls."""

    def render(self, outputs: list[str], /) -> str:
        """The observation that shows the outputs of a turn's calls."""

    def error(self, message: str, /) -> str:
        """What the agent reads when a call fails."""


class QwenParser:
    """`<tool_call>{"name": …, "arguments": {…}}</tool_call>`, as Qwen and Hermes models write it. Thoughts are no answer."""

    _BLOCK = re.compile(r"<tool_call>(.*?)(</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)
    _THOUGHT = re.compile(r"<think>.*?(</think>|\Z)", re.DOTALL)

    def parse(self, text: str, /) -> list[Call]:
        """The calls; a block that is no call has an error in it."""
        if "<tool_call>" not in text:
            return []
        return [self._call(match[1], closed=bool(match[2])) for match in self._BLOCK.finditer(self._THOUGHT.sub("", text))]

    def _call(self, body: str, *, closed: bool) -> Call:
        if not closed:
            return Call("", {}, "the tool call does not end with </tool_call>")
        try:
            data = json.loads(body)
        except (ValueError, RecursionError) as wrong:
            return Call("", {}, f"the tool call is no JSON: {wrong}")
        if not isinstance(data, dict) or not isinstance(data.get("name"), str) or not data["name"]:
            return Call("", {}, 'a tool call is {"name": text, "arguments": object}')
        arguments = data.get("arguments", {})
        if not isinstance(arguments, dict):
            return Call("", {}, '"arguments" of a tool call is an object')
        return Call(data["name"], arguments)

    def answer(self, text: str, /) -> str:
        """The text without its thoughts."""
        return self._THOUGHT.sub("", text).strip()

    def render(self, outputs: list[str], /) -> str:
        """Each output in a block of its own."""
        return "\n".join([f"<tool_response>\n{output}\n</tool_response>" for output in outputs])

    def error(self, message: str, /) -> str:
        """The message."""
        return f"error: {message}"


class CompactParser:
    """`[name text]`, for character models: few tokens, and an error is one character."""

    _CALL = re.compile(r"\[([a-z_]*) ?([^\[\]]*)(\]?)")

    def parse(self, text: str, /) -> list[Call]:
        """The calls. A bracket that is no call has an error in it."""
        if "[" not in text:
            return []
        return [self._call(match) for match in self._CALL.finditer(text)]

    @staticmethod
    def _call(match: re.Match[str]) -> Call:
        if not match[1] or not match[3]:
            return Call("", "", "a call is [name text]")
        return Call(match[1], match[2])

    def answer(self, text: str, /) -> str:
        """The text."""
        return text.strip()

    def render(self, outputs: list[str], /) -> str:
        """Outputs, a comma between two."""
        return ",".join(outputs)

    def error(self, message: str, /) -> str:
        """A question mark."""
        return "?"
