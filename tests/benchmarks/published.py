"""Published figures beside what the simulator makes of them, through the pipeline's own actors.

    uv run python tests/benchmarks/published.py            a table
    uv run python tests/benchmarks/published.py --json     {"rows": [{case, fitted, predicted, published, error, tolerance}]}
    uv run python tests/benchmarks/published.py --case fully_async

Exit code 0 only if every figure is inside its tolerance, 1 otherwise. What was fitted, what is assumed and where the figures
stand is said in each case's module under `tests/published`; other rows of the same publications can be asked for with the
builders there.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1] / "published"))

import closed_loop
import fully_async
import one_step_off
import reward_stage
import terminal_bench
import turn_barrier

if TYPE_CHECKING:
    from collections.abc import Sequence

    from published_rows import Row

CASES = {
    "one_step_off": one_step_off,
    "fully_async": fully_async,
    "turn_barrier": turn_barrier,
    "closed_loop": closed_loop,
    "terminal_bench": terminal_bench,
    "reward_stage": reward_stage,
}
WIDTH = 80


def as_json(rows: Sequence[Row]) -> str:
    """One object with all rows."""
    keys = ("case", "fitted", "predicted", "published", "error", "tolerance")
    return json.dumps({"rows": [{key: getattr(row, key) for key in keys} for row in rows]}, indent=2)


def as_table(rows: Sequence[Row]) -> str:
    """A table of 80 columns, and below it what was fitted."""
    lines = [f"{'case':<38}{'predicted':>10}{'published':>10}{'error':>8}{'limit':>7}"]
    for row in rows:
        mark = "" if row.inside else " missed"
        first, *more = textwrap.wrap(row.case, 37)
        error = f"{row.error:+.1%}" if abs(row.error) < 10 else "> 1000%"
        lines.append(f"{first:<38}{row.predicted:>10.4g}{row.published:>10.4g}{error:>8}{row.tolerance:>7.1%}{mark}")
        lines += [f"  {text}" for text in more]
    lines += ["", "Fitted"]
    for fitted in dict.fromkeys(row.fitted for row in rows):
        lines += textwrap.wrap(fitted, WIDTH, initial_indent="  ", subsequent_indent="    ")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases, print, and say by the exit code whether all are inside."""
    parser = argparse.ArgumentParser(description="Published figures beside what the simulator makes of them.")
    parser.add_argument("--json", action="store_true", help="one object on standard output")
    parser.add_argument("--case", choices=CASES, action="append", help="only this case; may be given several times")
    asked = parser.parse_args(arguments)
    rows = [row for name in asked.case or CASES for row in CASES[name].rows()]
    print(as_json(rows) if asked.json else as_table(rows))
    return 0 if all(row.inside for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
