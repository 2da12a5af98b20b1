"""Bytecode instructions a turn, of the small pipeline and of the whole one: a count that repeats, where a time does not.

`uv run python tests/benchmarks/opcodes.py [--most N]` prints both, and the functions that take most of the whole pipeline's.
Plans are drawn before the count begins, as in a search that runs many settings on one seed.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import harness
from harness.engines import sim
from tests.benchmarks import small

if TYPE_CHECKING:
    from collections.abc import Callable

SCENARIO = Path(__file__).parents[2] / "scenarios" / "coding_agent.toml"


def counted(run: Callable[[], Any]) -> tuple[Counter[str], Any]:
    """Instructions by function, and what `run` returned."""
    counts: Counter[str] = Counter()

    def enter(frame: Any, event: str, arg: Any) -> Any:
        name = f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_name}"
        frame.f_trace_opcodes, frame.f_trace_lines = True, False

        def step(frame: Any, event: str, arg: Any) -> Any:
            if event == "opcode":
                counts[name] += 1
            return step

        return step

    sys.settrace(enter)
    try:
        result = run()
    finally:
        sys.settrace(None)
    return counts, result


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=20, help="functions to list")
    most = parser.parse_args().most
    scenario = harness.load(SCENARIO)
    harness.simulate_once(scenario, 0, learner_steps=1, warmup_steps=0)
    few, _ = counted(lambda: sim.run(small.program, small.AGENTS, 1))
    whole, summary = counted(lambda: harness.simulate_once(scenario, 0, learner_steps=1, warmup_steps=0))
    small_turns = small.AGENTS * small.TURNS
    print(f"small pipeline  {few.total() / small_turns:7.0f} instructions a turn")
    print(f"whole pipeline  {whole.total() / summary.turns:7.0f} instructions a turn, of which")
    for name, count in whole.most_common(most):
        print(f"                {count / summary.turns:7.1f}  {name}")


if __name__ == "__main__":
    main()
