"""From the name in a scenario to an environment class, checked as far as it can be before the run."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.core.errors import ConfigError, HarnessError
from pipeline.environments.environment import BaseTaskEnv, TaskEnvironment
from pipeline.environments.tool_environment import ToolEnvironment

if TYPE_CHECKING:
    from collections.abc import Mapping

SHIPPED = {
    "tool_arithmetic": "pipeline.environments.tool_arithmetic:ToolArithmetic",
    "guessing_game": "pipeline.environments.guessing_game:GuessingGame",
    "reasoning_gym": "pipeline.environments.reasoning_gym_tasks:ReasoningGym",
}

_NAME = "live.environment.name"
_OPTIONS = "live.environment.options"
_REQUIRED: tuple[tuple[type[BaseTaskEnv], tuple[str, ...]], ...] = (
    (TaskEnvironment, ("prompt", "verify")),
    (ToolEnvironment, ("prompt", "tools", "verify")),
    (BaseTaskEnv, ("reset", "step")),
)
_PLAIN = ("final", "kill", "prompt", "tools", "make_task", "tasks", "demonstration")
"""Called where nothing can be awaited."""
_OF_CLASS = ("make_task", "tasks", "demonstration")


def resolve(name: str, options: Mapping[str, Any] | None = None, *, seed: int = 0, file: str = "") -> type[BaseTaskEnv]:
    """The class that a scenario names, with its options and its first tasks tried.

    Args:
        name: a shipped one, or `module:Class`; the module may lie in the current folder.
        options: the table `live.environment.options`.
        seed: of the run.
        file: of the scenario, for errors.

    Raises:
        ConfigError: there is no such class, it lacks a method, or it cannot make a task from these options.

    """
    found = _load(name, file)
    _check_methods(found, name, file)
    _check_tasks(found, dict(options or {}), seed, file)
    return found


def _load(name: str, file: str) -> type[BaseTaskEnv]:
    target = SHIPPED.get(name, name)
    module_name, colon, class_name = target.partition(":")
    if not colon or not module_name or not class_name:
        raise ConfigError(
            "no environment has this name", field=_NAME, value=name, file=file,
            allowed=f"{', '.join(SHIPPED)}, or your own class as module:Class",
        )  # fmt: skip
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except HarnessError:
        raise
    except (Exception, SystemExit) as failure:
        missing = isinstance(failure, ModuleNotFoundError) and failure.name in (module_name, module_name.partition(".")[0])
        raise ConfigError(
            f"module {module_name!r} {'was not found' if missing else f'fails on import: {_told(failure)}'}", field=_NAME,
            value=name, file=file, allowed="a module in the current folder or on Python's path",
            remedy="run in the module's folder, or mend the module" if missing else "mend the module",
        ) from failure  # fmt: skip
    found = getattr(module, class_name, None)
    if not isinstance(found, type) or not issubclass(found, BaseTaskEnv):
        raise ConfigError(
            f"{module_name} has no class {class_name}" if found is None else f"{class_name} is no environment", field=_NAME,
            value=name, file=file, allowed="a subclass of TaskEnvironment, ToolEnvironment or BaseTaskEnv",
            remedy="derive it from one in pipeline.environments",
        )  # fmt: skip
    return found


def _check_methods(found: type[BaseTaskEnv], name: str, file: str) -> None:
    base, required = next(entry for entry in _REQUIRED if issubclass(found, entry[0]))
    lacking = [method for method in required if getattr(found, method, None) is getattr(base, method)]
    if not _own(found, "tasks") and not _own(found, "make_task"):
        lacking.insert(0, "make_task")
    if lacking:
        raise ConfigError(
            f"class {found.__name__} lacks {', '.join(lacking)}", field=_NAME, value=name, file=file,
            allowed=f"a {base.__name__} with {', '.join(('make_task', *required))}", remedy="write what is lacking",
        )  # fmt: skip
    for method in ("reset", "step", "score", "close", *_PLAIN):
        function = getattr(found, method, None)
        if function is not None and not callable(function):
            raise ConfigError(f"{found.__name__}.{method} is not a method", field=_NAME, value=name, file=file)
        if method in _OF_CLASS and not isinstance(inspect.getattr_static(found, method), classmethod | staticmethod):
            raise ConfigError(
                f"{found.__name__}.{method} is no class method", field=_NAME, value=name, file=file,
                allowed="a classmethod: tasks are made before there is an environment",
                remedy=f"put @classmethod above it, and let it begin with def {method}(cls, …)",
            )  # fmt: skip
        if method in _PLAIN and inspect.iscoroutinefunction(function):
            raise ConfigError(
                f"{found.__name__}.{method} is an async def", field=_NAME, value=name, file=file,
                allowed="a plain def: it is called where nothing can be awaited",
            )  # fmt: skip


def _own(found: type[BaseTaskEnv], method: str) -> bool:
    """Whether a class has its own method of this name."""
    return inspect.getattr_static(found, method) is not inspect.getattr_static(BaseTaskEnv, method)


def _check_tasks(found: type[BaseTaskEnv], options: dict[str, Any], seed: int, file: str) -> None:
    for split in ("train", "eval"):
        try:
            found.tasks(split, 0, seed, **options)
        except ConfigError as wrong:
            wrong.file = wrong.file or file
            raise
        except Exception as failure:
            raise ConfigError(
                f"{found.__name__} cannot make a task: {_told(failure)}", field=_OPTIONS, value=options, file=file,
                allowed=_options_of(found), remedy="mend the options, or the class",
            ) from failure  # fmt: skip


def _options_of(found: type[BaseTaskEnv]) -> str:
    """The options that its task maker takes, as `name = default`."""
    own_tasks = _own(found, "tasks")
    signature = inspect.signature(found.tasks if own_tasks else found.make_task)
    skipped = ("split", "index", "seed") if own_tasks else ("rng",)
    shown = [
        parameter.name if parameter.default is parameter.empty else f"{parameter.name} = {parameter.default!r}"
        for parameter in signature.parameters.values()
        if parameter.kind is not parameter.VAR_KEYWORD and parameter.name not in skipped
    ]
    return ", ".join(shown) or "no options"


def _told(failure: BaseException) -> str:
    """An exception in a line."""
    return f"{type(failure).__name__}: {failure}" if str(failure) else type(failure).__name__
