"""Admission: the law that says when one more group may start.

All four laws keep one ledger. A group is *running* from its start until it enters the buffer (a group that waits at a
full buffer still runs), *buffered* until it is trained or dropped. A group that failed, was filtered or dropped gives its
credit back at that instant; a trained one does not.

With B groups per step, D pipeline depth, S staleness bound, k steps per sync, τ window fraction, p the published version
and t the learner's step, a group may start while

    lead         accepted + running < (D + p + 1)·B
    window       carried + started since the last publish < (1 + τ)·k·B
    target_step  accepted + running < (t + 1 + D)·B          (the next group is made for step ⌊(accepted + running)/B⌋ + 1)
    inflight     running < max(1, S)·B

`accepted` counts every group that entered the buffer since the start and was not dropped, trained ones included. `carried`
counts the groups that were running or buffered at the last publish; those that fail or are dropped afterwards leave both
counts of the window. `lead` uses the *published* version: with completed steps in its place the learner waits for samples
that the engines may not make yet, and S = 1, k = 4 never reaches the second publish.

**Over-provisioned groups** are outside the credit: with x of them, a group may start while the left side is below the
right side + x, but a group is *accepted*, and another one started, only while the left side without running groups is
below the right side. When all credit is filled by accepted groups, what still runs is `surplus`. Under `inflight` nothing
ever fills the credit: x merely adds to it.

After a resume, `rebuild` sets the counters from what was restored; without it the learner's past steps count as unused
credit and a burst of starts follows. The engines then hold p = t, which may be in the middle of a window: its count goes on
with what was trained since the publish was due. A whole window from there would reach beyond the next publish.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING, Protocol

from harness.core.errors import LawError
from pipeline.policies.kinds import AdmissionKind

if TYPE_CHECKING:
    from collections.abc import Iterable


class Admission(Protocol):
    """What an admission law answers and is told. Groups are named by their ids; an illegal event changes nothing."""

    @property
    def running(self) -> int:
        """Groups that run now."""

    @property
    def buffered(self) -> int:
        """Groups in the buffer now."""

    @property
    def accepted(self) -> int:
        """Groups that entered the buffer and were not dropped, trained ones included."""

    def credit(self) -> int:
        """How many more groups may start now, over-provisioned ones included."""

    def may_start(self) -> bool:
        """Whether one more group may start now."""

    def accepts(self) -> bool:
        """Whether a group that is complete now has credit to enter the buffer; if not, it is surplus."""

    def surplus(self) -> tuple[int, ...]:
        """Running groups that nobody needs any more; empty unless groups are over-provisioned."""

    def started(self, group: int) -> None:
        """A group started."""

    def finished_surplus(self, group: int) -> None:
        """A running group ended as surplus."""

    def entered(self, group: int) -> None:
        """A running group entered the buffer (it is accepted)."""

    def dropped(self, group: int) -> None:
        """A buffered or running group was dropped: stale, evicted or aborted."""

    def filtered(self, group: int) -> None:
        """A running group was complete and not worth training on."""

    def failed(self, group: int) -> None:
        """A running group failed."""

    def trained(self, group: int) -> None:
        """A buffered group was consumed by the learner."""

    def published(self, version: int) -> None:
        """Every engine holds `version`."""

    def stepped(self, t: int) -> None:
        """The learner is at `t`."""

    def rebuild(
        self, t: int, p: int, *, trained: int, buffered: Iterable[int], running: Iterable[int] = (), since_due: int = 0
    ) -> None:
        """Forget everything and start from what a checkpoint holds.

        `since_due`: groups trained since the last publish was due; a window goes on counting them.
        """


class _Ledger:
    """The books that all laws share. A law adds `_used` (what counts against the credit) and `_limit`."""

    __slots__ = ("_buffered", "_extra", "_running", "_trained", "p", "t")

    def __init__(self, overprovision_groups: int) -> None:
        if overprovision_groups < 0:
            raise LawError("the number of over-provisioned groups is not negative")
        self._extra = overprovision_groups
        self._running: dict[int, None] = {}
        self._buffered: dict[int, None] = {}
        self._trained = 0
        self.p = 0
        self.t = 0

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def buffered(self) -> int:
        return len(self._buffered)

    @property
    def accepted(self) -> int:
        return self._trained + len(self._buffered)

    def _used(self) -> int:
        raise NotImplementedError

    def _limit(self) -> int:
        raise NotImplementedError

    def credit(self) -> int:
        return max(0, self._limit() + self._extra - self._used()) if self.accepts() else 0

    def may_start(self) -> bool:
        return self._used() < self._limit() + self._extra and self.accepts()

    def accepts(self) -> bool:
        return self._used() - len(self._running) < self._limit()

    def surplus(self) -> tuple[int, ...]:
        return () if not self._extra or self.accepts() else tuple(self._running)

    def started(self, group: int) -> None:
        if group in self._running or group in self._buffered:
            raise LawError(f"group {group} started twice")
        if not self.may_start():
            raise LawError(f"group {group} started without credit: {self._used()} of {self._limit()} + {self._extra}")
        self._running[group] = None
        self._on_start()

    def entered(self, group: int) -> None:
        self._need_running(group, "entered the buffer")
        if not self.accepts():
            raise LawError(f"group {group} entered the buffer without credit: it is surplus")
        del self._running[group]
        self._buffered[group] = None

    def finished_surplus(self, group: int) -> None:
        self._leave(group, "ended as surplus")

    def filtered(self, group: int) -> None:
        self._leave(group, "was filtered")

    def failed(self, group: int) -> None:
        self._leave(group, "failed")

    def dropped(self, group: int) -> None:
        if group in self._buffered:
            del self._buffered[group]
            self._on_credit_back()
            return
        self._leave(group, "was dropped")

    def trained(self, group: int) -> None:
        if group not in self._buffered:
            raise LawError(f"group {group} was trained without being in the buffer")
        del self._buffered[group]
        self._trained += 1

    def published(self, version: int) -> None:
        if not self.p <= version <= self.t:
            raise LawError(f"version {version} published after {self.p} with the learner at {self.t}")
        if version > self.p:
            self.p = version
            self._on_publish()

    def stepped(self, t: int) -> None:
        if t != self.t + 1:
            raise LawError(f"the learner went from step {self.t} to {t}")
        self.t = t

    def rebuild(
        self, t: int, p: int, *, trained: int, buffered: Iterable[int], running: Iterable[int] = (), since_due: int = 0
    ) -> None:
        held, started = dict.fromkeys(buffered), dict.fromkeys(running)
        if not 0 <= p <= t or trained < 0 or held.keys() & started.keys():
            raise LawError(f"counters that cannot be: t={t}, p={p}, trained={trained}, both {held.keys() & started.keys()}")
        self.t, self.p, self._trained = t, p, trained
        self._buffered, self._running = held, started
        self._on_publish()
        self._on_trained_before(since_due)

    def _need_running(self, group: int, what: str) -> None:
        if group not in self._running:
            raise LawError(f"group {group} {what} without running")

    def _leave(self, group: int, what: str) -> None:
        self._need_running(group, what)
        del self._running[group]
        self._on_credit_back()

    def _on_start(self) -> None:
        """A group started."""

    def _on_credit_back(self) -> None:
        """An outstanding group is gone without being trained."""

    def _on_publish(self) -> None:
        """A new version is published, or the books were rebuilt."""

    def _on_trained_before(self, groups: int) -> None:
        """The books were rebuilt in the middle of a window, in which groups had been trained."""


class LeadAdmission(_Ledger):
    """accepted + running < (D + p + 1)·B."""

    __slots__ = ("_batch", "_depth")

    def __init__(self, *, groups_per_step: int, pipeline_depth: int, overprovision_groups: int = 0) -> None:
        super().__init__(overprovision_groups)
        self._batch = groups_per_step
        self._depth = pipeline_depth

    def _used(self) -> int:
        return self._trained + len(self._buffered) + len(self._running)

    def _limit(self) -> int:
        return (self._depth + self.p + 1) * self._batch


class TargetStepAdmission(_Ledger):
    """accepted + running < (t + 1 + D)·B: each group is made for a named step, at most D beyond the learner's next."""

    __slots__ = ("_batch", "_depth")

    def __init__(self, *, groups_per_step: int, pipeline_depth: int, overprovision_groups: int = 0) -> None:
        super().__init__(overprovision_groups)
        self._batch = groups_per_step
        self._depth = pipeline_depth

    @property
    def target_step(self) -> int:
        """The step (from 1) that the next group to start is made for. A replacement is made for the step it fills up."""
        return self._used() // self._batch + 1

    def _used(self) -> int:
        return self._trained + len(self._buffered) + len(self._running)

    def _limit(self) -> int:
        return (self.t + 1 + self._depth) * self._batch


class WindowAdmission(_Ledger):
    """carried + started since the last publish < (1 + τ)·k·B."""

    __slots__ = ("_counted", "_quota")

    def __init__(
        self, *, groups_per_step: int, steps_per_sync: int, window_fraction: float, overprovision_groups: int = 0
    ) -> None:
        super().__init__(overprovision_groups)
        self._quota = window_quota(groups_per_step, steps_per_sync, window_fraction)
        self._counted = 0

    def _used(self) -> int:
        return self._counted

    def _limit(self) -> int:
        return self._quota

    def _on_start(self) -> None:
        self._counted += 1

    def _on_credit_back(self) -> None:
        self._counted -= 1

    def _on_publish(self) -> None:
        self._counted = len(self._running) + len(self._buffered)

    def _on_trained_before(self, groups: int) -> None:
        self._counted += groups


class InflightAdmission(_Ledger):
    """running < max(1, S)·B, whatever the buffer holds."""

    __slots__ = ("_cap",)

    def __init__(self, *, groups_per_step: int, max_staleness: int, overprovision_groups: int = 0) -> None:
        super().__init__(overprovision_groups)
        self._cap = max(1, max_staleness) * groups_per_step

    def _used(self) -> int:
        return len(self._running)

    def _limit(self) -> int:
        return self._cap


def window_quota(groups_per_step: int, steps_per_sync: int, window_fraction: float) -> int:
    """Groups per window: the smallest integer not below (1 + τ)·k·B, with τ read as the decimal that was written."""
    return ceil((1 + Fraction(repr(window_fraction))) * steps_per_sync * groups_per_step)


def make_admission(
    kind: AdmissionKind,
    *,
    groups_per_step: int,
    steps_per_sync: int,
    max_staleness: int,
    pipeline_depth: int,
    window_fraction: float = 0.0,
    overprovision_groups: int = 0,
) -> Admission:
    """The admission law that a configuration names."""
    if kind is AdmissionKind.LEAD:
        return LeadAdmission(
            groups_per_step=groups_per_step, pipeline_depth=pipeline_depth, overprovision_groups=overprovision_groups
        )
    if kind is AdmissionKind.TARGET_STEP:
        return TargetStepAdmission(
            groups_per_step=groups_per_step, pipeline_depth=pipeline_depth, overprovision_groups=overprovision_groups
        )
    if kind is AdmissionKind.WINDOW:
        return WindowAdmission(
            groups_per_step=groups_per_step,
            steps_per_sync=steps_per_sync,
            window_fraction=window_fraction,
            overprovision_groups=overprovision_groups,
        )
    return InflightAdmission(
        groups_per_step=groups_per_step, max_staleness=max_staleness, overprovision_groups=overprovision_groups
    )
