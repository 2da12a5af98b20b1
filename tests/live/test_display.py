"""What is seen of a live run: on a terminal of any width, and nothing but warnings where there is none."""

from __future__ import annotations

import fcntl
import io
import logging
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from harness.live_display import LiveDisplay, curve, duration, idle_in_words
from harness.live_run import Glance

TRAINING = Glance(
    "training", 12, 20, 83.2, 0.857, ((0, 0.21), (5, 0.5), (10, 0.73)), 1653.2,
    {"generate": 0.094, "gen_queue": 0.043, "gated": 0.015, "sync_wait": 0.001}, 33, {"generation": 5, "tools": 90}, 25, 32,
    0.8, 1, {"tool_timeout": 3, "reset_failed": 1},
)  # fmt: skip
STALLED = replace(TRAINING, stall="nothing was finished for 31 s: 128 rollout lane(s) in tool_exec, slot/3 for 31.2 s")


def drawn(glance, width=80, rewards=(), elapsed_s=83.0):
    """The lines of one moment, as a terminal of this width shows them."""
    stream = io.StringIO()
    console = Console(file=stream, width=width, force_terminal=True, color_system=None)
    display = LiveDisplay(wanted=False, console=console)
    for step, reward in enumerate(rewards):
        display.hear(replace(TRAINING, step=step, reward=reward))
    console.print(display.view(glance, elapsed_s))
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def test_a_moment_at_eighty_columns():
    text = "\n".join(drawn(TRAINING, rewards=[0.1, 0.4, 0.9]))
    for words in (
        "training", "12 of 20 steps", "1:23", "0.857  ▁▄█", "0.210 (step 0), 0.500 (step 5), 0.730 (step 10)",
        "1,653 tokens/s", "15% (", "33 running; 5 wait for generation, 90 wait for tools", "25 of 32 groups",
        "0.8 steps on average, 1 at most", "1 x reset failed, 3 x tool timeout",
    ):  # fmt: skip
        assert words in text
    assert "stalled" not in text


@pytest.mark.parametrize("width", [20, 40, 72, 80, 200])
@pytest.mark.parametrize("glance", [Glance("loading"), Glance("compiling", 3, 14, detail="decoding"), TRAINING, STALLED])
def test_no_line_is_wider_than_the_terminal(glance, width):
    lines = drawn(glance, width, rewards=[0.5] * 100)
    assert max(map(len, lines)) <= width
    assert lines[0].startswith(glance.phase[: width // 10])


def test_a_stall_names_who_waits_on_what():
    text = " ".join(" ".join(drawn(STALLED)).split())
    assert "stalled nothing was finished for 31 s: 128 rollout lane(s) in tool_exec, slot/3 for 31.2 s" in text


def test_what_is_compiled_is_said_and_how_much_is_left():
    lines = drawn(Glance("compiling", 3, 14, detail="decoding of 128 sequences"), elapsed_s=31)
    assert "3 of 14 programs  31 s" in lines[0]
    assert lines[1].strip() == "decoding of 128 sequences"
    assert "38 of 60 supervised steps" in drawn(Glance("warm start", 38, 60))[0]
    assert len(drawn(Glance("warm start", 38, 60))) == 1  # no pipeline runs yet


def test_time_goes_on_while_nothing_is_heard():
    """Compilation blocks whoever would tell."""
    now_s = [100.0]
    stream = io.StringIO()
    console = Console(file=stream, width=80, force_terminal=True, color_system=None)
    display = LiveDisplay(wanted=False, console=console, clock=lambda: now_s[0])
    display.hear(Glance("compiling", 0, 14, 5.0))
    now_s[0] += 37
    console.print(display._now())
    assert " 42 s" in stream.getvalue()


@given(st.lists(st.floats(-5, 5), max_size=200), st.integers(0, 60))
def test_a_curve_fits_and_rises_where_its_values_do(values, width):
    assert len(curve(values, width)) <= min(width, len(values))
    rising = curve(sorted(values), width)
    assert list(rising) == sorted(rising)


def test_a_curve_leaves_out_what_is_no_number():
    assert curve([0.0, float("nan"), 1.0]) == "▁█"
    assert curve([float("nan")]) == curve([]) == ""


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (59.9, "59 s"), (60, "1:00"), (3599, "59:59"), (3600, "1:00:00"), (7387, "2:03:07")],
)
def test_durations(seconds, words):
    assert duration(seconds) == words


def test_no_idle_time_is_no_cause():
    assert idle_in_words({}) == "0.0%"


# ── terminals ───────────────────────────────────────────────────────────────────────────────────────────────────────────────

PROGRAM = """
import logging, sys, time
from harness.live_display import LiveDisplay
from harness.live_run import Glance
display = LiveDisplay(wanted=sys.argv[1] == "wanted")
with display.context():
    display.hear(Glance("compiling", 3, 14, 5.0, detail="decoding"))
    time.sleep(1.2)
    logging.getLogger("rollout_harness").warning("a tool hangs")
    print("of the environment")
    display.hear(Glance("training", 1, 20, 9.0, 0.25, running=7, capacity=4))
    time.sleep(1.2)
print("the summary")
"""


def program(*, wanted="wanted", **options):
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, wanted], capture_output=True, text=True, timeout=60, check=True, **options
    )


def test_without_a_terminal_there_are_warnings_alone():
    done = program()
    assert done.stdout == "of the environment\nthe summary\n"
    assert done.stderr == "warning: a tool hangs\n"


def test_with_json_standard_output_is_the_result_alone():
    done = program(wanted="not")
    assert done.stdout == "the summary\n"
    assert done.stderr == "warning: a tool hangs\nof the environment\n"


def test_nothing_is_lost_where_standard_error_is_closed():
    closed = ["sh", "-c", f'exec "{sys.executable}" -c "$1" wanted 2>&-', "sh", PROGRAM]
    done = subprocess.run(closed, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "of the environment\nthe summary\n"


def test_nothing_is_lost_where_nobody_reads_standard_error():
    reads, writes = os.pipe()
    os.close(reads)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "wanted"], stdout=subprocess.PIPE, stderr=writes, text=True, timeout=60, check=False
    )
    os.close(writes)
    assert done.stdout == "of the environment\nthe summary\n"


def on_a_terminal(columns, environment=None, stdout=None):
    """What the program writes to a terminal of so many columns."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "wanted"], stdin=follower, stdout=stdout or follower, stderr=follower,
        env={name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        | {"TERM": "xterm-256color", **(environment or {})},
    )  # fmt: skip
    os.close(follower)
    written = b""
    try:
        while piece := os.read(leader, 65536):
            written += piece
    except OSError:  # how a terminal ends
        pass
    os.close(leader)
    assert child.wait(60) == 0
    return written.decode()


@pytest.mark.real_clock
@pytest.mark.parametrize("columns", [80, 30])
def test_on_a_terminal_lines_change_in_place_and_are_gone_at_the_end(columns):
    written = on_a_terminal(columns)
    assert "\x1b[2K" in written
    for words in ("compiling", "decoding", "warning: a tool hangs", "of the environment", "training", "7 running"):
        assert words in written
    assert written.endswith("the summary\r\n")
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written)
    assert max(len(line) for line in re.split(r"[\r\n]+", plain)) <= columns


@pytest.mark.real_clock
def test_no_colour_means_none(tmp_path):
    """And what the environment prints into a file stays out of the display."""
    with (tmp_path / "out").open("w") as out:
        written = on_a_terminal(80, {"NO_COLOR": "1"}, out)
    assert re.findall(r"\x1b\[[0-9;]*3[0-9][0-9;]*m", written) == []
    assert (tmp_path / "out").read_text() == "of the environment\nthe summary\n"
    assert "of the environment" not in written


def test_warnings_go_to_the_console_while_it_is_shown_and_no_longer():
    stream = io.StringIO()
    display = LiveDisplay(wanted=True, console=Console(file=stream, width=80))
    logger = logging.getLogger("rollout_harness")
    with display.context():
        logger.warning("first")
        logger.info("not this")
    logger.warning("second")
    assert stream.getvalue() == "warning: first\n"
