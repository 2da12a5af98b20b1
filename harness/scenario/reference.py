"""Every field of a scenario, with its unit and meaning, read from the schema: for people, where the schema is for editors."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from harness.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

WIDTH = 80
_INDENT = "    "


@dataclass(frozen=True, slots=True)
class Field:
    """One field.

    Attributes:
        path: as `--set` takes it; `[]` stands for any entry of a list.
        kind: what it takes, in words: a number and its range, the choices, the laws.
        default: as JSON-able data; `...` where the field must be given.
        meaning: the unit is in it, or in the name.

    """

    path: str
    kind: str
    default: Any
    meaning: str


def fields(schema: dict[str, Any]) -> tuple[Field, ...]:
    """All fields of a JSON Schema, in its order; a law is one field, whatever its parameters."""
    return tuple(_fields(schema, schema.get("$defs", {}), ""))


def reference(schema: dict[str, Any], path: str = "") -> str:
    """The fields at and below `path`, as text of 80 columns.

    Raises:
        ConfigError: there is no such field.

    """
    every = fields(schema)
    wanted = path.strip(".").replace("[]", "")
    found = [one for one in every if _below(one.path.replace("[]", ""), wanted)]
    if not found:
        allowed = ", ".join(_near([one.path.replace("[]", "") for one in every], wanted))
        raise ConfigError("there is no such field", field="PATH", value=path, allowed=allowed, remedy="name one of them")
    return "\n".join(line for one in found for line in _lines(one)) + "\n"


def _near(known: list[str], wanted: str) -> list[str]:
    """What stands in the last table on the way to `wanted` that there is."""
    above = wanted.rpartition(".")[0]
    while above and above not in known:
        above = above.rpartition(".")[0]
    depth = above.count(".") + 2 if above else 1
    return sorted({".".join(one.split(".")[:depth]) for one in known if _below(one, above) and one != above})


def _below(path: str, wanted: str) -> bool:
    return not wanted or path == wanted or path.startswith(wanted + ".")


def _fields(node: dict[str, Any], defs: dict[str, Any], prefix: str) -> Iterator[Field]:
    required = set(node.get("required", ()))
    for name, child in node.get("properties", {}).items():
        path = f"{prefix}.{name}" if prefix else name
        default = ... if name in required else child.get("default")
        resolved = _resolved(child, defs)
        item = resolved.get("items")
        if item is not None and "properties" in _resolved(item, defs) and not _is_law(_resolved(item, defs)):
            yield Field(path, "list of tables", default, _meaning(child, resolved))
            yield from _fields(_resolved(item, defs), defs, path + "[]")
        elif "properties" in resolved and not _is_law(resolved):
            yield Field(path, "table", ... if name in required else None, _meaning(child, resolved))
            yield from _fields(resolved, defs, path)
        else:
            yield Field(path, _kind(resolved, defs), default, _meaning(child, resolved))


def _meaning(child: dict[str, Any], resolved: dict[str, Any]) -> str:
    return str(child.get("description") or resolved.get("description", "")).split("\n\n")[0].replace("\n", " ")


def _resolved(node: dict[str, Any], defs: dict[str, Any]) -> dict[str, Any]:
    """A node with references followed, and `X or absent` read as X."""
    while True:
        if "$ref" in node:
            node = defs[node["$ref"].rsplit("/", 1)[1]]
        elif "allOf" in node:
            node = node["allOf"][0]
        elif "anyOf" in node:
            rest = [one for one in node["anyOf"] if one.get("type") != "null"]
            if len(rest) != 1:
                return node
            node = rest[0]
        else:
            return node


def _is_law(node: dict[str, Any]) -> bool:
    return "law" in node.get("properties", {}) or "discriminator" in node


def _kind(node: dict[str, Any], defs: dict[str, Any]) -> str:
    if "discriminator" in node:
        return "one of the laws " + ", ".join(node["discriminator"].get("mapping", {}))
    if "anyOf" in node:
        return " or ".join(dict.fromkeys(_kind(_resolved(one, defs), defs) for one in node["anyOf"]))
    if "enum" in node:
        return "one of " + ", ".join(map(str, node["enum"]))
    if "const" in node:
        return f"only {node['const']}"
    if _is_law(node):
        return "a law"
    kind = {"number": "number", "integer": "whole number", "string": "text", "boolean": "true or false", "array": "list"}.get(
        str(node.get("type")), "value"
    )
    bounds = [
        f"{word} {_bound(node[key])}"
        for key, word in (("minimum", "from"), ("exclusiveMinimum", "above"), ("maximum", "to"), ("exclusiveMaximum", "below"))
        if key in node
    ]
    return " ".join([kind, *bounds])


def _bound(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) and abs(value) < 1e15 else f"{value:g}"


def _lines(one: Field) -> Iterator[str]:
    given = "required" if one.default is ... else "" if one.default is None else f"default {_shown(one.default)}"
    yield from wrap(f"{one.path}: {one.kind}" + (f"; {given}" if given else ""), WIDTH, subsequent_indent=_INDENT)
    if one.meaning:
        yield from wrap(one.meaning, WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_shown(one)}" for key, one in value.items() if one not in (None, "")) + " }"
    return f"{value:g}" if isinstance(value, float) else '""' if value == "" else str(value)
