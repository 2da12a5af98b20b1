from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.errors import ConfigError
from harness.core.units import NS_PER_S, format_duration, ns_from_s, parse_duration_s, s_from_ns

QUIET = settings(max_examples=200, deadline=None, derandomize=True, database=None)


@QUIET
@given(st.integers(0, 10**15))
def test_nanoseconds_survive_a_round_trip(nanoseconds):
    assert ns_from_s(s_from_ns(nanoseconds)) == nanoseconds


@QUIET
@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_rounding_keeps_order_and_is_nearest(left, right):
    assert (ns_from_s(left) <= ns_from_s(right)) or left > right
    assert abs(ns_from_s(left) - left * NS_PER_S) <= 0.5


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_no_integer_for_what_is_no_number(bad):
    with pytest.raises((ValueError, OverflowError)):
        ns_from_s(bad)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90.0), ("60s", 60.0), (" 1.5m ", 90.0), ("2h", 7200.0), ("250ms", 0.25), ("1d", 86400.0), ("3us", 3e-6),
        ("5ns", 5e-9), ("3µs", 3e-6), ("1e2 s", 100.0), (".5 min", 30.0),
    ],
)  # fmt: skip
def test_durations_that_people_write(text, seconds):
    assert parse_duration_s(text, field="--budget") == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    "text", ["", "s", "-1s", "0", "0s", "1 hour", "nan", "inf", "1,5s", "5 5s", "1e999", "--", "60 S", "1e400h"]
)
def test_durations_that_are_refused_by_name(text):
    with pytest.raises(ConfigError) as caught:
        parse_duration_s(text, field="--budget")
    message = str(caught.value)
    assert all(part in message for part in ("--budget", repr(text), "allowed", "60s"))


@QUIET
@given(st.floats(1e-9, 1e7))
def test_a_formatted_duration_reads_back_within_its_digits(seconds):
    shown = format_duration(seconds)
    assert parse_duration_s(shown, field="x") == pytest.approx(seconds, rel=0.006)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0 s"), (0.00123, "1.23 ms"), (45.6, "45.6 s"), (9000, "2.5 h"), (300, "5 min"), (-2, "-2 s"), (864_000, "10 d"),
        (3e-8, "30 ns"),
    ],
)  # fmt: skip
def test_examples_of_formatted_durations(seconds, shown):
    assert format_duration(seconds) == shown
