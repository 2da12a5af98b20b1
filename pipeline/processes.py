"""The processes of a run, and which of them this is."""

from __future__ import annotations

from dataclasses import dataclass

from harness.core.errors import ConfigError


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
        if ":" not in self.coordinator:
            raise ConfigError(
                "is no address", field="--coordinator", value=self.coordinator, allowed="HOST:PORT of the first process"
            )
