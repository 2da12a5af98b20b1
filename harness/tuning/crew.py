"""Worker processes that can be cut off in the middle of a call.

A promise about wall time needs calls that can be stopped from outside; the executors of the standard library cannot do that
for one call. A crew starts one process a core, hands each one call at a time, and kills the process of a call that must not
go on; a fresh one takes its place when it is next needed. Processes are started afresh (not forked: threads of the caller
would be lost in the child) and do not import the caller's main module, so a script needs no guard round its own code.

A thread per worker turns blocking reads into items of one queue, which works with a timeout on every platform.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, cast

from harness.tuning.worker import Failure, read_frame, write_frame

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


@dataclass(frozen=True, slots=True)
class Done:
    """One call that is over.

    Attributes:
        ticket: what `submit` returned.
        seconds: how long the call took in the worker.
        result: what it returned, or a `Failure`.

    """

    ticket: int
    seconds: float
    result: Any


class Crew(Protocol):
    """Calls on several cores. `Processes` is the real one; a test drives the same plan in virtual time."""

    @property
    def idle(self) -> int:
        """How many calls can start now."""

    @property
    def busy(self) -> int:
        """How many calls are running."""

    def now(self) -> float:
        """Seconds on the clock by which `wait` and the plan count."""

    def submit(self, *arguments: Any) -> int:
        """Start a call. There must be an idle worker."""

    def wait(self, until: float) -> Done | None:
        """The next call to end, or None when `until` comes first."""

    def cut(self, ticket: int) -> None:
        """Stop a running call; it will not be reported."""

    def close(self) -> None:
        """Stop everything."""


class _Worker:
    """One process and the thread that reads from it."""

    def __init__(self, function: bytes, inbox: queue.Queue[tuple[_Worker, Any]]) -> None:
        self.ticket: int | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `stop`
        self._process = subprocess.Popen(
            # not `-m`: the classes of the worker's module would then be those of `__main__`, which nobody can unpickle
            [sys.executable, "-c", "from harness.tuning.worker import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            start_new_session=True,
        )
        self._stdin = cast("BinaryIO", self._process.stdin)
        self._stdout = cast("BinaryIO", self._process.stdout)
        self._write(list(sys.path))
        self._write(function)  # already pickled, so that what cannot be is found before a process starts
        self._reader = threading.Thread(target=self._read, args=(inbox,), daemon=True)
        self._reader.start()

    def _read(self, inbox: queue.Queue[tuple[_Worker, Any]]) -> None:
        try:
            while True:
                inbox.put((self, read_frame(self._stdout)))
        except Exception as error:  # the stream closed, or a result that this side cannot read: the worker is of no use
            inbox.put((self, error))

    def ask(self, ticket: int, arguments: tuple[Any, ...]) -> None:
        self.ticket = ticket
        self._write(arguments)

    def _write(self, value: object) -> None:
        with contextlib.suppress(BrokenPipeError):  # the reader reports the death, with what the process said
            write_frame(self._stdin, value)

    def last_words(self) -> str:
        """The end of what a dead worker wrote to standard error."""
        self._process.kill()
        self._process.wait()
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - 2000))
        return self._errors.read().decode(errors="replace").strip()

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._stdin, self._stdout, self._errors):
            with contextlib.suppress(BrokenPipeError):  # a request that the process did not live to read
                stream.close()


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Processes:
    """A crew of worker processes.

    Args:
        function: what is called; it and its arguments and results must be picklable.
        size: how many processes, at least one.

    """

    def __init__(self, function: Callable[..., Any], size: int) -> None:
        self._function = pickle.dumps(function, protocol=pickle.HIGHEST_PROTOCOL)
        self._inbox: queue.Queue[tuple[_Worker, Any]] = queue.Queue()
        self._size = size
        self._tickets = 0
        self._workers: list[_Worker] = []
        self._closed = False

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def start(self) -> None:
        """Start every process now, while the caller still has other things to do."""
        while len(self._workers) < self._size:
            self._workers.append(_Worker(self._function, self._inbox))

    @property
    def idle(self) -> int:
        """How many calls can start now."""
        return self._size - self.busy

    @property
    def busy(self) -> int:
        """How many calls are running."""
        return sum(worker.ticket is not None for worker in self._workers)

    def now(self) -> float:
        """The system's monotonic clock."""
        return time.monotonic()

    def submit(self, *arguments: Any) -> int:
        """Start a call. There must be an idle worker."""
        worker = next((worker for worker in self._workers if worker.ticket is None), None)
        if worker is None:
            worker = _Worker(self._function, self._inbox)
            self._workers.append(worker)
        self._tickets += 1
        worker.ask(self._tickets, arguments)
        return self._tickets

    def wait(self, until: float) -> Done | None:
        """The next call to end, or None when `until` comes first."""
        while self.busy:
            try:
                worker, reply = self._inbox.get(timeout=max(0.0, until - self.now()))
            except queue.Empty:
                return None
            if worker not in self._workers:
                continue  # the last words of one that was cut off
            ticket, worker.ticket = worker.ticket, None
            if isinstance(reply, Exception):
                self._workers.remove(worker)
                words = worker.last_words() or str(reply) or "the process was killed"
                worker.stop()
                if ticket is not None:
                    return Done(ticket, 0.0, Failure("WorkerDied", words.splitlines()[-1], 1, words))
            elif ticket is not None:
                return Done(ticket, 0.0, reply) if isinstance(reply, Failure) else Done(ticket, *reply)
        return None

    def cut(self, ticket: int) -> None:
        """Stop a running call; it will not be reported."""
        for worker in [worker for worker in self._workers if worker.ticket == ticket]:
            self._workers.remove(worker)
            worker.stop()

    def close(self) -> None:
        """Stop everything."""
        while self._workers:
            self._workers.pop().stop()
