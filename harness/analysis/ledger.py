"""The chip-second split: every chip-nanosecond of a window in exactly one class.

    idle:CAUSE       nothing ran on the chip (down and absent included)
    overhead:WHAT    sync, re-prefill, compile, checkpoint, restore, evaluation
    discarded:FATE   work for episodes that were not trained, and learner work of steps that were lost
    kept             work that reached a kept optimizer step
    in_flight        work for episodes that are still open at the end of the window

The states of the lanes that hold chips say when work ran; the books by fate (`harness.core.accounts`) say what became of
it. The lanes' total is an exact integer and the books are floating point, so the books are only used as weights: the
total is split by largest remainder, and the two sides must agree to `AGREEMENT` first.

Both sides cover the window to its edges: whoever keeps the books books the part of a running step that lies on this side of
the edge before the window is marked, and again at its end.

Everything is plain data, so that a live and a simulated run, and a record read from disk, give the same answer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING

from harness.core.accounts import Fate
from harness.core.errors import TraceError
from harness.core.lanes import STATES, State

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

AGREEMENT = 1e-6
"""Largest relative difference between the generation time on the lanes and on the books. Shares of a step are divided and
summed in floating point, which leaves about 1e-12; a step that was not booked is far above this."""

INFERENCE = "inference"
LEARNER = "learner"
SHARED = "chips"
"""Role of a chip lane that several roles take turns on; their own lanes then hold no chips."""

_GENERATION = (State.GENERATE, State.PREFILL)
_LEARNING = (State.TRAIN, State.LOG_PROBS)

_OVERHEAD: dict[State, str] = {
    State.REPREFILL: "re_prefill",
    State.SYNC_SEND: "weight_sync",
    State.SYNC_RECV: "weight_sync",
    State.SYNC_PAUSE: "weight_sync",
    State.SWITCH: "switch",
    State.CHECKPOINT: "checkpoint",
    State.COMPILE: "compile",
    State.RESTORE: "restore",
    State.EVAL: "evaluation",
}

_IDLE: dict[State, str] = {
    State.NO_WORK: "no_work",
    State.WAIT_TASK: "no_request",
    State.GEN_QUEUE: "generation_queue",
    State.TOOL_EXEC: "tools",
    State.TOOL_QUEUE: "tool_queue",
    State.REWARD: "reward",
    State.REWARD_QUEUE: "reward_queue",
    State.WAIT_BATCH: "no_batch",
    State.BLOCKED_PUT: "buffer_full",
    State.GATED: "admission",
    State.SYNC_WAIT: "sync_wait",
    State.HOST_LAG: "host",
    State.BACKOFF: "backoff",
    State.DOWN: "down",
    State.PROVISION: "down",
    State.UNTRACED: "untraced",
    State.ENV_QUEUE: "env_queue",
    State.ENV_RESET: "env_start",
    State.ENV_CLOSE: "env_close",
    State.STALE_WAIT: "stale_wait",
    State.TURN_WAIT: "turn_barrier",
}

ABSENT = "absent"

BLAMED: dict[str, tuple[State, ...]] = {
    INFERENCE: (State.WAIT_TASK,),
    LEARNER: (State.WAIT_BATCH, State.STALE_WAIT),
    SHARED: (State.WAIT_TASK,),
}
"""States of each role whose idle time is charged to others, where the books of a blame meter are handed over."""


@dataclass(frozen=True, slots=True)
class ChipLane:
    """One chip-holding lane over the window.

    Attributes:
        name: of the lane.
        role: `inference`, `learner`, or `chips` where both take turns on them.
        chips: chips that it holds.
        state_ns: nanoseconds by state, within the window.

    """

    name: str
    role: str
    chips: int
    state_ns: Sequence[int]


@dataclass(frozen=True, slots=True)
class GenerationBooks:
    """Chip-nanoseconds of generation by what became of them, as the actors booked them. All are counted once per chip.

    Attributes:
        by_fate: indexed by `Fate`, booked within the window.
        in_flight: booked within the window for episodes that are still open.

    """

    by_fate: Sequence[float]
    in_flight: float


@dataclass(frozen=True, slots=True)
class LearnerBooks:
    """Chip-nanoseconds of the learner's work that are not kept.

    Attributes:
        lost_ns: in steps that a crash took back.
        in_flight_ns: in a step that is not complete at the end of the window.

    """

    lost_ns: int = 0
    in_flight_ns: int = 0


@dataclass(frozen=True, slots=True)
class Blame:
    """Waiting nanoseconds of one lane by cause, from its blame meter. Must add up to its time in the blamed states."""

    lane: str
    cause_ns: Mapping[str, int] = field(default_factory=dict)


def split(
    lanes: Sequence[ChipLane],
    window_ns: int,
    generation: GenerationBooks,
    learner: LearnerBooks | None = None,
    blame: Sequence[Blame] = (),
) -> dict[str, int]:
    """Chip-nanoseconds by class. They add up to `window_ns` times the chips of all lanes exactly.

    A lane that was absent for a part of the window (joined late, left early) is `idle:absent` there: its chips are paid.

    Raises:
        TraceError: a lane's times exceed the window, the books disagree with the lanes, or a lane's blame does not add up
            to its waits.

    """
    ledger: dict[str, int] = {}
    charged = {entry.lane: entry.cause_ns for entry in blame}
    unknown = tuple(sorted(charged.keys() - {lane.name for lane in lanes}))
    if unknown:
        raise TraceError("blame belongs to a lane that holds chips", unknown)
    generated = learned = 0
    for lane in lanes:
        _check_lane(lane, window_ns)
        _add_lane(ledger, lane, window_ns, charged.get(lane.name))
        generated += _work_ns(lane, _GENERATION) if lane.role != LEARNER else 0
        learned += _work_ns(lane, _LEARNING) if lane.role != INFERENCE else 0
    _add_generation(ledger, generated, generation)
    _add_learning(ledger, learned, learner or LearnerBooks())
    paid = window_ns * sum(lane.chips for lane in lanes)
    if sum(ledger.values()) != paid:
        raise TraceError("chip-nanoseconds by class add up to window times chips", (), f"{sum(ledger.values())} != {paid}")
    return dict(sorted((key, ns) for key, ns in ledger.items() if ns))


def idle_by_role(lanes: Sequence[ChipLane], window_ns: int) -> dict[str, int]:
    """Idle chip-nanoseconds of each role's chips, absent ones included: they add up to the idle part of `split`."""
    idle: dict[str, int] = {}
    for lane in lanes:
        working = _WORKING[lane.role]
        states = [state for state in State if state not in working and state not in _OVERHEAD]
        waiting = sum([lane.state_ns[state] for state in states]) + window_ns - sum(lane.state_ns)
        idle[lane.role] = idle.get(lane.role, 0) + waiting * lane.chips
    return idle


def _check_lane(lane: ChipLane, window_ns: int) -> None:
    if lane.role not in BLAMED:
        raise TraceError(
            "chips are held by inference and learner lanes, or lanes that they share", (lane.name,), f"role {lane.role!r}"
        )
    if len(lane.state_ns) != STATES or min(lane.state_ns) < 0 or sum(lane.state_ns) > window_ns:
        raise TraceError(
            "a lane's times in its states lie within the window",
            (lane.name,),
            f"{sum(lane.state_ns)} ns in a window of {window_ns} ns",
        )


_WORKING: dict[str, tuple[State, ...]] = {
    INFERENCE: _GENERATION,
    LEARNER: _LEARNING,
    SHARED: (*_GENERATION, *_LEARNING),
}


def _work_ns(lane: ChipLane, states: Sequence[State]) -> int:
    return sum([lane.state_ns[state] for state in states]) * lane.chips


def _add_lane(ledger: dict[str, int], lane: ChipLane, window_ns: int, charged: Mapping[str, int] | None) -> None:
    """Book one lane's idle time and overhead; its work is booked by what became of it."""
    working = _WORKING[lane.role]
    blamed = BLAMED[lane.role] if charged is not None else ()
    waited = 0
    for state in State:
        ns = lane.state_ns[state]
        if not ns:
            continue
        if state in working:
            continue
        if state in blamed:
            waited += ns
        else:
            _add(ledger, _class_of(state, lane), ns * lane.chips)
    _add(ledger, f"idle:{ABSENT}", (window_ns - sum(lane.state_ns)) * lane.chips)
    if charged is not None:
        if sum(charged.values()) != waited:
            raise TraceError(
                "a lane's blame adds up to its waits", (lane.name,), f"{sum(charged.values())} ns charged, {waited} ns waited"
            )
        for cause, ns in charged.items():
            _add(ledger, f"idle:{cause}", ns * lane.chips)


def _class_of(state: State, lane: ChipLane) -> str:
    what = _OVERHEAD.get(state)
    if what is not None:
        return f"overhead:{what}"
    cause = _IDLE.get(state)
    if cause is None:
        raise TraceError("a lane is in a state that its role can be in", (lane.name,), f"{lane.role} in {state.name}")
    return f"idle:{cause}"


def _add_generation(ledger: dict[str, int], total: int, books: GenerationBooks) -> None:
    """Split the inference lanes' work by what became of it."""
    weights = {_FATE_CLASS[fate]: float(books.by_fate[fate]) for fate in Fate} | {"in_flight": float(books.in_flight)}
    booked = math.fsum(weights.values())
    if min(weights.values()) < 0 or abs(total - booked) > AGREEMENT * max(total, 1):
        raise TraceError(
            "generation time on the lanes = generation time on the books",
            (),
            f"{total} chip-ns on the lanes, {booked:.0f} on the books",
        )
    for key, ns in largest_remainder(total, {key: Fraction(weight) for key, weight in weights.items()}).items():
        _add(ledger, key, ns)


def _add_learning(ledger: dict[str, int], total: int, books: LearnerBooks) -> None:
    kept = total - books.lost_ns - books.in_flight_ns
    if min(kept, books.lost_ns, books.in_flight_ns) < 0:
        raise TraceError(
            "learner time that is not kept is part of its work",
            (),
            f"{books.lost_ns} lost and {books.in_flight_ns} in flight of {total} chip-ns",
        )
    _add(ledger, "kept", kept)
    _add(ledger, f"discarded:{Fate.LOST.name.lower()}", books.lost_ns)
    _add(ledger, "in_flight", books.in_flight_ns)


def largest_remainder(total: int, weights: Mapping[str, Fraction]) -> dict[str, int]:
    """Split a whole number in proportion to weights (Hamilton's method): exact sum, each part less than one off.

    Ties of remainders go to the key that is listed first. Weights that are all zero give everything to the last key.
    """
    weight = sum(weights.values())
    if not weight:
        return {next(reversed(list(weights))): total}
    exact = {key: total * share / weight for key, share in weights.items()}
    parts = {key: int(quota) for key, quota in exact.items()}
    left = total - sum(parts.values())
    for key in sorted(exact, key=lambda key: parts[key] - exact[key])[:left]:
        parts[key] += 1
    return parts


def _add(ledger: dict[str, int], key: str, ns: int) -> None:
    if ns:
        ledger[key] = ledger.get(key, 0) + ns


_FATE_CLASS: dict[Fate, str] = {
    fate: "kept"
    if fate is Fate.TRAINED
    else "overhead:evaluation"
    if fate is Fate.EVALUATION
    else f"discarded:{fate.name.lower()}"
    for fate in Fate
}
