"""Wrong input of a live run, as a user gives it to the command: what, where, what is allowed and what to do; no traceback.

A wrong scenario, model, tokenizer, environment or device is exit code 2, said before anything is compiled, and nothing is
written. What is wrong in one episode alone costs that episode (tests/environments/test_live_episodes).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness import __main__ as front

ROOT = Path(__file__).parents[2]
CPU_LIVE = ROOT / "scenarios" / "cpu_live.toml"
TIED = ROOT / "tests" / "fixtures" / "qwen3_tiny_tied"
HEAD = "from pipeline.environments import BaseTaskEnv, Step, TaskEnvironment\n"
TASKS = """
class Mine(BaseTaskEnv):
    alphabet = "ab"

    @classmethod
    def make_task(cls, rng):
        return rng.random()
"""


@pytest.fixture
def user(tmp_path, monkeypatch):
    """The user's folder is the current one; what he imports is gone again afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def refused(capsys, *words, scenario=CPU_LIVE):
    """The message with which `harness run` refuses; nothing is written."""
    before = sorted(Path.cwd().iterdir())
    assert front.main(["run", str(scenario), *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("harness: ")
    assert "Traceback" not in err
    left = [path for path in Path.cwd().iterdir() if path not in before and path.name != "__pycache__"]
    assert left == []
    return err


def overrides(**values):
    return [word for path, value in values.items() for word in ("--set", f"{path.replace('__', '.')}={json.dumps(value)}")]


def test_a_scenario_that_only_a_simulator_can_run(user, capsys):
    file = ROOT / "scenarios" / "synchronous.toml"
    message = refused(capsys, scenario=file)
    for word in (str(file), "live", "simulator only", "allowed: a table [live]", "harness simulate"):
        assert word in message


@pytest.fixture
def checkpoint(user):
    folder = user / "checkpoint"
    shutil.copytree(TIED, folder)
    return folder


def another_model(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "llama"}))


def other_shape(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_size": config["hidden_size"] * 2}))


def truncated(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])


def no_tokenizer(folder):
    (folder / "tokenizer.json").unlink()


def larger_tokenizer(folder):
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    first = tokenizer["added_tokens"][0]
    tokenizer["added_tokens"] += [first | {"id": number, "content": f"<more {number}>"} for number in range(259, 300)]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (another_model, ("config.json", "model_type", "'llama'", "qwen3")),
        (other_shape, ("model.safetensors", "shape")),
        (truncated, ("model.safetensors", "truncated")),
        (no_tokenizer, ("tokenizer.json",)),
        (larger_tokenizer, ("tokenizer.json", "300", "config.json", "264")),
        (shutil.rmtree, ("checkpoint",)),
    ],
)
def test_a_checkpoint_that_does_not_fit(checkpoint, capsys, harm, words):
    harm(checkpoint)
    message = refused(capsys, *overrides(live__model__checkpoint=str(checkpoint)))
    for word in (str(checkpoint), *words):
        assert word in message


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        (TASKS, "mine:Mine", ("Mine lacks reset, step", "allowed: a BaseTaskEnv with make_task, reset, step")),
        (TASKS, "mine:Other", ("has no class Other", "a subclass of")),
        (TASKS, "yours:Mine", ("'yours' was not found", "current folder")),
        ("1 / 0", "mine:Mine", ("ZeroDivisionError", "mend the module")),
        ("class Mine(TaskEnvironment):\n    pass", "mine:Mine", ("lacks make_task, prompt, verify",)),
        ("", "nonsense", ("tool_arithmetic, guessing_game", "module:Class")),
        (
            TASKS.replace("alphabet", "letters") + "    def reset(self): ...\n    def step(self, action): ...\n",
            "mine:Mine", ("says no alphabet", "live.model.checkpoint"),
        ),
    ],
)  # fmt: skip
def test_an_environment_class_that_cannot_work(user, capsys, text, name, words):
    (user / "mine.py").write_text(HEAD + text)
    message = refused(capsys, *overrides(live__environment__name=name, live__environment__options={}))
    for word in (str(CPU_LIVE), "live.", *words):
        assert word in message


WORKS = (
    TASKS
    + """
    def reset(self):
        return "a"

    def step(self, action):
        return Step("b", done=True)
"""
)
DEMONSTRATION = """
    @classmethod
    def demonstration(cls, task):
        {}
"""


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (None, ("gives no demonstrations", "live.learner.warm_start_steps", "set it to 0")),
        ("return [('a', False), ('b', True)][5]", ("demonstration of training task 0 raises IndexError", "mend the method")),
        ("return 'ab'", ("demonstration of training task 0 is no transcript", "pairs of a text and whether the agent says it")),
        ("return []", ("is no transcript", "(answer, True)")),
        ("return [('a', False), ('Z', True)]", ("'Z'", "alphabet")),
        ("return [('a', False), ('b' * 99, True)]", ("102 tokens", "live.sampling.max_context_tokens")),
    ],
)
def test_demonstrations_that_cannot_be_learned_from_are_refused_before_anything_is_compiled(user, capsys, body, words):
    (user / "mine.py").write_text(HEAD + WORKS + (DEMONSTRATION.format(body) if body is not None else ""))
    message = refused(capsys, *overrides(live__environment__name="mine:Mine", live__environment__options={}))
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"live__mesh__rollout_devices": 4000, "live__mesh__learner_devices": 1}, ("live.mesh", "4000", "allowed:")),
        ({"live__mesh__rollout_devices": 1}, ("live.mesh", "both 0 (shared), or both above 0")),
        ({"live__model__head_dim": 7}, ("live.model.head_dim", "even")),
        ({"live__model__kv_heads": 3}, ("live.model.kv_heads", "allowed: 1, 2, 4")),
        ({"live__learner__loss": "magic"}, ("live.learner.loss", "grpo")),
        ({"live__server__urls": ["ftp://nowhere"]}, ("live.server.urls", "http://host:port")),
        ({"live__environment__options": {"bogus": 3}}, ("live.environment.options", "bogus", "allowed:")),
    ],
)
def test_a_table_that_cannot_be(user, capsys, values, words):
    message = refused(capsys, *overrides(**values))
    for word in words:
        assert word in message


def test_a_resume_from_where_nothing_is(user, capsys):
    message = refused(capsys, "--resume", str(user / "nothing"))
    for word in (str(user / "nothing"), "no checkpoint to resume from", "pipeline.checkpoint_interval"):
        assert word in message


def test_a_device_that_is_not_there(user):
    """In a process of its own: this one has its devices."""
    ran = subprocess.run(
        [sys.executable, "-m", "harness", "run", str(CPU_LIVE)],
        env=os.environ | {"JAX_PLATFORMS": "nonsense", "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "Traceback" not in ran.stderr
    for word in ("JAX_PLATFORMS", "'nonsense'", "allowed:", "do:      unset it"):
        assert word in ran.stderr
    assert list(user.iterdir()) == []
