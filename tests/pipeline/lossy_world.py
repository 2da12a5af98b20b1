"""Tiny worlds in which slices of chips are lost: by a calendar, or when a test says so."""

from __future__ import annotations

from tiny_world import constant

from harness.core.work import Outcome, Watch

LEARNER = 0
CHECKPOINT = {
    "state_bytes": 1000,
    "save": {"base_s": 0.4, "bytes_per_s": 1e6},
    "restore": {"base_s": 3.0, "bytes_per_s": 1e6},
}
NEVER = constant(1e9)


def lossy(what, *, learner=NEVER, replicas=NEVER, provision=None, at_once=None, world=None, max_sim_s=5000.0, **knobs):
    """The scenario, with chips that can be lost."""
    preemption = {"learner": learner, "replicas": replicas, "provision": provision or constant(5.0)}
    parts = what.world.model_dump(mode="json", exclude_unset=True) | {"checkpoint": CHECKPOINT} | (world or {})
    parts["preemption"] = {key: law for key, law in preemption.items() if law is not None} | {"replacements_at_once": at_once}
    return what.model_copy(
        update={
            "world": type(what.world).model_validate(parts),
            "pipeline": what.pipeline.with_changes(**knobs),
            "run": what.run.model_copy(update={"max_sim_s": max_sim_s}),
        }
    )


class Taken:
    """Takes slices away when told to: `take(slice)` from anywhere, at any instant.

    One that is not watched is taken `later_s` after it is there again.
    """

    def __init__(self, later_s=0.0):
        self._later_ns = 1 + round(later_s * 1e9)
        self._rt = None
        self._events = {}
        self._early = set()
        self.times = 0

    def take(self, slice_):
        """Now, if it is watched; else as soon as it is."""
        event = self._events.pop(slice_, None)
        if event is None:
            self._early.add(slice_)
        else:
            event.set()

    async def __call__(self, rt, work, /):
        if work.entity in self._early:
            self._early.remove(work.entity)
            await rt.sleep(self._later_ns)
        else:
            event = self._events[work.entity] = rt.event()
            await event.wait()
        self.times += 1
        return Outcome(amount=self.times - 1)

    async def gone(self, rt, work, /):
        """There is no worker."""

    def performers(self, world):
        return {Watch: self}
