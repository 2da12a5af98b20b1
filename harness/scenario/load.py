"""Read a scenario. Whatever is wrong is said of a file, a line and a field, with what is allowed and what to do.

A scenario splits into a world, a workload and a pipeline (and `live` and `run`). Each of these tables may begin with
`from = "PATH"`: a TOML file, relative to the scenario's own folder, with the table's content, or a whole scenario, whose table
of the same name is taken. What stands beside `from` is put over it, field by field, lists as a whole. So one world serves
many pipelines, and one pipeline is tried in many worlds.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from harness.core.errors import ConfigError
from harness.scenario.explain import dotted, explain
from harness.scenario.locate import Path, Places
from harness.scenario.schema import Scenario
from harness.scenario.write import dump, editor_schema, json_schema, resolved_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["dump", "editor_schema", "json_schema", "load", "parse", "read_text", "resolved_json"]

PipelineT = TypeVar("PipelineT", bound=BaseModel)

LARGEST_FILE_BYTES = 16 * 1024 * 1024
"""A scenario is a page of text; anything larger is another file given by mistake, and is not read whole."""

PARTS = ("world", "workload", "pipeline", "live", "run")
"""Tables that may stand in files of their own."""

FROM = "from"
"""The key that names such a file."""

_LINE = re.compile(r"at line (\d+)")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")


@dataclass(slots=True)
class Sources:
    """Where the fields of a scenario stand.

    Attributes:
        file: the scenario's own.
        main: lines in it.
        parts: file of each table that stands elsewhere, lines in it, and the path of the table there.
        patch: the file that was put over it, and lines in it.

    """

    file: str
    main: Places
    parts: dict[str, tuple[str, Places, Path]] = field(default_factory=dict)
    patch: tuple[str, Places] | None = None

    def where(self, path: Path) -> tuple[str, int]:
        """File and line of a field, or of the nearest table round it."""
        if self.patch is not None and path in self.patch[1].lines:
            return self.patch[0], self.patch[1].line(path)
        part = self.parts.get(str(path[0])) if path else None
        if part is None or (path in self.main.lines and len(path) > 1):
            return self.file, self.main.line(path)
        file, places, above = part
        line = places.line((*above, *path[1:]))
        return (file, line) if line else (self.file, self.main.line(path))


def load(
    path: str | FilePath,
    pipeline_type: type[PipelineT],
    overrides: Sequence[str] = (),
    live_type: Any = Any,
    *,
    check: Callable[[Scenario[PipelineT]], object] = lambda scenario: None,
    patch: str | FilePath | None = None,
) -> Scenario[PipelineT]:
    """Read, override and check a scenario.

    Args:
        path: a TOML file.
        pipeline_type: record type of the `[pipeline]` table.
        live_type: record type of the `[live]` table; unchecked by default.
        overrides: `field.path=value`, the value in TOML; tables of an array go by number or by their `name`.
        check: what else must hold between world and pipeline; raises `ConfigError` with the field, which is located here.
        patch: a TOML file that is put over the scenario, field by field, lists as a whole, before the overrides.

    Raises:
        ConfigError: naming file, line, field, value, what is allowed and what to do.

    """
    text = read_text(path)
    return parse(text, pipeline_type, file=str(path), overrides=overrides, live_type=live_type, check=check, patch=patch)


def read_text(path: str | FilePath) -> str:
    """The text of a file that a user named.

    Raises:
        ConfigError: there is no such file, it is a folder, cannot be read or is not text.

    """
    file, name = FilePath(path), str(path)
    try:
        if file.is_dir():
            raise ConfigError("is a folder, not a scenario file", file=name, remedy="name a .toml file in it")
        if file.exists() and not file.is_file():
            raise ConfigError("is a pipe or a device, not a file", file=name, remedy="name a .toml file")
        if file.stat().st_size > LARGEST_FILE_BYTES:
            raise ConfigError("is too large for a scenario", file=name, allowed="up to 16 MiB", remedy="name a .toml file")
        data = file.read_bytes()
    except FileNotFoundError:
        raise ConfigError("there is no such file", file=name, remedy="check the path; scenarios end in .toml") from None
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror or error}", file=name, remedy="check its permissions") from None
    except ValueError as error:
        raise ConfigError(f"is not a path: {error}", file=repr(name), remedy="name a .toml file") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            "is not text: a byte is not UTF-8", file=name, line=line, allowed="TOML in UTF-8", remedy="name a .toml file"
        ) from None
    if "\0" in text:
        raise ConfigError("is a binary file", file=name, allowed="TOML in UTF-8", remedy="name a .toml file")
    return text.replace("\r\n", "\n")


def parse(
    text: str,
    pipeline_type: type[PipelineT],
    *,
    file: str = "",
    overrides: Sequence[str] = (),
    live_type: Any = Any,
    check: Callable[[Scenario[PipelineT]], object] = lambda scenario: None,
    patch: str | FilePath | None = None,
) -> Scenario[PipelineT]:
    """A scenario from its text. As `load`; files that it names lie beside `file`."""
    data = _toml(text, file)
    sources = Sources(file, Places(text))
    _put_together(data, sources)
    if patch is not None:
        above = read_text(patch)
        sources.patch = (str(patch), Places(above))
        data = _over(data, _toml(above, str(patch)))
    changed = [_override(data, text_) for text_ in overrides]
    return _validate(data, Scenario[pipeline_type, live_type], sources, changed, check)  # type: ignore[valid-type]


def _toml(text: str, file: str) -> dict[str, Any]:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = _LINE.search(str(error))
        line = int(found.group(1)) if found else text.count("\n") + 1
        problem = str(error).split(" (at ")[0]
        raise ConfigError(
            f"is not valid TOML: {problem[0].lower()}{problem[1:]}", file=file, line=line, remedy="correct this line"
        ) from None
    except RecursionError:
        raise ConfigError("is nested too deeply", file=file, remedy="a scenario nests a handful of levels") from None
    return data


def _put_together(data: dict[str, Any], sources: Sources) -> None:
    """Put in place of each `from` what it names."""
    for name in PARTS:
        table = data.get(name)
        if not isinstance(table, dict) or FROM not in table:
            continue
        named = table.pop(FROM)
        line = sources.main.line((name, FROM))
        if not isinstance(named, str) or not named:
            raise ConfigError(
                "is not a file", field=f"{name}.{FROM}", value=named, allowed="the path of a TOML file",
                remedy="name the file that holds this table", file=sources.file, line=line,
            )  # fmt: skip
        path = FilePath(sources.file).parent / named
        text = _named_text(path, f"{name}.{FROM}", sources.file, line)
        part, places = _toml(text, str(path)), Places(text)
        above: Path = ()
        if isinstance(part.get(name), dict):  # a whole scenario: its table of this name is meant
            part, above = part[name], (name,)
        if FROM in part:
            raise ConfigError(
                "stands in a file that is itself named by a scenario", field=FROM, file=str(path),
                line=places.line((*above, FROM)), allowed=f"the content of [{name}]",
                remedy="one level of files is enough: name the last one in the scenario",
            )  # fmt: skip
        data[name] = _over(part, table)
        sources.parts[name] = (str(path), places, above)


def _named_text(path: FilePath, field: str, file: str, line: int) -> str:
    try:
        return read_text(path)
    except ConfigError as error:
        raise ConfigError(
            error.problem, field=field, value=str(path), allowed=error.allowed, remedy=error.remedy, file=file, line=line
        ) from None


def _over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """`above` put over `below`, table by table."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _over(old, value) if isinstance(old, dict) and isinstance(value, dict) and "law" not in value else value
    return merged


def _validate(
    data: dict[str, Any],
    model: type[Scenario[PipelineT]],
    sources: Sources,
    changed: list[tuple[Path, str]],
    check: Callable[[Scenario[PipelineT]], object],
) -> Scenario[PipelineT]:
    try:
        scenario: Scenario[PipelineT] = model.model_validate(data)
        check(scenario)
    except ValidationError as error:
        problems = explain(error, data, model)
        # a misspelt field is missing as well: say what was written before what was not
        problems.sort(key=lambda found: (found[1].problem == "is missing", sources.where(found[0])[1]))
        path, first = problems[0]
        if len(problems) > 1:
            others = ", ".join(dict.fromkeys(dotted(other) for other, _ in problems[1:4] if other != path))
            more = f" (also wrong: {others}{', …' if len(problems) > 4 else ''})" if others else ""
            first.remedy += more
        raise _located(first, path, sources, changed) from None
    except ConfigError as error:  # a record's own check, which knows its field but not its place
        path = _own_path(error.field, data)
        raise _located(error, path, sources, changed) from None
    return scenario


def _own_path(field: str, data: dict[str, Any]) -> Path:
    """The path of a field that a record named: whole, or from inside `[pipeline]`."""
    path: Path = tuple(int(part) if part.isdigit() else part for part in field.split("."))
    return path if path[0] in data else ("pipeline", *path)


def _located(error: ConfigError, path: Path, sources: Sources, changed: list[tuple[Path, str]]) -> ConfigError:
    field = error.field if error.field.startswith(dotted(path)) else dotted(path)
    where, line = sources.where(path)
    for target, text in changed:
        if path[: len(target)] == target or target[: len(path)] == path:
            where, line = f"--set {text}", 0
    return ConfigError(
        error.problem, field=field, value=error.value, allowed=error.allowed, remedy=error.remedy, file=where, line=line
    )


def _override(data: dict[str, Any], text: str) -> tuple[Path, str]:
    """Put one `path=value` into the data. Returns where it went and its text."""
    name, equals, literal = text.partition("=")
    keys = [key.strip() for key in name.split(".")]
    if not equals or not all(keys):
        raise ConfigError(
            "is not an override", field="--set", value=text, allowed="field.path=value", remedy="--set run.seed=3, for example"
        )
    value = _literal(literal.strip(), text)
    at: Any = data
    path: list[str | int] = []
    for i, key in enumerate(keys):
        step = _step(at, key, text, path)
        path.append(step)
        if i == len(keys) - 1:
            at[step] = value
        else:
            if isinstance(at, dict):
                at.setdefault(step, {})
            at = at[step]
    return tuple(path), text


def _step(at: Any, key: str, text: str, path: list[str | int]) -> str | int:
    """One key of an override: of a table, or a number or a name within a list of tables."""
    if isinstance(at, dict):
        return key
    if isinstance(at, list):
        names = [str(one.get("name", i)) if isinstance(one, dict) else str(i) for i, one in enumerate(at)]
        if key.isdigit() and int(key) < len(at):
            return int(key)
        if key in names:
            return names.index(key)
        allowed = f"0 to {len(at) - 1}, or a name: {', '.join(names)}"
        where = dotted(tuple(path))
        raise ConfigError(f"{where} has no {key!r}", field="--set", value=text, allowed=allowed, remedy="choose one")
    raise ConfigError(
        f"{dotted(tuple(path))} is a value, not a table", field="--set", value=text, remedy=f"set {dotted(tuple(path))} itself"
    )


def _literal(literal: str, text: str) -> Any:
    try:
        value = tomllib.loads(f"value = {literal}")
    except tomllib.TOMLDecodeError:
        if _WORD.fullmatch(literal):
            return literal  # a bare word, as shells leave it when quotes are forgotten
        raise ConfigError(
            "its value is not TOML",
            field="--set",
            value=text,
            allowed='a number, true, "text", [list] or {table}',
            remedy="quote text: --set 'title=\"my run\"'",
        ) from None
    if list(value) != ["value"]:
        raise ConfigError("sets more than one value", field="--set", value=text, remedy="use one --set for each")
    return value["value"]
