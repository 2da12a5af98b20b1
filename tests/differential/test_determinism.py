"""The same program leaves the same canonical log in every process, whatever the heap, the hash seed and the Python version.

A new entry in `PROGRAMS` is tested in all these ways: a function, `module:name`, that takes nothing and returns the events.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = (
    "tests.differential.fresh:small_programs_on_sim",
    "tests.differential.fresh:small_programs_on_virtual",
    "tests.differential.fresh:many_tasks",
    "tests.pipeline.tiny_world:whole_pipeline",
    "tests.pipeline.tiny_world:whole_pipeline_on_virtual",
)
COMPILED = ("numpy", "polars", "pydantic")
"""What the whole pipeline needs that is built for one version of Python."""
OTHER = "3.13" if sys.version_info < (3, 13) else "3.11"


def _ask(command: list[str]) -> str:
    """The output of a command, or nothing if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


@cache
def _interpreter(version: str) -> str:
    """A Python of that version on this machine, or nothing."""
    candidates = [shutil.which(f"python{version}") or "", _ask(["uv", "python", "find", version, "--no-python-downloads"])]
    versions = Path(os.environ.get("PYENV_ROOT", str(Path.home() / ".pyenv"))) / "versions"
    managed = Path.home() / ".local" / "share" / "uv" / "python"
    candidates += [str(path) for path in sorted(versions.glob(f"{version}*/bin/python3"))]
    candidates += [str(path) for path in sorted(managed.glob(f"cpython-{version}*/bin/python3"))]
    tell = "import sys; print('%d.%d' % sys.version_info[:2])"
    return next((path for path in candidates if path and _ask([path, "-c", tell]) == version), "")


def _environment(hash_seed: str) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(ROOT), sysconfig.get_paths()["purelib"])),
        "PYTHONHASHSEED": hash_seed,
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def fresh_hash(program: str, *, salt: int, hash_seed: str, python: str = sys.executable) -> str:
    """Number of events and hash of a program's log, from a process of its own."""
    environment = _environment(hash_seed)
    command = [python, "-m", "tests.differential.fresh", program, str(salt)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return " ".join(done.stdout.split()[1:3])


@cache
def _reference(program: str) -> str:
    return fresh_hash(program, salt=1, hash_seed="0")


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize(("salt", "hash_seed"), [(2, "1"), (3, "random")])
def test_same_log_in_a_fresh_process(program, salt, hash_seed):
    assert fresh_hash(program, salt=salt, hash_seed=hash_seed) == _reference(program)


@pytest.mark.parametrize("program", PROGRAMS)
def test_same_log_on_another_python(program):
    python = _interpreter(OTHER)
    if not python:
        pytest.skip(f"no Python {OTHER} on this machine")
    if program.startswith("tests.pipeline") and not _has_compiled(python):
        pytest.skip(f"Python {OTHER} on this machine has no {', '.join(COMPILED)} of its own")
    assert fresh_hash(program, salt=5, hash_seed="7", python=python) == _reference(program)


@pytest.mark.parametrize("pair", [PROGRAMS[:2], PROGRAMS[-2:]])
def test_the_two_virtual_engines_agree_on_all_of_it(pair):
    on_sim, on_virtual = (_reference(program) for program in pair)
    assert on_sim == on_virtual


@cache
def _has_compiled(python: str) -> bool:
    command = [python, "-c", f"import {', '.join(COMPILED)}"]
    return subprocess.run(command, env=_environment("0"), capture_output=True, timeout=60, check=False).returncode == 0
