"""A pipeline of a user's own: found by `module:build`, checked before the run, and blamed where its code fails.

`build(rt, config, hardware, source)` gives an object with `async run(*, steps, warmup_steps, limit_ns, at_end, at_step)` that
returns a `pipeline.build.Report`, and calls `at_step(step)` after each step and `at_end(report)` at the instant of its end. The
smallest is a subclass of `pipeline.build.Pipeline` with one policy replaced. Where `build` has an attribute `config_type`, a
subclass of `PipelineConfig`, the table `[pipeline]` is read as that: its own knobs are set, listed and searched like ours.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.core.errors import ActorError, ConfigError, HarnessError
from pipeline.build import Report
from pipeline.config import PipelineConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.core.runtime import Runtime
    from harness.scenario.schema import Scenario
    from pipeline.build import Hardware
    from pipeline.environments.base import TaskSource

FIELD = "--pipeline"
SIGNATURE = "(rt, config, hardware, source)"
_ALLOWED = f"module:build, where build takes {SIGNATURE} and gives an object with async run"
_OURS = tuple(f"{Path(str(sys.modules[name].__file__)).parent}{os.sep}" for name in ("harness", "pipeline"))


@dataclass(frozen=True)
class OwnPipeline:
    """What builds a pipeline.

    Attributes:
        name: `module:build`.
        build: the callable.
        config_type: of the table `[pipeline]`.

    """

    name: str
    build: Callable[..., Any]
    config_type: type[PipelineConfig]

    def __reduce__(self) -> tuple[Any, ...]:
        """By name, as another process finds it: it has the same import path."""
        return find, (self.name,)

    @property
    def file(self) -> str:
        """Where its module lies."""
        return str(getattr(sys.modules.get(self.name.partition(":")[0]), "__file__", None) or "")

    def made(self, rt: Runtime, config: PipelineConfig, hardware: Hardware, source: TaskSource) -> Any:
        """The pipeline of one run.

        Raises:
            ConfigError: what was built has no `async run`.

        """
        made = self.build(rt, config, hardware, source)
        run = getattr(made, "run", None)
        if not inspect.iscoroutinefunction(run):
            raise ConfigError(
                f"{'run is not async in' if callable(run) else 'has no run:'} the {type(made).__name__} that was built",
                field=FIELD, value=self.name, allowed="async def run(self, *, steps, warmup_steps, limit_ns, at_end, at_step)",
                remedy="derive it from pipeline.build.Pipeline, or write run",
            )  # fmt: skip
        return made

    def reported(self, report: object) -> Report:
        """What its run returned.

        Raises:
            ConfigError: it is no report.

        """
        if not isinstance(report, Report):
            raise ConfigError(
                f"its run returned a {type(report).__name__}", field=FIELD, value=self.name, allowed="pipeline.build.Report"
            )
        return report

    def blamed(self, failure: BaseException) -> BaseException:
        """The failure of a run, said of the line of the user's code that it went through, if there is one."""
        if isinstance(failure, ConfigError):
            return failure
        for error in _chain(failure):
            place = self._own_line(error)
            if place is not None:
                said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
                return ConfigError(
                    f"fails: {said}", field=FIELD, value=self.name, file=place[0], line=place[1],
                    remedy="mend this line, or what it calls; HARNESS_DEBUG=1 shows the whole way there",
                )  # fmt: skip
        if getattr(failure, "exit_code", 1) == 1:  # ours raised, on what it got
            words = str(failure) if isinstance(failure, ActorError) else f"{type(failure).__name__}: {failure}"
            return ConfigError(
                f"the run failed with what this pipeline gave: {words}", field=FIELD, value=self.name, file=self.file,
                remedy="look at what its policies answer; HARNESS_DEBUG=1 shows where it failed",
            )  # fmt: skip
        return failure

    def _own_line(self, error: BaseException) -> tuple[str, int] | None:
        """File and line of the last frame in the user's folder."""
        folder = str(Path(self.file).parent) if self.file else ""
        found, trace = None, error.__traceback__
        while folder and trace is not None:
            file = trace.tb_frame.f_code.co_filename
            if file.startswith(folder) and not file.startswith(_OURS) and "site-packages" not in file:
                found = (file, trace.tb_lineno)
            trace = trace.tb_next
        return found

    @property
    def fingerprint(self) -> str:
        """Of its source, for a study: simulations of other code do not belong to it."""
        found = hashlib.sha256()
        file, name = Path(self.file), self.name.partition(":")[0]
        above = [*file.parents, Path()]
        for path in _sources(file, above[min(name.count(".") + (file.stem == "__init__"), len(above) - 1)]):
            found.update(path.name.encode() + b"\0" + path.read_bytes())
        return f"{self.name} {found.hexdigest()}"


def _sources(file: Path, folder: Path) -> list[Path]:
    """A module's file, and those in the folder it is imported from that it imports, by itself or through others."""
    found, todo = set[Path](), [file]
    while todo:
        path = todo.pop()
        if path in found or path.suffix != ".py" or str(path).startswith(_OURS) or not path.is_file():
            continue
        found.add(path)
        for name in _imported(path):
            parts = name.split(".")
            for module in (
                place.joinpath(*parts[:depth]) for place in (folder, path.parent) for depth in range(1, len(parts) + 1)
            ):
                todo += [module.with_name(f"{module.name}.py"), module / "__init__.py"]
    return sorted(found)


def _imported(path: Path) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # never imported so far
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (".".join(filter(None, (node.module, alias.name))) for alias in node.names)


def _chain(failure: BaseException) -> Iterator[BaseException]:
    """A failure and what it came from, the deepest first."""
    causes = []
    at: BaseException | None = failure
    while at is not None and at not in causes:
        causes.append(at)
        at = at.__cause__
    return reversed(causes)


def find(named: str | Callable[..., Any] | OwnPipeline) -> OwnPipeline:
    """The pipeline that a user names as `module:build`, or hands over.

    Raises:
        ConfigError: there is no such thing, it cannot be called as it must, or its configuration is no `PipelineConfig`.

    """
    if isinstance(named, OwnPipeline):
        return named
    if isinstance(named, str):
        name, build = named, _named(named)
    else:
        name = f"{getattr(named, '__module__', '?')}:{getattr(named, '__qualname__', type(named).__name__)}"
        build = named
    if not callable(build):
        raise ConfigError(
            f"names a value of type {type(build).__name__}, and that cannot be called",
            field=FIELD,
            value=name,
            allowed=_ALLOWED,
        )
    try:
        inspect.signature(build).bind(None, None, None, None)
    except TypeError as wrong:
        raise ConfigError(
            f"cannot be called with {SIGNATURE}: {wrong}", field=FIELD, value=name, allowed=_ALLOWED,
            remedy="take these four, in this order",
        ) from None  # fmt: skip
    except ValueError:  # a callable that says nothing of itself
        pass
    config_type = getattr(build, "config_type", PipelineConfig)
    if not (isinstance(config_type, type) and issubclass(config_type, PipelineConfig)):
        raise ConfigError(
            "its config_type is no PipelineConfig", field=FIELD, value=name, allowed="a subclass of PipelineConfig",
            remedy="derive it from pipeline.config.PipelineConfig, and add your knobs with number and choice",
        )  # fmt: skip
    return OwnPipeline(name, build, config_type)


def _named(name: str) -> object:
    module_name, colon, rest = name.partition(":")
    if not colon or not module_name or not rest:
        raise ConfigError(
            "is not module:build", field=FIELD, value=name, allowed=_ALLOWED, remedy="for example my_pipeline:Packed"
        )
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: object = importlib.import_module(module_name)
    except HarnessError:
        raise
    except (Exception, SystemExit) as failure:
        raise _import_failed(name, module_name, failure) from failure
    for part in rest.split("."):
        if not hasattr(found, part):
            there = [public for public in dir(found) if callable(getattr(found, public)) and not public.startswith("_")]
            raise ConfigError(
                f"{module_name} has no {rest}", field=FIELD, value=name,
                allowed=f"what it has: {', '.join(there[:12]) or 'nothing that can be called'}",
            )  # fmt: skip
        found = getattr(found, part)
    return found


def _import_failed(name: str, module_name: str, failure: BaseException) -> ConfigError:
    missing = isinstance(failure, ModuleNotFoundError) and module_name.startswith(str(failure.name))
    if missing:
        return ConfigError(
            f"module {module_name!r} was not found", field=FIELD, value=name,
            allowed="a module in the current folder or on Python's path", remedy="run in the module's folder",
        )  # fmt: skip
    file, line = "", 0
    if isinstance(failure, SyntaxError):
        file, line = failure.filename or "", failure.lineno or 0
    else:
        trace = failure.__traceback__
        while trace is not None:
            inner = trace.tb_frame.f_code.co_filename
            if not inner.startswith(("<frozen", *_OURS)) and inner != importlib.__file__:
                file, line = inner, trace.tb_lineno
            trace = trace.tb_next
    return ConfigError(
        f"module {module_name!r} fails on import: {type(failure).__name__}: {failure}", field=FIELD, value=name, file=file,
        line=line, remedy="mend the module",
    )  # fmt: skip


def shared(own: OwnPipeline) -> OwnPipeline:
    """The same, once it is sure that other processes find it.

    Raises:
        ConfigError: it stands in the script that runs, or inside a function.

    """
    try:
        there = own.name.partition(":")[0] != "__main__" and _named(own.name) is own.build
    except ConfigError:
        there = False
    if not there:
        raise ConfigError(
            "cannot be found by other processes", field="pipeline", value=own.name,
            allowed="a class or a function at the top of a module that can be imported",
            remedy="put it into a file of its own, and import it from there",
        )  # fmt: skip
    return own


def check_type(scenario: Scenario[Any], own: OwnPipeline) -> None:
    """Whether a scenario was loaded for this pipeline.

    Raises:
        ConfigError: its knobs are those of another.

    """
    if not isinstance(scenario.pipeline, own.config_type):
        raise ConfigError(
            f"needs the knobs of {own.config_type.__name__}; the scenario was loaded with {type(scenario.pipeline).__name__}",
            field="pipeline", value=own.name, remedy="load it with harness.load(path, pipeline=…)",
        )  # fmt: skip


def of_own(own: OwnPipeline | None) -> tuple[str, ...]:
    """What a reader must know of figures that are not of our pipeline."""
    if own is None:
        return ()
    return (f"simulated with {own.name}: closed forms are of our own policies, so nothing is expected by hand",)
