"""What people see of the project: its names, its knobs, and the files themselves."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import harness
from pipeline.config import Deadlines, PipelineConfig, knobs

ROOT = Path(__file__).parents[1]
FOLDERS = ("harness", "pipeline", "scenarios", "tests", "reports", ".ci")
WRITTEN = sorted(
    path
    for path in [*ROOT.glob("*"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))]
    if path.is_file() and path.name != "uv.lock" and path.suffix in ("", ".py", ".toml", ".md", ".svg", ".txt", ".json")
)
PYTHON = [path for path in WRITTEN if path.suffix == ".py"]
PRODUCT = [path for path in PYTHON if path.relative_to(ROOT).parts[0] in ("harness", "pipeline")]
WAY_IN = ("harness/core/runtime.py", "pipeline/actors/rollout.py", "scenarios/fully_async.toml")
LONGEST_FILE = 600


def name_of(path):
    return path.relative_to(ROOT).as_posix()


# ── names ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_public_names_are_those_listed():
    assert dir(harness) == sorted(harness.__all__)
    tree = ast.parse(Path(harness.__file__).read_text("utf-8"))
    typed = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("harness.")
        for alias in node.names
    }
    assert typed == set(harness.__all__)
    with pytest.raises(AttributeError, match="simulat'"):
        harness.simulat  # noqa: B018


@pytest.mark.parametrize("name", harness.__all__)
def test_public_names_are_documented(name):
    thing = getattr(harness, name)
    text = inspect.getdoc(thing) or ""
    assert text
    assert not text.startswith(f"{name}("), "only the signature that dataclasses make up"
    if inspect.isfunction(thing):
        takes = [parameter for parameter in inspect.signature(thing).parameters if parameter != "path"]
        undocumented = [parameter for parameter in takes if not re.search(rf"^ *{parameter}: ", text, re.MULTILINE)]
        assert undocumented == []
        assert "return" in inspect.get_annotations(thing)


def test_public_names_are_in_the_readme():
    text = (ROOT / "README.md").read_text("utf-8")
    assert [name for name in harness.__all__ if name not in text] == []


def test_there_are_at_most_40_knobs_each_with_one_owner_and_a_sentence():
    described = knobs()
    assert len(described) <= 40
    assert {knob.name for knob in described} | {"deadlines"} == set(PipelineConfig.model_fields)
    assert [knob.path for knob in described if not knob.owner or not knob.doc.endswith(".")] == []
    assert all(name.endswith("_s") and field.description for name, field in Deadlines.model_fields.items())


# ── files ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────

FORBIDDEN = {
    "an absolute path": r"(?<![\w.:/}])/(?:work|home|root|Users|tmp|mnt|opt)/",
    "an index of packages": r"https?://[^\s]*(?:pypi|simple/|artifactory|nexus)|--(?:extra-)?index-url",
    "the number of an issue": r"(?i)\bissues? #?\d+\b",
    "a note to oneself": r"\b(?:TODO|FIXME|XXX|HACK)\b",
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_holds(what):
    pattern = re.compile(FORBIDDEN[what])
    found = [
        f"{name_of(path)}:{number}: {line.strip()}"
        for path in WRITTEN
        if path != Path(__file__)
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == []


@pytest.mark.parametrize("what", FORBIDDEN)
def test_the_patterns_find_what_they_are_for(what):
    examples = {
        "an absolute path": 'open("/home/me/data.csv")',
        "an index of packages": "pip install --index-url https://mirror.example/simple/",
        "the number of an issue": "see issue 12",
        "a note to oneself": "# TODO later",
    }
    assert re.search(FORBIDDEN[what], examples[what])


def test_no_file_is_too_long_to_read():
    not_ours = ("LICENSE", "scenario.schema.json")  # the schema is written by a command, for programs
    lengths = {name_of(path): len(path.read_text("utf-8").splitlines()) for path in WRITTEN if path.name not in not_ours}
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST_FILE} == {}


def test_every_module_says_what_it_is():
    assert [name_of(path) for path in PRODUCT if not ast.get_docstring(ast.parse(path.read_text("utf-8")))] == []


def test_the_way_in_is_in_the_readme_in_its_order_and_short():
    text = (ROOT / "README.md").read_text("utf-8")
    places = [text.index(name) for name in WAY_IN]
    assert places == sorted(places)
    assert all(len((ROOT / name).read_text("utf-8").splitlines()) <= 250 for name in WAY_IN)
    assert len(text.splitlines()) <= 280


def test_files_that_the_documents_link_to_exist():
    targets = [
        (path, target)
        for path in WRITTEN
        if path.suffix == ".md"
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", path.read_text("utf-8"))
    ]
    local = [(path, target) for path, target in targets if not target.startswith("http")]
    missing = [f"{name_of(path)}: {target}" for path, target in local if not (path.parent / target).exists()]
    assert missing == []


def test_every_scenario_is_named_in_the_readme():
    text = (ROOT / "README.md").read_text("utf-8")
    assert [path.name for path in (ROOT / "scenarios").glob("*.toml") if path.stem not in text] == []


def test_python_snippets_of_the_readme_run_as_far_as_names_go():
    """Every name that they use of the package exists, and they are valid Python."""
    text = (ROOT / "README.md").read_text("utf-8")
    snippets = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert snippets
    used = {
        node.attr
        for snippet in snippets
        for node in ast.walk(ast.parse(snippet))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "harness"
    }
    assert used
    assert used <= set(harness.__all__)


def test_the_commands_of_the_readme_have_the_options_that_it_gives_them():
    text = (ROOT / "README.md").read_text("utf-8")
    commands = re.findall(r"^ *harness (\w+) ((?:.*\\\n)*.*)$", text, re.MULTILINE)
    assert {name for name, _ in commands} == {"run", "simulate", "calibrate", "tune"}
    for name in {name for name, _ in commands}:
        known = subprocess.run(
            [sys.executable, "-m", "harness", name, "--help"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        given = {option for command, rest in commands if command == name for option in re.findall(r"(?<!\S)--[a-z-]+", rest)}
        assert [option for option in sorted(given) if option not in known] == []


def test_the_project_says_what_it_needs():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    base = {re.split(r"[<>=\[; ]", requirement)[0] for requirement in project["dependencies"]}
    assert "jax" not in base
    assert project["requires-python"] == ">=3.11"
    assert set(project["optional-dependencies"]) == {"live", "tasks", "profile", "tpu", "cuda", "ray"}
