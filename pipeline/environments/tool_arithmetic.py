"""Tool arithmetic: an expression to work out with a calculator, small enough for a character model.

::

    prompt       7*85+12=
    agent        [calc 7*85+12]
    observation  607
    agent        607

The reward is 1 for the exact result after a call that was answered, else 0.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, ClassVar

from harness.core.errors import ConfigError
from pipeline.environments.calculator import calculate
from pipeline.environments.parsers import CompactParser, QwenParser
from pipeline.environments.tool_environment import Tool, ToolEnvironment

if TYPE_CHECKING:
    from collections.abc import Sequence

_OPERATORS = "+-*"
_DELAYS = Random(0)


class ToolArithmetic(ToolEnvironment):
    """See the module.

    Options:
        smallest: smallest number in an expression.
        largest: largest number in an expression.
        terms: numbers in an expression, at most; at least 2.
        operators: some of `+-*`.
        require_call: whether a result without a call that was answered counts as wrong.
        partial_credit: reward of a wrong result after a right call.
        compact: calls as `[calc 1+2]`; else as Qwen models write them, with a worded prompt.
        tool_median_s: median of the lognormal time that the tool takes besides. Seconds.
        tool_sigma: of the lognormal.

    """

    alphabet: ClassVar[str] = "0123456789+-*=[] ?,acl"
    inline: ClassVar[bool] = True

    def __init__(self, task: Any, **options: Any) -> None:
        super().__init__(task, **options)
        self.parser = CompactParser() if options.get("compact", True) else QwenParser()
        self._called_right = False
        self._median_s = float(options.get("tool_median_s", 0.0))
        self._result = ""

    @classmethod
    def make_task(
        cls, rng: Random, *, smallest: int = 0, largest: int = 99, terms: int = 2, operators: str = _OPERATORS,
        require_call: bool = True,
        partial_credit: float = 0.0, compact: bool = True, tool_median_s: float = 0.0, tool_sigma: float = 1.0,
    ) -> dict[str, Any]:  # fmt: skip
        """An expression."""
        _check(smallest=smallest, largest=largest, terms=terms, operators=operators)
        parts = [str(rng.randint(smallest, largest))]
        for _ in range(rng.randint(2, terms) - 1):
            parts += [rng.choice(operators), str(rng.randint(smallest, largest))]
        expression = "".join(parts)
        return {"expression": expression}

    @classmethod
    def demonstration(cls, task: Any, **options: Any) -> list[tuple[str, bool]]:
        """Prompt, call, output, result."""
        expression = task["expression"]
        result = calculate(expression)
        environment = cls(task, **options)
        call = f"[calc {expression}]"
        if not options.get("compact", True):
            call = f'<tool_call>\n{{"name": "calc", "arguments": {{"expression": "{expression}"}}}}\n</tool_call>'
        return [(environment.prompt(), False), (call, True), (environment.parser.render([result]), False), (result, True)]

    def prompt(self) -> str:
        """The expression."""
        expression: str = self.task["expression"]
        if isinstance(self.parser, CompactParser):
            return f"{expression}="
        return f"Work out {expression} with the tool calc. Then answer with the number alone."

    def tools(self) -> Sequence[Tool]:
        """The calculator."""
        return [Tool(self._calc_slowly if self._median_s else self._calc, name="calc", inline=True)]

    def _calc(self, expression: str) -> str:
        """Works out an arithmetic expression of integers."""
        result = calculate(expression)
        self._called_right |= result == self._right()
        return result

    async def _calc_slowly(self, expression: str) -> str:
        """Works out an arithmetic expression of integers."""
        sigma = float(self.options.get("tool_sigma", 1.0))
        await self.host.sleep(self._median_s * _DELAYS.lognormvariate(0.0, sigma))
        return self._calc(expression)

    def _right(self) -> str:
        """The right result."""
        self._result = self._result or calculate(self.task["expression"])
        return self._result

    async def verify(self, answer: str) -> float:
        """1 for the exact result."""
        if self.options.get("require_call", True) and not self.calls:
            return 0.0
        if answer.strip() == self._right():
            return 1.0
        return float(self.options.get("partial_credit", 0.0)) if self._called_right else 0.0


def _check(*, smallest: int, largest: int, terms: int, operators: str) -> None:
    field = "live.environment.options"
    if not isinstance(largest, int) or not 1 <= largest <= 10**12:
        raise ConfigError("largest is out of range", field=f"{field}.largest", value=largest, allowed="1 to 10^12")
    if not isinstance(smallest, int) or not 0 <= smallest <= largest:
        raise ConfigError("smallest is out of range", field=f"{field}.smallest", value=smallest, allowed=f"0 to {largest}")
    if not isinstance(terms, int) or not 2 <= terms <= 16:
        raise ConfigError("terms is out of range", field=f"{field}.terms", value=terms, allowed="2 to 16")
    if not operators or set(operators) - set(_OPERATORS):
        raise ConfigError("no such operators", field=f"{field}.operators", value=operators, allowed="some of + - *")
