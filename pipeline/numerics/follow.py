"""Several processes, one order of device work: the leader tells its decisions, followers replay them.

Theory of operation
-------------------
Under `jax.distributed` every process has to start the same computations in the same order, or the collectives of one wait for
ever for those of another. The leader runs the pipeline, and its dispatcher decides. Before a decision is run it is written, as
plain data, to the key-value store that JAX's coordination service keeps; a follower reads one after the other and runs the same
program. No socket of ours is opened.

Decisions carry numbers, text and NumPy arrays only, and are read back by an unpickler that knows nothing else. Followers say
now and then how far they are; the leader then deletes what everybody has read, and is never ahead by more than twice `AHEAD`.

A follower that fails leaves word. The leader looks for that on a thread of its own, for its device work may stand still in a
collective that the follower never joins: it says the word at once, and raises it with the next decision. A leader that fails
tells so with its last decision.
"""

from __future__ import annotations

import io
import logging
import pickle
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from harness.core.errors import LawError, ProcessError
from pipeline.numerics.dispatch import Decision

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LOG = logging.getLogger("rollout_harness")

AHEAD = 64
"""Decisions between two reports of the followers; the leader is ahead of none by more than twice as many."""

LOOK_S = 1.0
"""Between two looks for a follower that failed."""

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
    """Tells decisions. Used on the dispatcher's thread; `failed` and `stop` on another, when that one has ended.

    Args:
        store: shared by all processes.
        followers: how many there are.
        patience_s: for a follower that is behind.
        say: told at once when a follower has failed; on a thread of its own.

    """

    def __init__(
        self, store: KeyValueStore, followers: int, *, patience_s: float = 600.0, say: Callable[[str], object] = LOG.error
    ) -> None:
        self._store = store
        self._followers = followers
        self._patience_ms = int(patience_s * 1000)
        self._say = say
        self._told = 0
        self._failure = ""  # of a follower
        self._own = ""
        self._ended = threading.Event()
        self._looks = threading.Thread(target=self._look, name="watch over the other processes", daemon=True)
        self._looks.start()

    def tell(self, decision: Decision) -> None:
        """Have every follower do the same.

        Raises:
            ProcessError: a follower has failed, or does not move; its number is named.

        """
        self._check()
        block, place = divmod(self._told, AHEAD)
        if place == 0 and block >= 2:
            self._await(block - 2)
        self._write(decision)

    def failed(self, failure: BaseException) -> str:
        """Note a failure here; the followers hear of it at the stop. Returns which of them is to blame, or nothing."""
        text = str(failure)
        self._own = f"{type(failure).__name__}: {_line(text)}"
        of_collective = "Gloo" in text or "NCCL" in text
        gives_up_s = time.monotonic() + (3 * LOOK_S if of_collective else 0.0)
        while not self._failure and time.monotonic() < gives_up_s:
            time.sleep(LOOK_S / 10)
        if self._failure or not of_collective:
            return self._failure
        return f"another process is gone, see its standard error: {_line(text)}"

    def stop(self) -> None:
        """Let the followers end."""
        self._ended.set()
        self._looks.join()
        self._write(Decision(_STOP, {"failure": self._own}))

    def _write(self, decision: Decision) -> None:
        block, place = divmod(self._told, AHEAD)
        data = encode(decision)
        parts = [data[start : start + PART_BYTES] for start in range(0, len(data), PART_BYTES)]
        for number, part in enumerate(parts[1:], 1):
            self._store.key_value_set_bytes(f"decision/{block}/{place}.{number}", part)
        self._store.key_value_set_bytes(f"decision/{block}/{place}", len(parts).to_bytes(4, "big") + parts[0])
        self._told += 1

    def _await(self, block: int) -> None:
        for follower in range(1, self._followers + 1):
            try:
                self._store.blocking_key_value_get_bytes(f"done/{block}/{follower}", self._patience_ms)
            except Exception as failure:
                self._check()
                raise ProcessError(
                    f"process {follower} is behind by more than {AHEAD} decisions and does not move"
                ) from failure
        self._store.key_value_delete(f"decision/{block}/")
        self._store.key_value_delete(f"done/{block}/")

    def _check(self) -> None:
        if self._failure:
            raise ProcessError(self._failure)

    def _look(self) -> None:
        while not self._failure and not self._ended.wait(LOOK_S):
            try:
                self._failure = self._word()
            except Exception as failure:
                LOG.debug("the store of all processes does not answer: %s", failure)
                return  # the runtime ends this process by itself
            if self._failure:
                self._say(self._failure)

    def _word(self) -> str:
        """What the first follower that failed has left."""
        for key, text in sorted(self._store.key_value_dir_get_bytes("failed/")):
            return f"process {key.rsplit('/', 1)[-1]} failed: {text.decode(errors='replace')}"
        return ""


def _line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else "no message"


def leave_word(store: KeyValueStore, number: int, failure: BaseException, doing: str = "") -> None:
    """Tell the leader why this process ends; the first word counts."""
    word = f"{doing}: " * bool(doing) + f"{type(failure).__name__}: {_line(str(failure))}"
    with suppress(Exception):  # the leader may be gone as well
        store.key_value_set_bytes(f"failed/{number}", word.encode())


class Follower:
    """Replays what the leader decides.

    Args:
        store: shared by all processes.
        number: of this process, from 1.
        patience_s: for the next decision; a leader that decides nothing for so long is gone.

    """

    def __init__(self, store: KeyValueStore, number: int, *, patience_s: float = 86_400.0) -> None:
        self._store = store
        self._number = number
        self._patience_s = patience_s
        self._done = 0

    def run(self, programs: Mapping[str, Callable[..., Any]]) -> int:
        """Replay until the leader stops; returns how many decisions there were.

        Args:
            programs: the same as the leader's.

        Raises:
            ProcessError: the leader failed, is gone, or decided nothing for too long.

        """
        while (decision := self.next()) is not None:
            try:
                programs[decision.program](**decision.arguments)
            except BaseException as failure:
                self.failed(failure, decision.program)
                raise
        return self._done

    def next(self) -> Decision | None:
        """Wait for the next decision; none when the leader has stopped. What came before is done. Raises as `run` does."""
        block, place = divmod(self._done, AHEAD)
        if place == 0 and block:
            self._store.key_value_set_bytes(f"done/{block - 1}/{self._number}", b"")
        decision = decode(self._whole(f"decision/{block}/{place}"))
        self._done += 1
        if decision.program != _STOP:
            return decision
        if failure := decision.arguments["failure"]:
            raise ProcessError(f"the leading process failed: {failure}")
        return None

    def failed(self, failure: BaseException, doing: str = "") -> None:
        """Leave word for the leader why this process ends; the first word counts."""
        word = f"{doing}: " * bool(doing) + f"{type(failure).__name__}: {_line(str(failure))}"
        with suppress(Exception):  # the leader may be gone as well
            self._store.key_value_set_bytes(f"failed/{self._number}", word.encode())

    def _whole(self, key: str) -> bytes:
        first = self._read(key)
        parts = int.from_bytes(first[:4], "big")
        return b"".join([first[4:], *(self._read(f"{key}.{number}") for number in range(1, parts))])

    def _read(self, key: str) -> bytes:
        gives_up_s = time.monotonic() + self._patience_s
        while True:
            try:
                return self._store.blocking_key_value_get_bytes(key, int(1000 * min(10.0, self._patience_s)))
            except Exception as failure:
                if "DEADLINE_EXCEEDED" not in str(failure):
                    raise ProcessError(f"the leading process is gone: {_line(str(failure))}") from failure
                if time.monotonic() > gives_up_s:
                    raise ProcessError(f"the leading process has decided nothing for {self._patience_s:g} s") from failure
