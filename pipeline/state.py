"""The pipeline's state as plain data: what a checkpoint keeps beside the learner's arrays.

Theory of operation. A checkpoint is taken when the learner has completed step t. At that instant every task that was ever
issued is in exactly one place:

    trained | dropped for a reason | in the buffer | in the learner's hands | in flight | to be issued again

The first two are over. Groups in the buffer are kept with their samples, and so are those that the learner had taken for a step
that it did not complete. A task in flight is kept by name: the resumed run issues it again, first of all and in the order of
the groups. So after any number of resumes each task is trained at most once, and none is left out. What the killed process did
after its last checkpoint never happened.

Two things are not kept. Weights older than t: engines of a resumed run start on version t, so p = t. And episodes in flight:
the tokens that were made for them are booked as lost.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from harness.core.errors import DataError, LawError
from pipeline.data import Ended, EpisodeResult, Group, Sample, Task

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

SCHEMA = 1
"""Version of the layout below. A checkpoint of a newer one is refused."""


@dataclass(frozen=True, slots=True)
class Books:
    """Counters of the whole run up to the checkpoint, resumed ones before it included.

    Attributes:
        admitted: episodes that were started.
        made_tokens: tokens generated.
        settled: episodes by the name of their fate.
        tokens: tokens by the name of the fate.

    """

    admitted: int = 0
    made_tokens: int = 0
    settled: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PipelineState:
    """Everything but the learner's arrays.

    Attributes:
        t: optimizer steps completed: the version of the weights that are saved with it.
        p: version that the engines held.
        next_group: number of the next group.
        source: where the task source stands; its own affair, JSON-able.
        in_flight: tasks whose groups were not finished, in the order of the groups.
        buffered: groups in the buffer, first to be consumed first, each with the learner's step when it came in.
        taken: groups in the learner's hands, for a step that was not completed.
        evaluation_rounds: rounds that were ordered.
        evaluation_version: version of the last of them; -1 before the first.
        evaluating: whether one was under way.
        books: counters of the run.
        notes: what the composition root wants to keep, JSON-able.

    """

    t: int
    p: int
    next_group: int
    source: Mapping[str, Any]
    in_flight: tuple[Task, ...] = ()
    buffered: tuple[tuple[Group, int], ...] = ()
    taken: tuple[Group, ...] = ()
    evaluation_rounds: int = 0
    evaluation_version: int = -1
    evaluating: bool = False
    books: Books = field(default_factory=Books)
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def groups(self) -> tuple[Group, ...]:
        """Every finished group that comes with it."""
        return (*self.taken, *(group for group, _ in self.buffered))


Columns = dict[str, list[Any]]
"""The samples of all groups, one list a field: rows of all samples behind each other, and the length of each."""


def to_plain(state: PipelineState) -> tuple[dict[str, Any], Columns]:
    """A JSON-able description, and the samples as columns.

    Raises:
        LawError: a sample is no `Sample`; nothing else can be kept.

    """
    plain = {
        "schema": SCHEMA,
        "t": state.t,
        "p": state.p,
        "next_group": state.next_group,
        "source": dict(state.source),
        "in_flight": [[task.index, task.dispatch] for task in state.in_flight],
        "buffered": [[_group_to_plain(group), entered] for group, entered in state.buffered],
        "taken": [_group_to_plain(group) for group in state.taken],
        "evaluation_rounds": state.evaluation_rounds,
        "evaluation_version": state.evaluation_version,
        "evaluating": state.evaluating,
        "books": asdict(state.books),
        "notes": dict(state.notes),
    }
    return plain, _samples_to_columns(member.payload for group in state.groups for member in group.members)


def from_plain(plain: Mapping[str, Any], columns: Mapping[str, Sequence[Any]], *, file: str = "") -> PipelineState:
    """The inverse of `to_plain`.

    Raises:
        DataError: of a newer schema, or not such a description; names `file` and what is wrong.

    """
    schema = plain.get("schema")
    if not isinstance(schema, int) or schema < 1:
        raise DataError("this is no checkpoint of a pipeline: it names no schema", file=file, field="schema", value=schema)
    if schema > SCHEMA:
        raise DataError(
            "the checkpoint was written by a newer version of this program",
            file=file,
            field="schema",
            value=schema,
            allowed=f"1 to {SCHEMA}",
            remedy="resume with the version that wrote it, or start a new run",
        )
    try:
        samples = _samples_from_columns(columns)
        taken = tuple([_group_from_plain(group, samples) for group in plain["taken"]])
        buffered = tuple([(_group_from_plain(group, samples), int(entered)) for group, entered in plain["buffered"]])
        return PipelineState(
            t=plain["t"],
            p=plain["p"],
            next_group=plain["next_group"],
            source=plain["source"],
            in_flight=tuple(Task(index, dispatch) for index, dispatch in plain["in_flight"]),
            buffered=buffered,
            taken=taken,
            evaluation_rounds=plain["evaluation_rounds"],
            evaluation_version=plain["evaluation_version"],
            evaluating=plain["evaluating"],
            books=Books(**plain["books"]),
            notes=plain["notes"],
        )
    except (KeyError, TypeError, ValueError, StopIteration) as failure:
        raise DataError(
            f"the checkpoint's description of the pipeline is damaged: {type(failure).__name__}: {failure}",
            file=file,
            remedy="resume from an earlier checkpoint",
        ) from failure


def _group_to_plain(group: Group) -> dict[str, Any]:
    return {
        "group": group.group,
        "task": [group.task.index, group.task.dispatch],
        "oldest": group.oldest,
        "newest": group.newest,
        "tokens": group.tokens,
        "sequence_tokens": group.sequence_tokens,
        "entered_version": group.entered_version,
        "members": [
            [m.episode, int(m.ended), m.turns, m.tokens, m.sequence_tokens, m.oldest, m.newest, m.reward, m.payload is not None]
            for m in group.members
        ],
    }


def _result_from_plain(row: Sequence[Any], samples: Iterator[Sample]) -> EpisodeResult:
    episode, ended, turns, tokens, sequence_tokens, oldest, newest, reward, has_sample = row
    sample = next(samples) if has_sample else None
    return EpisodeResult(episode, Ended(ended), turns, tokens, sequence_tokens, oldest, newest, reward, sample)


def _group_from_plain(plain: Mapping[str, Any], samples: Iterator[Sample]) -> Group:
    # A list first: samples that end too early must not end a generator in silence.
    members = tuple([_result_from_plain(row, samples) for row in plain["members"]])
    index, dispatch = plain["task"]
    return Group(
        plain["group"], Task(index, dispatch), members, plain["oldest"], plain["newest"], plain["tokens"],
        plain["sequence_tokens"], plain["entered_version"],
    )  # fmt: skip


def _samples_to_columns(payloads: Iterable[Any]) -> Columns:
    columns: Columns = {"lengths": [], "truncated": [], **{name: [] for name in _PER_TOKEN}}
    for sample in payloads:
        if sample is None:
            continue
        if not isinstance(sample, Sample):
            raise LawError(f"a checkpoint keeps samples of the type Sample, not {type(sample).__name__}")
        columns["lengths"].append(len(sample.tokens))
        columns["truncated"].append(sample.truncated)
        for name in _PER_TOKEN:
            columns[name].extend(getattr(sample, name))
    return columns


def _samples_from_columns(columns: Mapping[str, Sequence[Any]]) -> Iterator[Sample]:
    rows = {name: list(columns[name]) for name in _PER_TOKEN}
    lengths = columns["lengths"]
    if any(len(row) != sum(lengths) for row in rows.values()):
        raise ValueError("the samples are not as long as they say")
    begin = 0
    for length, truncated in zip(lengths, columns["truncated"], strict=True):
        end = begin + length
        tokens, trained, log_probs, versions = (rows[name][begin:end] for name in _PER_TOKEN)
        yield Sample(tokens, trained, log_probs, versions, bool(truncated))
        begin = end


_PER_TOKEN = ("tokens", "trained", "log_probs", "versions")
