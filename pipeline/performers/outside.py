"""Weights for engines outside: each version is written once, as a checkpoint that the servers read, and then installed."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import trio

from pipeline.numerics.dispatch import Decision
from pipeline.performers.device import on_device

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from harness.core.runtime import Runtime
    from harness.core.work import Outcome, Publish
    from pipeline.numerics.dispatch import Dispatcher

KEPT = 2
"""Versions on the disk: the one that is installed, and the one before, which a slow server may still be reading."""


class OutsideWeights:
    """Performs `Publish` for servers outside.

    Args:
        dispatcher: with a program `export_version` that writes a snapshot into a folder.
        folder: where versions are written; servers have to see it under the same path.
        install: tells one server to load a version; the payload of the work is the folder of that version.

    """

    def __init__(self, dispatcher: Dispatcher, folder: Path, install: Callable[[Any, Publish], Awaitable[Outcome]]) -> None:
        self._dispatcher = dispatcher
        self._folder = folder
        self._install = install
        self._lock = trio.Lock()
        self._written: list[tuple[int, Path]] = []

    async def __call__(self, rt: Runtime, work: Publish, /) -> Outcome:
        """Write the version where no replica before has had it written, and install it."""
        async with self._lock:
            path = await self._path(work.entity)
        return await self._install(rt, replace(work, payload=str(path)))

    async def _path(self, version: int) -> Path:
        for written, path in self._written:
            if written == version:
                return path
        path = self._folder / f"version_{version:08d}"
        await on_device(self._dispatcher, Decision("export_version", {"version": version, "folder": str(path)}))
        self._written.append((version, path))
        while len(self._written) > KEPT:
            _, old = self._written.pop(0)
            await trio.to_thread.run_sync(lambda folder: shutil.rmtree(folder, ignore_errors=True), old)
        return path
