"""Work: the only way an actor spends time, and so the only seam between a live and a simulated run.

A work record says what is to be done in terms of *cost*: integer fields that are recorded and hashed. What it is done
*to* travels beside it in `payload`, which nobody records or compares: tensors live, a stand-in when simulated. The
performer answers with an `Outcome`.

Each kind declares what happens when the caller is cancelled meanwhile:

=============  ==========================================================================  =====================
cancellation   the caller                                                                  the worker
=============  ==========================================================================  =====================
`immediate`    returns at once                                                             free at once
`at_boundary`  returns when the step has run out; what it made is kept and accounted       free at that instant
`kill`         returns when the worker is gone, at the latest after `GRACE_NS`             free when it is gone
`abandon`      returns at once                                                             free when it really ends
=============  ==========================================================================  =====================
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, ClassVar, TypeVar, dataclass_transform

from harness.core.events import Event, EventKind

T = TypeVar("T")


class Cancellation(IntEnum):
    """What cancelling the caller of a piece of work does."""

    IMMEDIATE = 0
    AT_BOUNDARY = 1
    KILL = 2
    ABANDON = 3


class Status(IntEnum):
    """How a piece of work ended. A failure is data, not an exception."""

    OK = 0
    FAILED = 1  # the work itself failed (data failure: a retry would fail again)
    INFRA = 2  # what it ran on failed (infrastructure failure: a retry may succeed)
    TIME_LIMIT = 3  # it ended at a time limit of its own
    CANCELLED = 4  # the caller was cancelled


class WorkKind(IntEnum):
    """Kinds of work, in the order of the event log's encoding. Numbers never change; new kinds are appended."""

    PREFILL = 1
    DECODE = 2
    TOOL_CALL = 3
    ENV_RESET = 4
    ENV_CLOSE = 5
    REWARD = 6
    LOG_PROBS = 7
    TRAIN_STEP = 8
    PUBLISH = 9
    CHECKPOINT = 10
    COMPILE = 11
    RESTORE = 12
    EVALUATE = 13
    GENERATE = 14
    CONTROL = 15
    SWITCH = 16
    PROVISION = 17
    WATCH = 18
    ARRIVE = 19
    USER = 99


_WORK_START = EventKind.WORK_START
_PREFILL, _DECODE, _TOOL_CALL = WorkKind.PREFILL, WorkKind.DECODE, WorkKind.TOOL_CALL


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """A frozen record: frozen for the type checker, which is where it is enforced.

    At run time the class has slots, equality and a hash over its cost fields, but no guard against assignment: building a
    guarded dataclass costs three times as much, and records are built several times a turn.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)


@record
class Work:
    """Base of all work records. `entity` is what the work is for; each kind says which."""

    KIND: ClassVar[WorkKind] = WorkKind.USER
    CANCELLATION: ClassVar[Cancellation] = Cancellation.IMMEDIATE
    GRACE_NS: ClassVar[int] = 0

    entity: int

    def cost_fields(self) -> tuple[int, int, int]:
        """Up to three integers that determine the cost, in the order that the event log encodes."""
        return (0, 0, 0)

    def start_event(self, now_ns: int) -> Event:
        """Its `WORK_START` in the canonical log. Kinds that come by the million spell it out."""
        return (now_ns, _WORK_START, self.entity, self.KIND, *self.cost_fields(), 0)


@record
class Prefill(Work):
    """Compute the KV cache of newly admitted requests. Entity: the replica."""

    KIND: ClassVar[WorkKind] = WorkKind.PREFILL
    CANCELLATION: ClassVar[Cancellation] = Cancellation.AT_BOUNDARY

    requests: int
    tokens: int
    payload: Any = field(default=None, compare=False, repr=False)

    def cost_fields(self) -> tuple[int, int, int]:
        """Requests, tokens."""
        return (self.requests, self.tokens, 0)

    def start_event(self, now_ns: int) -> Event:
        """Its `WORK_START`."""
        return (now_ns, _WORK_START, self.entity, _PREFILL, self.requests, self.tokens, 0, 0)


@record
class Decode(Work):
    """Run `steps` decode steps of a batch. Entity: the replica. `kv_tokens` is the context held at the start."""

    KIND: ClassVar[WorkKind] = WorkKind.DECODE
    CANCELLATION: ClassVar[Cancellation] = Cancellation.AT_BOUNDARY

    steps: int
    batch: int
    kv_tokens: int
    payload: Any = field(default=None, compare=False, repr=False)

    def cost_fields(self) -> tuple[int, int, int]:
        """Steps, batch, KV tokens."""
        return (self.steps, self.batch, self.kv_tokens)

    def start_event(self, now_ns: int) -> Event:
        """Its `WORK_START`."""
        return (now_ns, _WORK_START, self.entity, _DECODE, self.steps, self.batch, self.kv_tokens, 0)


@record
class ToolCall(Work):
    """One tool call of an episode. Entity: the episode. `tool` indexes the workload's table of tools."""

    KIND: ClassVar[WorkKind] = WorkKind.TOOL_CALL
    CANCELLATION: ClassVar[Cancellation] = Cancellation.KILL
    GRACE_NS: ClassVar[int] = 5_000_000_000

    turn: int
    tool: int
    attempt: int
    payload: Any = field(default=None, compare=False, repr=False)

    def cost_fields(self) -> tuple[int, int, int]:
        """Turn, tool, attempt."""
        return (self.turn, self.tool, self.attempt)

    def start_event(self, now_ns: int) -> Event:
        """Its `WORK_START`."""
        return (now_ns, _WORK_START, self.entity, _TOOL_CALL, self.turn, self.tool, self.attempt, 0)


@record
class EnvReset(Work):
    """Start and reset an environment. Entity: the episode."""

    KIND: ClassVar[WorkKind] = WorkKind.ENV_RESET
    CANCELLATION: ClassVar[Cancellation] = Cancellation.KILL
    GRACE_NS: ClassVar[int] = 5_000_000_000

    attempt: int
    payload: Any = field(default=None, compare=False, repr=False)

    def cost_fields(self) -> tuple[int, int, int]:
        """Attempt."""
        return (self.attempt, 0, 0)


@record
class EnvClose(Work):
    """Tear an environment down. Entity: the episode. Abandoned when it outlasts its deadline: the sandbox stays taken."""

    KIND: ClassVar[WorkKind] = WorkKind.ENV_CLOSE
    CANCELLATION: ClassVar[Cancellation] = Cancellation.ABANDON

    payload: Any = field(default=None, compare=False, repr=False)


@record
class Reward(Work):
    """Score one episode. Entity: the episode. Runs on a thread, which cannot be killed."""

    KIND: ClassVar[WorkKind] = WorkKind.REWARD
    CANCELLATION: ClassVar[Cancellation] = Cancellation.ABANDON

    attempt: int
    tokens: int
    payload: Any = field(default=None, compare=False, repr=False)

    def cost_fields(self) -> tuple[int, int, int]:
        """Attempt, tokens."""
        return (self.attempt, self.tokens, 0)


@record
class LogProbs(Work):
    """Log-probabilities of a batch under the learner's weights. Entity: the step."""

    KIND: ClassVar[WorkKind] = WorkKind.LOG_PROBS
    CANCELLATION: ClassVar[Cancellation] = Cancellation.AT_BOUNDARY

    samples: int
    tokens: int
    payload: Any = field(default=None, compare=False, repr=False)

    def cost_fields(self) -> tuple[int, int, int]:
        """Samples, tokens."""
        return (self.samples, self.tokens, 0)


@record
class TrainStep(Work):
    """Forward and backward over some groups of a step; `last` applies the optimizer. Entity: the step."""

    KIND: ClassVar[WorkKind] = WorkKind.TRAIN_STEP
    CANCELLATION: ClassVar[Cancellation] = Cancellation.AT_BOUNDARY

    samples: int
    tokens: int
    last: int
    payload: Any = field(default=None, compare=False, repr=False)

    def cost_fields(self) -> tuple[int, int, int]:
        """Samples, tokens, whether the optimizer step is applied at the end."""
        return (self.samples, self.tokens, self.last)


@record
class Publish(Work):
    """Move one weight version to one replica and install it. Entity: the version."""

    KIND: ClassVar[WorkKind] = WorkKind.PUBLISH
    CANCELLATION: ClassVar[Cancellation] = Cancellation.AT_BOUNDARY

    replica: int
    weights_bytes: int
    payload: Any = field(default=None, compare=False, repr=False)

    def cost_fields(self) -> tuple[int, int, int]:
        """Replica, bytes."""
        return (self.replica, self.weights_bytes, 0)


@record
class Checkpoint(Work):
    """Save the learner's state. Entity: the version."""

    KIND: ClassVar[WorkKind] = WorkKind.CHECKPOINT
    CANCELLATION: ClassVar[Cancellation] = Cancellation.AT_BOUNDARY

    state_bytes: int
    payload: Any = field(default=None, compare=False, repr=False)

    def cost_fields(self) -> tuple[int, int, int]:
        """Bytes."""
        return (self.state_bytes, 0, 0)


@record
class Compile(Work):
    """Compile a computation for a shape. Entity: the replica; -1 for the learner."""

    KIND: ClassVar[WorkKind] = WorkKind.COMPILE
    CANCELLATION: ClassVar[Cancellation] = Cancellation.AT_BOUNDARY

    bucket: int
    payload: Any = field(default=None, compare=False, repr=False)

    def cost_fields(self) -> tuple[int, int, int]:
        """Bucket."""
        return (self.bucket, 0, 0)


@record
class Restore(Work):
    """Load a checkpoint. Entity: the version."""

    KIND: ClassVar[WorkKind] = WorkKind.RESTORE
    CANCELLATION: ClassVar[Cancellation] = Cancellation.AT_BOUNDARY

    state_bytes: int
    payload: Any = field(default=None, compare=False, repr=False)

    def cost_fields(self) -> tuple[int, int, int]:
        """Bytes."""
        return (self.state_bytes, 0, 0)


@record
class Evaluate(Work):
    """Host side of one evaluation round, beside its episodes. Entity: the version."""

    KIND: ClassVar[WorkKind] = WorkKind.EVALUATE
    CANCELLATION: ClassVar[Cancellation] = Cancellation.AT_BOUNDARY

    episodes: int
    payload: Any = field(default=None, compare=False, repr=False)

    def cost_fields(self) -> tuple[int, int, int]:
        """Episodes."""
        return (self.episodes, 0, 0)


@record
class Generate(Work):
    """Have an engine that schedules itself serve one request. Entity: the episode.

    It cannot be broken off by cancelling its caller: the owner orders the engine to abort it (`Control`), and then it ends
    within a step, as `CANCELLED`, with the tokens made until then in `Outcome.amount`. `Outcome.started_ns` is the instant from
    which it made tokens, -1 where it made none. `payload` is the request.
    """

    KIND: ClassVar[WorkKind] = WorkKind.GENERATE
    CANCELLATION: ClassVar[Cancellation] = Cancellation.AT_BOUNDARY

    replica: int
    prompt_tokens: int
    max_tokens: int
    payload: Any = field(default=None, compare=False, repr=False)

    def cost_fields(self) -> tuple[int, int, int]:
        """Replica, tokens of the whole prompt, cap on new tokens."""
        return (self.replica, self.prompt_tokens, self.max_tokens)


@record
class Switch(Work):
    """Chips change from one role to the other: one leaves them, the other comes on. Entity: the step it is for.

    `to_training` is 1 where the learner comes, 0 where the replicas come back.
    """

    KIND: ClassVar[WorkKind] = WorkKind.SWITCH
    CANCELLATION: ClassVar[Cancellation] = Cancellation.AT_BOUNDARY

    to_training: int
    payload: Any = field(default=None, compare=False, repr=False)

    def cost_fields(self) -> tuple[int, int, int]:
        """Direction."""
        return (self.to_training, 0, 0)


@record
class Watch(Work):
    """Wait until a slice of chips is lost. Entity: the slice, 0 the learner's and 1 + i that of replica i.

    `Outcome.amount` is the ordinal of the loss, counted by whoever takes the chips away.
    """

    KIND: ClassVar[WorkKind] = WorkKind.WATCH

    payload: Any = field(default=None, compare=False, repr=False)


@record
class Provision(Work):
    """Wait until the replacement of a lost slice is there. Entity: the slice. `loss` is the ordinal of the loss."""

    KIND: ClassVar[WorkKind] = WorkKind.PROVISION

    loss: int
    payload: Any = field(default=None, compare=False, repr=False)

    def cost_fields(self) -> tuple[int, int, int]:
        """Ordinal of the loss."""
        return (self.loss, 0, 0)


@record
class Arrive(Work):
    """Wait until the next task comes from outside. Entity: the task's ordinal, from 0, those that are turned away included."""

    KIND: ClassVar[WorkKind] = WorkKind.ARRIVE

    payload: Any = field(default=None, compare=False, repr=False)


class Order(IntEnum):
    """What an engine that schedules itself is told. Numbers never change; new ones are appended."""

    PAUSE = 0  # make no further step; keep what runs
    RESUME = 1
    ABORT = 2  # end one request with what it has


@record
class Control(Work):
    """An order to an engine that schedules itself; done when it is in force. Entity: the replica.

    `ticket` names the request of an `ABORT`, -1 for other orders; an order to abort what has ended is no failure.
    """

    KIND: ClassVar[WorkKind] = WorkKind.CONTROL
    CANCELLATION: ClassVar[Cancellation] = Cancellation.AT_BOUNDARY

    order: int
    ticket: int = -1
    payload: Any = field(default=None, compare=False, repr=False)

    def cost_fields(self) -> tuple[int, int, int]:
        """Order, ticket."""
        return (self.order, self.ticket, 0)


@dataclass(slots=True)
class Outcome:
    """What a performer answers. Not changed after it was returned.

    Attributes:
        status: how it ended.
        result: opaque: tokens, tool output, a stand-in.
        completed: what ended within this work, as (id, amount) pairs: requests and their tokens, for `Decode`.
        amount: how much was done, in the unit of the kind: tokens, bytes or items.
        started_ns: when a server began; the call's own start where there is no queue inside the performer.
        error: class of the failure, from a closed list; never a message with content.

    """

    status: Status = Status.OK
    result: Any = None
    completed: tuple[tuple[int, int], ...] = ()
    amount: int = 0
    started_ns: int = -1
    error: str = ""
