"""How busy pools and roles were, from what the lanes did.

An episode's lane says which pool it draws on: it holds an environment from its start to its teardown (while it generates, too),
a tool or a scoring worker while it is in a call. The busy share of a pool is lane-time in those states over window x capacity;
of `slots` the time in which a slot had an episode, of `inference` and `learner` the time in which they computed, of `host loop`
that in which the Python event loop of all actors was not waiting.

What the lanes cannot see is left out: a sandbox, a tool or a scoring worker that was given up and is not free yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.core.lanes import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from harness.core.lanes import Lane

_WITHOUT_ENVIRONMENT = (State.NO_WORK, State.GATED, State.ENV_QUEUE, State.BLOCKED_PUT)

_POOLS: dict[str, frozenset[State]] = {
    "environments": frozenset(State).difference(_WITHOUT_ENVIRONMENT),
    "tools": frozenset({State.TOOL_EXEC}),
    "scoring": frozenset({State.REWARD}),
}
"""Pool → states in which an episode's lane holds one of it."""

_ROLES: dict[str, tuple[str, frozenset[State]]] = {
    "slots": ("rollout", frozenset(State) - {State.NO_WORK, State.GATED}),
    "inference": ("inference", frozenset({State.GENERATE, State.PREFILL, State.REPREFILL})),
    "learner": ("learner", frozenset({State.TRAIN, State.LOG_PROBS})),
}
"""Key → role, and its busy states."""


def shares(
    lanes: Iterable[Lane],
    lane_ns: Mapping[str, Sequence[int]],
    window_ns: int,
    capacities: Mapping[str, int],
    loop_busy_ns: int = 0,
) -> dict[str, float]:
    """Busy share of every pool and role, from 0 to 1; nothing for an empty window.

    Args:
        lanes: of the run.
        lane_ns: nanoseconds by state in the window, by lane name.
        window_ns: length of the window.
        capacities: size of each pool.
        loop_busy_ns: nanoseconds of the window in which the event loop was busy.

    """
    if window_ns <= 0:
        return {}
    by_role: dict[str, list[Sequence[int]]] = {}
    for lane in lanes:
        by_role.setdefault(lane.role, []).append(lane_ns[lane.name])
    episodes = [*by_role.get("rollout", ()), *by_role.get("evaluation", ())]
    result = {pool: _busy(episodes, states) / (window_ns * capacities[pool]) for pool, states in _POOLS.items()}
    for key, (role, states) in _ROLES.items():
        own = by_role.get(role, [])
        result[key] = _busy(own, states) / (window_ns * len(own)) if own else 0.0
    result["host loop"] = loop_busy_ns / window_ns
    return result


def sandbox_ns(lanes: Iterable[Lane], lane_ns: Mapping[str, Sequence[int]]) -> int:
    """Sandbox-nanoseconds held by episodes, from the start of each to its teardown."""
    episodes = [lane_ns[lane.name] for lane in lanes if lane.role in ("rollout", "evaluation")]
    return _busy(episodes, _POOLS["environments"])


def _busy(lanes: Iterable[Sequence[int]], states: Iterable[State]) -> int:
    return sum([totals[state] for totals in lanes for state in states])
