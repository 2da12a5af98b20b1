"""Blame and the chip-second split on random lane histories, against a model that looks at every nanosecond."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.analysis.blame import blame, waits_of
from harness.analysis.ledger import (
    INFERENCE,
    LEARNER,
    Blame,
    ChipLane,
    GenerationBooks,
    LearnerBooks,
    largest_remainder,
    split,
)
from harness.core.accounts import Fate
from harness.core.blame import INFERENCE_CAUSES, LEARNER_CAUSES, UNATTRIBUTED, BlameMeter, apportion
from harness.core.errors import LawError, TraceError
from harness.core.lanes import STATES, Lanes, State

properties = settings(derandomize=True, deadline=None, max_examples=80)

ROLLOUTS = 3
LEARNING = (State.WAIT_BATCH, State.STALE_WAIT, State.TRAIN, State.LOG_PROBS, State.CHECKPOINT, State.SYNC_WAIT)
SERVING = (State.WAIT_TASK, State.GENERATE, State.PREFILL, State.REPREFILL, State.SYNC_RECV, State.DOWN)
LEARNER_LANE, SERVER_LANES = 0, (1, 2)

# One step: wait this long, then put this lane into this state. Lanes 0: learner, 1 and 2: replicas, 3 to 5: rollouts.
learner_moves = st.tuples(st.just(0), st.sampled_from(LEARNING))
server_moves = st.tuples(st.sampled_from(SERVER_LANES), st.sampled_from(SERVING))
rollout_moves = st.tuples(st.integers(3, 2 + ROLLOUTS), st.sampled_from(list(State)))
moves = st.one_of(learner_moves, server_moves, rollout_moves, rollout_moves)
histories = st.lists(st.tuples(st.integers(0, 7), moves), max_size=60)


class World:
    """Drives lanes and meters through a history, as actors would."""

    def __init__(self, history, mark_after):
        self.now_ns = 0
        self.intervals = []
        self.lanes = Lanes(lambda: self.now_ns, self.intervals.append)
        self.lanes.add("learner", LEARNER, chips=4)
        for i in range(2):
            self.lanes.add(f"replica/{i}", INFERENCE, chips=2 + i)
        for i in range(ROLLOUTS):
            self.lanes.add(f"rollout/{i}", "rollout")
        rollouts = self.lanes.role("rollout")
        self.meters = {0: BlameMeter(rollouts), **{i: BlameMeter(rollouts, INFERENCE_CAUSES) for i in SERVER_LANES}}
        self.waiting = {0: (State.WAIT_BATCH, State.STALE_WAIT), **dict.fromkeys(SERVER_LANES, (State.WAIT_TASK,))}
        self.mark_ns, self.before = 0, self.totals()
        for index, (pause_ns, (lane, state)) in enumerate(history):
            self.now_ns += pause_ns
            if index == mark_after:
                self.mark()
            self.move(lane, state)

    def totals(self):
        """Nanoseconds by state of each lane, the open interval included."""
        open_ns = [(lane.state, self.now_ns - lane.since_ns) for lane in self.lanes.lanes]
        return [
            [ns + (extra if state == now_in else 0) for state, ns in enumerate(lane.totals)]
            for lane, (now_in, extra) in zip(self.lanes.lanes, open_ns, strict=True)
        ]

    def mark(self):
        self.mark_ns, self.before = self.now_ns, self.totals()
        for meter in self.meters.values():
            meter.mark(self.now_ns)

    def move(self, index, state):
        lane, meter = self.lanes.lanes[index], self.meters.get(index)
        if meter is not None and meter.waiting:
            meter.end(self.now_ns)
        lane.to(state)
        if meter is not None and state in self.waiting[index]:
            meter.begin(self.now_ns)

    def finish(self):
        """Totals of each meter, then every lane leaves and the record is whole."""
        totals = {index: meter.totals(self.now_ns) for index, meter in self.meters.items()}
        self.chip_lanes = [
            ChipLane(lane.name, lane.role, lane.chips, [upto - start for start, upto in zip(before, after, strict=True)])
            for lane, before, after in zip(self.lanes.lanes, self.before, self.totals(), strict=True)
            if lane.chips
        ]
        self.lanes.close()
        rows = np.array(self.intervals, dtype=np.int64).reshape(-1, 5)
        return totals, rows


def states_by_ns(rows, lane, end_ns):
    """The state of a lane in each nanosecond."""
    states = [None] * end_ns
    for t0, t1, index, state, _ in rows:
        if index == lane:
            states[t0:t1] = [State(state)] * (t1 - t0)
    return states


worlds = st.builds(World, histories, st.integers(0, 40))


# Blame


@properties
@given(worlds)
def test_blame_online_is_blame_offline(world):
    totals, rows = world.finish()
    rollouts = range(3, 3 + ROLLOUTS)
    for index, online in totals.items():
        causes = LEARNER_CAUSES if index == 0 else INFERENCE_CAUSES
        waits = waits_of(rows, index, world.waiting[index], (world.mark_ns, world.now_ns))
        assert blame(rows, waits, rollouts, causes) == online
        assert sum(online.values()) == sum(t1 - t0 for t0, t1 in waits)


@properties
@given(worlds)
def test_blame_agrees_with_counting_every_nanosecond(world):
    totals, rows = world.finish()
    rows = rows.tolist()
    table = [states_by_ns(rows, lane, world.now_ns) for lane in range(3, 3 + ROLLOUTS)]
    waits = [row[:2] for row in rows if row[2] == 0 and row[3] in world.waiting[0]]
    exact = {}
    for t0, t1 in waits:
        start = max(t0, world.mark_ns)
        seen = [states[t] for t in range(start, t1) for states in table]
        seen = [LEARNER_CAUSES[state] for state in seen if state in LEARNER_CAUSES]
        for cause in seen:
            exact[cause] = exact.get(cause, 0) + Fraction(t1 - start, len(seen))
        if not seen and t1 > start:
            exact[UNATTRIBUTED] = exact.get(UNATTRIBUTED, 0) + t1 - start
    for cause in exact.keys() | totals[0].keys():
        # Each wait rounds each state by less than one nanosecond, and a cause has three states at most, `generation`.
        assert abs(exact.get(cause, 0) - totals[0].get(cause, 0)) < 4 * max(1, len(waits))


@properties
@given(st.integers(0, 10**15), st.lists(st.integers(0, 10**18), min_size=1, max_size=30).filter(any))
def test_apportioning_is_exact_and_each_part_is_less_than_one_off(length, weights):
    parts = apportion(length, weights)
    assert sum(parts) == length
    for part, weight in zip(parts, weights, strict=True):
        assert abs(part - Fraction(length * weight, sum(weights))) < 1
        assert weight or not part


def test_offline_blame_survives_sums_beyond_63_bits():
    """Five years of nanoseconds, a thousand intervals: the prefix sums wrap and the differences are right."""
    begin = 5 * 365 * 86_400 * 10**9
    tools = [(begin + 1000 * i, begin + 1000 * i + 600, 1, State.TOOL_EXEC, i) for i in range(1000)]
    queue = [(begin + 1000 * i + 600, begin + 1000 * (i + 1), 1, State.TOOL_QUEUE, i) for i in range(1000)]
    waits = [(begin, begin + 1000_000)]
    assert begin * 1000 > 2**63
    assert blame(np.array(tools + queue), waits, [1]) == {"tools": 600_000, "tool_queue": 400_000}


def test_nobody_to_blame():
    now = [0]
    lanes = Lanes(lambda: now[0])
    lane = lanes.add("rollout/0", "rollout")
    lane.to(State.BLOCKED_PUT)
    meter = BlameMeter(lanes.role("rollout"))
    meter.begin(0)
    now[0] = 9
    assert meter.totals(9) == {UNATTRIBUTED: 9}
    with pytest.raises(LawError, match="one meter follows one waiter"):
        meter.begin(9)
    meter.end(9)
    with pytest.raises(LawError, match="never began"):
        meter.end(9)
    assert meter.totals(9) == {UNATTRIBUTED: 9}


def test_a_server_is_not_idle_because_others_generate():
    now = [0]
    lanes = Lanes(lambda: now[0])
    for i, state in enumerate((State.GENERATE, State.GENERATE, State.TOOL_EXEC)):
        lanes.add(f"rollout/{i}", "rollout").to(state)
    meters = [BlameMeter(lanes.role("rollout"), causes) for causes in (LEARNER_CAUSES, INFERENCE_CAUSES)]
    for meter in meters:
        meter.begin(0)
    now[0] = 9
    assert [meter.totals(9) for meter in meters] == [{"generation": 6, "tools": 3}, {"tools": 9}]


# The ledger


def books_of(world, weights):
    """Books as actors keep them: the part of each step within the window, split over fates in floating point."""
    booked = [0.0] * len(weights)
    for t0, t1, lane, state, _ in world.intervals:
        if lane in SERVER_LANES and state in (State.GENERATE, State.PREFILL):
            chip_ns = max(0, t1 - max(t0, world.mark_ns)) * world.lanes.lanes[lane].chips
            for i, weight in enumerate(weights):
                booked[i] += chip_ns * weight / sum(weights)
    return GenerationBooks(booked[:-1], booked[-1])


fate_weights = st.lists(st.integers(0, 5), min_size=len(Fate) + 1, max_size=len(Fate) + 1).filter(any)


OVERHEADS = {
    "overhead:checkpoint": State.CHECKPOINT,
    "overhead:re_prefill": State.REPREFILL,
    "overhead:weight_sync": State.SYNC_RECV,
}


@properties
@given(worlds, fate_weights)
def test_every_chip_nanosecond_is_in_one_class(world, weights):
    totals, rows = world.finish()
    shares = [Blame(world.lanes.lanes[index].name, cause_ns) for index, cause_ns in totals.items()]
    ledger = split(world.chip_lanes, world.now_ns - world.mark_ns, books_of(world, weights), blame=shares)
    assert sum(ledger.values()) == (world.now_ns - world.mark_ns) * 9
    assert all(isinstance(ns, int) and ns > 0 for ns in ledger.values())
    by_class = {}
    for key, ns in ledger.items():
        kind = "idle" if key.startswith("idle") else key if key in OVERHEADS else "work"
        by_class[kind] = by_class.get(kind, 0) + ns
    assert by_class == slow_ledger(rows.tolist(), world)


def slow_ledger(rows, world):
    """Chip-nanoseconds of work, idle time and each overhead, nanosecond by nanosecond."""
    words = dict.fromkeys((State.GENERATE, State.PREFILL, State.TRAIN, State.LOG_PROBS), "work")
    words |= {state: key for key, state in OVERHEADS.items()}
    counted = {}
    for lane in (0, *SERVER_LANES):
        for state in states_by_ns(rows, lane, world.now_ns)[world.mark_ns :]:
            word = words.get(state, "idle")
            counted[word] = counted.get(word, 0) + world.lanes.lanes[lane].chips
    return counted


def chip_lane(role=INFERENCE, chips=1, name="replica/0", **ns):
    state_ns = [0] * STATES
    for state, value in ns.items():
        state_ns[State[state]] = value
    return ChipLane(name, role, chips, state_ns)


def test_the_split_by_hand():
    lanes = [
        chip_lane(chips=4, GENERATE=50, PREFILL=10, REPREFILL=5, SYNC_RECV=5, WAIT_TASK=20, DOWN=10),
        chip_lane(LEARNER, 8, "learner", TRAIN=60, LOG_PROBS=10, WAIT_BATCH=20, SYNC_SEND=10),
    ]
    fates = [0.0] * len(Fate)
    fates[Fate.TRAINED], fates[Fate.STALE], fates[Fate.EVALUATION] = 120.0, 60.0, 20.0
    ledger = split(
        lanes,
        100,
        GenerationBooks(fates, 40.0),
        LearnerBooks(lost_ns=80, in_flight_ns=40),
        [Blame("replica/0", {"tools": 15, "tool_queue": 5}), Blame("learner", {"generation": 20})],
    )
    assert ledger == {
        "discarded:lost": 80,
        "discarded:stale": 60,
        "idle:down": 40,
        "idle:generation": 160,
        "idle:tool_queue": 20,
        "idle:tools": 60,
        "in_flight": 40 + 40,
        "kept": 120 + 440,
        "overhead:evaluation": 20,
        "overhead:re_prefill": 20,
        "overhead:weight_sync": 20 + 80,
    }


def test_waits_that_nobody_metered_keep_their_own_name():
    lanes = [chip_lane(WAIT_TASK=4, NO_WORK=3), chip_lane(LEARNER, name="learner", WAIT_BATCH=5)]
    assert split(lanes, 10, GenerationBooks([0.0] * len(Fate), 0.0)) == {
        "idle:absent": 3 + 5,
        "idle:no_batch": 5,
        "idle:no_request": 4,
        "idle:no_work": 3,
    }


@pytest.mark.parametrize(
    ("lanes", "books", "shares", "law", "named"),
    [
        ([chip_lane(GENERATE=11)], None, (), "lie within the window", "replica/0"),
        ([chip_lane("tool", name="tool/3", GENERATE=1)], None, (), "held by inference and learner lanes", "tool/3"),
        ([chip_lane(TRAIN=4)], None, (), "its role can be in", "replica/0"),
        ([chip_lane(GENERATE=10)], [9.0], (), "on the books", "10 chip-ns on the lanes, 9"),
        ([chip_lane(GENERATE=10)], [11.0, -1.0], (), "on the books", "10 chip-ns"),
        (
            [chip_lane(WAIT_TASK=4)],
            None,
            (Blame("replica/0", {"tools": 3}),),
            "adds up to its waits",
            "3 ns charged, 4 ns waited",
        ),
        ([chip_lane(WAIT_TASK=4)], None, (Blame("replica/9", {}),), "lane that holds chips", "replica/9"),
    ],
)
def test_books_that_do_not_agree_are_named(lanes, books, shares, law, named):
    fates = [*(books or []), *[0.0] * len(Fate)][: len(Fate)]
    with pytest.raises(TraceError) as caught:
        split(lanes, 10, GenerationBooks(fates, 0.0), blame=shares)
    assert law in str(caught.value)
    assert named in str(caught.value)


def test_learner_time_that_is_not_kept_is_part_of_its_work():
    with pytest.raises(TraceError, match="3 lost and 2 in flight of 4"):
        split([chip_lane(LEARNER, TRAIN=4)], 10, GenerationBooks([0.0] * len(Fate), 0.0), LearnerBooks(3, 2))


@properties
@given(st.integers(0, 10**15), st.lists(st.floats(0, 1e18), min_size=1, max_size=12))
def test_largest_remainder_is_exact_and_fair(total, weights):
    shares = {str(i): Fraction(weight) for i, weight in enumerate(weights)}
    parts = largest_remainder(total, shares)
    assert sum(parts.values()) == total
    whole = sum(shares.values())
    for key, part in parts.items():
        assert not whole or abs(part - total * shares[key] / whole) < 1


def test_a_lane_that_joins_late_is_paid_from_the_start():
    books = GenerationBooks([0.0] * len(Fate), 0.0)
    assert split([chip_lane(chips=2, DOWN=6)], 10, books) == {"idle:absent": 8, "idle:down": 12}
