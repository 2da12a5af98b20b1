"""Signals ask a run to stop, then interrupt it, and in the end the process ends whatever hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real_clock

PROGRAM = """
import os, signal
import trio
from harness.engines import live
from pipeline.performers.signals import terminated_as_interrupted, watch_signals

def heard(name):
    print("asked", name, flush=True)

async def main(rt):
    rt.background(watch_signals, rt, heard, 0.2)
    await rt.sleep(50_000_000)
    os.kill(os.getpid(), signal.{first})
    await rt.sleep(50_000_000)
    os.kill(os.getpid(), signal.{second})
    with trio.CancelScope(shield={hangs}):
        await trio.sleep(30)

try:
    with terminated_as_interrupted():
        live.run(main)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def program(first, second, *, hangs):
    text = PROGRAM.format(first=first, second=second, hangs=hangs)
    root = str(Path(__file__).parents[2])
    return subprocess.run(
        [sys.executable, "-c", text], env=os.environ | {"PYTHONPATH": root}, capture_output=True, text=True, timeout=25
    )


@pytest.mark.parametrize("first", ["SIGINT", "SIGTERM"])
def test_the_first_asks_and_a_second_ctrl_c_interrupts(first):
    ran = program(first, "SIGINT", hangs=False)
    assert ran.stdout.splitlines() == [f"asked {first}", "interrupted"]
    assert (ran.returncode, ran.stderr) == (0, "")


def test_what_hangs_does_not_keep_an_interrupted_process():
    ran = program("SIGINT", "SIGINT", hangs=True)
    assert ran.returncode == 130
    assert ran.stdout.splitlines() == ["asked SIGINT"]
    assert "something still hangs" in ran.stderr


def test_before_and_after_a_run_sigterm_is_a_ctrl_c():
    from pipeline.performers.signals import terminated_as_interrupted

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), terminated_as_interrupted():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before
