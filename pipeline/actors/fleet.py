"""Fleet: watches the slices of chips, and has those that are lost replaced.

Theory of operation. Each slice that can be lost has a task of its own, which outlives whatever runs on the chips::

    Watch ──lost──► (wait for an order) ──► Provision ──there──► Watch …

*A replica's slice.* Its requests go to other replicas at once (`Engines.lose`). When the replacement is there the replica
installs the newest weights, compiles and serves (`Engines.recover`), and is watched meanwhile: chips may be lost on their way
back.

*The learner's slice.* The job ends: everything that runs is cancelled, as it would be if its process were killed. When the
replacement is there the checkpoint is restored, and the job starts again from it (`pipeline.recovery`). The chips of replicas
are down meanwhile, and take the weights of the checkpoint when the job starts again; a replica whose replacement is still on
its way does not hold it up.

Who does not know that chips can be lost does not have to: the fleet owns a chip lane from the loss of the slice (or the end of
the job) until a replica recovers on it, or the learner trains again. Work that the loss cuts off runs out no further on chips
that are gone; on others it ends as any cancelled work does. Loss of the host that coordinates, or of sandboxes, is not modelled
here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.core.errors import ActorError
from harness.core.events import EventKind
from harness.core.lanes import State
from harness.core.work import Provision, Restore, Watch
from pipeline.actors.supervisor import supervise
from pipeline.policies.fleet import LEARNER, Phase, slice_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from harness.core.lanes import Lane
    from harness.core.runtime import CancelScope, Event, Nursery, Runtime
    from pipeline.actors.engines import Engines
    from pipeline.actors.prompts import Prompts
    from pipeline.actors.shared import Tally
    from pipeline.policies.fleet import Slices


class Fleet:
    """The slices that can be lost.

    Attributes:
        on_learner_lost: ends the job.

    """

    def __init__(
        self, rt: Runtime, policy: Slices, slices: Sequence[int], tally: Tally, scopes: dict[str, CancelScope], *,
        state_bytes: int,
    ) -> None:  # fmt: skip
        self.on_learner_lost: Callable[[], object] = _nobody
        self._rt = rt
        self._policy = policy
        self._slices = tuple(slices)
        self._tally = tally
        self._scopes = scopes  # of the actors that run, by name
        self._state_bytes = state_bytes
        self._orders: dict[int, Event] = {}  # set when the slice's replacement is ordered
        self._losses: dict[int, tuple[int, int]] = {}  # of slices that do not work again yet: ordinal and instant of the loss
        self._returns: dict[int, CancelScope] = {}  # of replicas that are coming back
        self._engines: Engines | None = None  # of the job, while there is one
        self._nursery: Nursery | None = None
        self._lanes: list[Lane] = []  # by slice
        self._learner_there = rt.event()
        self._learner_there.set()
        self._restoring: CancelScope | None = None
        self._watching: CancelScope | None = None

    def open(self, nursery: Nursery, prompts: Prompts | None) -> None:
        """Watch all slices, until `close`. Tasks that come from outside go on coming, whatever becomes of the job."""
        nursery.start_soon(self._watch_all, prompts, name="fleet")

    async def _watch_all(self, prompts: Prompts | None) -> None:
        async with self._rt.nursery() as nursery:
            self._watching = nursery.cancel_scope
            if prompts is not None:
                nursery.start_soon(self._supervise, "prompts", prompts.run, name="prompts")
            for slice_ in self._slices:
                name = f"slice {slice_}"
                nursery.start_soon(self._supervise, name, self._slice, slice_, name=name)

    async def _supervise(self, name: str, actor: Callable[..., Awaitable[object]], *args: object) -> None:
        await supervise(self._rt, name, actor, *args, scopes=self._scopes)

    def close(self) -> None:
        """The run is done: nothing is lost any more."""
        if self._watching is not None:
            self._watching.cancel()

    # ── the job ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def begin(self, engines: Engines, learner: Lane) -> None:
        """A job is about to start. After a loss every replica is down until it has taken the checkpoint's weights."""
        again = bool(self._lanes)
        self._engines = engines
        self._lanes = [learner, *(replica.lane for replica in engines.replicas)]
        for replica in range(len(engines.replicas)) if again else ():
            lane = self._lanes[slice_of(replica)]
            state = lane.state
            engines.lose(replica)
            lane.to(state)

    def start(self, nursery: Nursery) -> None:
        """It starts, in this nursery: replicas that are down and there come back."""
        self._nursery = nursery
        assert self._engines is not None
        for replica, up in enumerate(self._engines.up):
            if not up and self._policy.phase(slice_of(replica)) is Phase.THERE:
                self._bring_back(replica)

    def end(self) -> None:
        """The learner's chips are gone, and with them the job: what the replicas made is booked, and their chips are down."""
        engines = self._engines
        assert engines is not None
        self._engines = self._nursery = None
        self._returns.clear()
        for replica, up in enumerate(engines.up):
            if up:
                engines.lose(replica)
            elif self._policy.phase(slice_of(replica)) is Phase.THERE:  # on its way back
                self._lanes[slice_of(replica)].to(State.DOWN)

    async def restore(self, version: int) -> None:
        """Wait for the learner's chips and load a checkpoint; once more if they are lost meanwhile."""
        restored = False
        while not restored:
            await self._learner_there.wait()
            with self._rt.cancel_scope() as self._restoring:
                self._lanes[LEARNER].to(State.RESTORE, version)
                await self._rt.perform(Restore(version, self._state_bytes))
                restored = True
            self._restoring = None
        self._works(LEARNER, version)

    def stepped(self, t: int) -> None:
        """The learner has completed a step."""
        self._policy.stepped(t)

    # ── a slice ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _slice(self, slice_: int) -> None:
        rt = self._rt
        while True:
            lost = await rt.perform(Watch(slice_))
            ordered = self._orders[slice_] = rt.event()
            self._lose(slice_, lost.amount)
            await ordered.wait()
            self._lanes[slice_].to(State.PROVISION)
            await rt.perform(Provision(slice_, lost.amount))
            self._lanes[slice_].to(State.DOWN)
            self._order(self._policy.arrived(slice_))
            self._arrived(slice_)

    def _lose(self, slice_: int, ordinal: int) -> None:
        """A slice is gone."""
        rt = self._rt
        lane = self._lanes[slice_]
        rt.emit(EventKind.CAPACITY_LOST, slice_, ordinal, lane.chips)
        self._losses.setdefault(slice_, (ordinal, rt.now()))
        self._tally.losses += 1
        orders = self._policy.lost(slice_)
        if self._policy.hopeless:
            raise ActorError("fleet", rt.now(), TimeoutError(self._policy.hopeless))
        if slice_ == LEARNER:
            self._lose_learner(lane)
        else:
            self._lose_replica(slice_ - 1, lane)
        self._order(orders)

    def _lose_learner(self, lane: Lane) -> None:
        self._learner_there = self._rt.event()
        if self._restoring is not None:
            self._restoring.cancel()
        if self._engines is not None:
            self.on_learner_lost()
        lane.to(State.DOWN)

    def _lose_replica(self, replica: int, lane: Lane) -> None:
        returning = self._returns.pop(replica, None)
        if returning is not None:
            returning.cancel()
        if self._engines is not None and self._engines.up[replica]:
            self._engines.lose(replica)
        lane.to(State.DOWN)

    def _order(self, slices: tuple[int, ...]) -> None:
        for slice_ in slices:
            self._orders[slice_].set()

    def _arrived(self, slice_: int) -> None:
        """A replacement is there."""
        if slice_ == LEARNER:
            self._learner_there.set()
        elif self._nursery is not None:
            self._bring_back(slice_ - 1)

    def _bring_back(self, replica: int) -> None:
        assert self._engines is not None
        assert self._nursery is not None
        scope = self._returns[replica] = self._rt.cancel_scope()
        name = f"return of replica {replica}"
        self._nursery.start_soon(self._supervise, name, self._return, self._engines, replica, scope, name=name)

    async def _return(self, engines: Engines, replica: int, scope: CancelScope) -> None:
        """A replica comes back, unless its chips are lost once more."""
        with scope:
            await engines.recover(replica)
            del self._returns[replica]
            self._works(slice_of(replica), engines.replicas[replica].version)

    def _works(self, slice_: int, version: int) -> None:
        """A slice that was lost works again."""
        loss = self._losses.pop(slice_, None)
        if loss is not None:
            ordinal, lost_ns = loss
            down_ns = self._rt.now() - lost_ns
            self._tally.recoveries_ns.append(down_ns)
            self._rt.emit(EventKind.CAPACITY_BACK, slice_, ordinal, down_ns, version)


def _nobody() -> None:
    """Nobody needs to know."""
