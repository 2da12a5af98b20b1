"""Files of real measurements, which are not in the repository."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

DATA = Path(os.environ.get("HARNESS_DATA", Path(__file__).parents[3] / "shared" / "data"))


@pytest.fixture
def measured() -> Callable[[str], Path]:
    """Where a file lies; a test that needs one is skipped where it does not, and fails in CI."""

    def find(name: str) -> Path:
        path = DATA / name
        if not path.exists():
            message = f"{name} is not in HARNESS_DATA or ../shared/data"
            if os.environ.get("CI"):
                pytest.fail(message)
            pytest.skip(message)
        return path

    return find
