"""Weights on their way from the learner to the engines.

A version lives here from its snapshot until every engine has installed it. Only the dispatcher's thread touches it, as
everything that holds arrays; elsewhere a version goes by its number.
"""

from __future__ import annotations

from typing import Any

from harness.core.errors import LawError


class WeightStore:
    """Versions that are on their way.

    Args:
        engines: how many install each version.

    """

    def __init__(self, engines: int) -> None:
        self._engines = engines
        self._versions: dict[int, Any] = {}
        self._wanted: dict[int, int] = {}

    def put(self, version: int, params: Any) -> None:
        """Keep a snapshot: arrays that nobody donates or changes any more."""
        self._versions[version] = params
        self._wanted[version] = self._engines

    def get(self, version: int) -> Any:
        """The parameters of a version, for one engine; the last one to ask takes them out."""
        if version not in self._versions:
            raise LawError(f"there are no weights of version {version} to install; there are: {sorted(self._versions)}")
        self._wanted[version] -= 1
        if self._wanted[version] == 0:
            del self._wanted[version]
            return self._versions.pop(version)
        return self._versions[version]

    def __len__(self) -> int:
        return len(self._versions)
