"""The far side of a worker process: one function, called again and again.

A process that runs `serve` reads pickled frames from standard input and writes frames to what was
standard output; whatever the called function prints goes to standard error instead. Frames are an eight-byte length and a
pickle. The first two: the import path of the parent, and the pickled function. Every other frame: the arguments of one call.
The reply is `(seconds, result)` or a `Failure`, so that an exception that cannot be pickled is no different from one that can.

A worker ignores the interrupt signal: the parent decides what is kept. It ends when its input closes, so it cannot outlive a
parent that was killed by more than the call it is in.
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
import sys
import time
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from harness.core.errors import HarnessError

if TYPE_CHECKING:
    from collections.abc import Callable

_LENGTH = struct.Struct(">Q")


@dataclass(frozen=True, slots=True)
class Failure:
    """A call that raised.

    Attributes:
        kind: name of the exception's class.
        message: its text.
        exit_code: of a deliberate error; 1 for any other.
        detail: the traceback, for whoever debugs.

    """

    kind: str
    message: str
    exit_code: int
    detail: str = ""


def write_frame(stream: BinaryIO, value: object) -> None:
    """One frame."""
    data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


def read_frame(stream: BinaryIO) -> Any:
    """The next frame.

    Raises:
        EOFError: the other side is gone.

    """
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    (length,) = _LENGTH.unpack(head)
    data = stream.read(length)
    if len(data) < length:
        raise EOFError
    return pickle.loads(data)


def call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[float, Any] | Failure:
    """Call it, and say how long it took or how it failed."""
    started = time.perf_counter()
    try:
        result = function(*arguments)
    except HarnessError as error:
        return Failure(type(error).__name__, str(error), error.exit_code, traceback.format_exc())
    except Exception as error:  # a bug in the called function is the parent's to report
        return Failure(type(error).__name__, str(error), 1, traceback.format_exc())
    return time.perf_counter() - started, result


def serve() -> None:
    """Answer calls until the input closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        sys.path[:] = read_frame(requests)
        function = pickle.loads(read_frame(requests))
        while True:
            write_frame(replies, call(function, read_frame(requests)))
    except (EOFError, BrokenPipeError):
        return
