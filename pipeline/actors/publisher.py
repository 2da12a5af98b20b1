"""Publisher: brings a weight version to every replica, and then lets the world know.

The learner hands over a snapshot and goes on; it waits only when the version before is still on its way. `SyncPlan` says who
quiesces and who installs; a version is published when every replica has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.core.errors import ActorError
from harness.core.events import EventKind
from pipeline.actors.requests import Swap
from pipeline.policies.sync import Phase, Quiesce

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.core.primitives import WakeUp
    from harness.core.runtime import Event, Nursery, Runtime
    from pipeline.actors.external import ExternalReplica
    from pipeline.actors.groups import Groups
    from pipeline.actors.inference import Replica
    from pipeline.actors.shared import DeadlinesNs
    from pipeline.policies.admission import Admission
    from pipeline.policies.sync import SyncPlan
    from pipeline.policies.versions import VersionClock


class Publisher:
    """Publishes versions, one at a time."""

    def __init__(
        self, rt: Runtime, plan: SyncPlan, replicas: Sequence[Replica | ExternalReplica], groups: Groups,
        versions: VersionClock, admission: Admission, deadlines: DeadlinesNs, bell: WakeUp, *, weights_bytes: int,
        snapshot: Callable[[int], Any],
    ) -> None:  # fmt: skip
        self._rt = rt
        self._plan = plan
        self._replicas = replicas
        self._groups = groups
        self._versions = versions
        self._admission = admission
        self._deadlines = deadlines
        self._bell = bell
        self._weights_bytes = weights_bytes
        self._snapshot = snapshot
        self._orders, self._inbox = rt.channel(0)
        self.busy = False
        self._offered = versions.p  # newest version that was handed over
        self._published: Event | None = None  # set at the next publish, where somebody waits for it
        self._newest: tuple[int, Any] | None = None  # version on its way or published last, with its payload
        self._nursery: Nursery | None = None  # of the sync under way
        self._swaps: list[Swap] = []

    async def offer(self, version: int) -> None:
        """Hand a version over; waits while the one before is on its way."""
        await self._orders.send((version, self._snapshot(version)))
        self._offered = version

    @property
    def offered(self) -> int:
        """Newest version that was handed over."""
        return self._offered

    @property
    def on_the_way(self) -> bool:
        """Whether a version was handed over that not every replica has."""
        return self._offered > self._versions.p

    async def settle(self, version: int) -> None:
        """See to it that `version` is published, and wait for it."""
        if self._offered < version:
            await self.offer(version)
        while self._versions.p < version:
            if self._published is None:
                self._published = self._rt.event()
            await self._published.wait()

    async def run(self) -> None:
        """Publish what is offered, for ever."""
        while True:
            version, payload = await self._inbox.receive()
            self.busy = True
            with self._rt.move_on_after(self._deadlines.sync) as limit:
                await self._publish(version, payload)
            if limit.cancelled_caught:
                behind = [replica.index for replica in self._replicas if replica.version < version]
                raise ActorError(
                    "publisher", self._rt.now(), TimeoutError(f"version {version} not on replicas {behind} in time")
                )
            self.busy = False

    async def _publish(self, version: int, payload: Any) -> None:
        rt, plan = self._rt, self._plan
        rt.emit(EventKind.SYNC_START, version, list(Quiesce).index(plan.quiesce), len(self._replicas))
        self._newest = (version, payload)
        self._swaps = [Swap(rt, version, plan.quiesce, self._weights_bytes, payload) for _ in self._replicas]
        async with rt.nursery() as nursery:
            self._nursery = nursery
            self._start(plan.begin(version))
        await rt.checkpoint()  # whoever is cancelled by now publishes nothing, even where nobody was left to wait for
        previous = self._versions.p
        self._versions.publish(plan.published)
        self._admission.published(plan.published)
        rt.emit(EventKind.PUBLISHED, version, previous)
        self._groups.resume()
        self._bell.ring()
        if self._published is not None:
            self._published.set()
            self._published = None

    def _start(self, replicas: Sequence[int]) -> None:
        for index in replicas:
            assert self._nursery is not None
            self._nursery.start_soon(self._one, index, name=f"sync {index}")

    async def _one(self, index: int) -> None:
        """One replica, from the order to the new weights. One that is lost on the way has no part in it any more."""
        plan, swap = self._plan, self._swaps[index]
        if plan.quiesce is Quiesce.FINISH_EPISODES:
            await self._groups.drain()
        if plan.phase(index) is not Phase.QUIESCING:
            return
        self._replicas[index].order(swap)
        await swap.quiesced.wait()
        if plan.phase(index) is not Phase.QUIESCING:
            return
        self._go(plan.quiesced(index))
        await swap.done.wait()
        if plan.phase(index) is Phase.INSTALLING:
            self._start(plan.installed(index))

    def _go(self, replicas: Sequence[int]) -> None:
        for index in replicas:
            self._swaps[index].go.set()

    # ── loss and return of a replica ────────────────────────────────────────────────────────────────────────────────────

    def lost(self, index: int) -> None:
        """A replica is down: a sync under way goes on without it."""
        quiesce, install = self._plan.lost(index)
        self._go(install)
        self._start(quiesce)

    async def restore(self, index: int) -> None:
        """Bring the newest version to a replica that was lost and is there again."""
        plan, replica = self._plan, self._replicas[index]
        while True:
            version, payload = self._newest or (plan.target, self._snapshot(plan.target))
            await replica.install(version, self._weights_bytes, payload)
            if version == plan.target:  # else another one is on its way by now
                break
        self._rt.emit(EventKind.SYNC_INSTALL, version, index, 0)
        plan.restored(index, version)
