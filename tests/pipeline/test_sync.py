"""Weight sync through the real actors: what each mode does to running requests, and baselines worked out by hand."""

from __future__ import annotations

import pytest
from tiny_world import S, count, play, scenario

from harness.core.events import EventKind
from harness.core.lanes import State
from harness.core.work import WorkKind

MODES = ["drain", "abort_resume", "keep"]


def two_replicas(sync_mode, sync_rollout="all_at_once", **knobs):
    """Long generations, so that a swap always finds some that run."""
    return scenario(
        {"sync_mode": sync_mode, "sync_rollout": sync_rollout, "max_staleness": 3, "pipeline_depth": 3, "buffer_capacity": 8,
         "max_inflight": 16, "env_workers": 16, "router_policy": "round_robin", **knobs},
        world={"inference": {"replicas": 2}},
        workload={"response_tokens": {"law": "geometric", "mean": 150.0, "max": 300}},
        steps=8,
    )  # fmt: skip


def lane_ns(played, name, state):
    return played.report.lane_ns[name][state]


def installs(played):
    """(time, version, replica, requests held) of each installed version."""
    return [(event[0], event[2], event[3], event[4]) for event in played.of(EventKind.SYNC_INSTALL)]


@pytest.mark.parametrize("rollout", ["all_at_once", "rolling"])
@pytest.mark.parametrize("mode", MODES)
def test_what_a_swap_does_to_running_requests(mode, rollout):
    played = play(two_replicas(mode, rollout), 3)
    held = [requests for _, _, _, requests in installs(played)]
    mixed = [event for event in played.of(EventKind.EPISODE_END) if event[6] != event[7]]
    reprefill = sum(lane_ns(played, f"replica/{i}", State.REPREFILL) for i in range(2))
    assert len(held) >= 8
    if mode == "drain":
        assert set(held) == {0}
    else:
        assert sum(held) > 0
    assert mixed, "an episode goes on over a publish in every one of these modes"
    assert (reprefill > 0) is (mode == "abort_resume")
    assert ("overhead:re_prefill" in played.summary.chip_ns) is (mode == "abort_resume")


@pytest.mark.parametrize("mode", MODES)
def test_a_request_that_runs_over_a_swap_carries_two_versions_unless_drained(mode):
    """One turn an episode, so that an episode's versions are those of one request."""
    played = play(
        scenario(
            {"sync_mode": mode, "max_staleness": 3, "pipeline_depth": 3, "buffer_capacity": 8, "max_inflight": 16},
            workload={"turns": count(1), "response_tokens": {"law": "geometric", "mean": 150.0, "max": 300}},
            steps=8,
        ),
        5,
    )
    spans = {newest - oldest for *_, oldest, newest in (event[:8] for event in played.of(EventKind.EPISODE_END))}
    assert (max(spans) > 0) is (mode != "drain")


def test_a_drain_waits_for_requests_and_not_for_episodes():
    played = play(two_replicas("drain"), 3)
    swaps = [
        (start[0], done[0])
        for start, done in zip(played.of(EventKind.SYNC_START), played.of(EventKind.PUBLISHED), strict=False)
    ]
    inside = [t for t, *_ in played.works(WorkKind.TOOL_CALL) if any(begin < t < end for begin, end in swaps)]
    assert inside, "episodes that are not generating go on"
    assert lane_ns(played, "replica/0", State.SYNC_PAUSE) + lane_ns(played, "replica/1", State.SYNC_PAUSE) > 0


def test_draining_episodes_lets_none_run_over_a_publish():
    played = play(two_replicas("drain_episodes"), 3)
    open_episodes = set()
    for event in played.events:
        if event[1] == EventKind.EPISODE_START:
            open_episodes.add(event[2])
        elif event[1] == EventKind.EPISODE_END:
            open_episodes.remove(event[2])
        elif event[1] == EventKind.SYNC_INSTALL:
            assert not open_episodes
    assert all(event[6] == event[7] for event in played.of(EventKind.EPISODE_END))


def test_a_drain_does_not_wait_for_episodes_that_wait_for_the_learner():
    """A full buffer that blocks, a learner that waits for the sync, a sync that waits for all episodes: one must give way."""
    knobs = {"sync_mode": "drain_episodes", "max_staleness": 3, "pipeline_depth": 3, "consume_chunk": 1, "buffer_capacity": 1}
    slow = {"weights": {"transfer": {"base_s": 30.0}}}
    played = play(scenario(knobs, world=slow, steps=8, max_sim_s=2000.0))
    assert played.summary.learner_steps == 8
    assert any(lane[State.BLOCKED_PUT] for lane in played.report.lane_ns.values())


@pytest.mark.parametrize("mode", MODES)
def test_rolling_keeps_the_others_serving(mode):
    for rollout in ("all_at_once", "rolling"):
        played = play(two_replicas(mode, rollout), 3)
        rows = played.record.intervals.rows()
        down = (int(State.SYNC_RECV), int(State.SYNC_PAUSE))
        lanes = {row["name"]: row["lane"] for row in played.record.lanes.rows(named=True)}
        paused = [
            [(t0, t1) for t0, t1, lane, state, *_ in rows if lane == lanes[f"replica/{i}"] and state in down] for i in range(2)
        ]
        together = sum(max(0, min(a1, b1) - max(a0, b0)) for a0, a1 in paused[0] for b0, b1 in paused[1])
        assert (together > 0) is (rollout == "all_at_once")


def test_the_published_version_is_that_of_the_replica_that_is_furthest_behind():
    played = play(two_replicas("keep", "rolling"), 3)
    versions = [0, 0]
    for event in played.events:
        if event[1] == EventKind.SYNC_INSTALL:
            versions[event[3]] = event[2]
        elif event[1] == EventKind.PUBLISHED:
            assert event[2] == min(versions)
        elif event[1] == EventKind.EPISODE_START:
            assert event[6] == min(versions)


def test_turns_on_replicas_of_different_versions_count_from_the_oldest():
    """A later turn may go to a replica that is behind: the episode is as old as its oldest token."""
    played = play(two_replicas("keep", "rolling", slots_per_replica=2, tool_workers=16), 11)
    ends = played.of(EventKind.EPISODE_END)
    assert all(event[6] <= event[7] for event in ends)
    assert any(event[6] < event[7] for event in ends)


# ── baselines, by hand ──────────────────────────────────────────────────────────────────────────────────────────────────────
#
# An episode by itself: reset 1 s; twice a turn of prefill 0.1 s, 20 tokens at 10 ms and a tool of 2 s; reward 1 s; close 0.5 s.
# All episodes of the tiny world run in step and are decoded together, so a batch takes as long as an episode: 7.1 s.

EPISODE = round((1 + 2 * (0.1 + 0.2 + 2) + 1 + 0.5) * S)
TRAIN, SYNC = S, S // 2
BYTES_NS = 1  # 1000 bytes at 1e12 bytes a second
BATCH = {"group_size": 2, "groups_per_step": 2, "consume_chunk": 0}


def steps_of(played):
    return [event[0] for event in played.of(EventKind.STEP)]


def lags_of(played):
    return [event[4] for event in played.of(EventKind.CONSUME)]


@pytest.mark.parametrize("admission", ["lead", "window"])
@pytest.mark.parametrize("mode", ["drain", "drain_episodes", "keep"])
def test_the_synchronous_baseline_to_the_nanosecond(admission, mode):
    """Generate, train, publish, repeat: nothing overlaps, and no sample has any lag."""
    knobs = {**BATCH, "max_staleness": 0, "pipeline_depth": 0, "steps_per_sync": 1, "admission": admission, "sync_mode": mode}
    played = play(scenario(knobs, steps=5))
    period = EPISODE + TRAIN + SYNC + BYTES_NS
    assert steps_of(played) == [EPISODE + TRAIN + i * period for i in range(5)]
    assert set(lags_of(played)) == {0}
    assert played.summary.dropped_groups == {}


def one_step_off(**world):
    knobs = {**BATCH, "max_staleness": 1, "pipeline_depth": 1, "steps_per_sync": 1, "max_inflight": 4, "sync_mode": "keep"}
    return play(scenario(knobs, world=world, steps=6))


def test_one_step_off_with_a_slow_learner_to_the_nanosecond():
    """The next batch is there long before the learner is done: it never waits, and each batch is of the version before."""
    train = 20
    played = one_step_off(learner={"train": {"base_s": float(train)}})
    assert steps_of(played) == [EPISODE + i * train * S for i in range(1, 7)]
    assert lags_of(played) == [0, 0, *[1] * 10]


def test_one_step_off_with_slow_rollouts_to_the_nanosecond():
    """Rollouts never pause: batch n is made from (n - 1)·E to n·E, trained at once, and published while batch n + 1 is in its
    tools. So batch n + 1 began with version n - 1 and is used one step late."""
    reset = 0.4
    played = one_step_off(environments={"reset": {"law": "constant", "value_s": reset}})
    episode = EPISODE - round((1 - reset) * S)
    assert steps_of(played) == [i * episode + TRAIN for i in range(1, 7)]
    assert lags_of(played) == [0, 0, *[1] * 10]
    busy = played.summary.utilisation
    window = 6 * episode + TRAIN
    assert busy["learner"] == pytest.approx(6 * TRAIN / window, abs=1e-12)
    # Four episodes with two calls of 2 s each a batch, 8 workers; the batch under way is 0.3 s into its first calls.
    assert busy["tools"] == pytest.approx((6 * 4 * 4 + 4 * 0.3) * S / (8 * window), abs=1e-9)
    assert busy["scoring"] == pytest.approx(6 * 4 * S / (8 * window), abs=1e-12)
    assert busy["slots"] == pytest.approx(1.0, abs=1e-12)
    assert busy["environments"] == pytest.approx(0.5, abs=1e-12)
    generating = 6 * 2 * (0.1 + 0.2) + (0.1 + 0.2)  # and the first turn of the batch that is under way
    assert busy["inference"] == pytest.approx(generating * S / window, abs=1e-9)
