"""Performers of prefill, decode and weight installation on our own engines, for all replicas of a pipeline.

The actor decides who runs; this keeps the slots. A slot belongs to a ticket, and is free again once the ticket has left the
actor's `running`, whatever the reason. All device work of a call goes to the dispatcher as one decision of plain data; what
comes back is written to each request's `Generation`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import trio

from harness.core.errors import LawError
from harness.core.work import Decode, Outcome, Prefill, Publish
from pipeline.numerics.dispatch import Decision
from pipeline.numerics.sampling import request_key
from pipeline.performers.device import on_device

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.core.perform import Performers
    from harness.core.runtime import Runtime
    from pipeline.actors.requests import Request
    from pipeline.data import Generation
    from pipeline.numerics.dispatch import Dispatcher
    from pipeline.numerics.engine import Chunk

_SLOT, _LENGTH, _LAST, _NUMBER, _REMAINING, _KEY, _TEMPERATURE, _FIELDS = 0, 1, 2, 3, 4, 5, 7, 8  # engine.Rows


class _Seats:
    """Slots of one replica: who sits where, and the rows of its engine's table."""

    def __init__(self, slots: int, version: int) -> None:
        self.version = version
        self.slot_of: dict[int, int] = {}
        self.free = list(range(slots - 1, -1, -1))
        self.table = np.zeros((_FIELDS, slots), np.int32)
        self.table[_SLOT] = np.arange(slots)

    def release(self, running: Mapping[int, Request]) -> None:
        """Free the slots of those who have left."""
        for ticket in [ticket for ticket in self.slot_of if ticket not in running]:
            self.free.append(self.slot_of.pop(ticket))

    def seat(self, ticket: int, row: Sequence[int]) -> int:
        """Give a slot to a request and note its row."""
        if not self.free:
            raise LawError(f"request {ticket} was admitted to a replica without a free slot ({self.table.shape[1]} in all)")
        slot = self.slot_of[ticket] = self.free.pop()
        self.table[1:, slot] = row
        return slot


class InferencePerformer:
    """Prefill, decode and installation of weights.

    Args:
        dispatcher: runs `pipeline.numerics.engine.programs`.
        replicas: engines.
        slots: of each.
        max_context_tokens: of a request.
        seed: of the run; keys the sampling.
        start_id: token that stands before the answer to an empty prompt.
        version: of the weights that the engines begin with.

    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        replicas: int,
        slots: int,
        max_context_tokens: int,
        seed: int,
        start_id: int = 0,
        version: int = 0,
    ) -> None:
        self._dispatcher = dispatcher
        self._seats = [_Seats(slots, version) for _ in range(replicas)]
        self._max_context = max_context_tokens
        self._seed = seed
        self._start_id = start_id
        self._waiters = trio.CapacityLimiter(replicas)  # of its own: hung environments must not take these threads

    def performers(self) -> Performers:
        """By kind of work."""
        return {Prefill: self.prefill, Decode: self.decode, Publish: self.publish}

    async def prefill(self, rt: Runtime, work: Prefill, /) -> Outcome:
        """Seat new requests and compute the KV of their contexts, without the last token of each."""
        requests, running = work.payload
        seats = self._seats[work.entity]
        seats.release(running)
        slots, contexts = [], []
        for request in requests:
            context = self._context(request.payload)
            slots.append(seats.seat(request.ticket, self._row(request.payload, context)))
            contexts.append(context[:-1])
        if any(contexts):
            await self._finished("engine.prefill", replica=work.entity, slots=slots, contexts=contexts)
        return Outcome(amount=sum(map(len, contexts)))

    async def decode(self, rt: Runtime, work: Decode, /) -> Outcome:
        """Run a chunk; hand out its tokens and say who has ended."""
        running: Mapping[int, Request] = work.payload
        seats = self._seats[work.entity]
        slots = [seats.slot_of[ticket] for ticket in running]
        chunk: Chunk = await self._finished("engine.decode", replica=work.entity, rows=seats.table[:, slots], steps=work.steps)
        made = chunk.made.tolist()
        completed = []
        tokens, log_probs = chunk.tokens.T.tolist(), chunk.log_probs.T.tolist()
        last = []
        for index, (ticket, request) in enumerate(running.items()):
            own, generation = made[index], request.payload
            generation.tokens += tokens[index][:own]
            generation.log_probs += log_probs[index][:own]
            generation.versions += [seats.version] * own
            last.append(tokens[index][own - 1] if own else 0)
            if chunk.ended[index] or len(generation.tokens) >= generation.max_tokens:
                generation.finished = bool(chunk.ended[index])
                request.result = generation
                completed.append((ticket, own))
        seats.table[_LENGTH, slots] += chunk.made
        seats.table[_NUMBER, slots] += chunk.made
        seats.table[_REMAINING, slots] -= chunk.made
        seats.table[_LAST, slots] = last
        return Outcome(completed=tuple(completed), amount=chunk.steps)

    async def publish(self, rt: Runtime, work: Publish, /) -> Outcome:
        """Have one replica's engine take a version from the store."""
        arguments = {"replica": work.replica, "version": work.entity}
        await on_device(self._dispatcher, Decision("engine.install", arguments))
        self._seats[work.replica].version = work.entity
        return Outcome(amount=work.weights_bytes)

    async def _finished(self, program: str, **arguments: Any) -> Any:
        """Hand a decision over, and wait for the devices where neither the dispatcher nor the event loop stands still."""
        pending = await on_device(self._dispatcher, Decision(program, arguments))
        return await trio.to_thread.run_sync(pending.result, limiter=self._waiters)

    def _context(self, generation: Generation) -> list[int]:
        """What has to be in front of the next token."""
        context = (generation.prompt or [self._start_id]) + generation.tokens
        longest = len(context) + generation.max_tokens - len(generation.tokens)
        if longest > self._max_context:
            raise LawError(
                f"a request may come to {longest} tokens, prompt and answer; the engine's cache holds {self._max_context} "
                "(live.sampling.max_context_tokens)"
            )
        return context

    def _row(self, generation: Generation, context: list[int]) -> list[int]:
        """Its row of the table, without the slot."""
        made = len(generation.tokens)
        key = request_key(self._seed, generation.key).view(np.int32).tolist()
        temperature = int(np.float32(generation.temperature).view(np.int32))
        return [len(context) - 1, context[-1], made, generation.max_tokens - made, *key, temperature]
