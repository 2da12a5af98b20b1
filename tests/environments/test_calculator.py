"""The calculator agrees with Python on every expression it accepts, and refuses the rest in words."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.environments.calculator import MAX_BITS, calculate

EXPRESSIONS = st.recursive(
    st.integers(0, 10**6).map(str),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", " * ", "//", "%"]), inner).map("".join),
        inner.map("({})".format),
        inner.map("-{}".format),
    ),
    max_leaves=8,
)


@given(EXPRESSIONS)
def test_it_agrees_with_python(expression):
    try:
        wanted = str(eval(expression, {}))
    except ZeroDivisionError:
        with pytest.raises(ValueError, match="zero"):
            calculate(expression)
        return
    assert calculate(expression) == wanted


@given(st.text(max_size=40))
def test_any_text_is_worked_out_or_refused(text):
    with suppress(ValueError):
        int(calculate(text))


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("", "missing"), ("1+", "missing"), ("(1", "closed"), ("1 2", "too many"), ("2**9", "missing"), ("a", "cannot read"),
        ("1/0", "zero"), ("7/2", "rest"), ("(" * 99 + "1", "deep"), ("9" * 300, "characters"), ("٣+1", "cannot read"),
        ("__import__('os')", "cannot read"), ("*".join(["9" * 60] * 4), ""), ("1e9", "cannot read"),
    ],
)  # fmt: skip
def test_what_is_refused_and_why(expression, words):
    if not words:
        assert calculate(expression) == str(int("9" * 60) ** 4)
        return
    with pytest.raises(ValueError, match=words):
        calculate(expression)


def test_numbers_are_bounded():
    assert MAX_BITS < 256 * 128
    assert int(calculate("*".join(["9" * 50] * 5))).bit_length() <= MAX_BITS


def test_even_division_is_exact():
    assert calculate("84/2") == "42"
