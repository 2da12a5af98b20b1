"""A Python tool: code that the policy wrote runs in a process of its own, under limits.

What holds: the process, and what it starts, is gone when the call returns or is given up; wall time, processor time, memory
of each process, size of each file and the output that is kept are bounded; on Linux it has a network of its own with nothing in
it, and process ids of its own, so that nothing it starts outlives it.

What this is not: a security boundary. The code runs as the user of the harness on the machine of the harness. It can read and
write what that user can, fill a disk with many files, and start processes until their limit (which the kernel does not apply to
root). Use a container or a virtual machine for code that may mean harm.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, cast

from harness.core.errors import ConfigError
from pipeline.environments.tool_environment import Tool

_LAUNCHER = r"""
import ctypes, json, os, resource, signal, sys
limits = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
def follow():
    if hasattr(libc, "prctl"):
        libc.prctl(1, signal.SIGKILL, 0, 0, 0)
follow()
if os.getppid() == 1 and limits["parent"] != 1:
    os._exit(0)
if limits["isolated"]:
    # A user namespace gives the right to make the others: network, process ids, inter-process communication.
    if not hasattr(libc, "unshare") or libc.unshare(0x10000000 | 0x40000000 | 0x20000000 | 0x08000000):
        os._exit(limits["no_isolation"])
    # The first process with ids of its own is their init: with it everything ends that was started. The code runs in the
    # second, because signals treat an init differently.
    for _ in range(2):
        child = os.fork()
        if child:
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            os._exit(status if status >= 0 else 128 - status)
        follow()
def limit(kind, most):
    hard = resource.getrlimit(kind)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))
limit(resource.RLIMIT_CPU, limits["cpu_s"])
limit(resource.RLIMIT_AS, limits["memory_bytes"])
limit(resource.RLIMIT_FSIZE, limits["file_bytes"])
limit(resource.RLIMIT_NOFILE, 64)
limit(resource.RLIMIT_CORE, 0)
limit(resource.RLIMIT_NPROC, limits["processes"])
source = open("main.py", encoding="utf-8").read()
sys.argv = ["main.py"]
space = {"__name__": "__main__", "__builtins__": __builtins__}
try:
    exec(compile(source, "main.py", "exec"), space)
except SystemExit:
    raise
except BaseException:
    import traceback
    kind, value, trace = sys.exc_info()
    traceback.print_exception(kind, value, trace.tb_next)
    sys.exit(1)
"""

_NO_ISOLATION = 113
_SIGNALS = {int(one): one.name for one in signal.Signals}
_POLL_MS = 50
_READ_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one call.

    Attributes:
        wall_s: seconds on the clock.
        cpu_s: seconds on the processor, of each process; whole.
        memory_bytes: address space of each process.
        output_bytes: output that is kept; at more, the code is stopped.
        file_bytes: size of each file that it writes.
        processes: processes of this user; the kernel does not apply it to root.

    """

    wall_s: float = 5.0
    cpu_s: int = 5
    memory_bytes: int = 1 << 30
    output_bytes: int = 8192
    file_bytes: int = 1 << 24
    processes: int = 256


class PythonSandbox:
    """Runs Python code; one object for each environment. `tool` is what an environment offers.

    Args:
        limits: of each call.
        network: `none`, or `host` for the machine's own.

    Raises:
        ConfigError: `none` is not possible on this machine.

    """

    def __init__(self, limits: Limits | None = None, *, network: str = "none") -> None:
        if network not in ("none", "host"):
            raise ConfigError("no such network", field="network", value=network, allowed="none or host")
        self._limits = limits or Limits()
        self._isolated = network == "none"
        self._lock = threading.Lock()
        self._running: set[int] = set()
        if self._isolated and not can_isolate():
            raise ConfigError(
                "this machine does not let a process have a network of its own (user namespaces)",
                field="network", value=network, allowed="host",
                remedy="allow user namespaces, or say network='host' and keep the network away by other means",
            )  # fmt: skip

    @property
    def tool(self) -> Tool:
        """For `ToolEnvironment.tools`."""
        return Tool(self.run, name="python", kill=self.kill)

    def run(self, code: str) -> str:
        """Runs a Python program and returns what it prints."""
        with tempfile.TemporaryDirectory(prefix="sandbox-", ignore_cleanup_errors=True) as folder:
            Path(folder, "main.py").write_text(code, encoding="utf-8", errors="replace")
            return self._run_in(folder)

    def _run_in(self, folder: str) -> str:
        process = _start(folder, self._limits, isolated=self._isolated)
        with self._lock:
            self._running.add(process.pid)
        try:
            output, stopped = _read(process, self._limits)
        finally:
            # Its group exists until it is waited for, so the number cannot be somebody else's.
            with self._lock:
                self._running.discard(process.pid)
                _kill_group(process.pid)
            process.wait()
            cast("IO[bytes]", process.stdout).close()
        return _told(output, stopped, process.returncode)

    def kill(self) -> None:
        """End all calls that run, with all their processes."""
        with self._lock:
            for pid in self._running:
                _kill_group(pid)


@functools.cache
def can_isolate() -> bool:
    """Whether a process can have a network of its own here. Tried once."""
    with tempfile.TemporaryDirectory(prefix="sandbox-") as folder:
        Path(folder, "main.py").write_text("")
        process = _start(folder, Limits(), isolated=True)
        process.communicate()
        return process.returncode == 0


def _start(folder: str, limits: Limits, *, isolated: bool) -> subprocess.Popen[bytes]:
    wanted = asdict(limits) | {"isolated": isolated, "no_isolation": _NO_ISOLATION, "parent": os.getpid()}
    return subprocess.Popen(
        [sys.executable, "-I", "-c", _LAUNCHER, json.dumps(wanted)],
        cwd=folder, env={"PATH": "/usr/bin:/bin", "HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8"},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _read(process: subprocess.Popen[bytes], limits: Limits) -> tuple[bytes, str]:
    """Output up to the limit, and why the code has to be stopped, if it has."""
    stream = cast("IO[bytes]", process.stdout).fileno()
    poll = select.poll()
    poll.register(stream, select.POLLIN | select.POLLHUP)
    deadline_s = time.monotonic() + limits.wall_s
    kept = bytearray()
    while True:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            return bytes(kept), f"it ran longer than {limits.wall_s:g} s"
        ended = process.poll() is not None
        if not poll.poll(0 if ended else min(_POLL_MS, left_s * 1000)):
            if ended:  # something it started may hold the pipe open
                return bytes(kept), ""
            continue
        part = os.read(stream, _READ_BYTES)
        if not part:
            return _wait(process, bytes(kept), deadline_s, limits)
        kept += part[: limits.output_bytes - len(kept)]
        if len(kept) >= limits.output_bytes and len(part) > 0:
            return bytes(kept), f"it printed more than {limits.output_bytes:,} bytes"


def _wait(process: subprocess.Popen[bytes], kept: bytes, deadline_s: float, limits: Limits) -> tuple[bytes, str]:
    """It closed its output: wait for its end."""
    try:
        process.wait(max(0.0, deadline_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        return kept, f"it ran longer than {limits.wall_s:g} s"
    return kept, ""


def _told(output: bytes, stopped: str, status: int) -> str:
    text = output.decode("utf-8", errors="replace")
    if stopped:
        note = f"[stopped: {stopped}]"
    elif (number := -status if status < 0 else status - 128) in _SIGNALS:
        note = f"[ended by {_SIGNALS[number]}]"
    elif status:
        note = f"[exit status {status}]"
    else:
        return text
    return f"{text}\n{note}" if text and not text.endswith("\n") else text + note
