"""States that a test of the pipeline must have seen, and the scenarios in which it sees them.

A law that is held in a thousand runs says nothing of a state that none of them was ever in. `STATES` names the states that
matter; each tells how often a run was in it. `SCENARIOS` are the runs; `count` plays them all and adds up.

The simulated agent ends by itself on its last turn and within its context: that an episode is cut off there is tried live
(`tests/environments`).

    uv run python tests/invariants/sometimes.py     a table of all states, with how often each was reached and where first
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1] / "pipeline")]

from lossy_world import lossy
from tiny_world import constant, exponential, geometric, play, scenario

from harness.core.accounts import Fate
from harness.core.events import EventKind as K
from harness.core.lanes import State
from harness.core.work import Status, WorkKind
from harness.scenario.schema import World

EVALUATION = 1 << 40
DONE, TURN_LIMIT, TIME_LIMIT, FAILED_INFRA, FAILED_DATA, TIMED_OUT, CANCELLED, CONTEXT_LIMIT, TOKEN_LIMIT = range(9)


# ── what a run was in ───────────────────────────────────────────────────────────────────────────────────────────────────────


def events(kind, **fields):
    """How many events of a kind have these values; a callable is asked."""
    names = ("time_ns", "kind", "entity", "a", "b", "c", "d", "e")
    wanted = [(names.index(name), value) for name, value in fields.items()]

    def found(played):
        return sum(
            event[1] == kind and all(value(event[i]) if callable(value) else event[i] == value for i, value in wanted)
            for event in played.events
        )

    return found


def ended(kind, status):
    """Work of a kind that ended in some way."""
    return events(K.WORK_END, a=int(kind), b=int(status))


def in_state(state, role=None):
    """Lanes that were in a state for a while."""
    return lambda played: sum(lane.totals[state] > 0 for lane in played.report.lanes if role in (None, lane.role))


def dropped(fate):
    return events(K.DROP, a=int(fate))


def episodes(reason):
    """Training episodes that ended in some way."""
    return events(K.EPISODE_END, a=reason, entity=lambda episode: episode < EVALUATION << 16)


def tried_again(kind):
    """Work that our deadline cut off, and that was tried again."""

    def found(played):
        cut = {
            (event[0], event[2])
            for event in played.events
            if event[1] == K.WORK_END and event[3:5] == (int(kind), Status.CANCELLED)
        }
        return sum(event[1] == K.RETRY and any(entity == event[2] for _, entity in cut) for event in played.events)

    return found


def full_buffer(played):
    return events(K.BUFFER_PUT, a=played.scenario.pipeline.buffer_capacity)(played)


def empty_buffer(played):
    """Groups that were used and left the buffer empty."""
    depth = empty = 0
    for event in played.events:
        depth += (event[1] == K.BUFFER_PUT) - (event[1] in (K.CONSUME, K.DROP) and depth > 0)
        empty += event[1] == K.CONSUME and depth == 0
    return empty


def at_the_bound(played):
    bound = played.scenario.pipeline.max_staleness
    return events(K.CONSUME, b=bound)(played) if bound else 0


def by_quorum(played):
    return events(K.GROUP_RELEASE, a=lambda members: members < played.scenario.pipeline.group_size)(played)


STATES = {
    "a reset fails": ended(WorkKind.ENV_RESET, Status.INFRA),
    "a reset hangs, is cut off and tried again": tried_again(WorkKind.ENV_RESET),
    "a tool's infrastructure fails": ended(WorkKind.TOOL_CALL, Status.INFRA),
    "a tool call fails in itself": ended(WorkKind.TOOL_CALL, Status.FAILED),
    "a tool call ends at a limit of its own": ended(WorkKind.TOOL_CALL, Status.TIME_LIMIT),
    "a tool call hangs, is cut off and tried again": tried_again(WorkKind.TOOL_CALL),
    "scoring fails": events(K.WORK_END, a=int(WorkKind.REWARD), b=lambda status: status in (Status.FAILED, Status.INFRA)),
    "scoring is abandoned": ended(WorkKind.REWARD, Status.CANCELLED),
    "a close is abandoned": ended(WorkKind.ENV_CLOSE, Status.CANCELLED),
    "an outage begins": events(K.OUTAGE, a=1),
    "an outage ends": events(K.OUTAGE, a=0),
    "a call is refused by a rate limit": events(K.REFUSED, a=int(WorkKind.TOOL_CALL)),
    "a start is refused in a storm": events(K.REFUSED, a=int(WorkKind.ENV_RESET)),
    "a retry": events(K.RETRY),
    "all retries are used up": episodes(FAILED_INFRA),
    "an episode runs into a deadline": episodes(TIMED_OUT),
    "an episode reaches a time limit of its task": episodes(TIME_LIMIT),
    "a member is surplus": episodes(CANCELLED),
    "a group fails": dropped(Fate.FAILED),
    "a group is filtered": dropped(Fate.FILTERED),
    "a group gets stale": dropped(Fate.STALE),
    "a group is surplus": dropped(Fate.SURPLUS),
    "a group is pushed out of the buffer": dropped(Fate.EVICTED),
    "a group is lost with the learner": dropped(Fate.LOST),
    "a group is released by quorum": by_quorum,
    "a group is used at the bound on its lag": at_the_bound,
    "an episode has tokens of two versions": lambda played: sum(e[1] == K.EPISODE_END and e[6] < e[7] for e in played.events),
    "the buffer is full": full_buffer,
    "the buffer is empty": empty_buffer,
    "a full buffer blocks": in_state(State.BLOCKED_PUT),
    "the learner is idle": in_state(State.WAIT_BATCH, "learner"),
    "the learner waits for stale groups": in_state(State.STALE_WAIT),
    "the learner waits for a sync": in_state(State.SYNC_WAIT),
    "a replica is idle": in_state(State.WAIT_TASK, "inference"),
    "admission is closed": in_state(State.GATED),
    "a request waits for a slot": in_state(State.GEN_QUEUE),
    "a tool call waits for a worker": in_state(State.TOOL_QUEUE),
    "an episode waits for a sandbox": in_state(State.ENV_QUEUE),
    "a scoring waits for a worker": in_state(State.REWARD_QUEUE),
    "a retry waits": in_state(State.BACKOFF),
    "a sync holds requests": events(K.SYNC_INSTALL, b=lambda held: held > 0),
    "a prefill is repeated": in_state(State.REPREFILL),
    "a request is preempted": events(K.PREEMPT),
    "a replica's slice is lost": events(K.CAPACITY_LOST, entity=lambda slice_: slice_ > 0),
    "the learner's slice is lost": events(K.CAPACITY_LOST, entity=0),
    "a slice comes back": events(K.CAPACITY_BACK),
    "a run goes back": events(K.ROLLBACK, b=lambda steps: steps > 0),
    "a replacement is on its way": in_state(State.PROVISION),
    "a checkpoint is loaded": in_state(State.RESTORE),
    "a checkpoint is saved": events(K.CHECKPOINTED),
    "the learner gets the shared chips": events(K.PHASE, a=1),
    "the replicas get the shared chips back": events(K.PHASE, a=0),
    "an evaluation ends": events(K.EVALUATED),
    "an evaluation loses episodes": events(K.EVALUATED, b=lambda lost: lost > 0),
    "a task comes from outside": events(K.ARRIVAL, b=0),
    "a task is turned away": events(K.ARRIVAL, b=1),
    "all wait for the slowest turn": in_state(State.TURN_WAIT),
    "old log-probabilities are computed": events(K.WORK_START, a=int(WorkKind.LOG_PROBS)),
    "a replica compiles": events(K.WORK_START, a=int(WorkKind.COMPILE)),
}  # fmt: skip


# ── the runs ────────────────────────────────────────────────────────────────────────────────────────────────────────────────

TIGHT = {"build_s": 3.0, "reset_s": 3.0, "tool_s": 4.0, "step_s": 9.0, "reward_s": 2.0, "close_s": 0.6}
SHORT = dict.fromkeys(("build_s", "reset_s", "step_s", "tool_s", "generation_s", "reward_s", "close_s"), 6.0)
SHORT |= {"episode_s": 12.0, "evaluation_s": 13.0}
TAIL = {"duration": {"law": "lognormal", "mu": 0.0, "sigma": 1.6}}
LIMITED = {
    "law": "mixture", "parts": [{"weight": 0.7, "of": exponential(8.0)}], "atoms": [{"at_s": 20.0, "weight": 0.3}],
}  # fmt: skip
OUTAGE = {"name": "vendor", "takes": ["tools"], "up": exponential(12.0), "down": exponential(3.0)}


def shared_chips():
    what = scenario({"checkpoint_interval": 1}, random=True, steps=4)
    world = what.world.model_dump()
    world["learner"]["chips"] = what.world.inference.replicas * what.world.inference.chips_per_replica
    world["switch"] = {"to_training": {"base_s": 0.75}, "to_rollout": {"base_s": 0.25}}
    pipeline = what.pipeline.with_changes(placement="colocated")
    return what.model_copy(update={"world": World.model_validate(world), "pipeline": pipeline})


def lost_slices():
    base = scenario({"checkpoint_interval": 2}, random=True, world={"inference": {"replicas": 2}}, steps=8)
    return lossy(base, learner=constant(31.0), replicas=exponential(40.0), provision=constant(5.0))


SCENARIOS = {
    "trouble": lambda: scenario(
        {"overprovision_members": 1, "overprovision_groups": 1, "env_workers": 5, "tool_workers": 2, "reward_workers": 1,
         "slots_per_replica": 2, "group_size": 3, "eval_interval": 1, "checkpoint_interval": 2, "deadlines": TIGHT,
         "sync_mode": "abort_resume", "retry_infra": 1},
        random=True, steps=8,
        world={"inference": {"replicas": 2}, "environments": {"reset_hang": 0.05, "reset_infra_failure": 0.1},
               "scoring": {"failure": 0.1}, "learner": {"log_probs": {"base_s": 0.3}}},
        tool={"hang": 0.05, "infra_failure": 0.1, "failure": 0.05, "time_limit_s": 3.5},
    ),
    "failing groups": lambda: scenario(
        {"retry_infra": 0, "deadlines": SHORT, "eval_interval": 1}, random=True, steps=5, tool={"infra_failure": 0.1}
    ),
    "filtered": lambda: scenario({"filter": "zero_variance"}, random=True, steps=6, workload={"success": {"median": 0.7}}),
    "stale": lambda: scenario(
        {"max_inflight": 24, "env_workers": 24, "tool_workers": 24, "buffer_capacity": 8, "order_policy": "freshest"},
        random=True, tool=TAIL, steps=8,
    ),
    "slow learner": lambda: scenario(
        {"buffer_capacity": 4, "max_inflight": 24}, random=True, steps=6, world={"learner": {"train": {"base_s": 30.0}}}
    ),
    "blocking": lambda: scenario(
        {"consume_chunk": 1, "buffer_capacity": 1, "max_inflight": 8, "stale_policy": "train"}, steps=5,
        world={"learner": {"train": {"base_s": 5.0}}},
    ),
    "evicting": lambda: scenario(
        {"on_full": "drop_oldest", "max_inflight": 24, "overprovision_groups": 4, "pipeline_depth": 1}, random=True, steps=6,
        world={"learner": {"train": {"base_s": 30.0}}},
    ),
    "evicting in a small buffer": lambda: scenario(
        {"on_full": "drop_oldest", "admission": "window", "window_fraction": 1.0, "pipeline_depth": 0, "buffer_capacity": 2,
         "max_inflight": 24}, random=True, steps=6, world={"learner": {"train": {"base_s": 30.0}}},
    ),
    "waiting for the stale": lambda: scenario(
        {"stale_policy": "wait", "max_inflight": 24, "env_workers": 24, "tool_workers": 24, "sync_mode": "keep"}, random=True,
        tool=TAIL, steps=8,
    ),
    "quorum": lambda: scenario({"group_size": 3, "group_quorum": 2, "sync_mode": "keep"}, random=True, tool=TAIL, steps=6),
    "slow publish": lambda: scenario(
        {"sync_mode": "drain"}, random=True, steps=5, world={"weights": {"transfer": {"base_s": 40.0, "bytes_per_s": 1e12}}}
    ),
    "short contexts": lambda: scenario(
        {"kv_policy": "grow", "slots_per_replica": 6, "decode_chunk_steps": 7}, random=True, steps=12,
        world={"inference": {"kv_capacity_tokens": 150, "prefill": {"base_s": 0.01, "per_token_s": 0.001},
                             "compile": {"start_s": 2.0}}},
        workload={"max_context_tokens": 110, "response_tokens": geometric(40.0, 60)}, tool={"duration": constant(0.01)},
    ),
    "outages and limits": lambda: scenario(
        {"retry_infra": 6, "deadlines": {"build_s": 8.0, "reset_s": 8.0, "tool_s": 9.0, "step_s": 40.0}}, random=True, steps=6,
        world={"outages": [OUTAGE], "environments": {"starts_at_once": 1, "start_queue": 1, "refuse_s": 0.5}},
        tool={"rate_per_s": 0.5, "burst": 1, "on_excess": "refuse"},
    ),
    "lost slices": lost_slices,
    "shared chips": shared_chips,
    "tasks from outside": lambda: scenario(
        {"max_staleness": 3, "pipeline_depth": 3, "buffer_capacity": 8, "max_inflight": 4}, random=True, steps=6,
        workload={"arrivals": {"gap": exponential(1.0), "waiting_max": 2}},
    ),
    "evaluations with trouble": lambda: scenario(
        {"eval_interval": 1, "eval_episodes": 6, "env_workers": 16, "retry_infra": 0, "group_quorum": 1,
         "deadlines": SHORT | dict.fromkeys(("step_s", "tool_s", "generation_s", "episode_s", "evaluation_s"), 12.0)},
        steps=4, tool={"hang": 0.2},
    ),
    "a limit on the whole run": lambda: scenario(
        random=True, steps=4, workload={"agent_run": {"duration": LIMITED, "tool_share": 0.8}}
    ),
    "in step": lambda: scenario({"stepping": "batch"}, random=True, steps=4),
}  # fmt: skip


def count(seed=1):
    """State → scenario → how often it was in it; states that were never reached have nothing."""
    reached = {name: {} for name in STATES}
    for label, make in SCENARIOS.items():
        played = play(make(), seed, checks=False)
        for name, seen in STATES.items():
            times = seen(played)
            if times:
                reached[name][label] = times
    return reached


def main() -> int:
    reached = count()
    for name, where in reached.items():
        first = next(iter(where), "never")
        sys.stdout.write(f"{sum(where.values()):>7,}  {name:<48}{first}\n")
    return 1 if any(not where for where in reached.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
