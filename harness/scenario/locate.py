"""On which line of a TOML text each field stands.

`tomllib` gives values without places. This scanner follows keys through tables, arrays of tables, inline tables and arrays,
skips values, and notes the line of each key. It is only given text that `tomllib` has accepted, so it checks nothing.
"""

from __future__ import annotations

import re
from typing import Final

Path = tuple[str | int, ...]

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR = re.compile(r"[^,\]}\r\n#]*")
_STRINGS: Final = (
    re.compile(r'"""(?:\\.|[^\\])*?"""(?:"{0,2})(?!")', re.DOTALL),
    re.compile(r"'''.*?'''(?:'{0,2})(?!')", re.DOTALL),
    re.compile(r'"(?:\\.|[^"\\])*"'),
    re.compile(r"'[^']*'"),
)


class Places:
    """Lines (from 1) of keys and headers.

    Attributes:
        lines: line of each field that is written out, by path.
        headers: (path, line) of each table header, in order.

    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._counts: dict[Path, int] = {}
        self.lines: dict[Path, int] = {}
        self.headers: list[tuple[Path, int]] = []
        self._scan()

    def line(self, path: Path) -> int:
        """Line of the field, or of the nearest table round it; 0 where there is none."""
        for end in range(len(path), 0, -1):
            found = self.lines.get(path[:end])
            if found:
                return found
        return 0

    def _skip(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._at)
        if match is None:
            return ""
        self._at = match.end()
        return match.group()

    def _peek(self, token: str) -> bool:
        return self._text.startswith(token, self._at)

    def _note(self, path: Path, at: int) -> None:
        line = self._text.count("\n", 0, at) + 1
        for end in range(1, len(path) + 1):
            self.lines.setdefault(path[:end], line)

    def _scan(self) -> None:
        prefix: Path = ()
        while self._at < len(self._text):
            self._skip(_BLANK)
            start = self._at
            if start >= len(self._text):
                return
            if self._peek("["):
                prefix = self._header()
                self._note(prefix, start)
                self.headers.append((prefix, self._text.count("\n", 0, start) + 1))
            else:
                self._pair(prefix)
            if self._at == start:
                return  # not TOML after all: better no line than no end

    def _header(self) -> Path:
        many = self._peek("[[")
        self._at += 2 if many else 1
        path: Path = ()
        keys = self._key()
        for i, key in enumerate(keys):
            path = (*path, key)
            if many and i == len(keys) - 1:
                self._counts[path] = self._counts.get(path, -1) + 1
            if path in self._counts:
                path = (*path, self._counts[path])
        self._skip(_SPACE)
        self._at += 2 if many else 1
        return path

    def _key(self) -> list[str]:
        parts = []
        while True:
            self._skip(_SPACE)
            quoted = self._string()
            parts.append(quoted[1:-1] if quoted else self._skip(_BARE))
            self._skip(_SPACE)
            if not self._peek("."):
                return parts
            self._at += 1

    def _string(self) -> str:
        for pattern in _STRINGS:
            found = self._skip(pattern)
            if found:
                return found
        return ""

    def _pair(self, prefix: Path) -> None:
        start = self._at
        path = (*prefix, *self._key())
        self._note(path, start)
        self._at += 1  # the equals sign
        self._skip(_SPACE)
        self._value(path)

    def _value(self, path: Path) -> None:
        if self._peek("{"):
            self._items(path, "}")
        elif self._peek("["):
            self._items(path, "]")
        elif not self._string():
            self._skip(_SCALAR)

    def _items(self, path: Path, end: str) -> None:
        self._at += 1
        index = 0
        while True:
            self._skip(_BLANK)
            if self._peek(end) or self._at >= len(self._text):
                self._at += 1
                return
            start = self._at
            if end == "}":
                self._pair(path)
            else:
                self._note((*path, index), start)
                self._value((*path, index))
            index += 1
            self._skip(_BLANK)
            if self._peek(","):
                self._at += 1
            elif self._at == start:
                return
