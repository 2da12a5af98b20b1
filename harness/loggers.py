"""Where the numbers of a live run go: anything with `log_scalar` and `close`, so that TensorBoard, W&B or a file is plugged in.

A logger belongs to a user and must not hurt a run. Each has a thread of its own, on which all its calls are made, one at a time
and in order, so that a slow one holds up nothing. `MOST_WAITING` numbers wait for it at most; then the oldest are dropped, and
how many is told. One that raises is told of once and gets no more numbers. `close` is called once, whatever happened before;
only of one that does not return from a call is it not, and the run does not wait for it longer than `CLOSE_S`.
"""

from __future__ import annotations

import json
import logging
import math
import sys
import threading
import time
from collections import deque
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from harness.core.errors import ConfigError
from harness.files import write_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

LOG = logging.getLogger("rollout_harness")

WARM_START = "warm_start"
"""Prefix of the numbers of supervised steps, which have a count of their own and come before the first optimizer step."""

MOST_WAITING = 10_000
"""Numbers that wait for a slow logger."""

CLOSE_S = 30.0
"""How long the end of a run waits for all loggers to take what waits and to close."""


class ScalarLogger(Protocol):
    """A destination of metrics."""

    def log_scalar(self, event: str, value: float, *, step: int) -> None:
        """One number: `event` names it (`train/reward`), `step` is the optimizer step."""

    def close(self) -> None:
        """The run is over."""


class JsonLines:
    """One JSON object a line: step, event, value.

    Args:
        path: of the file.
        keep_steps: lines of steps up to this one are kept where the file exists: what came after it is made again.

    """

    def __init__(self, path: Path, *, keep_steps: int = 0) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, "".join(_lines_up_to(path, keep_steps)))
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def log_scalar(self, event: str, value: float, *, step: int) -> None:
        """Write it; null where it is not a number."""
        known = value if math.isfinite(value) else None
        self._file.write(json.dumps({"step": step, "event": event, "value": known}) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _lines_up_to(path: Path, step: int) -> list[str]:
    """Whole lines of steps up to `step`; a run that was killed may have left half of one."""
    if not step or not path.is_file():
        return []
    kept = []
    for line in path.read_text("utf-8").splitlines():
        try:
            said = json.loads(line)
            if said["step"] <= step or said["event"].startswith(f"{WARM_START}/"):
                kept.append(line + "\n")
        except (ValueError, KeyError, TypeError):
            continue
    return kept


class Loggers:
    """Several loggers as one.

    Args:
        loggers: of the user.
        close_s: how long `close` waits for them, in seconds.

    """

    def __init__(self, loggers: Sequence[ScalarLogger] = (), *, close_s: float = CLOSE_S) -> None:
        self._logging = [_Logging(logger) for logger in loggers]
        self._close_s = close_s

    def add(self, logger: ScalarLogger) -> None:
        """One more."""
        self._logging.append(_Logging(logger))

    def log(self, prefix: str, values: Mapping[str, float], *, step: int) -> None:
        """Several numbers of one step. Returns at once."""
        numbers = [(f"{prefix}/{name}", float(value), step) for name, value in values.items()]
        for each in self._logging:
            each.put(numbers)

    def close(self) -> None:
        """Let all take what waits, and close them. Safe to call twice."""
        closing, self._logging = self._logging, []
        for each in closing:
            each.end()
        until_s = time.monotonic() + self._close_s
        for each in closing:
            each.join(max(0.0, until_s - time.monotonic()))


class _Logging:
    """A logger and its thread."""

    def __init__(self, logger: ScalarLogger) -> None:
        self._logger = logger
        self._waiting: deque[tuple[str, float, int]] = deque()
        self._news = threading.Condition()
        self._ended = self._failed = False
        self._dropped = 0
        self._thread = threading.Thread(target=self._serve, name=f"logger {type(logger).__name__}", daemon=True)
        self._thread.start()

    def put(self, numbers: Sequence[tuple[str, float, int]]) -> None:
        with self._news:
            if self._failed:
                return
            self._waiting.extend(numbers)
            first = not self._dropped
            while len(self._waiting) > MOST_WAITING:
                self._waiting.popleft()
                self._dropped += 1
            self._news.notify()
        if first and self._dropped:
            self._tell("is too slow", f"{MOST_WAITING:,} numbers wait; the oldest are dropped", "take numbers faster")

    def end(self) -> None:
        with self._news:
            self._ended = True
            self._news.notify()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._tell("did not close in time", f"{len(self._waiting):,} numbers still wait", "return from every call")
        elif self._dropped:
            self._tell("was too slow", f"{self._dropped:,} numbers were dropped", "take numbers faster")

    def _serve(self) -> None:
        while (number := self._next()) is not None:
            event, value, step = number
            self._try("log_scalar", lambda: self._logger.log_scalar(event, value, step=step))  # noqa: B023 - called at once
        self._try("close", self._logger.close)

    def _next(self) -> tuple[str, float, int] | None:
        """The oldest number, as soon as there is one; None when there will be no more."""
        with self._news:
            while not self._waiting and not self._ended:
                self._news.wait()
            return self._waiting.popleft() if self._waiting else None

    def _try(self, method: str, call: Callable[[], object]) -> None:
        try:
            call()
        except BaseException as failure:  # the user's own, on a thread of its own
            if not self._failed:
                self._tell(
                    "failed and gets no more numbers", f"{method}: {type(failure).__name__}: {failure}", "mend the logger"
                )
            with self._news:
                self._failed = True
                self._waiting.clear()

    def _tell(self, what: str, value: str, remedy: str) -> None:
        LOG.warning(
            "a metrics logger %s\n  where:   %s\n  value:   %s\n"
            "  allowed: log_scalar(event, value, step=...) and close() that return soon and do not raise\n  do:      %s",
            what, type(self._logger).__name__, value, remedy,
        )  # fmt: skip


def make_loggers(names: Sequence[str], folder: Path) -> list[ScalarLogger]:
    """Loggers that a user names as `module:factory`; the factory is called with the folder of the run.

    Raises:
        ConfigError: there is no such factory, or what it makes is no logger.

    """
    made: list[ScalarLogger] = []
    try:
        made.extend(_make(name, folder) for name in names)
    except ConfigError:
        Loggers(made).close()
        raise
    return made


def _make(name: str, folder: Path) -> ScalarLogger:
    module_name, _, factory_name = name.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        made = getattr(import_module(module_name), factory_name)(str(folder))
    except Exception as failure:
        raise ConfigError(
            f"cannot be made: {type(failure).__name__}: {failure}", field="--logger", value=name,
            allowed="module:factory; the factory takes the run's folder", remedy="run in the module's folder, or mend it",
        ) from failure  # fmt: skip
    lacking = [method for method in ("log_scalar", "close") if not callable(getattr(made, method, None))]
    if lacking:
        raise ConfigError(f"makes a {type(made).__name__} without {' and '.join(lacking)}", field="--logger", value=name)
    logger: ScalarLogger = made
    return logger
