"""Environments with tools: the agent calls tools until it gives a text without a call, which is its answer.

Tools are functions. A plain one runs on a thread, an `async def` one in the event loop, one marked `inline` right away, for
functions of microseconds. Calls of one turn run at the same time. What goes wrong in a call (no such tool, arguments that do
not fit, an exception) is a text that the agent reads, and the episode goes on; an `InfraFailure` or `OSError` is tried again.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, ClassVar

from pipeline.environments.environment import BaseTaskEnv, InfraFailure, Step, ThreadsLostError, call
from pipeline.environments.parsers import Parser, QwenParser

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pipeline.environments.parsers import Call

MAX_OUTPUT_CHARACTERS = 16_384
"""A tool's output is cut off here; the agent is told."""

_JSON_TYPES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "list": "array", "dict": "object"}


class Tool:
    """A function that an agent may call.

    Args:
        function: plain or `async def`; its signature is the tool's schema, its docstring the description.
        name: what the agent calls it; the function's name by default.
        inline: call it in the event loop although it is plain: for functions that take microseconds.
        kill: ends calls that hang, from another thread.

    """

    __slots__ = ("function", "inline", "is_async", "kill", "name", "signature")

    def __init__(
        self, function: Callable[..., Any], *, name: str = "", inline: bool = False, kill: Callable[[], None] | None = None
    ) -> None:
        self.function = function
        self.name = name or str(getattr(function, "__name__", type(function).__name__))
        self.inline = inline
        self.kill = kill
        self.is_async = inspect.iscoroutinefunction(function)
        self.signature = _signature(getattr(function, "__func__", function), bound=hasattr(function, "__func__"))

    @property
    def schema(self) -> dict[str, Any]:
        """The function's JSON schema, as chat formats show it."""
        return _schema(self.name, self.function, self.signature)

    def bind(self, arguments: dict[str, Any] | str) -> inspect.BoundArguments:
        """Arguments as the function takes them.

        Raises:
            TypeError: they do not fit.

        """
        return self.signature.bind(arguments) if isinstance(arguments, str) else self.signature.bind(**arguments)


@functools.lru_cache(maxsize=1024)
def _signature(function: Callable[..., Any], *, bound: bool) -> inspect.Signature:
    """Tools are made for each episode anew, of the same few functions."""
    signature = inspect.signature(function)
    return signature.replace(parameters=list(signature.parameters.values())[1:]) if bound else signature


def _schema(name: str, function: Callable[..., Any], signature: inspect.Signature) -> dict[str, Any]:
    properties, required = {}, []
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        annotation = parameter.annotation
        kind = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
        properties[parameter.name] = {"type": _JSON_TYPES[kind]} if kind in _JSON_TYPES else {}
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    return {
        "name": name,
        "description": inspect.getdoc(function) or "",
        "parameters": {"type": "object", "properties": properties, "required": required},
    }


class ToolEnvironment(BaseTaskEnv):
    """Many turns with tools, then an answer. A subclass gives `make_task`, `prompt`, `tools` and `verify`.

    Attributes:
        parser: finds the calls in an answer.
        calls: tool calls that were answered without an error.
        answer: the final answer; empty when the episode was truncated before one.

    """

    repeatable: ClassVar[bool] = True
    parser: Parser = QwenParser()

    def __init__(self, task: Any, **options: Any) -> None:
        super().__init__(task, **options)
        self.calls = 0
        self.answer = ""
        self._tools: dict[str, Tool] | None = None
        self._pending: tuple[str, list[Call]] = ("", [])

    def prompt(self) -> Any:
        """What the agent is asked: a text, or a list of chat messages. Quick: it runs in the event loop."""
        raise NotImplementedError

    def tools(self) -> Sequence[Tool | Callable[..., Any]]:
        """What the agent may call. Asked for once."""
        raise NotImplementedError

    def verify(self, answer: str) -> Any:
        """The reward of the final answer. May be an `async def`."""
        raise NotImplementedError

    async def reset(self) -> Any:
        """The prompt."""
        self._table()
        return self.prompt()

    def schemas(self) -> list[dict[str, Any]]:
        """Of the tools, for chat formats that show them."""
        return [tool.schema for tool in self._table().values()]

    def _table(self) -> dict[str, Tool]:
        if self._tools is None:
            tools = [tool if isinstance(tool, Tool) else Tool(tool) for tool in self.tools()]
            self._tools = {tool.name: tool for tool in tools}
        return self._tools

    def final(self, action: str) -> bool:
        """A text without a call is the answer."""
        calls = self.parser.parse(action)
        if calls:
            self._pending = action, calls
            return False
        self.answer = self.parser.answer(action)
        return True

    async def step(self, action: str) -> Step:
        """Run the calls."""
        text, calls = self._pending
        if text != action:
            calls = self.parser.parse(action)
        if len(calls) == 1:
            return Step(self.parser.render([await self._run(calls[0])]))
        outputs = await self.host.together([_bound(self._run, one) for one in calls])
        return Step(self.parser.render(outputs))

    async def _run(self, wanted: Call) -> str:
        """One call's output; what went wrong, in words."""
        if wanted.error:
            return self.parser.error(wanted.error)
        tools = self._tools or {}
        tool = tools.get(wanted.name)
        if tool is None:
            return self.parser.error(f"there is no tool {wanted.name[:64]!r}; there are: {', '.join(tools)}")
        try:
            bound = tool.bind(wanted.arguments)
        except TypeError as wrong:
            return self.parser.error(f"{tool.name}: {wrong}")
        try:
            output = await self._call(tool, bound)
        except (InfraFailure, OSError, ThreadsLostError):
            raise
        except (Exception, SystemExit) as failure:
            return self.parser.error(f"{type(failure).__name__}: {str(failure)[:512]}")
        self.calls += 1
        return output if len(output) <= MAX_OUTPUT_CHARACTERS else output[:MAX_OUTPUT_CHARACTERS] + "\n[output cut off]"

    async def _call(self, tool: Tool, bound: inspect.BoundArguments) -> str:
        if tool.is_async:
            output = await tool.function(*bound.args, **bound.kwargs)
        elif tool.inline:
            output = tool.function(*bound.args, **bound.kwargs)
        else:
            output = await self.host.in_thread(lambda: tool.function(*bound.args, **bound.kwargs))
        return output if isinstance(output, str) else str(output)

    async def score(self) -> Any:
        """What the verifier says of the answer."""
        return await call(self, self.verify, self.answer)

    async def close(self) -> None:
        """Tools that still run are ended."""
        self.kill()

    def kill(self) -> None:
        """End calls that hang."""
        for tool in (self._tools or {}).values():
            if tool.kill is not None:
                tool.kill()


def _bound(run: Callable[[Call], Any], wanted: Call) -> Callable[[], Any]:
    return lambda: run(wanted)
