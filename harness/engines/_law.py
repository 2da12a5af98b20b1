"""How a law is written down so that any engine can be tested on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.core.errors import LawError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from harness.core.runtime import Engine

MS = 1_000_000
"""A millisecond in nanoseconds; the laws' programs last a few of them."""


@dataclass(frozen=True, slots=True)
class Law:
    """One law as a check of an engine.

    Attributes:
        name: short and unique.
        text: what it says.
        check: takes an engine's `run` and raises if the law does not hold.
        virtual_time_only: whether an engine on a real clock cannot keep it.

    """

    name: str
    text: str
    check: Callable[[Engine], None]
    virtual_time_only: bool = False

    def __call__(self, run: Engine) -> None:
        """Check an engine.

        Raises:
            LawError: the law does not hold.

        """
        self.check(run)


class LawBook:
    """Collects laws in the order in which they stand in a module."""

    def __init__(self) -> None:
        self.laws: list[Law] = []

    def of_programs(self, program: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
        """Enter an actor that checks a law from inside; it is run alone."""

        def check(run: Engine) -> None:
            run(program)

        self._enter(program, check, virtual_time_only=False)
        return program

    def of_engines(self, check: Callable[[Engine], None]) -> Callable[[Engine], None]:
        """Enter a function that checks a law from outside, on an engine's `run`."""
        self._enter(check, check, virtual_time_only=False)
        return check

    def of_virtual_engines(self, check: Callable[[Engine], None]) -> Callable[[Engine], None]:
        """The same for a law that a real clock cannot keep."""
        self._enter(check, check, virtual_time_only=True)
        return check

    def _enter(self, source: Callable[..., Any], check: Callable[[Engine], None], *, virtual_time_only: bool) -> None:
        text = " ".join((source.__doc__ or "").split())
        self.laws.append(Law(source.__name__.strip("_"), text, check, virtual_time_only))


def expect(got: object, wanted: object, what: str) -> None:
    """Raise `LawError` unless both are equal."""
    if got != wanted:
        raise LawError(f"{what}: {got!r}, where the law says {wanted!r}")


def refuse(what: str) -> None:
    """Raise `LawError` where nobody may come. Typed as if it returned: for a checker, a scope might swallow what it raises."""
    raise LawError(what)


def leaves(error: BaseException) -> list[str]:
    """Every failure inside nested groups as text, sorted: `ValueError: text`."""
    if isinstance(error, BaseExceptionGroup):
        return sorted(leaf for part in error.exceptions for leaf in leaves(part))
    return [f"{type(error).__name__}: {error}"]


def failure_of(run: Engine, main: Callable[..., Awaitable[object]], **options: Any) -> BaseException:
    """Run a program that must fail, and return its failure."""
    try:
        run(main, **options)
    except BaseException as error:  # the law is about what comes out, whatever it is
        return error
    raise LawError(f"{getattr(main, '__qualname__', main)} did not fail, where the law says it must")


async def fail_later(rt: Any, delay_ns: int, text: str) -> None:
    """A child that fails after a while."""
    await rt.sleep(delay_ns)
    raise ValueError(text)


async def fail_in_cleanup(rt: Any, text: str) -> None:
    """A child that waits for ever, and fails when it is cancelled."""
    try:
        await rt.event().wait()
    finally:
        raise KeyError(text)
