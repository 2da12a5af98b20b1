"""Terminal-Bench leaderboard: set-up of environments and whole agent runs, as the actors live through them.

The shipped laws of `scenarios/coding_agent.toml` were fitted to these quantiles; here they are taken back out of a run of the
pipeline: set-up is what an environment's reset takes, an agent run is the time from there to the end of the last tool call.
The pools are ample and the engine takes no time of its own, with all of a run in the tools (`tool_share = 1`): in the shipped
scenario three tenths of a run are the model's, and how long those take depends on the load.

The time limits are atoms: the shares of runs, and of scores, that end exactly at one are predicted too. Failures that come in
outages, and not one by one, are `world.outages` (`scenarios/flaky_environment.toml`); the leaderboard says of them only that
they do.

Source: Terminal-Bench leaderboard, 2,371 trials.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from published_rows import LONG_S, Row, scenario

from harness.core.events import EventKind, MemoryRecorder
from harness.core.work import Status, WorkKind
from harness.costs.laws import Mixture
from harness.run import load, simulate_once

if TYPE_CHECKING:
    from harness.scenario.schema import Scenario

TRIALS = 2_371
SET_UP_S = {50: 6.6, 75: 28.6, 90: 75.9}
AGENT_S = {50: 266.5, 90: 660.0}
AGENT_MEAN_S, AGENT_CV = 366.9, 0.87
AT_A_LIMIT, TEST_LIMIT, PARSE_ERROR = 0.238, 0.031, 0.037
SHIPPED = Path(__file__).parents[2] / "scenarios" / "coding_agent.toml"

OF_A_TASK = 4


def trials(tasks: int = TRIALS) -> Scenario[Any]:
    """Four trials of so many tasks at once, with the shipped laws of set-up, agent run and scoring."""
    episodes = OF_A_TASK * tasks
    shipped = load(SHIPPED)
    tables = shipped.model_dump(mode="json", exclude_none=True)
    environments, scoring = tables["world"]["environments"], tables["world"]["scoring"]
    workload = tables["workload"]
    return scenario(
        "Terminal-Bench trials",
        world={
            "environments": {"reset": environments["reset"], "close": environments["close"]},
            "scoring": scoring,
        },
        workload={
            "turns": workload["turns"],
            "max_context_tokens": 1_000_000,
            "agent_run": {**workload["agent_run"], "tool_share": 1.0},
            "tools": [{key: tool[key] for key in ("name", "share", "duration")} for tool in workload["tools"]],
        },
        pipeline={
            "group_size": OF_A_TASK,
            "groups_per_step": tasks,
            "max_staleness": 0,
            "pipeline_depth": 0,
            "max_inflight": episodes,
            "buffer_capacity": tasks,
            "env_workers": episodes,
            "tool_workers": episodes,
            "reward_workers": episodes,
            "slots_per_replica": min(episodes, 65_536),
            "retry_data": 100,
            "backoff_s": 0.0,
            "deadlines": {**dict.fromkeys(("build_s", "reset_s", "step_s", "tool_s", "generation_s", "reward_s"), LONG_S),
                          "episode_s": LONG_S, "sync_s": LONG_S, "evaluation_s": LONG_S, "close_s": 3600.0},
        },
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Trials:
    """What the actors went through.

    Attributes:
        set_up_s: seconds of each environment's reset.
        agent_s: seconds from there to the end of the last tool call.
        at_a_limit: share of runs that took exactly as long as one of the law's atoms.
        test_limit: share of scores that ended at their time limit.
        parse_error: share that failed.

    """

    set_up_s: np.ndarray
    agent_s: np.ndarray
    at_a_limit: float
    test_limit: float
    parse_error: float


def lived(made: Scenario[Any], seed: int = 0) -> Trials:
    """Run the trials, and read the event log."""
    log = MemoryRecorder()
    simulate_once(made, seed, learner_steps=1, warmup_steps=0, recorder=log)
    began: dict[int, int] = {}
    ready: dict[int, int] = {}
    acted: dict[int, int] = {}
    scores: list[int] = []
    for at, kind, episode, work, status, *_ in log.events:
        if kind == EventKind.WORK_START and work == WorkKind.ENV_RESET:
            began[episode] = at
        elif kind == EventKind.WORK_END and work == WorkKind.ENV_RESET:
            ready[episode] = at
        elif kind == EventKind.WORK_END and work == WorkKind.TOOL_CALL:
            acted[episode] = at
        elif kind == EventKind.WORK_END and work == WorkKind.REWARD:
            scores.append(status)
    agent_s = np.array([(acted[episode] - ready[episode]) / 1e9 for episode in acted])
    law = made.workload.agent_run.duration
    limits = [atom.at_s for atom in law.atoms] if isinstance(law, Mixture) else []
    return Trials(
        set_up_s=np.array([(ready[episode] - began[episode]) / 1e9 for episode in ready]),
        agent_s=agent_s,
        at_a_limit=float(np.mean(np.any(np.abs(agent_s[:, None] - np.array(limits)) < 0.5, axis=1))),  # turns take some time
        test_limit=scores.count(Status.TIME_LIMIT) / len(scores),
        parse_error=scores.count(Status.FAILED) / len(scores),
    )


def rows() -> list[Row]:
    """Quantiles and shares of limits."""
    fitted = "the shipped laws, on these figures"
    found = lived(trials())
    quantiles = [
        *((f"set-up, p{level}", np.percentile(found.set_up_s, level), value) for level, value in SET_UP_S.items()),
        *((f"agent run, p{level}", np.percentile(found.agent_s, level), value) for level, value in AGENT_S.items()),
        ("agent run, mean", found.agent_s.mean(), AGENT_MEAN_S),
    ]
    shares = [
        ("agent run at a limit", found.at_a_limit, AT_A_LIMIT),
        ("test at its limit", found.test_limit, TEST_LIMIT),
        ("parse error", found.parse_error, PARSE_ERROR),
    ]
    return [
        *(Row(f"Terminal-Bench, {what}, s", fitted, float(value), published, 0.10) for what, value, published in quantiles),
        Row("Terminal-Bench, agent run, CV", fitted, float(found.agent_s.std() / found.agent_s.mean()), AGENT_CV, 0.10),
        *(Row(f"Terminal-Bench, share: {what}", fitted, value, published, 0.10) for what, value, published in shares),
    ]
