"""Which knobs a user wants searched, and over which values: `--knob`.

::

    --knob capacity                     a group (`harness.tuning.space.GROUPS`), or `all`
    --knob max_inflight                 one knob, over values round today's
    --knob max_inflight=64,128,256      these values
    --knob max_inflight=64..1024        a range
    --knob sync_mode=drain,keep         these choices

Whatever cannot be meant is refused before anything is simulated.
"""

from __future__ import annotations

import difflib
import math
from typing import TYPE_CHECKING, Any

from harness.core.errors import ConfigError
from harness.core.knobs import Knob, KnobKind
from harness.tuning.space import ALL, GROUPS, SEARCHED, between, search_knobs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from harness.tuning.space import SearchKnob, Value

OPTION = "--knob"

EVERYTHING = "all"


def group_of(name: str) -> str:
    """The group that a knob is in; empty for none."""
    return next((group for group, of in GROUPS.items() if name in of.names), "")


def wanted(wishes: Iterable[str], knobs: Sequence[Knob], today: Mapping[str, Value]) -> dict[str, tuple[Value, ...] | None]:
    """Names of the knobs that are asked for, each with its own values, or None for the usual ones.

    Args:
        wishes: as `--knob` takes them.
        knobs: descriptors of all that there are.
        today: value by path.

    Raises:
        ConfigError: there is no such knob or group, or its values are none.

    """
    found: dict[str, tuple[Value, ...] | None] = {}
    present = {knob.name for knob in knobs}
    for wish in wishes:
        name, equals, text = (part.strip() for part in wish.partition("="))
        if not equals and (name in GROUPS or name == EVERYTHING):
            groups = ALL if name == EVERYTHING else (name,)
            for member in (member for group in groups for member in GROUPS[group].names if member in present):
                found.setdefault(member, None)
            continue
        knob = _named(name, knobs, wish)
        values = _values(knob, text, today[knob.path], wish) if equals else None
        before = found.get(knob.name)
        if before is not None and values is not None and before != values:
            raise ConfigError("is given twice, with different values", field=OPTION, value=wish, remedy="give it once")
        found[knob.name] = values or before
    return found


def _named(name: str, knobs: Sequence[Knob], wish: str) -> Knob:
    for knob in knobs:
        if name and (knob.name == name or knob.path == name or knob.path.endswith(f".{name}")):
            return knob
    if name in GROUPS or name == EVERYTHING:
        raise ConfigError("is a group, which has no values", field=OPTION, value=wish, remedy=f"give {name}, or one knob")
    close = difflib.get_close_matches(name.rpartition(".")[2], [*(knob.name for knob in knobs), *GROUPS, EVERYTHING], n=3)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    raise ConfigError(
        "is no knob and no group of knobs",
        field=OPTION,
        value=wish,
        allowed=f"a group ({', '.join((*GROUPS, EVERYTHING))}) or a knob",
        remedy=f"{hint}harness tune SCENARIO --knobs lists them",
    )


def _values(knob: Knob, text: str, today: Value, wish: str) -> tuple[Value, ...]:
    """The values that a wish names, in the order of the grid."""
    if knob.kind is KnobKind.CHOICE:
        return _choices(knob, text, wish)
    if ".." in text:
        low, high = (_number(knob, part, wish) for part in text.split("..", 1))
        if low > high:
            raise ConfigError(
                "is an empty range: its low end is above its high end", field=OPTION, value=wish, remedy=f"{high:g}..{low:g}"
            )
        return between(knob, low, high, today)
    return tuple(sorted({_number(knob, part, wish) for part in text.split(",")}))


def _choices(knob: Knob, text: str, wish: str) -> tuple[Value, ...]:
    parts = [part.strip() for part in text.split(",")]
    wrong = [part for part in parts if part not in knob.choices]
    if wrong:
        close = difflib.get_close_matches(wrong[0], knob.choices, n=1)
        raise ConfigError(
            f"{wrong[0]!r} is not among the choices of {knob.name}",
            field=OPTION,
            value=wish,
            allowed=knob.allowed,
            remedy=f"did you mean {close[0]}?" if close else "name some of these, with commas between them",
        )
    return tuple(choice for choice in knob.choices if choice in parts)


def _number(knob: Knob, text: str, wish: str) -> int | float:
    try:
        value = int(text) if knob.kind is KnobKind.INT else float(text)
    except ValueError:
        raise ConfigError(
            f"{text.strip()!r} is no {'whole ' if knob.kind is KnobKind.INT else ''}number",
            field=OPTION,
            value=wish,
            allowed=knob.allowed,
            remedy=f"for example {OPTION} {knob.name}=LOW..HIGH, or values with commas between them",
        ) from None
    low, high = knob.low, knob.high
    if not math.isfinite(value) or (low is not None and value < low) or (high is not None and value > high):
        raise ConfigError(f"{text.strip()} is not allowed", field=OPTION, value=wish, allowed=knob.allowed)
    return value


def chosen_knobs(
    found: Mapping[str, tuple[Value, ...] | None],
    knobs: Sequence[Knob],
    today: Mapping[str, Value],
    *,
    values_of: Mapping[str, tuple[Value, ...]],
    reach: int,
) -> tuple[SearchKnob, ...]:
    """What is searched, in an order that does not depend on the order of the wishes."""
    names = [name for name in SEARCHED if name in found] + [k.name for k in knobs if k.name in found and k.name not in SEARCHED]
    paths = {knob.name: knob.path for knob in knobs}
    own = {paths[name]: values for name, values in found.items() if values}
    return search_knobs(knobs, today, names=names, values_of={**values_of, **own}, reach=reach)


def notes_of(names: Iterable[str]) -> tuple[str, ...]:
    """What a reader must know of an answer that changes these."""
    changed = set(names)
    notes = [group.note for group in GROUPS.values() if group.note and changed & set(group.names)]
    return tuple(f"{note[0].upper()}{note[1:]}." for note in notes)


def listing(knobs: Sequence[Knob], searched: Iterable[SearchKnob], default: Iterable[str]) -> list[dict[str, Any]]:
    """Every knob as plain data: what it is, whose it is, and what would be tried."""
    grids = {knob.path: knob for knob in searched}
    by_default = set(default)
    return [
        {
            "knob": knob.name,
            "path": knob.path,
            "group": group_of(knob.name),
            "default": knob.name in by_default,
            "unit": knob.unit,
            "allowed": knob.allowed,
            "scale": knob.scale.value if knob.kind is not KnobKind.CHOICE else "",
            "owner": knob.owner,
            "doc": knob.doc,
            "today": grids[knob.path].today,
            "values": list(grids[knob.path].values),
        }
        for knob in knobs
    ]


def listing_in_words(listed: Sequence[Mapping[str, Any]], missing: Mapping[str, str]) -> str:
    """The same for people, group by group, and why others are missing; an asterisk marks what is searched by default."""
    lines = ["Searched by default: those with *. Others: --knob NAME, --knob NAME=VALUES, --knob GROUP, --knob all.", ""]
    for name, group in {**GROUPS, "": None}.items():
        members = [knob for knob in listed if knob["group"] == name]
        if not members:
            continue
        lines += [f"{name}: {group.why}" if group else "in no group:"]
        for knob in members:
            tried = ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in knob["values"])
            about = "; ".join(part for part in (knob["allowed"], knob["scale"], f"obeyed by {knob['owner']}") if part)
            lines += [
                f"  {'*' if knob['default'] else ' '} {knob['knob']} = {knob['today']}",
                f"      {knob['doc']}",
                f"      allowed: {about}",
                f"      tried: {tried}",
            ]
        lines += [""]
    lines += [f"Not in this scenario: {name} ({reason})." for name, reason in missing.items()]
    return "\n".join(lines) + "\n"
