"""External engines: a replica that schedules itself, and what the pipeline has to know of it.

Theory of operation
-------------------
A server (vLLM, SGLang, or the model of one) has its own queue, slots and KV cache. The actor hands it each request as one
`Generate` and learns of it again when it ends. It has the interface of `pipeline.actors.inference.Replica`, so that engines,
publisher and pipeline cannot tell which they have. What differs is what can be seen.

*Chips.* Which request the server computes at an instant is not seen. While any is in flight the replica generates, and its
chips are split equally among those in flight. `_price` is the running integral of chips ÷ requests in flight, so that a
request's share is the difference of two readings. The parts add up to the lane's time in `GENERATE`. A repeated prefill is in
them, too.

*Tokens* are booked when a request ends, and at `balance` as far as its performer knows them (`Request.progress`).

*Versions.* `Outcome.started_ns` says when the server began; the version in force then is that of the request's oldest token.

*Weights.* Four modes, as in `pipeline.policies.sync`: nothing new is sent, and then `drain` waits for what is in flight;
`abort_resume` aborts it, and sends it again behind the new weights with everything to prefill; `keep` has the server pause, and
resume with what it holds. The update itself is the same `Publish` as everywhere.

*Loss.* What is in flight on a replica that is lost is aborted, and goes to the others with what it has by then, when the abort
is in force; the chips are down from the instant of the loss on.

A request whose caller is cancelled is aborted; what it made until then is booked before `done` is set. Nothing else ends a
`Generate` early: its task is shielded, and the replica aborts all of them when it is stopped.
"""

from __future__ import annotations

from bisect import bisect_right
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from harness.core.blame import INFERENCE_CAUSES, BlameMeter
from harness.core.errors import LawError
from harness.core.events import EventKind
from harness.core.lanes import State
from harness.core.primitives import WakeUp
from harness.core.work import Compile, Control, Generate, Order, Outcome, Publish, Status
from pipeline.actors.requests import arrival
from pipeline.policies.sync import Quiesce

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from harness.core.accounts import Accounts
    from harness.core.lanes import Lane, SharedLane
    from harness.core.runtime import Event, Nursery, Runtime
    from pipeline.actors.requests import Aside, Request, Swap
    from pipeline.policies.compiles import Compiles


_NOTHING = Outcome(status=Status.CANCELLED)


class ExternalReplica:
    """One server."""

    def __init__(
        self,
        rt: Runtime,
        index: int,
        accounts: Accounts,
        *,
        loads: list[int],
        kv_tokens: int,
        chips: int,
        version: int = 0,
        compiles: Compiles | None = None,
        lane: SharedLane | None = None,
    ) -> None:
        self.index = index
        self.version = version
        self.running: dict[int, Request] = {}
        self.lane: Lane = lane or rt.lane(f"replica/{index}", "inference", chips=chips)
        self.meter = BlameMeter(rt.lanes.role("rollout"), INFERENCE_CAUSES)
        self.kv_tokens = kv_tokens
        self._rt = rt
        self._accounts = accounts
        self._loads = loads
        self._compiles = compiles
        self._chips = chips
        self._held: list[tuple[int, int, int, Request]] = []  # not sent: a swap is under way, or it does not run yet
        self._arrivals = 0
        self._tickets = 0
        self._price = 0.0
        self._since_ns = 0  # `_price` is up to date until here
        self._installed_ns: list[int] = []
        self._versions = [version]
        self._wake = WakeUp(rt)
        self._swap: Swap | None = None
        self._aside: Aside | None = None  # it has to let go of chips that it shares
        self._taking_out = False
        self._elsewhere: Callable[[Request], object] | None = None  # while the replica is lost: takes its requests
        self._empty: Event | None = None
        self._nursery: Nursery | None = None
        self._stopped = False

    # ── for callers ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def submit(self, request: Request) -> None:
        """Take a request in; `request.done` is set when it was served, failed, or was let go."""
        if request.reserved_tokens > self.kv_tokens:
            raise LawError(
                f"a request of episode {request.episode} needs {request.reserved_tokens} KV tokens; replica {self.index} has "
                f"{self.kv_tokens}"
            )
        self._loads[self.index] += 1
        self._hold(request)
        self._release()

    def withdraw(self, request: Request) -> None:
        """Its caller was cancelled: have it aborted; what it made is booked before `done` is set."""
        request.left = True
        if self.running.get(request.ticket) is request:
            if not self._stopped:  # else it is being aborted
                assert self._nursery is not None
                self._nursery.start_soon(self._abort, request, name=f"abort {request.episode}")
            return
        for entry in self._held:
            if entry[3] is request:
                self._held.remove(entry)
                heapify(self._held)
                self._end(request)
                return
        request.done.set()

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

    def balance(self) -> None:
        """Book what is known of the requests in flight: before a window is marked, and at the end."""
        self._settle()
        for request in self.running.values():
            request.account.work_ns += self._price - request.price
            request.price = self._price
            if request.progress is not None:
                self._book(request, request.progress())

    # ── the loop ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Serve for ever. When it is stopped, or fails, it aborts what is in flight and lets go of every request."""
        rt = self._rt
        try:
            async with rt.nursery() as nursery:
                if self._elsewhere is None:
                    await self.warm_up()
                self._nursery = nursery
                if self._elsewhere is None:  # else it is lost, and comes back by `rejoin`
                    self._rest()
                    self._release()
                try:
                    while True:
                        await self._wake.wait()
                        if self._swap is not None:
                            await self._swap_weights(self._swap)
                        if self._aside is not None:
                            await self._step_aside(self._aside)
                finally:
                    self._stopped = True
                    with rt.shield():
                        await self._abort_all()
        finally:
            self._stopped = True
            self._stir()
            for entry in self._held:
                self._end(entry[3])
            self._held.clear()

    async def _swap_weights(self, swap: Swap) -> None:
        rt, mode = self._rt, swap.quiesce
        if mode is Quiesce.FINISH_REQUESTS:
            await self._emptied()
            if self._swap is not swap:  # the replica was lost meanwhile
                return
        held = len(self.running)
        if mode is Quiesce.ABORT_REQUESTS:
            await self._take_out()
        paused = bool(self.running)
        if paused:
            await rt.perform(Control(self.index, Order.PAUSE))
        if self._swap is swap:
            await self._install_when_told(swap)
        if paused:
            await rt.perform(Control(self.index, Order.RESUME))
        if self._swap is swap:
            self._serve_with(swap, held)

    async def _step_aside(self, aside: Aside) -> None:
        """Have no chips until they come back. A server that keeps requests is paused; their KV cache goes and comes."""
        rt = self._rt
        if aside.quiesce is Quiesce.FINISH_REQUESTS:
            await self._emptied()
        if aside.quiesce is Quiesce.ABORT_REQUESTS:
            await self._take_out()
        paused = bool(self.running)
        if paused:
            await rt.perform(Control(self.index, Order.PAUSE))
        self._settle()
        self._stir()
        aside.held = len(self.running)
        for request in self.running.values():
            request.lane.to(State.SWITCH, request.episode)
        self.lane.to(State.SWITCH)
        aside.quiesced.set()
        await aside.go.wait()
        if paused:
            await rt.perform(Control(self.index, Order.RESUME))
        if self._aside is aside:  # else the learner wants the chips again, in the same instant
            self._aside = None
        self._go_on()

    async def _take_out(self) -> None:
        """Abort what is in flight; it is sent again later, with everything to prefill."""
        self._taking_out = True
        await self._abort_all()
        await self._emptied()
        self._taking_out = False

    async def _install_when_told(self, swap: Swap) -> None:
        self._settle()
        swap.quiesced.set()
        self._stir()
        for request in self.running.values():
            request.lane.to(State.SYNC_PAUSE, request.episode)
        if not swap.go.is_set():
            self.lane.to(State.SYNC_PAUSE, swap.version)
            await swap.go.wait()
        if self._swap is swap:
            self.lane.to(State.SYNC_RECV, swap.version)
            await self._rt.perform(Publish(swap.version, self.index, swap.weights_bytes, payload=swap.payload))

    def _serve_with(self, swap: Swap, held: int) -> None:
        self._note_version(swap.version)
        self._rt.emit(EventKind.SYNC_INSTALL, swap.version, self.index, held)
        self._swap = None
        swap.done.set()
        self._go_on()

    def _go_on(self) -> None:
        """Compute again what is in flight, and send what waits."""
        self._since_ns = self._rt.now()
        for request in self.running.values():
            request.lane.to(State.GENERATE, request.episode)
        if self.running:
            self.lane.to(State.GENERATE)
        else:
            self._rest()
        self._release()

    def _note_version(self, version: int) -> None:
        self._installed_ns.append(self._rt.now())
        self._versions.append(version)
        self.version = version

    async def _emptied(self) -> None:
        """Wait until nothing is in flight."""
        while self.running:
            if self._empty is None:
                self._empty = self._rt.event()
            await self._empty.wait()

    async def _abort_all(self) -> None:
        requests: Sequence[Request] = tuple(self.running.values())
        async with self._rt.nursery() as nursery:
            for request in requests:
                nursery.start_soon(self._abort, request, name=f"abort {request.episode}")

    async def _abort(self, request: Request) -> None:
        await self._rt.perform(Control(self.index, Order.ABORT, request.ticket))

    @property
    def tickets(self) -> int:
        """How many were given out."""
        return self._tickets

    def count_on(self, tickets: int) -> None:
        """Take the place of another actor of this replica, which gave out so many: tickets are unique in a run."""
        self._tickets = tickets

    async def warm_up(self) -> None:
        """Compile what is compiled before a server serves; what it compiles later is its own affair."""
        if self._compiles is not None:
            bucket = self._compiles.start()
            self.lane.to(State.COMPILE, bucket)
            await self._rt.perform(Compile(self.index, bucket))

    # ── loss and return ─────────────────────────────────────────────────────────────────────────────────────────────────

    def lose(self, elsewhere: Callable[[Request], object]) -> None:
        """The chips are gone, now: `elsewhere` takes what waits at once, and what is in flight when its abort is in force."""
        self._settle()
        self._stir()
        self.lane.to(State.DOWN)
        self._elsewhere = elsewhere
        swap, self._swap = self._swap, None
        if swap is not None:  # nobody waits for it any more
            swap.let_go()
        held, self._held = sorted(self._held, key=arrival), []
        for entry in held:
            self._hand_over(entry[3], elsewhere)
        for request in self.running.values():
            assert self._nursery is not None
            request.lane.to(State.GEN_QUEUE, request.episode)
            self._nursery.start_soon(self._abort, request, name=f"abort {request.episode}")

    def _hand_over(self, request: Request, elsewhere: Callable[[Request], object]) -> None:
        self._loads[self.index] -= 1
        request.new_tokens = request.kv_tokens
        elsewhere(request)

    async def made_ready(self) -> None:
        """Wait until nothing of what was in flight when the replica was lost is left."""
        await self._emptied()

    async def install(self, version: int, weights_bytes: int, payload: Any) -> None:
        """Take a version while the replica is down."""
        self.lane.to(State.SYNC_RECV, version)
        await self._rt.perform(Publish(version, self.index, weights_bytes, payload=payload))
        self._note_version(version)

    def rejoin(self) -> None:
        """Serve again."""
        self._elsewhere = None
        self._settle()
        self._rest()

    # ── one request ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _hold(self, request: Request) -> None:
        self._arrivals += 1
        heappush(self._held, (self._rt.now(), request.episode, self._arrivals, request))

    def _release(self) -> None:
        """Send what waits, in the order of (arrival, episode), unless nothing may be sent now."""
        while self._held and self._nursery is not None and not (self._swap or self._aside or self._stopped):
            self._send(self._nursery, heappop(self._held)[3])

    def _send(self, nursery: Nursery, request: Request) -> None:
        self._settle()
        self._tickets = ticket = self._tickets + 1
        request.ticket = ticket
        request.entered = 0  # tokens of this sending that are booked
        request.price = self._price
        request.progress = None
        if not self.running:
            self._stir()
            self.lane.to(State.GENERATE)
        self.running[ticket] = request
        request.lane.to(State.GENERATE, request.episode)
        nursery.start_soon(self._serve, request, name=f"generate {request.episode}")

    async def _serve(self, request: Request) -> None:
        outcome, sent_version = _NOTHING, self.version
        cap = request.reserved_tokens - request.kv_tokens
        try:
            if not self._stopped and not request.left:
                with self._rt.shield():
                    outcome = await self._rt.perform(Generate(request.episode, self.index, request.kv_tokens, cap, request))
        finally:
            self._close(request, outcome, sent_version)
        unasked = outcome.status is Status.CANCELLED and not request.left and not self._stopped
        if unasked and self._elsewhere is not None:
            request.resumed = True
            self._hand_over(request, self._elsewhere)
        elif unasked and self._taking_out:
            request.new_tokens = request.kv_tokens
            request.resumed = True
            request.lane.to(State.GEN_QUEUE, request.episode)
            self._hold(request)
        else:
            # A server that aborts on its own has failed.
            request.status = Status.INFRA if outcome.status is Status.CANCELLED else outcome.status
            self._end(request)

    def _close(self, request: Request, outcome: Outcome, sent_version: int) -> None:
        """Take a request out of those in flight and book its tokens and its share of the chips."""
        self._settle()
        del self.running[request.ticket]
        request.progress = None
        request.account.work_ns += self._price - request.price
        already = request.entered
        self._book(request, outcome.amount)
        request.tokens += outcome.amount
        request.kv_tokens += outcome.amount
        if outcome.amount:
            first = self._version_at(outcome.started_ns) if outcome.started_ns >= 0 else sent_version
            request.oldest = first if request.oldest < 0 else min(request.oldest, first)
        request.newest = max(request.newest, self.version)
        if already > outcome.amount:
            raise LawError(f"episode {request.episode}: {already} tokens were said to be made, and then {outcome.amount}")
        if self.running:
            return
        if self._empty is not None:
            self._empty.set()
            self._empty = None
        if self._stopped or self.lane.state is not State.GENERATE:
            return
        if self._swap is not None:
            self.lane.to(State.SYNC_PAUSE, self._swap.version)
        elif self._aside is not None:
            self.lane.to(State.SWITCH)
        else:
            self._rest()

    def _book(self, request: Request, made: int) -> None:
        """Book the tokens of this sending up to `made`."""
        more = made - request.entered
        request.entered = made
        request.account.tokens += more
        self._accounts.made_tokens += more

    def _version_at(self, now_ns: int) -> int:
        return self._versions[bisect_right(self._installed_ns, now_ns)]

    def _end(self, request: Request) -> None:
        self._loads[self.index] -= 1
        request.done.set()

    # ── the books at an instant ─────────────────────────────────────────────────────────────────────────────────────────

    def _settle(self) -> None:
        """Bring `_price` up to now; chips that stand still are not charged to requests."""
        now = self._rt.now()
        if self.running and self.lane.state is State.GENERATE:
            self._price += (now - self._since_ns) * self._chips / len(self.running)
        self._since_ns = now

    def _rest(self) -> None:
        """Nothing is in flight and nothing else is to be done."""
        self.lane.to(State.WAIT_TASK)
        self.meter.begin(self._rt.now())

    def _stir(self) -> None:
        if self.meter.waiting:
            self.meter.end(self._rt.now())
