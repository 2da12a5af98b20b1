"""Several processes under `jax.distributed`: who leads, and where decisions go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import jax

from harness.core.errors import ConfigError

if TYPE_CHECKING:
    from pipeline.numerics.follow import KeyValueStore


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

    def join(self, timeout_s: int = 300) -> KeyValueStore:
        """Join the others; before anything else of JAX is used. Returns the store that all of them share.

        Raises:
            ConfigError: the others did not come in time.

        """
        try:
            jax.distributed.initialize(
                self.coordinator, num_processes=self.count, process_id=self.index, initialization_timeout=timeout_s
            )
        except Exception as failure:
            raise ConfigError(
                f"the processes did not find each other: {str(failure).splitlines()[0]}", field="--coordinator",
                value=self.coordinator, remedy="start all processes with the same address, and check that the port is free",
            ) from failure  # fmt: skip
        from jax._src import distributed  # the store has no public name; a test guards this one

        return cast("KeyValueStore", distributed.global_state.client)
