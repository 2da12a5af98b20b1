"""Scenarios as text: TOML for people, JSON beside a run, JSON Schema for editors."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from harness.scenario.schema import Scenario

if TYPE_CHECKING:
    from pydantic import BaseModel

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_WIDTH = 120

FROM_MEANS = "TOML file with the content of this table, relative to the scenario. What stands beside it is put over it."


def dump(scenario: Scenario[Any]) -> str:
    """The scenario as TOML: loading it gives the same scenario. Fields that are absent or empty are left out."""
    lines: list[str] = []
    _table((), scenario.model_dump(mode="json", exclude_none=True), lines)
    return "\n".join(lines).strip("\n") + "\n"


def dump_tables(path: tuple[str, ...], tables: list[dict[str, Any]]) -> str:
    """Only the tables of one array, such as `[[workload.tools]]`, as they stand in a scenario."""
    header = f"[[{'.'.join(map(_key, path))}]]"
    lines: list[str] = []
    for table in tables:
        lines += ["", header]
        _table(path, table, lines)
    return "\n".join(lines).strip("\n") + "\n"


def dump_value(value: Any) -> str:
    """One value, as it stands after the equals sign."""
    return _value(value, 0)


def resolved_json(scenario: Scenario[Any]) -> str:
    """Every field, defaults included, as JSON."""
    return scenario.model_dump_json(indent=2) + "\n"


def json_schema(pipeline_type: type[BaseModel], live_type: Any = Any) -> dict[str, Any]:
    """JSON Schema of a scenario for this pipeline, for editors."""
    schema: dict[str, Any] = Scenario[pipeline_type, live_type].model_json_schema()  # type: ignore[valid-type]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def editor_schema(pipeline_type: type[BaseModel], live_type: Any = Any) -> dict[str, Any]:
    """The same, for files as people write them: a table may say `from` which file its content comes."""
    from harness.scenario.load import FROM, PARTS

    schema = json_schema(pipeline_type, live_type)
    named = {"type": "object", "required": [FROM], "properties": {FROM: {"type": "string", "description": FROM_MEANS}}}
    for name in PARTS:
        whole = schema["properties"][name]
        kept = {key: whole.pop(key) for key in ("default", "description", "title") if key in whole}
        schema["properties"][name] = {**kept, "anyOf": [whole, named]}
    return schema


def _table(path: tuple[str, ...], table: dict[str, Any], lines: list[str]) -> None:
    """Values first, then sub-tables, as TOML demands."""
    later = {}
    for key, value in table.items():
        if value in ("", []):
            continue
        if _is_table(value) or _is_tables(value):
            later[key] = value
        else:
            lines.append(f"{_key(key)} = {_value(value, len(key) + 3)}")
    for key, value in later.items():
        below = (*path, key)
        header = ".".join(map(_key, below))
        for one in value if isinstance(value, list) else [value]:
            lines += ["", f"[[{header}]]" if isinstance(value, list) else f"[{header}]"]
            _table(below, one, lines)


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) and "law" not in value


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(_is_table(one) and ("name" in one or "path" in one) for one in value)


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _string(key)


def _value(value: Any, indent: int) -> str:
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, dict):
        pairs = [f"{_key(k)} = {_value(v, 0)}" for k, v in sorted(value.items(), key=_rank) if v not in ("", [])]
        return "{ " + ", ".join(pairs) + " }" if pairs else "{}"
    items = [_value(one, 0) for one in value]
    flat = "[" + ", ".join(items) + "]"
    if len(flat) + indent <= _WIDTH or not any(isinstance(one, dict) for one in value):
        return flat
    return "[\n" + "".join(f"  {item},\n" for item in items) + "]"


def _rank(item: tuple[str, Any]) -> int:
    """Within an inline table: its name or law first, remarks last."""
    return {"name": 0, "law": 0, "weight": 1, "source": 3, "note": 4}.get(item[0], 2)


def _string(text: str) -> str:
    def escape(character: str) -> str:
        known = _ESCAPES.get(character)
        if known is not None:
            return known
        code = ord(character)
        return f"\\u{code:04X}" if code < 0x20 or code == 0x7F else character

    return '"' + "".join(map(escape, text)) + '"'
