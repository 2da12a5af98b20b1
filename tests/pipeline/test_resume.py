"""A run that is cut at a checkpoint and resumed, in virtual time. Whatever the configuration and the cut:

- every task that was ever issued is trained once, or dropped once, or in one place at the end: exactly-once;
- the resumed run makes its steps (no credit leaks) and keeps every law that `play` checks (lag bound, conservation, versions);
- what was in flight is issued again first, in order; and no burst of starts follows.
"""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tiny_configs import scenarios
from tiny_world import play, scenario

from harness.core.accounts import Accounts, Fate
from harness.core.errors import ConfigError, DataError, LawError
from harness.core.events import EventKind
from harness.core.work import Checkpoint, Outcome, WorkKind
from pipeline.data import EVALUATION_GROUPS, Ended, EpisodeResult, Group, Sample, Task
from pipeline.policies.kinds import AdmissionKind
from pipeline.state import SCHEMA, Books, PipelineState, from_plain, to_plain

properties = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.filter_too_much])


def through_json(state):
    """What a file makes of it."""
    plain, columns = json.loads(json.dumps(to_plain(state)))
    return from_plain(plain, columns)


class Keeping:
    """Saves what it is given, in no time or in that of another performer."""

    def __init__(self, inner):
        self.states = []
        self._inner = inner

    async def __call__(self, rt, work, /):
        self.states.append(through_json(work.payload))
        return await self._inner(rt, work)

    async def gone(self, rt, work, /):
        await self._inner.gone(rt, work)


class Segment:
    """One process of a run: what it was given, what it saved, and what it did up to its last save or to the cut."""

    def __init__(self, what, seed, resume=None, **options):
        keeping = []

        def performers(world):
            keeping.append(Keeping(world.performers[Checkpoint]))
            return {Checkpoint: keeping[0]}

        self.resume = resume
        self.played = play(what, seed, performers=performers, resume=resume, **options)
        self.states = keeping[0].states

    def log(self, state):
        """Events up to the instant at which a state was saved."""
        saves = [
            n for n, event in enumerate(self.played.all_events)
            if event[1] == EventKind.WORK_START and event[2] == state.t and event[3] == WorkKind.CHECKPOINT
        ]  # fmt: skip
        return self.played.all_events[: saves[-1]]

    def over(self, state):
        """Tasks that were trained, and those that were dropped, between its start and a state that it saved."""
        tasks, trained, dropped = {}, [], []
        for _, kind, entity, *fields in self.log(state):
            if kind == EventKind.GROUP_ADMIT:
                tasks[entity] = Task(fields[0], fields[1])
            elif kind == EventKind.CONSUME and fields[0] <= state.t:
                trained.append(tasks[entity])
            elif kind == EventKind.DROP:
                dropped.append(tasks[entity])
        return trained, dropped


def issued(what, state):
    """All tasks that a source has given out, but for those that wait to be given out again."""
    waiting = {Task(*task) for task in state.source["again"]}
    tasks = what.workload.tasks
    given = [Task(n % tasks, n // tasks) for n in range(state.source["given"])]
    return [task for task in given if task not in waiting]


def exactly_once(what, segments, states):
    """`states[i]` is where segment i was cut; the last one is the end."""
    places = Counter()
    for segment, state in zip(segments, states, strict=True):
        for tasks in segment.over(state):
            places.update(tasks)
    end = states[-1]
    places.update(end.in_flight)
    places.update(group.task for group in end.groups)
    assert places == Counter(issued(what, end))


def books_agree(segments, states):
    """The counters of the whole run are those of its processes, each up to its cut."""
    episodes = tokens = 0
    for segment, state in zip(segments, states, strict=True):
        for _, kind, entity, *fields in segment.log(state):
            if kind == EventKind.STEP and entity <= state.t:
                episodes += fields[1]
            elif kind == EventKind.CONSUME and fields[0] <= state.t:
                tokens += fields[4]
    books = states[-1].books
    assert (books.settled.get("trained", 0), books.tokens.get("trained", 0)) == (episodes, tokens)
    assert books.admitted >= sum(books.settled.values())
    assert books.made_tokens >= sum(books.tokens.values())


def starts_as_told(segment):
    """Tasks in flight come first, in order; and under `lead` there is never more outstanding than credit."""
    state, config = segment.resume, segment.played.scenario.pipeline
    admitted = [(e[2], Task(e[3], e[4])) for e in segment.played.all_events if e[1] == EventKind.GROUP_ADMIT]
    told, new = admitted[: len(state.groups)], admitted[len(state.groups) :]
    assert told == [(group.group, group.task) for group in state.groups]
    again = [*state.in_flight, *(Task(*task) for task in state.source["again"])]
    assert [task for _, task in new[: len(again)]] == again[: len(new)]
    assert [number for number, _ in new] == list(range(state.next_group, state.next_group + len(new)))
    if config.admission is not AdmissionKind.LEAD:
        return
    trained, live, version = state.t * config.groups_per_step, set(), state.t
    for _, kind, entity, *_ in segment.played.all_events:
        if kind == EventKind.GROUP_ADMIT:
            live.add(entity)
            credit = (config.pipeline_depth + version + 1) * config.groups_per_step + config.overprovision_groups
            assert trained + len(live) <= credit
        elif kind in (EventKind.CONSUME, EventKind.DROP):
            live.remove(entity)
            trained += kind == EventKind.CONSUME
        elif kind == EventKind.PUBLISHED:
            version = entity


def saved_each_step(what):
    return what.model_copy(update={"pipeline": what.pipeline.with_changes(checkpoint_interval=1)})


@settings(properties, max_examples=30)
@given(what=scenarios(), seed=st.integers(0, 1000), cuts=st.data())
def test_cut_anywhere_and_resumed_each_task_is_used_once(what, seed, cuts):
    assume(what is not None)
    what = saved_each_step(what)
    steps = what.run.learner_steps
    segments, states = [], []
    resume = None
    for _ in range(cuts.draw(st.integers(1, 2))):
        first = resume.t if resume else 0
        if first == steps:
            break
        cut = cuts.draw(st.integers(first + 1, steps))
        segment = Segment(what, seed, resume, checks=False)
        resume = segment.states[cut - first - 1]
        assert resume.t == cut
        segments.append(segment)
        states.append(resume)
    last = Segment(what, seed, resume)
    assert last.played.pipeline.versions.t == steps
    starts_as_told(last)
    if last.states:
        segments.append(last)
        states.append(last.states[-1])
    exactly_once(what, segments, states)
    books_agree(segments, states)


@settings(properties, max_examples=25)
@given(what=scenarios(), seed=st.integers(0, 1000), after_s=st.floats(0.0, 60.0), ends=st.booleans())
def test_asked_to_stop_it_saves_and_what_follows_goes_on_from_there(what, seed, after_s, ends):
    assume(what is not None)
    what = saved_each_step(what)
    played = []

    async def stop(rt, scope):
        await rt.sleep(round(after_s * 1e9))
        played[0].request_stop("SIGTERM")

    def remember(pipeline):
        played.append(pipeline)

    first = Segment(what, seed, interrupt=stop, made=remember, ends=ends)
    state, report = first.states[-1], first.played.report
    stopped = report.stopped == "SIGTERM"
    assert state.t == report.versions[0]
    assert stopped or state.t == what.run.learner_steps
    last = Segment(what, seed, state, ends=ends)
    assert last.played.pipeline.versions.t == what.run.learner_steps
    segments, states = ([first, last], [state, last.states[-1]]) if last.states else ([first], [state])
    exactly_once(what, segments, states)
    books_agree(segments, states)


GRID = [(S, k, D) for S in range(4) for k in range(1, 4) for D in {S // 2, S}]


@pytest.mark.parametrize("stale", ["drop", "wait", "train"])
@pytest.mark.parametrize("admission", AdmissionKind)
def test_all_bounds_intervals_and_depths_that_are_accepted_go_on_from_the_middle_of_a_window(admission, stale):
    """A slow publish and quick steps: the resumed engines are ahead of the version that the window was opened for."""
    for S, k, D in GRID:
        knobs = {"max_staleness": S, "pipeline_depth": D, "steps_per_sync": k, "checkpoint_interval": 1}
        try:
            what = scenario(
                {**knobs, "admission": admission.value, "stale_policy": stale, "buffer_capacity": 2 * (S + k + 1)},
                world={"learner": {"train": {"base_s": 0.1}}, "weights": {"transfer": {"base_s": 30.0}}},
                random=True,
                steps=k + S + 3,
                max_sim_s=3000.0,
            )
        except ConfigError:
            continue
        states = Segment(what, 1, checks=False).states
        for state in states[:k]:
            resumed = Segment(what, 1, state, checks=False)
            assert resumed.played.summary.learner_steps == what.run.learner_steps - state.t
            if stale != "train":
                assert resumed.played.summary.lag_max <= S


def batches(segment):
    """Tasks of each step."""
    tasks, steps = {}, {}
    for _, kind, entity, *fields in segment.played.all_events:
        if kind == EventKind.GROUP_ADMIT:
            tasks[entity] = (fields[1], fields[0])
        elif kind == EventKind.CONSUME:
            steps.setdefault(fields[0], set()).add(tasks[entity])
    return steps


@pytest.mark.parametrize("cut", [1, 2, 5])
def test_the_synchronous_run_has_the_same_batches_as_if_it_had_not_been_cut(cut):
    what = scenario({"max_staleness": 0, "pipeline_depth": 0, "checkpoint_interval": 1}, random=True, steps=6)
    whole = Segment(what, 3)
    resumed = Segment(what, 3, whole.states[cut - 1])
    assert whole.states[cut - 1].in_flight == ()
    assert batches(resumed) == {step: tasks for step, tasks in batches(whole).items() if step > cut}


@pytest.mark.parametrize("interval", [1, 2])
def test_an_evaluation_that_was_due_or_under_way_is_run_again(interval):
    what = scenario({"checkpoint_interval": 1, "eval_interval": interval}, steps=4)
    for state in Segment(what, 1).states[:-1]:
        starts = [
            event for event in Segment(what, 1, state).played.of(EventKind.EPISODE_START) if event[3] >= EVALUATION_GROUPS
        ]
        at_once = bool(starts) and starts[0][0] == 0
        assert at_once is (state.evaluating or state.t % interval == 0)
        assert [event[3] for event in starts[:1] if event[3] != EVALUATION_GROUPS + state.evaluation_rounds] == []


def test_a_run_that_was_done_is_done_at_once():
    what = scenario({"checkpoint_interval": 1}, steps=3)
    resumed = Segment(what, 1, Segment(what, 1).states[-1])
    assert resumed.played.report.end_ns == 0
    assert resumed.states == []


def test_a_resume_is_refused_where_there_is_no_room_for_what_was_finished():
    knobs = {"checkpoint_interval": 1, "buffer_capacity": 8, "max_staleness": 3, "pipeline_depth": 3, "max_inflight": 16}
    what = scenario(knobs, world={"learner": {"train": {"base_s": 60.0}}}, steps=3)
    state = Segment(what, 1).states[0]
    held = len(state.buffered)
    small = scenario({"buffer_capacity": held - 1, "max_staleness": 0, "pipeline_depth": 0})
    with pytest.raises(ConfigError, match=f"holds {held} finished groups") as refusal:
        play(small, resume=state)
    assert refusal.value.field == "pipeline.buffer_capacity"


@pytest.mark.parametrize("failures", [2, 3])
def test_three_saves_in_a_row_that_could_not_be_written_end_the_run(failures):
    class Disk:
        """Tells of each save with the one after it; the first ones could not be written."""

        async def __call__(self, rt, work, /):
            before = work.entity - 1
            told = ((before, 0 if before <= failures else 1),) if before else ()
            return Outcome(completed=told, result=f"/full: version {before}: no space left")

    what = scenario({"checkpoint_interval": 1}, steps=6)
    if failures < 3:
        assert play(what, performers=lambda world: {Checkpoint: Disk()}).summary.learner_steps == 6
        return
    with pytest.raises(BaseExceptionGroup) as ended:
        play(what, performers=lambda world: {Checkpoint: Disk()})
    (failure,) = ended.value.exceptions
    assert "3 checkpoints in a row" in str(failure)
    assert "/full: version 3: no space left" in str(failure)
    assert failure.exit_code == 4


@pytest.mark.parametrize("after_s", [0.1, 3.0])
def test_a_stop_cuts_the_first_evaluation_short(after_s):
    what = scenario({"checkpoint_interval": 1, "eval_interval": 2}, steps=3)
    played = []

    async def stop(rt, scope):
        await rt.sleep(round(after_s * 1e9))
        played[0].request_stop("SIGTERM")
        played[0].request_stop("and again")

    first = Segment(what, 1, interrupt=stop, made=played.append, ends=True)
    assert (first.played.report.stopped, first.played.report.versions) == ("SIGTERM", (0, 0))
    assert first.played.report.end_ns < (after_s + 2) * 1e9
    assert first.states[-1].t == 0
    assert Segment(what, 1, first.states[-1], ends=True).played.report.versions == (3, 3)


# The state as plain data

numbers = st.integers(0, 1 << 40)
samples = st.integers(0, 5).flatmap(
    lambda n: st.builds(
        Sample,
        tokens=st.lists(st.integers(0, 1 << 20), min_size=n, max_size=n),
        trained=st.lists(st.booleans(), min_size=n, max_size=n),
        log_probs=st.lists(st.floats(-50.0, 0.0), min_size=n, max_size=n),
        versions=st.lists(st.integers(-1, 100), min_size=n, max_size=n),
        truncated=st.booleans(),
    )
)
tasks = st.builds(Task, numbers, numbers)
results = st.builds(
    EpisodeResult, numbers, st.sampled_from(Ended), numbers, numbers, numbers, numbers, numbers, st.floats(-1e6, 1e6),
    st.one_of(st.none(), samples),
)  # fmt: skip
groups = st.builds(Group, numbers, tasks, st.lists(results, max_size=3).map(tuple), *[numbers] * 5)
counts = st.dictionaries(st.sampled_from([fate.name.lower() for fate in Fate]), numbers)
pipeline_states = st.builds(
    PipelineState, t=numbers, p=numbers, next_group=numbers, source=st.dictionaries(st.text(max_size=3), numbers, max_size=2),
    in_flight=st.lists(tasks, max_size=3).map(tuple), buffered=st.lists(st.tuples(groups, numbers), max_size=2).map(tuple),
    taken=st.lists(groups, max_size=2).map(tuple), evaluation_rounds=numbers, evaluation_version=st.integers(-1, 9),
    evaluating=st.booleans(), books=st.builds(Books, numbers, numbers, counts, counts),
    notes=st.dictionaries(st.text(max_size=3), st.lists(st.floats(-1, 1), max_size=2), max_size=2),
)  # fmt: skip


@settings(properties, max_examples=60)
@given(state=pipeline_states)
def test_a_state_comes_back_from_a_file_as_it_was(state):
    assert through_json(state) == state


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": SCHEMA + 1}, "newer version"),
        ({"schema": None}, "no checkpoint of a pipeline"),
        ({"t": ..., "p": ...}, "damaged: KeyError: 't'"),
        ({"taken": [{"group": 1}]}, "damaged: KeyError"),
        ({"in_flight": [[1]]}, "damaged: ValueError"),
        ({"books": {"unknown": 1}}, "damaged: TypeError"),
    ],
)
def test_a_state_that_cannot_be_read_is_refused_with_the_file(change, said):
    plain, columns = to_plain(PipelineState(1, 1, 1, {}))
    plain = {key: value for key, value in (plain | change).items() if value is not ...}
    with pytest.raises(DataError, match=said) as refusal:
        from_plain(plain, columns, file="save/7/pipeline.json")
    assert str(refusal.value).startswith("save/7/pipeline.json")


def test_samples_that_are_cut_short_are_refused():
    sample = Sample([1, 2], [True, False], [-1.0, 0.0], [0, -1])
    group = Group(1, Task(0, 0), (EpisodeResult(1, Ended.DONE, 1, 1, 2, 0, 0, 1.0, sample),), 0, 0, 1, 2, 0)
    plain, columns = to_plain(PipelineState(1, 1, 2, {}, taken=(group,)))
    for broken in (
        {"tokens": [1]},
        {key: [] for key in columns},
    ):
        with pytest.raises(DataError, match="damaged"):
            from_plain(plain, columns | broken)


def test_only_samples_can_be_kept():
    group = Group(1, Task(0, 0), (EpisodeResult(1, Ended.DONE, 1, 1, 2, 0, 0, 1.0, "text"),), 0, 0, 1, 2, 0)
    with pytest.raises(LawError, match="not str"):
        to_plain(PipelineState(1, 1, 2, {}, taken=(group,)))


def test_books_that_are_gone_on_from_balance_and_name_what_is_lost():
    accounts = Accounts()
    accounts.resume(10, 100, {Fate.TRAINED: 4}, {Fate.TRAINED: 40}, {7: 11, 8: 9})
    assert (accounts.settled[Fate.LOST], accounts.tokens[Fate.LOST]) == (4, 40)
    accounts.check({7: "buffer", 8: "buffer"})
    accounts.settle(7, Fate.TRAINED)
    accounts.admit(9)
    accounts.check({8: "buffer", 9: "running"})
    assert accounts.tokens[Fate.TRAINED] == 51
    assert accounts.window_tokens[Fate.TRAINED] == 0
