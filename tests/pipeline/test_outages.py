"""Outages, limits and schedules through the real pipeline: shared luck, what is recorded, and worlds that cannot run."""

from __future__ import annotations

from dataclasses import asdict
from functools import cache

import pytest
from tiny_world import S, constant, exponential, play, scenario

from harness.core.errors import ActorError, ConfigError
from harness.core.events import EventKind, describe, first_difference
from harness.core.work import Status, WorkKind
from harness.costs.calendars import Outages
from harness.engines import virtual
from harness.run import first_failure
from harness.scenario.load import dump, parse
from pipeline.config import PipelineConfig

VENDOR = {"name": "vendor", "takes": ["tools"], "up": exponential(12.0), "down": exponential(3.0)}
HOSTS = {"name": "hosts", "takes": ["environments", "tools", "scoring"], "up": exponential(30.0), "down": exponential(4.0)}
HOSTS |= {"share": 0.7, "hosts": 3, "fail_after": exponential(0.5)}
SLOW = {"name": "store", "takes": ["environments"], "up": exponential(9.0), "down": exponential(5.0)}
SLOW |= {"in_flight": "slow", "new_calls": "slow", "slow_factor": 3.0}
HANGING = {
    "name": "network",
    "takes": ["tool"],
    "up": exponential(25.0),
    "down": constant(3.0),
    "in_flight": "finish",
    "new_calls": "hang",
}
ALL = [VENDOR, HOSTS, SLOW, HANGING]
LIMITED = {"rate_per_s": 1.0, "burst": 2}
STORM = {"starts_at_once": 2, "start_queue": 3, "slowdown_per_start": 0.3, "refuse_s": 0.5}
DRIFT = [
    {"path": "workload.response_tokens.mean", "points": [[0, 15.0], [4, 25.0]], "between": "linear"},
    {"path": "workload.tools.tool.duration.mean_s", "points": [[1, 3.0], [3, 1.0]]},
    {"path": "world.learner.train.base_s", "points": [[0, 1.0], [2, 2.0]]},
]
PATIENT = {"deadlines": {"build_s": 8.0, "reset_s": 8.0, "tool_s": 9.0, "step_s": 40.0, "reward_s": 9.0}, "retry_infra": 6}


def troubled(knobs=None, *, outages=ALL, storm=True, limited=True, schedules=(), steps=5, **changes):
    tool = LIMITED if limited else {}
    environments = STORM if storm else {}
    world = {"outages": outages, "environments": environments} | changes.pop("world", {})
    what = scenario(
        PATIENT | {"backoff_s": 0.5, "backoff_max_s": 4.0} | (knobs or {}),
        world=world,
        tool=tool,
        random=True,
        steps=steps,
        **changes,
    )
    if not schedules:
        return what
    return type(what).model_validate(what.model_dump() | {"schedules": schedules})


class Watching:
    """A task source that notes what was drawn for whom."""

    def __init__(self, inner):
        self._inner = inner
        self.plans = {}

    def driver(self, task, member, version, /):
        driver = self._inner.driver(task, member, version)
        self.plans[task.index, task.dispatch, member] = asdict(driver.plan)
        return driver

    def __getattr__(self, name):
        return getattr(self._inner, name)


TOGGLES = {
    "over-provisioned members": {"overprovision_members": 1},
    "over-provisioned groups": {"overprovision_groups": 1},
    "quorum": {"group_quorum": 1},
    "no retries": {"retry_infra": 0},
    "many retries at once": {"retry_infra": 9, "backoff_s": 0.0},
    "fewer tools": {"tool_workers": 1},
    "fewer sandboxes": {"env_workers": 3},
    "more in flight": {"max_inflight": 30, "max_staleness": 3, "pipeline_depth": 3, "buffer_capacity": 8},
    "evaluation": {"eval_interval": 1},
    "small chunks": {"decode_chunk_steps": 1, "slots_per_replica": 2},
}


def drawn(what, seed=3):
    sources = []

    def watched(world):
        sources.append(Watching(world.source))
        return sources[0]

    played = play(what, seed, source=watched, checks=False)
    return played, sources[0].plans


@cache
def calm():
    """What is drawn where nothing is wrong."""
    return drawn(troubled(outages=[], storm=False, limited=False))[1]


@cache
def met(toggle):
    """When a run ended, and the outages until then."""
    played = play(troubled(TOGGLES.get(toggle)), 3, checks=False)
    return played.report.end_ns, played.of(EventKind.OUTAGE)


@pytest.mark.parametrize("world", ["outages", "rate limit", "start storm"])
@pytest.mark.parametrize("toggle", TOGGLES)
def test_no_knob_and_no_trouble_changes_what_is_drawn_for_an_episode(toggle, world):
    """Whatever is switched on, in the pipeline or round it: shared draws and shared calendars are equal to the last bit."""
    plans = calm()
    on = {"outages": {"outages": ALL}, "rate limit": {"limited": True}, "start storm": {"storm": True}}[world]
    _, others = drawn(troubled(TOGGLES[toggle], **({"outages": [], "limited": False, "storm": False} | on)))
    shared = plans.keys() & others.keys()
    assert len(shared) >= 16
    assert all(plans[key] == others[key] for key in shared)


@pytest.mark.parametrize("toggle", TOGGLES)
def test_every_configuration_meets_the_same_outages(toggle):
    (end, plain), (other_end, changed) = met(""), met(toggle)
    until = min(end, other_end)
    assert len(plain) >= 6
    assert [event for event in plain if event[0] < until] == [event for event in changed if event[0] < until]


def test_the_log_holds_the_outages_of_the_calendar_as_far_as_the_run_reaches():
    what = troubled(outages=[VENDOR, HOSTS])
    played = play(what, 5)
    edges = []
    for i, calendar in enumerate(Outages.of(what, 5).calendars):
        for start, end, host, number in calendar.intervals(0, played.report.end_ns):
            edges += [(start, i, 1, host, number), (end, i, 0, host, number)]
    written = [(event[0], *event[2:6]) for event in played.of(EventKind.OUTAGE)]
    assert sorted(written) == sorted(edge for edge in edges if edge[0] < played.report.end_ns)
    down = sum(calendar.down_ns(0, played.report.end_ns) for calendar in Outages.of(what, 5).calendars[:1])
    own = [edge for edge in sorted(edges) if edge[1] == 0]
    assert down == sum(min(b[0], played.report.end_ns) - a[0] for a, b in zip(own[::2], own[1::2], strict=True))


def test_a_call_in_an_outage_fails_and_so_do_its_retries_until_it_is_over():
    """A tool of 2 s, down from 10 to 16 s: nothing that touches the outage ends well."""
    outage = {"name": "vendor", "takes": ["tool"], "up": constant(10.0), "down": constant(6.0), "begins_up": True}
    played = play(
        scenario(PATIENT | {"backoff_s": 0.5, "backoff_max_s": 0.5, "retry_infra": 30}, world={"outages": [outage]}, steps=3)
    )
    started = {}
    seen = set()
    for event in played.events:
        if event[1] == EventKind.WORK_START and event[3] == WorkKind.TOOL_CALL:
            started[event[2]] = event[0]
        if event[1] == EventKind.WORK_END and event[3] == WorkKind.TOOL_CALL and event[4] != Status.CANCELLED:
            began, ended = started.pop(event[2]), event[0]
            ends = began + 2 * S
            down = next((at for at in range(10 * S, ends, 16 * S) if began < at + 6 * S), None)
            if down is None:
                assert (event[4], ended) == (Status.OK, ends)
            else:
                assert (event[4], ended) == (Status.INFRA, max(began, down))
                seen.add("in flight" if began < down else "new")
    assert seen == {"in flight", "new"}
    assert len(played.of(EventKind.RETRY)) > 3


@pytest.mark.parametrize("schedules", [[], DRIFT], ids=["steady", "drifting"])
def test_both_engines_leave_the_same_log_of_a_troubled_world(schedules):
    for seed in (1, 2):
        what = troubled(schedules=schedules, steps=4)
        on_sim, on_trio = (play(what, seed, **options).all_events for options in ({"checks": False}, {"engine": virtual.run}))
        at = first_difference(on_sim, on_trio)
        assert at is None, f"event {at}: {describe(on_sim[at])} on sim, {describe(on_trio[at])} on virtual"
        kinds = {event[1] for event in on_sim}
        assert EventKind.OUTAGE in kinds


def test_refusals_and_waits_are_in_the_log():
    played = play(troubled(outages=[]), 4)
    refused = played.of(EventKind.REFUSED)
    assert {event[3] for event in refused} == {WorkKind.ENV_RESET}
    waited = [event for event in played.works(WorkKind.TOOL_CALL, ends=True) if event[6] >= 0]
    assert waited, "the instant at which the provider began is in the log"
    limited = play(troubled(outages=[], storm=False), 4)
    begun = sorted(event[6] for event in limited.works(WorkKind.TOOL_CALL, ends=True) if event[6] >= 0)
    assert all(b - a >= S - 1 for a, b in zip(begun, begun[2:], strict=False)), "two at once at most, then one a second"


def test_what_is_switched_off_leaves_the_log_as_it_was():
    """An outage that never comes, a limit that is never reached, a queue that never forms: only the server's start is said."""
    never = {
        "name": "never",
        "takes": ["tools", "environments", "scoring"],
        "up": constant(1e6),
        "down": constant(1.0),
        "begins_up": True,
    }
    plain = play(scenario(random=True), 2).all_events
    guarded = play(scenario(random=True, world={"outages": [never]}), 2).all_events
    assert plain == guarded
    wide = play(
        scenario(random=True, world={"environments": {"starts_at_once": 1000}}, tool={"rate_per_s": 1e6, "burst": 1000}), 2
    )
    assert [event[:6] for event in wide.all_events] == [event[:6] for event in plain]


@pytest.mark.parametrize("schedules", [[], DRIFT], ids=["steady", "drifting"])
def test_cut_off_anywhere_a_troubled_world_leaves_nothing_behind(schedules):
    """Every permit back, every sandbox closed once, every account held or settled: `play` checks that."""
    what = troubled(schedules=schedules, steps=3)
    total = len(play(what, 6).events)
    for event in range(1, total, 41):
        play(what, 6, cut_at_event=event)


# ── schedules ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_episode_meets_the_values_of_the_version_published_when_it_starts():
    schedules = [{"path": "workload.response_tokens.value", "points": [[0, 20], [2, 30], [3, 7]]}]
    what = scenario(steps=6)
    played = play(type(what).model_validate(what.model_dump() | {"schedules": schedules}))
    version = {event[2]: event[6] for event in played.of(EventKind.EPISODE_START)}
    made = [(version[event[2]], event[5] / event[4]) for event in played.of(EventKind.EPISODE_END) if event[4]]
    expected = {0: 20, 1: 20, 2: 30}
    assert made
    assert all(tokens == expected.get(at, 7) for at, tokens in made)
    assert len({at for at, _ in made}) >= 4


def test_a_pass_of_the_learner_takes_the_law_of_its_own_step():
    schedules = [
        {"path": "world.learner.train.base_s", "points": [[0, 1.0], [5, 6.0]], "between": "linear"},
        {"path": "world.weights.transfer.base_s", "points": [[3, 0.25]]},
    ]
    what = scenario(steps=6)
    played = play(type(what).model_validate(what.model_dump() | {"schedules": schedules}))

    def took(kind):
        ends = {event[2]: event[0] for event in played.works(kind, ends=True)}
        return {event[2]: ends[event[2]] - event[0] for event in played.works(kind) if event[2] in ends}

    train, publish = took(WorkKind.TRAIN_STEP), took(WorkKind.PUBLISH)
    assert len(train) >= 6
    for step, ns in train.items():
        assert ns == round((1 + min(step, 5)) * S), step
    for version, ns in publish.items():
        assert ns == (S // 4 if version >= 3 else S // 2) + 1, "1,000 bytes at 1e12 a second take a nanosecond"


def test_drift_is_monotone_on_the_same_luck():
    """Episode by episode: a schedule that lies above another makes no answer shorter and no call quicker."""

    def plans(mean_s, tokens):
        schedules = [
            {"path": "workload.tools.tool.duration.mean_s", "points": [[0, mean_s]]},
            {"path": "workload.response_tokens.mean", "points": [[0, tokens]]},
        ]
        return drawn(troubled(outages=[], schedules=schedules))[1]

    low, high = plans(2.0, 10.0), plans(2.5, 14.0)
    shared = low.keys() & high.keys()
    assert len(shared) >= 16
    for key in shared:
        for name in ("tool_ns", "response_tokens"):
            assert all(a <= b for a, b in zip(low[key][name], high[key][name], strict=False))
        assert (low[key]["turns"], low[key]["reset_ns"]) == (high[key]["turns"], high[key]["reset_ns"])


# ── worlds that cannot run ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("outage", "field", "words"),
    [
        (VENDOR | {"takes": ["search"]}, "world.outages.0.takes", "takes what there is not"),
        (VENDOR | {"down": constant(200_000.0)}, "world.outages.0.down", "never ends"),
    ],
)
def test_outages_that_cannot_be_are_refused_at_load(outage, field, words):
    with pytest.raises(ConfigError, match=words) as caught:
        scenario(world={"outages": [outage]}, max_sim_s=100_000.0)
    assert caught.value.field == field


def test_two_outages_of_one_name_are_refused():
    with pytest.raises(ConfigError, match="another outage"):
        scenario(world={"outages": [VENDOR, VENDOR]})


IMPOSSIBLE = {
    "always down, failing at once": {"world": {"outages": [VENDOR | {"up": constant(1.0), "down": constant(9_999.0)}]}},
    "always down, hanging": {
        "world": {
            "outages": [VENDOR | {"up": constant(1.0), "down": constant(9_999.0), "in_flight": "hang", "new_calls": "hang"}]
        }
    },
    "starts always down": {
        "world": {"outages": [VENDOR | {"up": constant(1.0), "down": constant(9_999.0), "takes": ["environments"]}]}
    },
    "scoring always down": {
        "world": {"outages": [VENDOR | {"up": constant(1.0), "down": constant(9_999.0), "takes": ["scoring"]}]}
    },
    "a rate of one call in a year": {"tool": {"rate_per_s": 3e-8}},
    "every call refused but one": {"tool": {"rate_per_s": 3e-8, "on_excess": "refuse"}},
    "starts that hang in the only place": {
        "world": {"environments": {"reset_hang": 1.0, "starts_at_once": 1, "start_queue": 0}}
    },
    "starts that hang, all waiting": {"world": {"environments": {"reset_hang": 1.0, "starts_at_once": 1}}},
}


@pytest.mark.parametrize("retries", [0, 2])
@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_a_world_in_which_nothing_works_ends_by_itself(name, retries):
    """With the pipeline's own budget of failures, or at the limit of the run; never later, and with words."""
    what = scenario(PATIENT | {"retry_infra": retries, "backoff_s": 0.0}, max_sim_s=10_000.0, **IMPOSSIBLE[name])
    with pytest.raises(BaseExceptionGroup) as caught:
        play(what, checks=False)
    failure = first_failure(caught.value)
    assert isinstance(failure, ActorError)
    assert failure.at_ns <= 10_000 * S
    assert "nothing can be trained" in str(failure) or "learner steps by then" in str(failure)


# ── files ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_troubled_world_is_written_and_read_again():
    reset = {
        "law": "mixture",
        "parts": [
            {"weight": 0.5, "of": {"law": "gamma", "shape": 2.0, "mean_s": 1.0}},
            {
                "weight": 0.4,
                "of": {
                    "law": "body_tail",
                    "body": {"law": "lognormal", "mu": 0.1, "sigma": 0.5},
                    "threshold_s": 2.0,
                    "tail": {"law": "pareto", "shape": 0.2, "scale_s": 1.0},
                    "max_s": 60.0,
                },
            },
        ],
        "atoms": [{"at_s": 30.0, "weight": 0.1}],
    }
    what = troubled(schedules=DRIFT, world={"environments": STORM | {"reset": reset}})
    assert parse(dump(what), PipelineConfig) == what
