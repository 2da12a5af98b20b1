"""Writing results: whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from harness.core.errors import OutputError

if TYPE_CHECKING:
    from datetime import datetime


def dated_folder(name: str, now: datetime, root: Path = Path("runs")) -> Path:
    """A folder name that does not exist yet, `runs/2026-01-31-142501-coding_agent`. Nothing is created.

    Args:
        name: what was run; anything but letters, digits, `-` and `_` is replaced.
        now: local time.
        root: where such folders lie.

    """
    safe = "".join(c if c.isalnum() or c in "-_" else "_" for c in name) or "run"
    base = root / f"{now:%Y-%m-%d-%H%M%S}-{safe}"
    folder, number = base, 2
    while folder.exists():
        folder, number = base.with_name(f"{base.name}-{number}"), number + 1
    return folder


def check_folder(folder: Path) -> None:
    """See that files could be put there, before the work that makes them. Nothing is created.

    Raises:
        OutputError: a file is in its place or above it, or there is no permission.

    """
    there = folder
    while not there.exists() and there.parent != there:
        there = there.parent
    if not there.is_dir():
        raise OutputError(f"{folder}: cannot be a folder: {there} is a file\n  do:      name another place")
    if not os.access(there, os.W_OK | os.X_OK):
        raise OutputError(f"{folder}: cannot be written: no permission in {there}\n  do:      name another place")


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it is there whole or as it was before. Missing folders are made.

    Raises:
        OutputError: it cannot be written: a full disk, no permission, a folder in its place.

    """
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        umask = os.umask(0)
        os.umask(umask)
        Path(temporary).chmod(0o666 & ~umask)
        Path(temporary).replace(path)
        temporary = None
    except OSError as error:
        raise OutputError(
            f"{path}: cannot be written: {error.strerror or error}; nothing was changed\n"
            "  do:      free some space, or name another place"
        ) from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
