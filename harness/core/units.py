"""Time and sizes. Inside: integer nanoseconds. Seconds live at the edge (files, command line, reports) only."""

from __future__ import annotations

import math
import re

from harness.core.errors import ConfigError

NS_PER_S = 1_000_000_000

_DURATION = re.compile(r"^\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*(ns|us|µs|ms|s|m|min|h|d)?\s*$")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def ns_from_s(seconds: float) -> int:
    """Nearest whole nanosecond. NaN and infinities are refused by `round`."""
    return round(seconds * NS_PER_S)


def s_from_ns(nanoseconds: int) -> float:
    """Seconds as a float, for people."""
    return nanoseconds / NS_PER_S


def parse_duration_s(text: str, *, field: str) -> float:
    """`90`, `90s`, `1.5m`, `2h`, `250ms` in seconds; a bare number is seconds.

    Raises:
        ConfigError: not a duration, or not above zero.

    """
    match = _DURATION.match(text)
    seconds = float(match.group(1)) * _SECONDS[match.group(2) or "s"] if match else math.nan
    if not match or not math.isfinite(seconds) or seconds <= 0:
        raise ConfigError(
            "is not a duration above zero",
            field=field,
            value=text,
            allowed="a number with a unit: ns, us, ms, s, m, h, d",
            remedy="write for example 60s, 1.5m or 2h",
        )
    return seconds


def format_duration(seconds: float) -> str:
    """Three significant digits in the unit a person would choose: `1.23 ms`, `45.6 s`, `2.5 h`."""
    magnitude = abs(seconds)
    if magnitude == 0:
        return "0 s"
    for limit, factor, unit in (
        (1e-6, 1e9, "ns"),
        (1e-3, 1e6, "µs"),
        (1.0, 1e3, "ms"),
        (120.0, 1.0, "s"),
        (7200.0, 1 / 60, "min"),
    ):
        if magnitude < limit:
            return f"{seconds * factor:.3g} {unit}"
    if magnitude < 172_800:
        return f"{seconds / 3600:.3g} h"
    return f"{seconds / 86_400:.3g} d"
