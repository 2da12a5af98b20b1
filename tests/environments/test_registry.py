"""A class that cannot work is refused before the run, with the method or option that is wrong."""

from __future__ import annotations

import sys

import pytest

from harness.core.errors import ConfigError
from pipeline.environments import resolve
from pipeline.environments.registry import SHIPPED

HEAD = "from pipeline.environments import BaseTaskEnv, Step, TaskEnvironment, ToolEnvironment\n"
REVERSE = """
class Reverse(TaskEnvironment):
    alphabet = "abcd"

    @classmethod
    def make_task(cls, rng, letters=4):
        return "".join(rng.choice("abcd") for _ in range(letters))

    def prompt(self):
        return self.task

    def verify(self, answer):
        return float(answer == self.task[::-1])
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module into the current folder; gives its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    names = []

    def write(text, name="own_tasks"):
        (tmp_path / f"{name}.py").write_text(HEAD + text)
        names.append(name)
        return name

    yield write
    for name in names:
        sys.modules.pop(name, None)


def refused(name, options=None):
    with pytest.raises(ConfigError) as caught:
        resolve(name, options or {}, file="s.toml")
    message = str(caught.value)
    assert "s.toml" in message
    assert "live.environment" in message
    return message


@pytest.mark.parametrize("name", ["tool_arithmetic", "guessing_game"])
def test_shipped_ones_resolve(name):
    assert resolve(name).__name__ == SHIPPED[name].partition(":")[2]


def test_a_class_in_the_current_folder_resolves(module):
    found = resolve(f"{module(REVERSE)}:Reverse", {"letters": 6})
    assert len(found.tasks("train", 0, 0, letters=6)) == 6


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nothing", "tool_arithmetic"), ("", "module:Class"), (":X", "module:Class"), ("a:", "module:Class"),
        ("no_such_module_here:X", "was not found"), ("json:JSONDecoder", "is no environment"), ("json:X", "has no class X"),
    ],
)  # fmt: skip
def test_names_that_name_nothing(name, words):
    assert words in refused(name)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("class X(TaskEnvironment):\n    def prompt(self): ...\n", "lacks make_task, verify"),
        ("class X(BaseTaskEnv):\n    def make_task(cls): ...\n", "lacks reset, step"),
        ("class X(ToolEnvironment):\n    def make_task(cls): ...\n", "lacks prompt, tools, verify"),
        (REVERSE.replace("Reverse", "X").replace("def prompt", "async def prompt"), "prompt is an async def"),
        (REVERSE.replace("Reverse", "X") + "    close = 3\n", "close is not a method"),
        (REVERSE.replace("Reverse", "X").replace("@classmethod", "#"), "make_task is no class method"),
        ("1/0", "ZeroDivisionError"),
        ("raise SystemExit(2)", "SystemExit"),
        ("import a_module_that_is_missing", "a_module_that_is_missing"),
        ("def broken(:", "SyntaxError"),
    ],
)
def test_modules_and_classes_that_cannot_work(module, text, words):
    assert words in refused(f"{module(text)}:X")


@pytest.mark.parametrize(
    ("options", "words"),
    [({"leters": 4}, "letters = 4"), ({"letters": "four"}, "TypeError"), ({"letters": 0}, "too few different")],
)
def test_options_that_make_no_task(module, options, words):
    assert words in refused(f"{module(REVERSE)}:Reverse", options)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("tool_arithmetic", {"operators": "+/"}, "options.operators"), ("tool_arithmetic", {"largest": 0}, "options.largest"),
        ("tool_arithmetic", {"smallest": 100}, "options.smallest"), ("tool_arithmetic", {"smallest": -1}, "0 to 99"),
        ("tool_arithmetic", {"terms": 99}, "2 to 16"), ("guessing_game", {"largest": 2}, "16 to 10^9"),
        ("tool_arithmetic", {"size": 3}, "largest = 99"),
    ],
)  # fmt: skip
def test_options_of_shipped_ones(name, options, words):
    assert words in refused(name, options)
