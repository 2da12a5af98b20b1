"""Any lane's times add up to its window exactly, whatever happens to it; roles integrate what their lanes do."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.errors import LawError
from harness.core.lanes import STATES, Lanes, State

QUIET = settings(max_examples=150, deadline=None, derandomize=True, database=None)


@dataclass
class Diary:
    """The slow obvious model: what state, and working on what, in each nanosecond of a lane's life."""

    joined: int
    days: list[tuple[State, int]] = field(default_factory=list)
    today: tuple[State, int] = (State.NO_WORK, -1)

    def live(self, nanoseconds: int) -> None:
        self.days.extend([self.today] * nanoseconds)


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.integers(0, 6)),
        st.tuples(st.just("add"), st.sampled_from(["a", "b"])),
        st.tuples(st.just("to"), st.integers(0, 9), st.sampled_from(list(State)), st.integers(-1, 3)),
        st.tuples(st.just("close"), st.integers(0, 9)),
        st.tuples(st.just("snapshot"), st.sampled_from(["a", "b"])),
    ),
    max_size=60,
)


class World:
    """Real lanes and their diaries side by side."""

    def __init__(self) -> None:
        self.now = 0
        self.intervals: list[tuple[int, int, int, int, int]] = []
        self.lanes = Lanes(lambda: self.now, self.intervals.append)
        self.diaries: list[Diary] = []
        self.closed: set[int] = set()

    def wait(self, nanoseconds: int) -> None:
        self.now += nanoseconds
        for index, diary in enumerate(self.diaries):
            if index not in self.closed:
                diary.live(nanoseconds)

    def add(self, role: str) -> None:
        self.lanes.add(f"{role}/{len(self.diaries)}", role)
        self.diaries.append(Diary(self.now))

    def to(self, index: int, state: State, entity: int) -> None:
        if index < len(self.diaries) and index not in self.closed:
            self.lanes.lanes[index].to(state, entity)
            self.diaries[index].today = (state, entity)

    def close(self, index: int) -> None:
        if index < len(self.diaries):
            self.lanes.lanes[index].close()
            self.closed.add(index)

    def snapshot(self, role: str) -> None:
        wanted = [0] * STATES
        for lane, diary in zip(self.lanes.lanes, self.diaries, strict=True):
            if lane.role == role:
                for state, _ in diary.days:
                    wanted[state] += 1
        assert self.lanes.role(role).snapshot(self.now) == wanted


@QUIET
@given(ACTIONS)
def test_lanes_agree_with_their_diaries(actions):
    world = World()
    for action, *args in actions:
        getattr(world, action)(*args)
    for role in ("a", "b"):
        world.snapshot(role)
    world.lanes.close()
    for index, (lane, diary) in enumerate(zip(world.lanes.lanes, world.diaries, strict=True)):
        assert sum(lane.totals) == lane.left_ns - lane.joined_ns == len(diary.days)
        assert lane.totals == [sum(state == number for state, _ in diary.days) for number in range(STATES)]
        mine = sorted(interval for interval in world.intervals if interval[2] == index)
        unrolled = [(State(state), entity) for t0, t1, _, state, entity in mine for _ in range(t0, t1)]
        assert unrolled == diary.days
        assert all(t0 < t1 for t0, t1, *_ in mine)
    for role in ("a", "b"):
        world.snapshot(role)


def test_a_lane_leaves_once():
    now = [0]
    lanes = Lanes(lambda: now[0])
    lane = lanes.add("tool/0", "tool", chips=3)
    now[0] = 5
    lane.close()
    now[0] = 9
    lane.close()
    lanes.close()
    assert (lane.left_ns, lane.totals[State.NO_WORK], lane.chips) == (5, 5, 3)
    assert lanes.role("tool").snapshot(9)[State.NO_WORK] == 5


def test_lane_names_are_unique():
    lanes = Lanes(lambda: 0)
    lanes.add("tool/0", "tool")
    with pytest.raises(LawError, match="tool/0"):
        lanes.add("tool/0", "other")


def test_a_role_without_lanes_is_all_zeros():
    assert Lanes(lambda: 7).role("nobody").snapshot(7) == [0] * STATES


def test_numbers_of_states_never_change():
    assert [state.name for state in State] == [
        "NO_WORK", "GENERATE", "TOOL_EXEC", "REWARD", "TRAIN", "SYNC_SEND", "SYNC_RECV", "CHECKPOINT", "EVAL", "COMPILE",
        "WAIT_TASK", "GEN_QUEUE", "TOOL_QUEUE", "REWARD_QUEUE", "WAIT_BATCH", "BLOCKED_PUT", "GATED", "SYNC_PAUSE", "SYNC_WAIT",
        "HOST_LAG", "BACKOFF", "DOWN", "UNTRACED", "ENV_QUEUE", "ENV_RESET", "ENV_CLOSE", "PREFILL", "REPREFILL", "LOG_PROBS",
        "RESTORE", "STALE_WAIT", "SWITCH", "PROVISION", "TURN_WAIT",
    ]  # fmt: skip
