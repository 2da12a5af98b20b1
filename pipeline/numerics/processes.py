"""Joining the other processes of a run, under `jax.distributed`."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import jax

from harness.core.errors import ConfigError

if TYPE_CHECKING:
    from pipeline.numerics.follow import KeyValueStore
    from pipeline.processes import Processes


def join(processes: Processes, timeout_s: int = 300) -> KeyValueStore:
    """Join the others; before anything else of JAX is used. Returns the store that all of them share.

    Raises:
        ConfigError: the others did not come in time.

    """
    try:
        jax.distributed.initialize(
            processes.coordinator, num_processes=processes.count, process_id=processes.index,
            initialization_timeout=timeout_s,
        )  # fmt: skip
    except Exception as failure:
        raise ConfigError(
            f"the processes did not find each other: {str(failure).splitlines()[0]}", field="--coordinator",
            value=processes.coordinator, remedy="start all processes with the same address, and check that the port is free",
        ) from failure  # fmt: skip
    from jax._src import distributed  # the store has no public name; a test guards this one

    return cast("KeyValueStore", distributed.global_state.client)
