"""Ctrl-C must reach the top bare, whichever task it struck and however many nurseries wrapped it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def bare_interrupt() -> Iterator[None]:
    """Turn an exception group that contains a `KeyboardInterrupt` into that alone."""
    try:
        yield
    except BaseExceptionGroup as group:
        if group.subgroup(KeyboardInterrupt) is not None:
            raise KeyboardInterrupt from None
        raise
