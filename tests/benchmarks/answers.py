"""What the shipped scenarios answer: each beside the changes that its question is about, paired by seed.

    uv run python tests/benchmarks/answers.py                    # all, a table at 80 columns
    uv run python tests/benchmarks/answers.py slow_learner --json

A row is the scenario with some fields changed. `gain` is its kept groups per chip-second over those of the scenario as it is,
minus 1, with a 95 % interval over paired replications; idle share and lag are its own.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from textwrap import wrap
from typing import Any

import harness
from harness.tuning.measured import gain, measure

FOLDER = Path(__file__).parents[2] / "scenarios"

APART = ["pipeline.placement=disaggregated", "pipeline.sync_mode=keep"]
V6E_8_CHIPS_PER_TOKEN_S = "world.learner.train.per_token_s=6.36e-5"

CHANGES: dict[str, dict[str, list[str]]] = {
    "synchronous": {
        "one step off (one_step_async)": [
            "pipeline.max_staleness=1", "pipeline.pipeline_depth=1", "pipeline.sync_mode=drain", "pipeline.max_inflight=64",
            "pipeline.buffer_capacity=16", "pipeline.env_workers=64", "pipeline.tool_workers=64",
        ],
    },
    "one_step_async": {
        "up to three steps off": [
            "pipeline.max_staleness=3", "pipeline.pipeline_depth=3", "pipeline.max_inflight=128", "pipeline.buffer_capacity=32",
            "pipeline.env_workers=128", "pipeline.tool_workers=128",
        ],
    },
    "fully_async": {
        "seven steps off": [
            "pipeline.max_staleness=7", "pipeline.pipeline_depth=7", "pipeline.max_inflight=256", "pipeline.buffer_capacity=64",
            "pipeline.env_workers=256", "pipeline.tool_workers=256",
        ],
    },
    "long_tail_tools": {
        "a quorum of 6 of 8": ["pipeline.group_quorum=6"],
        "two spare members": ["pipeline.overprovision_members=2", "pipeline.max_inflight=160"],
        "twice as far ahead": [
            "pipeline.pipeline_depth=3", "pipeline.max_staleness=4", "pipeline.max_inflight=256", "pipeline.buffer_capacity=64",
        ],
        "calls cut at 120 s": ["workload.tools.browse.time_limit_s=120.0"],
    },
    "slow_learner": {
        "twice the episodes in flight": [
            "pipeline.max_inflight=768", "pipeline.pipeline_depth=5", "pipeline.max_staleness=8",
            "pipeline.buffer_capacity=192", "pipeline.env_workers=768", "pipeline.tool_workers=768",
        ],
        "8 replicas instead of 12": ["world.inference.replicas=8"],
        "8 replicas, 8 chips train": [
            "world.inference.replicas=8", "world.learner.chips=8", V6E_8_CHIPS_PER_TOKEN_S,
            "world.learner.log_probs.per_token_s=4.24e-5",
        ],
    },
    "publish_stall": {
        "every 2 steps": ["pipeline.steps_per_sync=2"],
        "every 3 steps": ["pipeline.steps_per_sync=3"],
        "in turn": ["pipeline.sync_rollout=rolling"],
        "in turn, every 2 steps": ["pipeline.sync_rollout=rolling", "pipeline.steps_per_sync=2"],
        "all at once, between chunks": ["pipeline.sync_mode=keep"],
    },
    "flaky_environment": {
        "a quorum of 6 of 8": ["pipeline.group_quorum=6"],
        "no retries": ["pipeline.retry_infra=0"],
        "five retries": ["pipeline.retry_infra=5"],
        "no outages": ["world.outages=[]"],
    },
    "sandbox_storm": {
        "one step ahead": ["pipeline.pipeline_depth=1", "pipeline.max_inflight=512", "pipeline.env_workers=512",
                           "pipeline.tool_workers=512"],
        "64 starts at once": ["world.environments.starts_at_once=64"],
        "starts that do not slow each other": ["world.environments.slowdown_per_start=0.0"],
    },
    "colocated": {
        "4 chips generate, 4 train": [*APART, "world.inference.replicas=4", "world.learner.chips=4"],
    },
    "spot_slices": {
        "never taken away": ["world.preemption.replicas.mean_s=1e12", "world.preemption.learner.mean_s=1e12"],
        "a checkpoint every 2 steps": ["pipeline.checkpoint_interval=2"],
        "a checkpoint every 50 steps": ["pipeline.checkpoint_interval=50"],
    },
    "web_research_agent": {
        "a provider without limit": ["workload.tools.search.rate_per_s=1000.0"],
        "half the provider's rate": ["workload.tools.search.rate_per_s=2.0"],
        "twice the replicas": ["world.inference.replicas=8"],
        "twice as far ahead": ["pipeline.pipeline_depth=3", "pipeline.max_staleness=4", "pipeline.max_inflight=256",
                               "pipeline.env_workers=256", "pipeline.tool_workers=256"],
    },
    "coding_agent": {
        "four steps ahead": [
            "pipeline.pipeline_depth=4", "pipeline.max_staleness=4", "pipeline.max_inflight=1024",
            "pipeline.buffer_capacity=256",
        ],
    },
    "mm1": {},
    "mmc": {},
    "pod": {},
}  # fmt: skip


def answered(name: str, replications: int | None) -> list[dict[str, Any]]:
    """The scenario as it is, and with each change: one row each."""
    rows, base = [], None
    for label, overrides in {"as it is": [], **CHANGES[name]}.items():
        run = harness.simulate(harness.load(FOLDER / f"{name}.toml", overrides=overrides), replications=replications)
        base = base or run
        together = measure(run.summaries)
        better = gain(base.summaries, run.summaries)
        bills = [math.fsum(summary.usd.values()) for summary in run.summaries]
        groups = sum(summary.groups for summary in run.summaries)
        rows.append(
            {
                "scenario": name,
                "change": label,
                "overrides": overrides,
                "replications": together.replications,
                "gain": None if label == "as it is" else [better.mean, better.low, better.high],
                "groups_per_chip_hour": together.kept_groups_per_chip_s.mean * 3600,
                "chips": together.chips,
                "idle": together.idle_share.mean,
                "lag_mean": together.lag_mean,
                "lag_p95": together.lag_p95,
                "kept": together.share("kept"),
                "discarded": together.share("discarded"),
                "busy": together.utilisation,
                "episode_s": together.episode_s,
                "usd_per_thousand_groups": 1000 * math.fsum(bills) / groups if any(bills) and groups else None,
            }
        )
    return rows


HEAD = """# What the shipped scenarios answer

```sh
uv run python tests/benchmarks/answers.py                  # all, about a quarter of an hour on two cores
uv run python tests/benchmarks/answers.py slow_learner     # one; --json for everything, --markdown for this page
```

Every row is the scenario with some fields changed, as the command lists them. The gain is in kept groups per chip-second
against the scenario as it is, with a 95 % interval over replications that are paired by seed (as many as the scenario says).
Lag is the mean, in optimizer steps. These are answers about worlds that are partly assumed: each file says what is.
"""


def page(rows: list[dict[str, Any]]) -> str:
    """The report, as Markdown: question and answer as the scenario's file has them, and the figures."""
    lines = HEAD.splitlines()
    for row in rows:
        if row["change"] == "as it is":
            scenario = harness.load(FOLDER / f"{row['scenario']}.toml")
            lines += ["", f"## {row['scenario']}", "", *wrap(f"*{scenario.question}*", 128), ""]
            lines += [
                *wrap(scenario.answer, 128),
                "",
                "| | gain | idle | discarded | learner busy | lag |",
                "|---|---|---|---|---|---|",
            ]
        mean, low, high = [100 * part for part in row["gain"] or (0, 0, 0)]
        better = f"{mean:+.0f} % ({low:+.0f} to {high:+.0f})" if row["gain"] else ""
        shares = [f"{100 * share:.0f} %" for share in (row["idle"], row["discarded"], row["busy"]["learner"])]
        lines.append(f"| {' | '.join([row['change'], better, *shares, format(row['lag_mean'], '.1f')])} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Print the answers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("scenarios", nargs="*", help="which; all by default")
    parser.add_argument("--replications", type=int, help="the scenario's own by default")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--markdown", action="store_true", help="the page in reports/")
    given = parser.parse_args()
    rows = []
    for name in given.scenarios or CHANGES:
        rows += answered(name, given.replications)
        print(f"{name}: {len(rows)} rows so far", file=sys.stderr)
    if given.json:
        json.dump({"rows": rows}, sys.stdout, indent=1)
        return 0
    if given.markdown:
        sys.stdout.write(page(rows))
        return 0
    for row in rows:
        mean, low, high = row["gain"] or (0.0, 0.0, 0.0)
        better = f"{100 * mean:+.0f}% ({100 * low:+.0f} to {100 * high:+.0f})" if row["gain"] else ""
        name = row["scenario"] if row["change"] == "as it is" else ""
        print(f"{name:<19}{row['change']:<29.29}{better:<20}{row['idle']:>5.0%} idle, lag {row['lag_mean']:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
