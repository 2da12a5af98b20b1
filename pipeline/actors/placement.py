"""Placement: brings shared chips to the learner when it can use them, and back to the replicas when it cannot.

Every replica's slice is one chip lane; the role lanes of replicas and learner hold no chips of their own and are shown on the
chip lanes while their role has them (`harness.core.lanes.SharedLane`). When to change is `policies.placement`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.core.events import EventKind
from harness.core.lanes import State
from harness.core.work import Switch
from pipeline.actors.requests import Aside
from pipeline.policies.sync import Quiesce

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.core.runtime import Runtime
    from pipeline.actors.external import ExternalReplica
    from pipeline.actors.groups import Groups
    from pipeline.actors.inference import Replica
    from pipeline.actors.publisher import Publisher
    from pipeline.policies.placement import PlacementPlan


class SharedLanes:
    """A chip lane for every replica's slice, and the lanes of the roles that take turns on them.

    Args:
        rt: the runtime.
        replicas: how many; they have the chips at the beginning.
        chips: of each.

    """

    def __init__(self, rt: Runtime, replicas: int, chips: int) -> None:
        slices = tuple(rt.lane(f"chips/{index}", "chips", chips=chips) for index in range(replicas))
        shared = rt.lanes.add_shared
        self.replicas = [shared(f"replica/{i}", "inference", (lane,), holds=True) for i, lane in enumerate(slices)]
        self.learner = shared("learner", "learner", slices, holds=False)
        self.slices = slices


class Placement:
    """The chips that learner and replicas take turns on.

    Args:
        rt: the runtime.
        plan: the phases.
        quiesce: what a replica does before it lets go of its chips.
        lanes: of the learner, and of the replicas.
        replicas: who has the chips at the beginning.
        groups: for a mode that drains episodes.
        publisher: a version on its way is waited for before the chips are asked for.

    """

    def __init__(
        self, rt: Runtime, plan: PlacementPlan, quiesce: Quiesce, lanes: SharedLanes,
        replicas: Sequence[Replica | ExternalReplica], groups: Groups, publisher: Publisher,
    ) -> None:  # fmt: skip
        self._rt = rt
        self._plan = plan
        self._quiesce = quiesce
        self._lanes = lanes
        self._replicas = replicas
        self._groups = groups
        self._publisher = publisher
        self._asides: list[Aside] = []

    async def take(self, step: int) -> None:
        """Have the chips for the learner, who has work for them; at once where it has them already."""
        if self._plan.training:
            return
        learner = self._lanes.learner
        learner.to(State.SWITCH, step)
        await self._publisher.settle(self._publisher.offered)
        if self._quiesce is Quiesce.FINISH_EPISODES:
            await self._groups.drain()
        self._asides = [Aside(self._rt, self._quiesce) for _ in self._replicas]
        for index in self._plan.wanted(publishing=self._publisher.on_the_way):
            self._replicas[index].stand_aside(self._asides[index])
        for index, aside in enumerate(self._asides):
            await aside.quiesced.wait()
            self._plan.quiesced(index)
        await self._rt.perform(Switch(step, 1))
        for lane in self._lanes.replicas:
            lane.hold_chips(held=False)
            lane.to(State.NO_WORK)  # it has no chips to work on
        learner.hold_chips(held=True)
        self._plan.switched()
        self._rt.emit(EventKind.PHASE, step, 1, sum([aside.held for aside in self._asides]))

    async def give(self, step: int) -> None:
        """Give them back to the replicas; nothing where they have them."""
        if not self._plan.training:
            return
        learner = self._lanes.learner
        self._plan.done()
        learner.to(State.SWITCH, step)
        await self._rt.perform(Switch(step, 0))
        learner.hold_chips(held=False)
        for lane in self._lanes.replicas:
            lane.to(State.SWITCH)
            lane.hold_chips(held=True)
        self._plan.switched()
        self._rt.emit(EventKind.PHASE, step, 0, sum([aside.held for aside in self._asides]))
        if self._quiesce is Quiesce.FINISH_EPISODES and not self._publisher.on_the_way:
            self._groups.resume()
        for aside in self._asides:
            aside.go.set()
