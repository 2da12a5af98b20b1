"""The command line as a user meets it: help, errors, exit codes."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from harness import __main__ as front
from harness.core.errors import OutputError
from harness.files import check_folder, dated_folder, write_whole

SCENARIO = Path(__file__).parents[2] / "scenarios" / "fully_async.toml"
HEAVY = ("polars", "scipy", "trio", "simpy", "numpy", "optuna", "pydantic", "altair", "vl_convert", "rich", "cyclopts", "jax")


def harness(*words: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "harness", *words], capture_output=True, text=True, timeout=60, **options)


def test_help_imports_nothing_heavy_and_names_every_command_and_exit_code() -> None:
    program = (
        "import sys, runpy; sys.argv = ['harness', '--help']\n"
        "try: runpy.run_module('harness', run_name='__main__')\n"
        "except SystemExit as end: assert end.code == 0\n"
        f"sys.stderr.write(' '.join(name for name in {HEAVY} if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    for words in (*front.COMMANDS, "130 interrupted", "4 output could not", "HARNESS_DEBUG"):
        assert words in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines())


def test_the_commands_are_those_that_help_lists() -> None:
    from harness.cli import app

    assert {name for name in app if not name.startswith("-")} == set(front.COMMANDS)


@pytest.mark.parametrize("command", front.COMMANDS)
def test_each_command_explains_itself_with_an_example(command: str, capsys) -> None:
    assert front.main([command, "--help"]) == 0
    said = capsys.readouterr().out
    assert f"Example: harness {command}" in " ".join(said.split())
    assert "Exit codes" in said


@pytest.mark.parametrize("words", [[], ["-h"], ["--help"]])
def test_help_is_what_one_gets_without_a_command(words: list[str], capsys) -> None:
    assert front.main(words) == 0
    assert capsys.readouterr().out == front.help_text()


def test_version(capsys) -> None:
    assert front.main(["--version"]) == 0
    assert re.fullmatch(r"\d+\.\d+\.\S+\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tun"], 'Did you mean "tune"?'),
        (["tune"], "SCENARIO"),
        (["tune", "x.toml", "--bogus"], "--bogus"),
        (["tune", "x.toml", "--max-lag", "many"], "--max-lag"),
        (["tune", "x.toml", "--objective", "speed"], "--objective"),
        (["tune", "x.toml", "--budget", "5 parsecs"], "--budget"),
        (["tune", "x.toml", "--budget", "-3s"], "--budget"),
        (["tune", "x.toml", "--workers", "0"], "--workers"),
        (["simulate", "x.toml", "--replications", "0"], "--replications"),
        (["simulate", "no/such/file.toml"], "no/such/file.toml"),
        (["calibrate", "x.csv"], "--base"),
        (["calibrate", "x.csv", "--base", "b.toml", "--out", "o.toml"], "--duration"),
    ],
)
def test_wrong_input_is_named_with_a_remedy_and_exit_code_two(words: list[str], said: str, capsys) -> None:
    assert front.main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert "Traceback" not in err
    assert err.startswith("harness: ")


def raising(error: BaseException):
    def call(words):
        raise error

    return call


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (OutputError("disk full"), 4, "disk full"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "runs/x"), 4, "runs/x: No space left"),
        (PermissionError(errno.EACCES, os.strerror(errno.EACCES), "x"), 2, "x: Permission denied"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (ZeroDivisionError("oops"), 1, "a bug of ours; HARNESS_DEBUG=1"),
    ],
)
def test_each_kind_of_error_has_its_exit_code(error: BaseException, code: int, said: str, capsys, monkeypatch) -> None:
    import harness.cli

    monkeypatch.setattr(harness.cli, "call", raising(error))
    monkeypatch.delenv("HARNESS_DEBUG", raising=False)
    assert front.main(["tune", "x"]) == code
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err
    monkeypatch.setenv("HARNESS_DEBUG", "1")
    assert front.main(["tune", "x"]) == code
    assert "Traceback" in capsys.readouterr().err


def test_a_reader_that_has_gone_away_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "harness", "--help"], stdout=write, stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )
    os.close(write)
    assert done.returncode == 0
    assert done.stderr == ""


def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path) -> None:
    target = tmp_path / "kept.json"
    target.write_text("before")
    with pytest.raises(OutputError, match=r"kept\.json"):
        write_whole(target / "inside", "x")
    assert target.read_text() == "before"
    write_whole(tmp_path / "new" / "x.json", json.dumps({"a": "ü"}))
    assert json.loads((tmp_path / "new" / "x.json").read_text("utf-8")) == {"a": "ü"}
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["kept.json", "new", "x.json"]


def test_a_place_that_cannot_be_written_is_said_before_the_work(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("a file")
    for folder in (taken, taken / "deeper" / "still"):
        with pytest.raises(OutputError, match="taken is a file"):
            check_folder(folder)
    check_folder(tmp_path / "new" / "deeper")
    assert not (tmp_path / "new").exists()


def test_json_is_one_object_on_standard_output_and_the_files_are_there(tmp_path: Path, capsys) -> None:
    scenario = Path(__file__).parents[2] / "scenarios" / "one_step_async.toml"
    short = ["--set", "run.learner_steps=1", "--set", "run.warmup_steps=0", "--replications", "1"]
    words = ["simulate", str(scenario), *short, "--json", "--out", str(tmp_path / "run"), "--html", str(tmp_path / "page.html")]
    assert front.main(words) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["kind"] == "simulate"
    assert data["measured"]["idle_share"]["n"] == len(data["replications"]) == 1
    assert json.loads((tmp_path / "run" / "simulate.json").read_text("utf-8")) == data
    assert "<svg" in (tmp_path / "page.html").read_text("utf-8")


def test_output_to_a_full_device_is_exit_code_four() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "harness", "--help"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert done.returncode == 4
    assert "could not be written" in done.stderr
    assert "Traceback" not in done.stderr


def test_folders_are_dated_and_never_the_same(tmp_path: Path) -> None:
    now = datetime(2026, 1, 31, 14, 25, 1)  # noqa: DTZ001 - only its digits matter
    first = dated_folder("my file", now, tmp_path)
    assert first.name == "2026-01-31-142501-my_file"
    first.mkdir()
    assert dated_folder("my file", now, tmp_path).name == "2026-01-31-142501-my_file-2"


def test_json_is_one_object_in_case_of_an_error_too(capsys) -> None:
    assert front.main(["simulate", "no_such.toml", "--json"]) == 2
    said = capsys.readouterr()
    error = json.loads(said.out)["error"]
    assert error["exit_code"] == 2
    assert error["message"] in said.err


@pytest.mark.parametrize("words", [["--seed", "-1"], ["--seed", str(1 << 62)], ["--replications", "0"]])
def test_numbers_that_cannot_be_are_the_user_s_input(words: list[str], capsys) -> None:
    assert front.main(["simulate", str(SCENARIO), *words]) == 2
    assert "allowed" in capsys.readouterr().err


def test_a_page_cannot_be_a_folder(tmp_path: Path, capsys) -> None:
    assert front.main(["simulate", str(SCENARIO), "--html", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "--html" in capsys.readouterr().err
