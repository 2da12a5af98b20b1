"""The benchmark compares like with like, and prints what it promises. Times are not tested here: machines differ."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import bare_trio
import pytest
import simulator
from small import hand_written, program

from harness.engines import sim

SCRIPT = Path(__file__).with_name("simulator.py")


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(("agents", "episodes"), [(3, 1), (70, 2), (200, 1)])
def test_the_hand_written_model_ends_at_the_same_instant(agents, episodes, nested):
    ours = sim.run(partial(program, nested=nested), agents, episodes)
    assert ours == hand_written(agents, episodes, nested=nested)
    assert ours > 0


@pytest.mark.parametrize(("agents", "episodes"), [(3, 1), (140, 1)])
def test_bare_trio_ends_at_the_same_instant_but_for_rounding(agents, episodes):
    assert bare_trio.run(agents, episodes) == pytest.approx(sim.run(program, agents, episodes), abs=1_000)


def test_a_waiting_agent_is_small():
    assert simulator.TARGETS["bytes_per_agent"].met(sim.run(simulator.waiting_agents))


def test_json_is_one_flat_object_of_numbers():
    command = [sys.executable, str(SCRIPT), "--json", "--rounds", "1", "--only", "bytes_per_agent"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figures = json.loads(done.stdout)
    assert list(figures) == ["bytes_per_agent"]
    assert isinstance(figures["bytes_per_agent"], float)
    assert "round 1 of 1" in done.stderr


def test_an_unknown_figure_is_refused():
    done = subprocess.run([sys.executable, str(SCRIPT), "--only", "speed"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no figure 'speed'" in done.stderr


def test_the_table_says_what_is_missed():
    text = simulator.table({"growth": [2.0, 3.0, 2.1], "growth_handwritten": [2.0], "recording_cost": [1.5]})
    assert [line.split()[0] for line in text.splitlines() if "MISSED" in line] == ["growth_handwritten", "recording_cost"]
    assert "2.100" in text
