"""Where the numbers of a live run go: anything with `log_scalar` and `close`, so that TensorBoard, W&B or a file is plugged in.

A logger belongs to a user and must not hurt a run: one that raises is told of once and left out from then on.
"""

from __future__ import annotations

import json
import logging
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from harness.core.errors import ConfigError
from harness.files import write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LOG = logging.getLogger("rollout_harness")


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
        """Write it."""
        self._file.write(json.dumps({"step": step, "event": event, "value": value}) + "\n")

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
            if json.loads(line)["step"] <= step:
                kept.append(line + "\n")
        except (ValueError, KeyError, TypeError):
            continue
    return kept


class Loggers:
    """Several loggers as one."""

    def __init__(self, loggers: Sequence[ScalarLogger]) -> None:
        self._loggers = list(loggers)

    def log(self, prefix: str, values: Mapping[str, float], *, step: int) -> None:
        """Several numbers of one step."""
        for name, value in values.items():
            for logger in self._loggers[:]:
                self._try(logger, "log_scalar", f"{prefix}/{name}", float(value), step=step)

    def close(self) -> None:
        """Close all."""
        for logger in self._loggers[:]:
            self._try(logger, "close")
        self._loggers.clear()

    def _try(self, logger: ScalarLogger, method: str, *args: Any, **named: Any) -> None:
        try:
            getattr(logger, method)(*args, **named)
        except Exception as failure:
            self._loggers.remove(logger)
            LOG.warning(
                "a metrics logger failed and is left out from now on\n  where:   %s.%s\n  value:   %s: %s\n"
                "  allowed: log_scalar(event, value, step=...) and close() that do not raise\n  do:      mend the logger",
                type(logger).__name__, method, type(failure).__name__, failure,
            )  # fmt: skip


def make_loggers(names: Sequence[str], folder: Path) -> list[ScalarLogger]:
    """Loggers that a user names as `module:factory`; the factory is called with the folder of the run.

    Raises:
        ConfigError: there is no such factory, or what it makes is no logger.

    """
    return [_make(name, folder) for name in names]


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
