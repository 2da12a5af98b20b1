"""The house style, as tests: lint, format, types and layers. Each tool runs as it would by hand."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOOLS = {
    "ruff check": [sys.executable, "-m", "ruff", "check", "--no-fix", "--output-format=concise", "."],
    "ruff format": [sys.executable, "-m", "ruff", "format", "--check", "--quiet", "."],
    "mypy": [sys.executable, "-m", "mypy", "--no-color-output"],
    "lint-imports": [str(Path(sysconfig.get_path("scripts")) / "lint-imports"), "--no-logo", "--no-cache"],
}


@pytest.mark.parametrize("tool", TOOLS)
def test_the_repository_passes(tool):
    command = TOOLS[tool]
    environment = os.environ | {"NO_COLOR": "1", "COLUMNS": "120"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(f"{tool} found something:\n{done.stdout}{done.stderr}", pytrace=False)
