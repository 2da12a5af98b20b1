"""Open a CSV, Parquet or JSONL file of measurements, and say what is wrong with it.

Text is read as text first, whatever it looks like, so that a bad number can be named with its line. The file is scanned, not
loaded: of a file of many columns only those that were asked for are ever in memory.
"""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.core.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

    import polars as pl

MOST_ROWS = 20_000_000
"""Most rows of one file, about a gigabyte of CSV. Reading and fitting take about 100 bytes a
row, so 2 GB for this many; a law gains nothing from more."""

SHOWN = 5
"""Lines that an error names."""

_HEAD_BYTES = 1 << 20
_LARGEST_MARKED_BYTES = 1 << 28
_SEARCHED_LINES = 2_000_000
_PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip", b"BZh": "bzip2", b"\xfd7zXZ": "xz"}
_BOM = b"\xef\xbb\xbf"
_SEPARATORS = (",", ";", "\t", "|")
ALLOWED = "CSV with a header line, Parquet, or JSONL (one object a line), in UTF-8"


@dataclass(frozen=True, slots=True)
class Table:
    """A file that can be scanned.

    Attributes:
        path: as given.
        lazy: all its columns and `row`, from 0.
        columns: names of its columns.
        first_line: what row 0 is called in messages: its line, where the file has lines.
        word: what a row is called there.
        remarks: what a reader should know.

    """

    path: Path
    lazy: pl.LazyFrame
    columns: list[str]
    first_line: int
    word: str
    remarks: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The file, for messages."""
        return str(self.path)

    def lines(self, rows: Any) -> str:
        """`line 3` or `lines 3, 4, …` of some rows, given in order."""
        first = [str(int(row) + self.first_line) for row in rows[:SHOWN]]
        return f"{self.word}{'s' if len(rows) > 1 else ''} " + ", ".join(first) + (", …" if len(rows) > SHOWN else "")

    def check_columns(self, wanted: list[tuple[str, str]]) -> None:
        """See that they are there.

        Args:
            wanted: (column, option that names it).

        Raises:
            DataError: names the missing one, what there is, and what was perhaps meant.

        """
        for column, option in wanted:
            if column not in self.columns:
                raise _missing(column, option, self.columns, self.name)

    def collect(self, lazy: pl.LazyFrame) -> pl.DataFrame:
        """Run a query over the file.

        Raises:
            DataError: the file is damaged, or has more than `MOST_ROWS` rows or none.

        """
        import polars as pl

        try:
            table = lazy.head(MOST_ROWS + 1).collect(engine="streaming")
        except pl.exceptions.PolarsError as error:
            raise _damaged(self.path, error) from None
        if table.height > MOST_ROWS:
            raise DataError(
                f"has more than {MOST_ROWS:,} rows", file=self.name, allowed=f"up to {MOST_ROWS:,} rows",
                remedy="keep whole runs and leave out others, never single rows: neighbours share their luck",
            )  # fmt: skip
        return table


def open_table(path: Path) -> Table:
    """Find out what a file is, and scan it.

    Raises:
        DataError: naming the file and what to do.

    """
    head = _head(path)
    suffix = path.suffix.lower()
    if head.startswith(b"PAR1") or suffix in (".parquet", ".pq"):
        return _parquet(path)
    _check_text(path, head)
    text = head.removeprefix(_BOM).lstrip()
    if text.startswith(b"["):
        raise DataError("is one JSON array", file=str(path), allowed=ALLOWED, remedy="write one object a line (jq -c '.[]')")
    return _jsonl(path, head) if text.startswith(b"{") or suffix in (".jsonl", ".ndjson") else _csv(path, head)


def _head(path: Path) -> bytes:
    name = str(path)
    try:
        if path.is_dir():
            raise DataError("is a folder, not a file of measurements", file=name, remedy="name a file in it")
        with path.open("rb") as stream:
            head = stream.read(_HEAD_BYTES)
    except FileNotFoundError:
        raise DataError("there is no such file", file=name, remedy="check the path") from None
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror or error}", file=name, remedy="check its permissions") from None
    except ValueError as error:
        raise DataError(f"is not a path: {error}", file=repr(name), remedy="check the path") from None
    if not head.removeprefix(_BOM).strip():
        raise DataError("is empty", file=name, allowed=ALLOWED, remedy="export it again")
    return head


def _check_text(path: Path, head: bytes) -> None:
    for magic, kind in _PACKED.items():
        if head.startswith(magic):
            raise DataError(f"is a binary file: packed by {kind}", file=str(path), allowed=ALLOWED, remedy="unpack it first")
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        cut = len(head) == _HEAD_BYTES and error.start >= len(head) - 4  # a character across the end of the head
        text = "" if cut else "\0"
    if "\0" in text:
        raise DataError(
            "is a binary file, or not in UTF-8", file=str(path), allowed=ALLOWED, remedy="export it as CSV in UTF-8"
        )


def _csv(path: Path, head: bytes) -> Table:
    import polars as pl

    header = head.removeprefix(_BOM).lstrip(b"\r\n").split(b"\n", 1)[0].decode()
    counts = {separator: header.count(separator) for separator in _SEPARATORS}
    separator = max(_SEPARATORS, key=lambda one: counts[one])
    try:
        lazy = pl.scan_csv(path, infer_schema=False, separator=separator, row_index_name="row")
        columns = [name for name in lazy.collect_schema().names() if name != "row"]
        empty = lazy.head(1).collect().height == 0
    except pl.exceptions.PolarsError as error:
        raise _damaged(path, error) from None
    if empty and head.removeprefix(_BOM).strip().count(b"\n"):
        raise DataError("is not well-formed: no row can be read", file=str(path), remedy="check quotes and separators")
    if empty:
        raise DataError("has a header and no rows", file=str(path), allowed="one row a step", remedy="export it again")
    said = {";": "semicolons", "\t": "tabs", "|": "bars"}.get(separator)
    return Table(path, lazy, columns, 2, "line", (f"columns are separated by {said}",) if said else ())


def _parquet(path: Path) -> Table:
    import polars as pl

    try:
        lazy = pl.scan_parquet(path, row_index_name="row")
        columns = [name for name in lazy.collect_schema().names() if name != "row"]
        empty = lazy.head(1).collect().height == 0
    except pl.exceptions.PolarsError as error:
        first = str(error).strip().split("\n")[0]
        raise DataError(f"is not a whole Parquet file: {first}", file=str(path), remedy="export it again") from None
    if empty:
        raise DataError("has no rows", file=str(path), allowed="one row a step", remedy="export it again")
    return Table(path, lazy, columns, 1, "row")


def _jsonl(path: Path, head: bytes) -> Table:
    """Names of columns come from the first objects; values are read as text."""
    import polars as pl

    columns: dict[str, None] = {}
    lines = head.removeprefix(_BOM).decode(errors="ignore").split("\n")
    whole = lines if len(head) < _HEAD_BYTES else lines[:-1]
    for number, line in enumerate(whole[:1000], 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise DataError(
                "is not a JSON object", file=str(path), line=number, value=line[:60], allowed="one object a line",
                remedy="correct this line",
            )  # fmt: skip
        columns |= dict.fromkeys(found)
    source: Any = path
    if head.startswith(_BOM):
        if path.stat().st_size > _LARGEST_MARKED_BYTES:
            raise DataError(
                "begins with a byte order mark, which JSON forbids", file=str(path), remedy="leave it out: tail -c +4"
            )
        source = io.BytesIO(path.read_bytes().removeprefix(_BOM))
    lazy = pl.scan_ndjson(source, schema=dict.fromkeys(columns, pl.String), row_index_name="row")
    return Table(path, lazy, list(columns), 1, "row")


def _damaged(path: Path, error: Exception) -> DataError:
    """What the reader found, with the line where it can be told."""
    first = str(error).strip().split("\n")[0]
    name = str(path)
    if "utf-8" in first.lower():
        return DataError("is not in UTF-8", file=name, allowed=ALLOWED, remedy="export it in UTF-8")
    ragged = _ragged_line(path) if "more fields" in first else None
    if ragged is not None:
        line, found, wanted = ragged
        return DataError(
            f"has {found} fields where the header has {wanted}", file=name, line=line,
            remedy="put quotes round values that hold the separator",
        )  # fmt: skip
    return DataError(f"is not well-formed: {first}", file=name, remedy="check quotes and separators")


def _ragged_line(path: Path) -> tuple[int, int, int] | None:
    """The first line with too many fields: its number, how many it has, and how many the header has."""
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as stream:
        header = stream.readline()
        separator = max(_SEPARATORS, key=header.count)
        wanted = len(next(csv.reader([header], delimiter=separator)))
        reader = csv.reader(stream, delimiter=separator)
        for number, fields in enumerate(reader, 2):
            if len(fields) > wanted:
                return number, len(fields), wanted
            if number > _SEARCHED_LINES:
                break
    return None


def _missing(column: str, option: str, columns: list[str], file: str) -> DataError:
    import difflib

    folded = {name.lower(): name for name in columns}
    close = difflib.get_close_matches(column.lower(), folded, n=1)
    remedy = f"did you mean {option} {folded[close[0]]}?" if close else f"name one of them with {option}"
    allowed = ", ".join(columns)
    return DataError("there is no such column", field=option, value=column, allowed=allowed, remedy=remedy, file=file)
