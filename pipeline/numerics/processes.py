"""Joining the other processes of a run, under `jax.distributed`.

JAX ends a process by force, with a message of its own on standard error, where the others do not come, or one of them dies:
in the middle of a collective nothing else can. What can be told before that in plain words is told here.
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import jax

from harness.core.errors import ConfigError
from pipeline.numerics.dispatch import Decision
from pipeline.numerics.follow import Follower, Leader

if TYPE_CHECKING:
    from pipeline.numerics.follow import KeyValueStore
    from pipeline.processes import Processes

HEARTBEAT_TIMEOUT_S = 30
"""A process that was not heard of for so long is dead, and JAX ends the others."""

SHUTDOWN_TIMEOUT_S = 20
"""The processes wait so long for each other at the end."""

_PLAN = "plan"
_LOOPBACK = ("127.0.0.1", "localhost")


@dataclass(frozen=True)
class Joined:
    """Our place among the processes. One of the two is there.

    Attributes:
        leader: tells the others what to do.
        follower: does what the leader says.

    """

    leader: Leader | None = None
    follower: Follower | None = None

    def failed(self, failure: BaseException) -> str:
        """Tell the others of a failure. Returns which of them is to blame for it, or nothing."""
        if self.follower is not None:
            self.follower.failed(failure)
        return self.leader.failed(failure) if self.leader is not None else ""

    def stop(self) -> None:
        """Let the others end."""
        if self.leader is not None:
            self.leader.stop()

    def tell_plan(self, scenario: str, seed: int) -> None:
        """Tell the followers what is run."""
        if self.leader is not None:
            self.leader.tell(Decision(_PLAN, {"scenario": scenario, "seed": seed}))

    def hear_plan(self, scenario: str) -> int:
        """The seed that the leader runs with.

        Raises:
            ConfigError: the leader runs another scenario.
            ProcessError: it failed.

        """
        decision = self.follower.next() if self.follower is not None else None
        if decision is None or decision.program != _PLAN or decision.arguments["scenario"] != scenario:
            raise ConfigError(
                "is not the scenario of process 0",
                field="SCENARIO",
                allowed="the same file and the same --set in every process",
            )
        seed: int = decision.arguments["seed"]
        return seed


def join(processes: Processes, timeout_s: int = 300) -> Joined:
    """Join the others; before anything else of JAX is used.

    Raises:
        ConfigError: the first process cannot be reached in time, or its port is taken.

    """
    gives_up_s = time.monotonic() + timeout_s
    host, port = processes.address
    if processes.index:
        _await_leader(processes, gives_up_s)
    else:
        _check_free(processes)
    # JAX's own handler of SIGTERM would replace ours.
    jax.config.update("jax_enable_preemption_service", False)  # type: ignore[no-untyped-call]  # noqa: FBT003
    jax.distributed.initialize(
        processes.coordinator,
        num_processes=processes.count,
        process_id=processes.index,
        initialization_timeout=max(1, round(gives_up_s - time.monotonic())),
        heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT_S,
        shutdown_timeout_seconds=SHUTDOWN_TIMEOUT_S,
        coordinator_bind_address=f"{host}:{port}" if host in _LOOPBACK else None,
    )
    with suppress(RuntimeError):  # it is told with the devices
        jax.devices()  # they find each other's devices now, all at once, and not when one of them happens to need its own
    from jax._src import distributed  # the store has no public name; a test guards this one

    store = cast("KeyValueStore", distributed.global_state.client)
    if processes.index:
        return Joined(follower=Follower(store, processes.index))
    return Joined(leader=Leader(store, processes.count - 1))


def _await_leader(processes: Processes, gives_up_s: float) -> None:
    while True:
        try:
            socket.create_connection(processes.address, timeout=5.0).close()
        except OSError as failure:
            if time.monotonic() >= gives_up_s:
                raise ConfigError(
                    f"the first process does not answer: {failure.strerror or failure}", field="--coordinator",
                    value=processes.coordinator,
                    remedy="start process 0 with the same address, and check that this machine reaches it",
                ) from failure  # fmt: skip
            time.sleep(0.1)
        else:
            return


def _check_free(processes: Processes) -> None:
    host, port = processes.address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host if host in _LOOPBACK else "", port))
        except OSError as failure:
            raise ConfigError(
                f"the port cannot be had: {failure.strerror or failure}", field="--coordinator", value=processes.coordinator,
                remedy="choose another port, the same for all processes",
            ) from failure  # fmt: skip
