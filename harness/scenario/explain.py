"""From a failed validation to an error that a person can act on."""

from __future__ import annotations

import contextlib
import difflib
import re
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from pydantic import BaseModel

from harness.core.errors import ConfigError
from harness.core.units import parse_duration_s

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

    from harness.scenario.locate import Path

_UNITS = {
    "s": "seconds",
    "ms": "milliseconds",
    "us": "microseconds",
    "ns": "nanoseconds",
    "min": "minutes",
    "h": "hours",
    "tokens": "tokens",
    "bytes": "bytes",
    "usd": "US dollars",
}
_TIME_SUFFIX = re.compile(r"_(s|ms|us|ns|sec|secs|seconds|min|mins|minutes|h|hours)$")
LIMITS = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
_NUMBERS = {"float_type": "a number", "int_type": "a whole number"}
_WANTED = {
    "string_type": "text in quotes",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "dict_type": "a table",
}


def explain(error: ValidationError, data: dict[str, Any], model: type[BaseModel]) -> list[tuple[Path, ConfigError]]:
    """Every problem as (path in the data, error without a place)."""
    found = []
    for detail in error.errors(include_url=False):
        path = path_in(detail["loc"], data, keep_last=detail["type"] in ("missing", "extra_forbidden"))
        if detail["type"] in ("union_tag_invalid", "union_tag_not_found"):
            path = (*path, str(detail.get("ctx", {}).get("discriminator", "law")).strip("'"))
        found.append((path, _one(detail, path, data, model)))
    return found


def path_in(loc: tuple[str | int, ...], data: Any, *, keep_last: bool) -> Path:
    """The place that a validator means, in the data as written: the tags of unions in `loc` are left out."""
    path: list[str | int] = []
    at = data
    for i, part in enumerate(loc):
        if _has(at, part):
            at = at[part]
            path.append(part)
        elif keep_last and i == len(loc) - 1:
            path.append(part)
    return tuple(path)


def _has(at: Any, part: str | int) -> bool:
    return part in at if isinstance(at, dict) else isinstance(at, list) and isinstance(part, int) and part < len(at)


def dotted(path: Path) -> str:
    """`workload.tools.0.share`."""
    return ".".join(map(str, path))


def _one(detail: ErrorDetails, path: Path, data: dict[str, Any], model: type[BaseModel]) -> ConfigError:
    kind, value = detail["type"], detail["input"]
    context = detail.get("ctx", {})
    name = str(path[-1]) if path else ""
    field = dotted(path)
    owner = owner_of(path[:-1], data, model)
    meaning = describe(owner, name)
    shown = None if isinstance(value, dict | list) else value
    if kind == "missing":
        return ConfigError("is missing", field=field, remedy=f"add it{': ' + meaning if meaning else ''}")
    if kind == "extra_forbidden":
        return _unknown(field, name, shown, owner)
    if kind in _NUMBERS:
        return _not_a_number(field, name, value, _NUMBERS[kind], meaning)
    limits = [f"{word} {context[key]:g}" for key, word in LIMITS.items() if key in context]
    if limits:
        return ConfigError("is out of range", field=field, value=value, allowed=" and ".join(limits), remedy=meaning)
    if kind == "finite_number":
        return ConfigError("is not a finite number", field=field, value=value, allowed="a finite number", remedy=meaning)
    if kind in ("literal_error", "enum", "union_tag_invalid"):
        return _not_one_of(field, context, kind, value)
    if kind == "union_tag_not_found":
        return ConfigError("is missing", field=field, allowed=", ".join(tags_of(path, model)), remedy="name the law")
    if kind == "int_from_float":
        return ConfigError("is not a whole number", field=field, value=value, allowed="a whole number", remedy=meaning)
    if kind in _WANTED:
        return ConfigError(f"is not {_WANTED[kind]}", field=field, value=value, allowed=_WANTED[kind], remedy=meaning)
    problem = detail["msg"].removeprefix("Value error, ")
    problem = problem[0].lower() + problem[1:] if problem else "is wrong"
    return ConfigError(problem, field=field, value=shown, remedy=meaning or "correct the fields of this table")


def _unknown(field: str, name: str, value: object, owner: type[BaseModel] | None) -> ConfigError:
    known = sorted(owner.model_fields) if owner is not None else []
    remedy = "remove it"
    stem = _TIME_SUFFIX.sub("", name)
    other_unit = [other for other in known if _TIME_SUFFIX.sub("", other) == stem and other != name]
    close = other_unit or difflib.get_close_matches(name, known, n=1)
    if close:
        unit = unit_of(close[0])
        remedy = f"did you mean `{close[0]}`?" + (f" Its unit is {unit}." if unit else "")
    return ConfigError("is not a known field", field=field, value=value, allowed=", ".join(known), remedy=remedy)


def _not_a_number(field: str, name: str, value: object, wanted: str, meaning: str) -> ConfigError:
    unit = unit_of(name)
    allowed = wanted + (f", in {unit}" if unit else "")
    remedy = meaning
    if isinstance(value, str):
        if unit == "seconds":
            with contextlib.suppress(ConfigError):
                remedy = f"write {name} = {parse_duration_s(value, field=name):g}"
        elif re.fullmatch(r"\s*[0-9.eE+-]+\s*", value):
            remedy = f"write {name} = {value.strip()}, without quotes"
    what = "true or false" if isinstance(value, bool) else "text" if isinstance(value, str) else "something else"
    shown = None if isinstance(value, dict | list) else value
    return ConfigError(f"is {what} where {wanted} is wanted", field=field, value=shown, allowed=allowed, remedy=remedy)


def _not_one_of(field: str, context: dict[str, Any], kind: str, value: object) -> ConfigError:
    expected = str(context.get("expected_tags" if kind == "union_tag_invalid" else "expected", ""))
    if kind == "union_tag_invalid":
        value = context.get("tag", value)
    options = re.findall(r"'([^']*)'", expected) or [expected]
    close = difflib.get_close_matches(str(value), options, n=1)
    remedy = f"did you mean `{close[0]}`?" if close else "choose one of them"
    return ConfigError("is not one of the choices", field=field, value=value, allowed=", ".join(options), remedy=remedy)


def unit_of(name: str) -> str:
    """Unit in the name of a field; empty where it has none."""
    return _UNITS.get(name.rsplit("_", 1)[-1], "") if "_" in name else ""


def describe(owner: type[BaseModel] | None, name: str) -> str:
    """The field's description in the schema."""
    if owner is None or name not in owner.model_fields:
        return ""
    return owner.model_fields[name].description or ""


def owner_of(path: Path, data: Any, model: type[BaseModel]) -> type[BaseModel] | None:
    """The record type at a place of the data; None where it cannot be told."""
    kinds = [model]
    at = data
    for part in path:
        at = at[part] if _has(at, part) else None
        if isinstance(part, str):
            kinds = _below(kinds, part)
    if len(kinds) > 1 and isinstance(at, dict):
        kinds = [kind for kind in kinds if "law" in kind.model_fields and kind.model_fields["law"].default == at.get("law")]
    return kinds[0] if len(kinds) == 1 else None


def tags_of(path: Path, model: type[BaseModel]) -> list[str]:
    """The laws that can stand at a place."""
    kinds = [model]
    for part in path[:-1]:
        if isinstance(part, str):
            kinds = _below(kinds, part)
    return [str(kind.model_fields["law"].default) for kind in kinds if "law" in kind.model_fields]


def _below(kinds: list[type[BaseModel]], name: str) -> list[type[BaseModel]]:
    found = [kind.model_fields[name].annotation for kind in kinds if name in kind.model_fields]
    return [member for annotation in found for member in records(annotation)]


def records(annotation: Any) -> Iterator[type[BaseModel]]:
    """Record types that an annotation allows: through unions, `Annotated` and collections."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) is not Literal:
        for argument in get_args(annotation):
            yield from records(argument)
