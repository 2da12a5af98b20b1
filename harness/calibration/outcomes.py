"""How a step ended, from the words of a column."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from harness.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import polars as pl
    from numpy.typing import NDArray

    from harness.calibration.readers import Table

OK, FAILURE, INFRA, HANG, LIMIT = range(5)
CLASSES = ("ok", "failure", "infra_failure", "hang", "time_limit")
"""Ended well; failed in itself; what it ran on failed; never returned; was ended at a time limit."""

WORDS = {
    OK: ("ok", "okay", "success", "succeeded", "successful", "pass", "passed", "done", "complete", "completed", "finished"),
    FAILURE: ("failure", "fail", "failed", "error", "errored", "exception", "nonzero"),
    INFRA: ("infra_failure", "infra", "infra_error", "infrastructure", "unavailable", "connection_error", "crashed", "lost"),
    HANG: ("hang", "hung", "stuck", "no_response", "killed"),
    LIMIT: ("time_limit", "timeout", "timed_out", "timed out", "deadline", "deadline_exceeded"),
}
"""Words that are understood, whatever their case."""

_GOOD_NAME = re.compile(r"ok|succe|pass|resolved", re.IGNORECASE)
_BAD_NAME = re.compile(r"fail|err|crash", re.IGNORECASE)
_CODE_NAME = re.compile(r"exit|return|code|status|rc$", re.IGNORECASE)


def classed(table: Table, column: str, texts: pl.Series, meanings: Mapping[str, str]) -> NDArray[np.int8]:
    """The class of each row, as a number of `CLASSES`.

    Args:
        table: the file.
        column: name of the column; `failed = true` means something else than `passed = true`.
        texts: its rows, categorical.
        meanings: of values that are not understood by themselves.

    Raises:
        DataError: a value is not understood.
        ConfigError: a meaning is none.

    """
    import polars as pl

    for value, meaning in meanings.items():
        if meaning not in CLASSES:
            raise ConfigError(
                f"is no outcome (of {value!r})", field="--outcome-is", value=meaning, allowed=", ".join(CLASSES),
                remedy="choose one",
            )  # fmt: skip
    counts = texts.value_counts(sort=True)
    values = counts[texts.name].cast(pl.String).to_list()
    known: dict[str | None, int] = {}
    for value, count in zip(values, counts["count"].to_list(), strict=True):
        found = CLASSES.index(meanings[value]) if value in meanings else _meaning(column, value)
        if found is None:
            raise DataError(
                f"holds a value that is not understood, in {count} of {len(texts)} rows", file=table.name, field=column,
                value=value, allowed=", ".join(CLASSES), remedy=f"say what it means: --outcome-is '{value or ''}=failure'",
            )  # fmt: skip
        known[value] = found
    physical = texts.to_physical().fill_null((1 << 32) - 1).to_numpy()
    distinct, first, inverse = np.unique(physical, return_index=True, return_inverse=True)
    names = texts.gather(first).cast(pl.String).to_list()
    classes: NDArray[np.int8] = np.array([known[name] for name in names], np.int8)[inverse]
    assert len(distinct) == len(names)
    return classes


def _meaning(column: str, value: str | None) -> int | None:
    if value is None:
        return None
    word = value.lower()
    for number, words in WORDS.items():
        if word in words:
            return number
    if word in ("true", "false", "yes", "no", "1", "0", "1.0", "0.0"):
        yes = word in ("true", "yes", "1", "1.0")
        if _CODE_NAME.search(column) and word not in ("true", "false", "yes", "no"):
            return FAILURE if yes else OK
        if _BAD_NAME.search(column):
            return FAILURE if yes else OK
        if _GOOD_NAME.search(column):
            return OK if yes else FAILURE
        return None
    if _CODE_NAME.search(column) and re.fullmatch(r"-?\d+(\.0)?", word):
        return OK if float(word) == 0 else FAILURE
    return None
