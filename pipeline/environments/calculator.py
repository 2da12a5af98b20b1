"""A calculator: integers, `+ - * // %`, parentheses. Written as a parser, so that nothing is ever evaluated as code."""

from __future__ import annotations

import re

MAX_CHARACTERS = 256
MAX_BITS = 4096
MAX_DEPTH = 32

_TOKEN = re.compile(r"\s*(\d+|//|[-+*/%()])")


def calculate(expression: str) -> str:
    """Work out an arithmetic expression of integers. `/` must come out even.

    Args:
        expression: such as `12*(7+5)`.

    Raises:
        ValueError: it is no expression, too long, too deep, or too large.

    """
    if len(expression) > MAX_CHARACTERS:
        raise ValueError(f"an expression has at most {MAX_CHARACTERS} characters")
    return str(_Reader(_tokens(expression)).whole())


def _tokens(text: str) -> list[str]:
    text = text.rstrip()
    tokens, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or not match[1].isascii():
            raise ValueError(f"cannot read {text[at : at + 8]!r}")
        tokens.append(match[1])
        at = match.end()
    return tokens


class _Reader:
    """Recursive descent. A sum is of products, a product of factors, a factor is a number, a sum in parentheses, or signed."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    def whole(self) -> int:
        value = self._sum()
        if self._at < len(self._tokens):
            raise ValueError(f"{self._tokens[self._at]!r} is one too many")
        return value

    def _take(self, *wanted: str) -> str:
        if self._at < len(self._tokens) and self._tokens[self._at] in wanted:
            self._at += 1
            return self._tokens[self._at - 1]
        return ""

    def _sum(self) -> int:
        value = self._product()
        while sign := self._take("+", "-"):
            other = self._product()
            value = _bounded(value + other if sign == "+" else value - other)
        return value

    def _product(self) -> int:
        value = self._factor()
        while sign := self._take("*", "/", "//", "%"):
            other = self._factor()
            value = _bounded(value * other) if sign == "*" else _divided(value, sign, other)
        return value

    def _factor(self) -> int:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ValueError(f"nested more than {MAX_DEPTH} deep")
        try:
            if sign := self._take("+", "-"):
                value = self._factor()
                return -value if sign == "-" else value
            if self._take("("):
                value = self._sum()
                if not self._take(")"):
                    raise ValueError("a parenthesis is not closed")
                return value
            if self._at < len(self._tokens) and self._tokens[self._at].isdigit():
                self._at += 1
                return int(self._tokens[self._at - 1])
            raise ValueError("a number is missing")
        finally:
            self._depth -= 1


def _bounded(value: int) -> int:
    if value.bit_length() > MAX_BITS:
        raise ValueError(f"a number has at most {MAX_BITS} bits")
    return value


def _divided(value: int, sign: str, other: int) -> int:
    if other == 0:
        raise ValueError("division by zero")
    if sign == "%":
        return value % other
    if sign == "/" and value % other:
        raise ValueError("the division leaves a rest; use // to drop it")
    return value // other
