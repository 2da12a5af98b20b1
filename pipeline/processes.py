"""The processes of a run, and which of them this is."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Processes:
    """The processes of a run.

    Attributes:
        coordinator: address and port of the first process, which runs JAX's coordination service.
        count: how many there are.
        index: of this one; 0 leads and runs the pipeline, the others follow.

    """

    coordinator: str
    count: int
    index: int

    def __post_init__(self) -> None:
        if self.count < 2 or not 0 <= self.index < self.count:
            raise ConfigError(
                "is no process of this run", field="--process", value=self.index, allowed=f"0 to {self.count - 1}",
                remedy="start --processes of them, numbered from 0; at least 2",
            )  # fmt: skip
        host, _, port = self.coordinator.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise ConfigError(
                "is no address", field="--coordinator", value=self.coordinator, allowed="HOST:PORT of the first process"
            )

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the first process."""
        host, _, port = self.coordinator.rpartition(":")
        return host.strip("[]"), int(port)


@contextmanager
def stdout_kept() -> Iterator[None]:
    """Standard output for Python alone: libraries in C that print there, as Gloo does, go to standard error meanwhile."""
    sys.stdout.flush()
    ours = os.dup(1)
    before, sys.stdout = sys.stdout, os.fdopen(os.dup(ours), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(ours, 1)
        os.close(ours)
        sys.stdout = before
