"""Several processes, one order of device work: the leader tells its decisions, followers replay them.

Theory of operation
-------------------
Under `jax.distributed` every process has to start the same computations in the same order, or the collectives of one wait for
ever for those of another. The leader runs the pipeline, and its dispatcher decides. Before a decision is run it is written, as
plain data, to the key-value store that JAX's coordination service keeps; a follower reads one after the other and runs the same
program. No socket of ours is opened.

Decisions carry numbers, text and NumPy arrays only, and are read back by an unpickler that knows nothing else. Followers say
now and then how far they are; the leader then deletes what everybody has read, and never runs further ahead than `AHEAD`. A
follower that fails leaves word, which the leader raises.
"""

from __future__ import annotations

import io
import pickle
import time
from typing import TYPE_CHECKING, Any, Protocol

from harness.core.errors import LawError, ModelError
from pipeline.numerics.dispatch import Decision

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

AHEAD = 64
"""Decisions between two reports of the followers; the leader is ahead of none by more than twice as many."""

PART_BYTES = 1 << 20
"""A decision goes in parts of this size: the store's messages are limited."""

_STOP = "stop"
_PLAIN = {
    ("numpy", "ndarray"), ("numpy", "dtype"), ("numpy._core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "scalar"),
    ("numpy.core.multiarray", "_reconstruct"), ("numpy.core.multiarray", "scalar"), ("numpy._core.numeric", "_frombuffer"),
}  # fmt: skip


class KeyValueStore(Protocol):
    """What is used of the coordination service's client."""

    def key_value_set_bytes(self, key: str, value: bytes, /) -> None:
        """Write once."""

    def blocking_key_value_get_bytes(self, key: str, timeout_in_ms: int, /) -> bytes:
        """Wait for a key and read it."""

    def key_value_dir_get_bytes(self, key: str, /) -> list[tuple[str, bytes]]:
        """Every key below a folder."""

    def key_value_delete(self, key: str, /) -> None:
        """Delete a key, or a folder."""


def encode(decision: Decision) -> bytes:
    """A decision as bytes."""
    return pickle.dumps((decision.program, dict(decision.arguments)), protocol=5)


def decode(data: bytes) -> Decision:
    """A decision from bytes. Raises `LawError` where they hold anything but plain data."""
    program, arguments = _PlainUnpickler(io.BytesIO(data)).load()
    return Decision(program, arguments)


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _PLAIN:
            raise LawError(f"a decision is plain data; it holds {module}.{name}")
        return super().find_class(module, name)


class Leader:
    """Tells decisions. Used on the dispatcher's thread.

    Args:
        store: shared by all processes.
        followers: how many there are.
        patience_s: for a follower that is behind.

    """

    def __init__(self, store: KeyValueStore, followers: int, *, patience_s: float = 600.0) -> None:
        self._store = store
        self._followers = followers
        self._patience_ms = int(patience_s * 1000)
        self._told = 0

    def tell(self, decision: Decision) -> None:
        """Have every follower do the same."""
        block, place = divmod(self._told, AHEAD)
        if place == 0:
            self._check()
            if block >= 2:
                self._await(block - 2)
        data = encode(decision)
        parts = [data[start : start + PART_BYTES] for start in range(0, len(data), PART_BYTES)]
        for number, part in enumerate(parts[1:], 1):
            self._store.key_value_set_bytes(f"decision/{block}/{place}.{number}", part)
        self._store.key_value_set_bytes(f"decision/{block}/{place}", len(parts).to_bytes(4, "big") + parts[0])
        self._told += 1

    def stop(self) -> None:
        """Let the followers end."""
        self.tell(Decision(_STOP))

    def _await(self, block: int) -> None:
        for follower in range(1, self._followers + 1):
            try:
                self._store.blocking_key_value_get_bytes(f"done/{block}/{follower}", self._patience_ms)
            except Exception as failure:
                self._check()
                raise ModelError(f"process {follower} is behind by more than {AHEAD} decisions and does not move") from failure
        self._store.key_value_delete(f"decision/{block}/")
        self._store.key_value_delete(f"done/{block}/")

    def _check(self) -> None:
        for key, text in self._store.key_value_dir_get_bytes("failed/"):
            raise ModelError(f"process {key.rsplit('/', 1)[-1]} failed: {text.decode(errors='replace')}")


class Follower:
    """Replays what the leader decides.

    Args:
        store: shared by all processes.
        number: of this process, from 1.
        programs: the same as the leader's.
        patience_s: for the next decision; a leader that decides nothing for so long is gone.

    """

    def __init__(
        self, store: KeyValueStore, number: int, programs: Mapping[str, Callable[..., Any]], *, patience_s: float = 86_400.0
    ) -> None:
        self._store = store
        self._number = number
        self._programs = programs
        self._patience_s = patience_s

    def run(self) -> int:
        """Replay until the leader stops; returns how many decisions there were.

        Raises:
            ModelError: the leader decided nothing for too long.

        """
        done = 0
        while True:
            block, place = divmod(done, AHEAD)
            decision = decode(self._whole(f"decision/{block}/{place}"))
            done += 1
            if decision.program == _STOP:
                return done
            try:
                self._programs[decision.program](**decision.arguments)
            except BaseException as failure:
                word = f"{decision.program}: {type(failure).__name__}: {failure}"
                self._store.key_value_set_bytes(f"failed/{self._number}", word.encode())
                raise
            if place == AHEAD - 1:
                self._store.key_value_set_bytes(f"done/{block}/{self._number}", b"")

    def _whole(self, key: str) -> bytes:
        first = self._next(key)
        parts = int.from_bytes(first[:4], "big")
        return b"".join([first[4:], *(self._next(f"{key}.{number}") for number in range(1, parts))])

    def _next(self, key: str) -> bytes:
        gives_up_s = time.monotonic() + self._patience_s
        while True:
            try:
                return self._store.blocking_key_value_get_bytes(key, 10_000)
            except Exception as failure:
                if "DEADLINE_EXCEEDED" not in str(failure):
                    raise ModelError(f"the leading process is gone: {str(failure).splitlines()[0]}") from failure
                if time.monotonic() > gives_up_s:
                    raise ModelError(f"the leading process has decided nothing for {self._patience_s:.0f} s") from failure
