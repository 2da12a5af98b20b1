"""Random small concurrent programs as data, and an interpreter that runs one on any engine.

A program is a block of nodes. A node is an operation, a number that says which duration, channel, event, pool, scope or kind of
work it uses, and the blocks inside it. Nothing loops, so every node ends at most once, and each end is an event of the
canonical log: (time, node, task, how it ended, a value).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from harness.core.errors import (
    BrokenChannelError,
    ClosedChannelError,
    DeadlineExceeded,
    DeadlockError,
    EndOfChannel,
    LawError,
    LivelockError,
    WouldBlock,
)
from harness.core.events import Event, EventKind, MemoryRecorder
from harness.core.primitives import Permits
from harness.core.seeds import Stream, derive_key
from harness.engines.conformance import AbandonedJob, BoundaryJob, Job, KilledJob, job_performers


class Boom(Exception):
    """What a program raises itself."""


LEAF_OPS = (
    "sleep", "sleep", "sleep", "checkpoint", "send", "receive", "send_nowait", "receive_nowait", "close_send",
    "close_receive", "set", "wait", "raise", "cancel", "move_deadline", "drop_shield", "raise_shield", "perform", "perform",
)  # fmt: skip
BLOCK_OPS = (
    "timeout", "timeout", "fail_after", "shield", "scope", "permit", "pooled", "catch", "swallow", "cleanup", "nursery",
    "nursery", "nursery", "background",
)  # fmt: skip

KINDS = (Job, BoundaryJob, KilledJob, AbandonedJob)
OUTCOMES: tuple[type[BaseException], ...] = (
    Boom, EndOfChannel, ClosedChannelError, BrokenChannelError, WouldBlock, DeadlineExceeded, LawError,
)  # fmt: skip
OK, CANCELLED, GROUP, OTHER = 0, 1, 2, 3


@dataclass(frozen=True)
class Node:
    """One statement."""

    op: str
    arg: int = 0
    blocks: tuple[tuple[Node, ...], ...] = ()


def random_program(seed: int) -> tuple[Node, ...]:
    """A program of a hundred nodes or so, from a seed and the same on every Python: quickly made, and not shrunk.

    Half of them do without what ends most programs early: failures and closed channels.
    """
    stream = Stream(derive_key(seed, "program"))
    below = stream.below
    calm = ("raise", "close_send", "close_receive") if below(2) else ()
    leaves = [op for op in LEAF_OPS if op not in calm]

    def block(depth: int) -> tuple[Node, ...]:
        return tuple([node(depth) for _ in range(1 + below(4))])

    def node(depth: int) -> Node:
        if depth == 0 or below(100) < 55:
            return Node(leaves[below(len(leaves))], below(12))
        op = BLOCK_OPS[below(len(BLOCK_OPS))]
        blocks = 2 + below(3) if op == "nursery" else 2
        return Node(op, below(12), tuple([block(depth - 1) for _ in range(blocks)]))

    return (Node("nursery", below(12), tuple([block(3) for _ in range(2 + below(3))])),)


@dataclass
class Observed:
    """What a run left behind."""

    log: list[Event]
    outcome: tuple[Any, ...]
    results: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)


class Interpreter:
    """Runs one program. `tied` draws durations from a few small numbers; else no two instants coincide."""

    def __init__(self, rt: Any, *, tied: bool) -> None:
        self.rt = rt
        self.tied = tied
        self.nodes = 0
        self.tasks = 0
        self.channels = [rt.channel(capacity) for capacity in (0, 1, 2)]
        self.events = [rt.event() for _ in range(3)]
        self.pools = [Permits(rt, capacity) for capacity in (1, 2)]
        self.scopes: dict[int, Any] = {}
        self.results: dict[int, list[tuple[int, int, int]]] = {}

    def duration(self, node: int, arg: int) -> int:
        """Nanoseconds that a node lasts."""
        return arg % 6 if self.tied else 1 + derive_key(0, "duration", node) % (1 << 40)

    def number(self, block: tuple[Node, ...]) -> list[tuple[int, Node, list[Any]]]:
        """Give every node a number, in the order of the text."""
        numbered = []
        for node in block:
            self.nodes += 1
            numbered.append((self.nodes, node, [self.number(inner) for inner in node.blocks]))
        return numbered

    async def task(self, block: list[Any]) -> None:
        """One task of the program."""
        self.tasks += 1
        number = self.tasks
        self.results[number] = []
        await self.block(number, block)

    async def block(self, task: int, block: list[Any]) -> None:
        """One statement after the other, each end logged."""
        for number, node, blocks in block:
            code, value = OK, 0
            try:
                value = await getattr(self, f"do_{node.op}")(task, number, node.arg, blocks) or 0
            except BaseException as error:
                code, value = self.code(error), 0
                raise
            finally:
                self.rt.emit(EventKind.USER, number, task, code, value)
                self.results[task].append((number, code, value))

    def code(self, error: BaseException) -> int:
        """How a node ended, as a number."""
        if isinstance(error, self.rt.cancelled):
            return CANCELLED
        if isinstance(error, BaseExceptionGroup):
            return GROUP + 100 * (1 + sum(self.code(part) for part in error.exceptions))
        return next((10 + index for index, kind in enumerate(OUTCOMES) if isinstance(error, kind)), OTHER)

    # ── leaves ──

    async def do_sleep(self, task, n, arg, blocks):
        await self.rt.sleep(self.duration(n, arg))

    async def do_checkpoint(self, task, n, arg, blocks):
        await self.rt.checkpoint()

    async def do_send(self, task, n, arg, blocks):
        await self.channels[arg % 3][0].send(n)

    async def do_receive(self, task, n, arg, blocks):
        return await self.channels[arg % 3][1].receive()

    async def do_send_nowait(self, task, n, arg, blocks):
        try:
            self.channels[arg % 3][0].send_nowait(n)
        except WouldBlock:
            return -1

    async def do_receive_nowait(self, task, n, arg, blocks):
        try:
            return self.channels[arg % 3][1].receive_nowait()
        except WouldBlock:
            return -1

    async def do_close_send(self, task, n, arg, blocks):
        self.channels[arg % 3][0].close()

    async def do_close_receive(self, task, n, arg, blocks):
        self.channels[arg % 3][1].close()

    async def do_set(self, task, n, arg, blocks):
        self.events[arg % 3].set()

    async def do_wait(self, task, n, arg, blocks):
        await self.events[arg % 3].wait()

    async def do_raise(self, task, n, arg, blocks):
        raise Boom(n)

    async def do_cancel(self, task, n, arg, blocks):
        if arg % 3 in self.scopes:
            self.scopes[arg % 3].cancel()

    async def do_move_deadline(self, task, n, arg, blocks):
        if arg % 3 in self.scopes:
            self.scopes[arg % 3].deadline_ns = None if arg > 8 else self.rt.now() + self.duration(n, arg)

    async def do_drop_shield(self, task, n, arg, blocks):
        if arg % 3 in self.scopes:
            self.scopes[arg % 3].shield = False

    async def do_raise_shield(self, task, n, arg, blocks):
        if arg % 3 in self.scopes:
            self.scopes[arg % 3].shield = True

    async def do_perform(self, task, n, arg, blocks):
        return await self.perform(n, arg, None)

    async def perform(self, n, arg, permit):
        duration_ns = self.duration(n, arg)
        return (await self.rt.perform(KINDS[arg % 4](n, duration_ns, duration_ns // 2 + 1), permit=permit)).amount

    # ── blocks ──

    async def do_timeout(self, task, n, arg, blocks):
        with self.rt.move_on_after(self.duration(n, arg), shield=arg > 9) as scope:
            await self.block(task, blocks[0])
        return 1 + scope.cancelled_caught

    async def do_fail_after(self, task, n, arg, blocks):
        with self.rt.fail_after(self.duration(n, arg)):
            await self.block(task, blocks[0])

    async def do_shield(self, task, n, arg, blocks):
        with self.rt.shield() if arg % 2 else self.rt.cancel_scope(shield=True):
            await self.block(task, blocks[0])

    async def do_scope(self, task, n, arg, blocks):
        with self.rt.cancel_scope() as scope:
            self.scopes[arg % 3] = scope
            await self.block(task, blocks[0])
        return 1 + scope.cancelled_caught + 2 * scope.cancel_called

    async def do_permit(self, task, n, arg, blocks):
        pool = self.pools[arg % 2]
        await pool.acquire(arg)
        try:
            await self.block(task, blocks[0])
        finally:
            pool.release()

    async def do_pooled(self, task, n, arg, blocks):
        pool = self.pools[arg % 2]
        await pool.acquire(arg)
        amount = await self.perform(n, arg, pool)
        await self.block(task, blocks[0])
        return amount

    async def do_catch(self, task, n, arg, blocks):
        try:
            await self.block(task, blocks[0])
        except Exception as error:
            return self.code(error)

    async def do_swallow(self, task, n, arg, blocks):
        try:
            await self.block(task, blocks[0])
        except self.rt.cancelled:
            return CANCELLED

    async def do_cleanup(self, task, n, arg, blocks):
        try:
            await self.block(task, blocks[0])
        finally:
            with self.rt.cancel_scope() if arg % 2 else self.rt.shield():
                await self.block(task, blocks[-1])

    async def do_nursery(self, task, n, arg, blocks):
        async with self.rt.nursery() as nursery:
            if arg < 3:
                self.scopes[arg] = nursery.cancel_scope
            for block in blocks[1:]:
                nursery.start_soon(self.task, block)
            await self.block(task, blocks[0])
        return 1 + nursery.cancel_scope.cancelled_caught

    async def do_background(self, task, n, arg, blocks):
        self.rt.background(self.task, blocks[0])


def observe(run: Any, program: tuple[Node, ...], *, tied: bool, **options: Any) -> Observed:
    """Run a program on an engine and say all that can be seen."""
    recorder = MemoryRecorder()
    seen: list[Interpreter] = []

    async def main(rt: Any) -> int:
        interpreter = Interpreter(rt, tied=tied)
        seen.append(interpreter)
        await interpreter.task(interpreter.number(program))
        return rt.now()

    try:
        outcome: tuple[Any, ...] = ("returned", run(main, performers=job_performers(), recorder=recorder, **options))
    except (DeadlockError, LivelockError) as error:
        outcome = (type(error).__name__, error.at_ns)
    except BaseException as error:
        outcome = tuple(_leaves(error))
    return Observed(recorder.events, outcome, seen[0].results)


def _leaves(error: BaseException) -> list[str]:
    if isinstance(error, BaseExceptionGroup):
        return ["group", *sorted(leaf for part in error.exceptions for leaf in _leaves(part))]
    return [f"{type(error).__name__}{error.args!r}"]
