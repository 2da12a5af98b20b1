"""The environments of the README and of its further page are what they say: whole, short, and able to run."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from pipeline.environments import resolve
from pipeline.environments.environment import held_out

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "pipeline" / "environments" / "README.md"]
BLOCKS = [
    block
    for page in PAGES
    for block in re.findall(r"```python\n(from pipeline\.environments import .*?)```", page.read_text("utf-8"), re.DOTALL)
]


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    Path("my_tasks.py").write_text("\n".join(BLOCKS))
    yield
    sys.modules.pop("my_tasks", None)


def test_there_are_two_and_the_first_has_20_lines():
    assert len(BLOCKS) == 2
    assert len([line for line in BLOCKS[0].splitlines() if line.strip()]) <= 20


@pytest.mark.usefixtures("module")
def test_they_resolve_and_score():
    backwards = resolve("my_tasks:Backwards", {"letters": 4})
    task = backwards.tasks("train", 0, 0, letters=4)
    assert not held_out(task)
    environment = backwards(task, letters=4)
    assert environment.verify(environment.prompt()[::-1]) == 1.0
    lookup = resolve("my_tasks:Lookup", {"size": 10})
    made = lookup(lookup.tasks("eval", 0, 0))
    assert made.schemas()[0]["parameters"]["required"] == ["key"]
    assert made.verify(str(made.task["value"])) == 1.0
