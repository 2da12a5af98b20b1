"""Inference: continuous batching as an actor, one per replica.

Theory of operation
-------------------
A replica has slots and a KV cache. Its loop admits waiting requests into free slots, computes their prefill, runs one chunk
of decode steps for the whole batch, and hands back what ended in it. The only work is `Prefill` and `Decode`; a request ends
when the performer of `Decode` says so, at a chunk's end. Live that is the end-of-sequence token, simulated it is the replica's
progress reaching the request's target.

*Cost per request and per chunk, never per token and slot.* `_progress` counts decode steps since the start. A request that
entered at progress p and is still running has made `_progress - p` tokens. `_price` is the running sum of chip-nanoseconds per
token: a request's share of the chips is the difference of two readings. A chunk is split by token share, so a slot that ends
early pays for its own tokens only.

*KV.* `pipeline.policies.kv` says who is let in, and who is pushed out and comes in again with its whole context to prefill.
Requests wait in the order of (arrival, episode); who was pushed out waits in front, the last one first.

*Weights* are swapped at chunk boundaries, when the publisher asks (`Swap`). First the replica quiesces: it finishes what runs
and admits nobody, or takes running requests out so that they come in again with their whole context to prefill, or just
stops between two chunks. It says so, waits for the word to install (all replicas together, or its turn), installs, goes on.

A cancelled request leaves at the boundary: `generate` returns only then, so that its tokens are on the books of an episode
that is still open.
"""

from __future__ import annotations

from heapq import heapify, heappush
from typing import TYPE_CHECKING

from harness.core.accounts import Decoding
from harness.core.blame import INFERENCE_CAUSES, BlameMeter
from harness.core.errors import LawError
from harness.core.events import EventKind
from harness.core.lanes import State
from harness.core.primitives import WakeUp
from harness.core.work import Compile, Decode, Prefill, Publish
from pipeline.actors.requests import arrival
from pipeline.policies.sync import Quiesce

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from harness.core.accounts import Accounts
    from harness.core.lanes import Lane, SharedLane
    from harness.core.runtime import Event, Runtime
    from pipeline.actors.requests import Aside, Request, Swap
    from pipeline.policies.compiles import Compiles
    from pipeline.policies.kv import KvRoom
    from pipeline.policies.kv_prefix import PrefixCache


_GENERATE = State.GENERATE
_PREFILL = State.PREFILL
_REPREFILL = State.REPREFILL
_GEN_QUEUE = State.GEN_QUEUE


class Replica:
    """One inference engine."""

    def __init__(
        self,
        rt: Runtime,
        index: int,
        accounts: Accounts,
        *,
        loads: list[int],
        slots: int,
        kv: KvRoom,
        chunk_steps: int,
        chips: int,
        version: int = 0,
        lane: SharedLane | None = None,
        prefix: PrefixCache | None = None,
        compiles: Compiles | None = None,
    ) -> None:
        self.index = index
        self.version = version
        self.running: dict[int, Request] = {}
        self.lane: Lane = lane or rt.lane(f"replica/{index}", "inference", chips=chips)
        self.meter = BlameMeter(rt.lanes.role("rollout"), INFERENCE_CAUSES)
        self._rt = rt
        self._accounts = accounts
        self._decoding = accounts.decoding.setdefault(index, Decoding())
        self._loads = loads
        self._slots = slots
        self._kv = kv
        self.kv_tokens = kv.capacity
        self.prefix = prefix
        self._compiles = compiles
        self._prepares = kv.grows or compiles is not None  # whether there is anything to do before a chunk
        self.preemptions = 0
        self._chunk = chunk_steps
        self._chips = chips
        self._waiting: list[tuple[int, int, int, Request]] = []
        self._arrivals = 0
        self._tickets = 0
        self._progress = 0
        self._price = 0.0
        self._wake = WakeUp(rt)
        self._swap: Swap | None = None
        self._aside: Aside | None = None  # it has to let go of chips that it shares
        self._disturbed = False  # somebody has left, or the replica was lost
        self._down: Event | None = None  # while the replica is lost; set when its loop has noticed
        self._stopped = False
        self._step_began_ns = -1  # of the step that is running and not yet charged, -1 for none
        self._prefilling: Sequence[Request] = ()
        self._reprefilling = False

    # ── for callers ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def submit(self, request: Request) -> None:
        """Take a request in; `request.done` is set when it was served, or let go."""
        self._loads[self.index] += 1
        self._enqueue(request)

    def withdraw(self, request: Request) -> None:
        """Its caller was cancelled: let go of it at the next chunk boundary; at once where nothing is served any more."""
        if self._stopped:
            request.done.set()
            return
        request.left = self._disturbed = True
        self._wake.ring()

    def order(self, swap: Swap) -> None:
        """Have a version installed; one at a time."""
        if self._swap is not None:
            raise LawError(f"replica {self.index} already has a version to install")
        self._swap = swap
        self._wake.ring()

    def stand_aside(self, aside: Aside) -> None:
        """Let go of chips that are shared with the learner, until `aside.go`; never while a version is being installed."""
        if self._swap is not None or not (self._aside is None or self._aside.go.is_set()):
            raise LawError(f"replica {self.index} has another order to carry out before it lets go of its chips")
        self._aside = aside
        self._wake.ring()

    # ── the loop ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Serve for ever. When it is stopped, or fails, it lets go of every request, so that no caller waits in vain."""
        try:
            if self._down is None:  # one that is lost from the start compiles when it comes back
                await self.warm_up()
            await self._serve()
        finally:
            self._stopped = True
            for request in self.running.values():
                self._close(request, 0, 0.0)
                self._end(request)
            self.running.clear()
            for entry in self._waiting:
                self._end(entry[3])

    async def _serve(self) -> None:
        while True:
            if self._disturbed:
                await self._settle()
            if self._swap is not None and not (self.running and self._swap.quiesce is Quiesce.FINISH_REQUESTS):
                await self._swap_weights(self._swap)
            if self._aside is not None and not (self.running and self._aside.quiesce is Quiesce.FINISH_REQUESTS):
                await self._step_aside(self._aside)
                continue
            if self._waiting and len(self.running) < self._slots and self._swap is None and self._aside is None:
                fresh, resumed = self._admit()
                if resumed:
                    await self._prefill(resumed, _REPREFILL)
                    if self._down is not None:
                        continue
                if fresh:
                    await self._prefill(fresh, _PREFILL)
            if self.running:
                await self._decode()
            elif self._swap is None and self._aside is None and not self._waiting:
                await self._idle()

    async def _idle(self) -> None:
        rt = self._rt
        if self._down is not None:
            return
        self.lane.to(State.WAIT_TASK)
        self.meter.begin(rt.now())
        try:
            await self._wake.wait()
        finally:
            self._stir()

    def _stir(self) -> None:
        if self.meter.waiting:
            self.meter.end(self._rt.now())

    def _admit(self) -> tuple[list[Request], list[Request]]:
        """Let in what fits: requests that are new here, and those that were taken out before."""
        running, progress, price = self.running, self._progress, self._price
        fresh: list[Request] = []
        resumed: list[Request] = []
        for request in self._kv.admit(self._waiting, running, self._slots - len(running), progress):
            self._tickets = ticket = self._tickets + 1
            request.ticket = ticket
            request.entered = progress  # decoding waits for its prefill
            request.price = price
            running[ticket] = request
            request.lane.to(_GENERATE, request.episode)
            (resumed if request.resumed else fresh).append(request)
        if self.prefix is not None:
            self._look_up(self.prefix, fresh, resumed)
        return fresh, resumed

    def _look_up(self, prefix: PrefixCache, *admitted: list[Request]) -> None:
        """What is still there of their contexts needs no prefill; the room of others' goes."""
        for requests in admitted:
            for request in requests:
                context = request.kv_tokens
                request.new_tokens = context - prefix.take(request.episode, request.group, request.prompt_tokens, context)
        prefix.shrink(self._kv.room(self.running, self._progress))

    async def warm_up(self) -> None:
        """Compile what is compiled before a process serves."""
        if self._compiles is not None:
            await self._compile(self._compiles.start())

    async def _compile(self, bucket: int | None) -> None:
        if bucket is not None:
            self.lane.to(State.COMPILE, bucket)
            await self._rt.perform(Compile(self.index, bucket))

    async def _prefill(self, requests: list[Request], state: State) -> None:
        tokens = 0
        for request in requests:
            tokens += request.new_tokens
        if self._compiles is not None:
            await self._compile(self._compiles.prefill(tokens))
            if self._down is not None:
                return
        self.lane.to(state)
        self._prefilling, self._reprefilling = requests, state is _REPREFILL
        self._step_began_ns = self._rt.now()
        await self._rt.perform(Prefill(self.index, len(requests), tokens, (requests, self.running)))
        if self._step_began_ns < 0:  # the replica was lost meanwhile
            return
        self._charge_prefill(tokens)
        progress, price, version = self._progress, self._price, self.version
        for request in requests:
            request.entered = progress
            request.price = price
            if request.oldest < 0 or version < request.oldest:
                request.oldest = version

    async def _decode(self) -> None:
        rt, running, kv = self._rt, self.running, self._kv
        if self._prepares:
            await self._prepare()
            if not running:  # the replica was lost meanwhile
                return
        batch = len(running)
        if self.lane.state is not _GENERATE:
            self.lane.to(_GENERATE)
        self._step_began_ns = rt.now()
        outcome = await rt.perform(Decode(self.index, self._chunk, batch, kv.used, running))
        began_ns = self._step_began_ns
        if began_ns < 0:  # the replica was lost meanwhile
            return
        self._step_began_ns = -1
        steps = outcome.amount  # the performer may stop early, when everything has ended
        completed = outcome.completed
        made = slot_steps = batch * steps
        for _, own in completed:
            made -= steps - own
        spent_ns = rt.now() - began_ns
        decoding, held = self._decoding, kv.used
        decoding.spent_ns += spent_ns
        decoding.tokens += made
        decoding.slot_steps += slot_steps
        decoding.context_steps += steps * held + slot_steps * (steps - 1) // 2
        kv.used = held + made
        price = 0.0
        if made:
            price = spent_ns * self._chips / made
            self._price += price * steps
        else:  # answers of no token at all
            for request in running.values():
                request.account.work_ns += spent_ns * self._chips / batch
        self._progress += steps
        self._accounts.made_tokens += made
        if completed:
            self._loads[self.index] -= len(completed)
            for ticket, own in completed:
                request = running.pop(ticket)
                self._close(request, steps - own, price)
                if self.prefix is not None:
                    self.prefix.store(request.episode, request.kv_tokens)
                request.done.set()

    async def _prepare(self) -> None:
        """Make room for the next chunk, and compile for its batch."""
        if self._kv.grows:
            self._push_out()
            if self.prefix is not None:
                self.prefix.shrink(self._kv.room(self.running, self._progress))
        if self._compiles is not None:
            await self._compile(self._compiles.decode(len(self.running)))

    def _close(self, request: Request, spared_steps: int, price: float) -> None:
        """Book a request that leaves: its tokens and its share of the chips."""
        made = self._progress - request.entered - spared_steps
        account = request.account
        account.tokens += made
        account.work_ns += self._price - request.price - spared_steps * price
        request.tokens += made
        if self.version > request.newest:
            request.newest = self.version
        request.kv_tokens += made
        kv = self._kv
        kv.used -= request.kv_tokens
        kv.promised -= request.reserved_tokens

    def _end(self, request: Request) -> None:
        self._loads[self.index] -= 1
        request.done.set()

    async def _settle(self) -> None:
        """Let go of requests whose callers were cancelled, and stand still while the replica is lost."""
        self._disturbed = False
        self._drop_left()
        while self._down is not None:
            self._down.set()
            await self._wake.wait()

    def _drop_left(self) -> None:
        for request in [request for request in self.running.values() if request.left]:
            del self.running[request.ticket]
            self._close(request, 0, 0.0)
            self._end(request)
        for entry in self._waiting:
            if entry[3].left:
                self._end(entry[3])
        self._waiting = [entry for entry in self._waiting if not entry[3].left]
        heapify(self._waiting)

    async def _swap_weights(self, swap: Swap) -> None:
        rt = self._rt
        held = len(self.running)
        if swap.quiesce is Quiesce.ABORT_REQUESTS:
            self._take_out()
        swap.quiesced.set()
        for request in self.running.values():
            request.lane.to(State.SYNC_PAUSE, request.episode)
        if not swap.go.is_set():
            self.lane.to(State.SYNC_PAUSE, swap.version)
            await swap.go.wait()
            if self._swap is not swap:  # the replica was lost meanwhile
                return
        self.lane.to(State.SYNC_RECV, swap.version)
        await rt.perform(Publish(swap.version, self.index, swap.weights_bytes, payload=swap.payload))
        if self._swap is not swap:
            return
        for request in self.running.values():
            request.lane.to(_GENERATE, request.episode)
        self.version = swap.version
        if self.prefix is not None:
            self.prefix.swapped()
        rt.emit(EventKind.SYNC_INSTALL, swap.version, self.index, held)
        self._swap = None
        swap.done.set()

    async def _step_aside(self, aside: Aside) -> None:
        """Have no chips until they come back. Requests that are kept stand still; their KV cache goes and comes with them.

        In the other modes nothing of the cache comes back.
        """
        if aside.quiesce is Quiesce.ABORT_REQUESTS:
            self._take_out()
        if self.prefix is not None and aside.quiesce is not Quiesce.PAUSE:
            self.prefix.clear()
        aside.held = len(self.running)
        for request in self.running.values():
            request.lane.to(State.SWITCH, request.episode)
        self.lane.to(State.SWITCH)
        aside.quiesced.set()
        await aside.go.wait()
        if self._aside is aside:  # else the learner wants the chips again, in the same instant
            self._aside = None
        for request in self.running.values():
            request.lane.to(_GENERATE, request.episode)

    def _take_out(self) -> None:
        """Abort what runs; it comes in again with everything to prefill."""
        for request in list(self.running.values()):
            self._interrupt(request)
            self._enqueue(request)

    def _push_out(self) -> None:
        """Make room for the next chunk of the others."""
        running = self.running
        for request in self._kv.crowded_out(running, self._progress):
            self._interrupt(request)
            self.preemptions += 1
            heappush(self._waiting, (-self.preemptions, request.episode, 0, request))
            self._rt.emit(EventKind.PREEMPT, request.episode, self.index, request.kv_tokens, len(running))

    def _interrupt(self, request: Request) -> None:
        """Take a request out of those who run; when it comes in again there is everything to prefill."""
        del self.running[request.ticket]
        self._close(request, 0, 0.0)
        request.new_tokens = request.kv_tokens
        request.resumed = True
        request.lane.to(_GEN_QUEUE, request.episode)

    def _enqueue(self, request: Request) -> None:
        if request.reserved_tokens > self.kv_tokens:
            raise LawError(
                f"a request of episode {request.episode} needs {request.reserved_tokens} KV tokens; replica {self.index} has "
                f"{self.kv_tokens}"
            )
        self._arrivals += 1
        heappush(self._waiting, (self._rt.now(), request.episode, self._arrivals, request))
        if len(self._waiting) == 1:
            self._wake.ring()

    @property
    def tickets(self) -> int:
        """How many were given out."""
        return self._tickets

    def count_on(self, tickets: int) -> None:
        """Take the place of another actor of this replica, which gave out so many: tickets are unique in a run."""
        self._tickets = tickets

    # ── loss and return ─────────────────────────────────────────────────────────────────────────────────────────────────

    def lose(self, elsewhere: Callable[[Request], object]) -> None:
        """The chips are gone, now. `elsewhere` takes the requests, with everything to prefill.

        What was generated up to the last chunk's end is kept. The step that is cut off has made nothing, and its time is lost.
        """
        now, began = self._rt.now(), self._step_began_ns
        prefilling, self._prefilling, self._step_began_ns = self._prefilling, (), -1
        if began >= 0 and not (prefilling and self._reprefilling):
            self._accounts.lose_work((now - began) * self._chips)
        for request in self.running.values():
            self._close(request, 0, 0.0)
            request.resumed = request.resumed or request not in prefilling
        requests = [*self.running.values(), *(entry[3] for entry in sorted(self._waiting, key=arrival))]
        self.running.clear()
        self._waiting.clear()
        self._loads[self.index] = 0
        for request in requests:
            request.new_tokens = request.kv_tokens
            request.lane.to(_GEN_QUEUE, request.episode)
            if request.left:
                request.done.set()
        swap, self._swap = self._swap, None
        if swap is not None:  # nobody waits for it any more
            swap.let_go()
        self._stir()
        if self.prefix is not None:
            self.prefix.clear()
        self.lane.to(State.DOWN)
        self._down = self._rt.event()
        self._disturbed = True
        self._wake.ring()
        for request in requests:
            if not request.left:
                elsewhere(request)

    async def made_ready(self) -> None:
        """Wait until what ran when the replica was lost has run out."""
        assert self._down is not None
        await self._down.wait()

    async def install(self, version: int, weights_bytes: int, payload: Any) -> None:
        """Take a version while the replica is down."""
        self.lane.to(State.SYNC_RECV, version)
        await self._rt.perform(Publish(version, self.index, weights_bytes, payload=payload))
        self.version = version

    def rejoin(self) -> None:
        """Serve again."""
        self._down = None
        self._wake.ring()

    # ── the books at an instant ─────────────────────────────────────────────────────────────────────────────────────────

    def _charge_prefill(self, tokens: int) -> None:
        """Split the chip time of a prefill by new tokens. A repeated prefill is overhead and charged to nobody."""
        spent = (self._rt.now() - self._step_began_ns) * self._chips
        self._step_began_ns = -1
        requests, self._prefilling = self._prefilling, ()
        if self._reprefilling:
            return
        if not tokens:
            for request in requests:
                request.account.work_ns += spent / len(requests)
            return
        each = spent / tokens
        for request in requests:
            request.account.work_ns += request.new_tokens * each

    def balance(self) -> None:
        """Book what running requests have made up to now: before a window is marked, and at the end.

        A step that is running is split: its time so far belongs to those who are in it, its tokens come with its end.
        """
        now = self._rt.now()
        began = self._step_began_ns
        prefilling = self._prefilling
        if prefilling:
            self._charge_prefill(sum([request.new_tokens for request in prefilling]))
            self._prefilling = prefilling
            self._step_began_ns = now
        running = [request for request in self.running.values() if request not in prefilling]
        for request in running:
            made = self._progress - request.entered
            request.tokens += made
            request.account.tokens += made
            request.account.work_ns += self._price - request.price
            request.entered = self._progress
            request.price = self._price
            request.kv_tokens += made
        if began >= 0 and not prefilling and running:
            share = (now - began) * self._chips / len(running)
            for request in running:
                request.account.work_ns += share
            self._step_began_ns = now
