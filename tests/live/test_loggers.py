"""A user's logger gets every number in order, is closed once, and whatever it does costs the run nothing."""

from __future__ import annotations

import json
import logging
import math
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import loggers
from harness.core.errors import ConfigError
from harness.loggers import JsonLines, Loggers, make_loggers


class Kept:
    """Keeps what it is told."""

    def __init__(self):
        self.told, self.closed, self.threads = [], 0, set()

    def log_scalar(self, event, value, *, step):
        assert not self.closed
        self.threads.add(threading.get_ident())
        self.told.append((event, value, step))

    def close(self):
        self.closed += 1


class Failing(Kept):
    """Raises from its n-th call on, and when it is closed."""

    def __init__(self, calls, failure=ValueError):
        super().__init__()
        self.calls, self.failure = calls, failure

    def log_scalar(self, event, value, *, step):
        super().log_scalar(event, value, step=step)
        if len(self.told) >= self.calls:
            raise self.failure("no server")

    def close(self):
        super().close()
        raise self.failure("no server")


class Blocked(Kept):
    """Every call blocks until it is let go."""

    def __init__(self):
        super().__init__()
        self.release, self.entered = threading.Event(), threading.Event()

    def log_scalar(self, event, value, *, step):
        super().log_scalar(event, value, step=step)
        self.entered.set()
        assert self.release.wait(60)


def warnings(caplog):
    return [record.getMessage() for record in caplog.records]


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.floats(allow_nan=False)), max_size=20))
def test_every_number_comes_once_and_in_order(steps):
    kept = [Kept(), Kept()]
    several = Loggers(kept)
    for step, values in enumerate(steps):
        several.log("train", values, step=step)
    several.close()
    several.close()
    wanted = [(f"train/{name}", value, step) for step, values in enumerate(steps) for name, value in values.items()]
    for each in kept:
        assert each.told == wanted
        assert each.closed == 1
        assert len(each.threads) <= 1
        assert threading.get_ident() not in each.threads


@pytest.mark.parametrize("failure", [ValueError, SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("calls", [1, 3])
def test_one_that_raises_is_told_of_once_and_gets_no_more_and_is_closed(caplog, calls, failure):
    kept, failing = Kept(), Failing(calls, failure)
    several = Loggers([failing, kept])
    with caplog.at_level(logging.WARNING, "rollout_harness"):
        for step in range(20):
            several.log("train", {"reward": 1.0}, step=step)
        several.close()
    assert len(kept.told) == 20
    assert (len(failing.told), failing.closed, kept.closed) == (calls, 1, 1)
    [told] = warnings(caplog)
    for word in ("Failing", "log_scalar", failure.__name__, "no server", "allowed:", "do:"):
        assert word in told


def test_one_that_fails_to_close_is_told_of(caplog):
    with caplog.at_level(logging.WARNING, "rollout_harness"):
        Loggers([Failing(100)]).close()
    assert "close: ValueError" in warnings(caplog)[0]


def test_a_slow_one_holds_up_nothing_and_loses_the_oldest_numbers(caplog, monkeypatch):
    monkeypatch.setattr(loggers, "MOST_WAITING", 10)
    slow, kept = Blocked(), Kept()
    several = Loggers([slow, kept])
    with caplog.at_level(logging.WARNING, "rollout_harness"):
        several.log("train", {"reward": -1.0}, step=-1)
        assert slow.entered.wait(60)  # it has the first number in its hands
        for step in range(100):
            several.log("train", {"reward": float(step)}, step=step)
            while len(kept.told) < step + 2:  # the other one takes each at once
                time.sleep(0.001)
        slow.release.set()
        several.close()
    assert [step for _, _, step in slow.told] == [-1, *range(90, 100)]
    assert slow.closed == 1
    first, last = warnings(caplog)
    assert "oldest are dropped" in first
    assert "90 numbers were dropped" in last


@pytest.mark.real_clock
def test_one_that_never_returns_does_not_hold_up_the_end(caplog):
    slow, kept = Blocked(), Kept()
    several = Loggers([slow, kept], close_s=0.2)
    several.log("train", {"reward": 1.0}, step=1)
    began_s = time.monotonic()
    with caplog.at_level(logging.WARNING, "rollout_harness"):
        several.close()
    assert time.monotonic() - began_s < 20
    assert (kept.closed, slow.closed) == (1, 0)
    assert "did not close in time" in warnings(caplog)[0]
    slow.release.set()


# ── the file ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_file_has_one_object_a_line_and_null_for_what_is_no_number(tmp_path):
    file = JsonLines(tmp_path / "new" / "metrics.jsonl")
    for value in (0.5, math.nan, math.inf):
        file.log_scalar("train/reward", value, step=3)
    file.close()
    lines = [json.loads(line) for line in (tmp_path / "new" / "metrics.jsonl").read_text().splitlines()]
    assert lines == [{"step": 3, "event": "train/reward", "value": value} for value in (0.5, None, None)]


def test_a_resumed_file_keeps_whole_lines_up_to_its_step(tmp_path):
    path = tmp_path / "metrics.jsonl"
    first = JsonLines(path)
    first.log_scalar("warm_start/loss", 2.0, step=60)  # a count of its own
    for step in range(6):
        first.log_scalar("train/reward", 0.0, step=step)
    first.close()
    path.write_text(path.read_text() + '{"step": 2, "ev')
    again = JsonLines(path, keep_steps=3)
    again.log_scalar("train/reward", 1.0, step=4)
    again.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["step"], line["value"]) for line in lines] == [(60, 2.0), (0, 0.0), (1, 0.0), (2, 0.0), (3, 0.0), (4, 1.0)]


# ── by name ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────

MINE = """
import mine_kept

class Mine:
    def __init__(self, folder):
        self.folder = folder

    def log_scalar(self, event, value, *, step):
        pass

    def close(self):
        mine_kept.closed.append(self.folder)

def lacking(folder):
    return object()
"""


def test_loggers_are_made_by_name_and_those_made_are_closed_when_one_cannot_be(tmp_path, monkeypatch):
    (tmp_path / "mine_kept.py").write_text("closed = []\n")
    (tmp_path / "mine_loggers.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["", *__import__("sys").path])
    [made] = make_loggers(["mine_loggers:Mine"], tmp_path / "run")
    assert made.folder == str(tmp_path / "run")
    import mine_kept

    for bad, word in (("mine_loggers:lacking", "without log_scalar and close"), ("nothing:here", "ModuleNotFoundError")):
        mine_kept.closed.clear()
        with pytest.raises(ConfigError, match=word):
            make_loggers(["mine_loggers:Mine", bad], tmp_path / "run")
        assert mine_kept.closed == [str(tmp_path / "run")]


# ── what the README shows ───────────────────────────────────────────────────────────────────────────────────────────────────


class SummaryWriter:
    """Stands for TensorBoard's class, on the user's side: the same methods, kept in memory."""

    def __init__(self, folder):
        self.folder, self.scalars, self.closed = folder, [], 0

    def add_scalar(self, tag, scalar_value, global_step=None):
        self.scalars.append((tag, scalar_value, global_step))

    def close(self):
        self.closed += 1


class WandbRun:
    """Stands for what `wandb.init` returns."""

    def __init__(self):
        self.logged, self.finished = [], 0

    def log(self, data, step=None):
        self.logged.append((data, step))

    def finish(self):
        self.finished += 1


class TensorBoard(SummaryWriter):
    """The README's adapter."""

    def log_scalar(self, event, value, *, step):
        self.add_scalar(event, value, step)


class Wandb:
    """The README's adapter."""

    def __init__(self, folder):
        self.run = WandbRun()
        self.close = self.run.finish

    def log_scalar(self, event, value, *, step):
        self.run.log({event: value, "step": step})


def test_the_adapters_of_the_readme():
    board, run = TensorBoard("runs/first"), Wandb("runs/first")
    several = Loggers([board, run])
    several.log("train", {"reward": 0.5, "loss": -1.0}, step=3)
    several.close()
    assert (board.scalars, board.closed) == ([("train/reward", 0.5, 3), ("train/loss", -1.0, 3)], 1)
    assert run.run.logged == [({"train/reward": 0.5, "step": 3}, None), ({"train/loss": -1.0, "step": 3}, None)]
    assert run.run.finished == 1
