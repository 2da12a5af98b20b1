"""Weight sync: which replica stops what, takes the weights when, and serves when again.

Theory of operation. Every replica is in one phase::

    SERVING ──begin──► QUIESCING ──quiesced──► READY ──► INSTALLING ──installed──► SERVING
       any phase ──lost──► DOWN ──restored──► SERVING

What a replica does while QUIESCING is the mode's:

==================  ===========================================================  ==========================  =============
mode                quiesced when                                                new requests meanwhile      running ones
==================  ===========================================================  ==========================  =============
`drain`             no request runs on it (episodes in tools go on)              wait                        finish
`drain_episodes`    no episode is in flight anywhere (synchronous baseline)      of running episodes only    finish
`abort_resume`      its requests are aborted; they are prefilled again later     wait                        start again
`keep`              its decode chunk has ended; requests and KV cache stay       wait (for the chunk)        go on
==================  ===========================================================  ==========================  =============

`all_at_once` quiesces every replica together and installs when all of them are quiesced (a collective needs them all);
`rolling` takes one replica after the other, the rest serve on. A replica serves again as soon as it has the weights.

A version counts as **published when every replica that is up has it**: the oldest one decides, because a new episode may be
routed to it. Tokens carry the version of the replica that sampled them, which during a rolling sync may be newer than p.

One sync at a time. A version that becomes due meanwhile is published afterwards; the newest one suffices.
"""

from __future__ import annotations

from enum import StrEnum

from harness.core.errors import LawError
from pipeline.policies.kinds import SyncMode, SyncRollout


class Phase(StrEnum):
    """Where a replica stands."""

    SERVING = "serving"
    QUIESCING = "quiescing"
    READY = "ready"
    INSTALLING = "installing"
    DOWN = "down"


class Quiesce(StrEnum):
    """What a quiescing replica has to do."""

    FINISH_REQUESTS = "finish_requests"
    FINISH_EPISODES = "finish_episodes"
    ABORT_REQUESTS = "abort_requests"
    PAUSE = "pause"


QUIESCE = {
    SyncMode.DRAIN: Quiesce.FINISH_REQUESTS,
    SyncMode.DRAIN_EPISODES: Quiesce.FINISH_EPISODES,
    SyncMode.ABORT_RESUME: Quiesce.ABORT_REQUESTS,
    SyncMode.KEEP: Quiesce.PAUSE,
}
"""What each mode has a quiescing replica do."""


class SyncPlan:
    """The phases of all replicas. Each event returns the replicas that have to do the next thing now.

    Attributes:
        target: version that is being installed, or the last one that was.

    """

    __slots__ = ("_busy", "_mode", "_phases", "_rolling", "_versions", "target")

    def __init__(self, *, mode: SyncMode, rollout: SyncRollout, replicas: int, version: int = 0) -> None:
        if replicas < 1 or version < 0:
            raise LawError(f"a sync that cannot be: {replicas} replicas, version {version}")
        self._mode = mode
        self._rolling = rollout is SyncRollout.ROLLING
        self._phases = [Phase.SERVING] * replicas
        self._versions = [version] * replicas
        self._busy = False
        self.target = version

    @property
    def busy(self) -> bool:
        """Whether a sync is under way."""
        return self._busy

    @property
    def quiesce(self) -> Quiesce:
        """What a quiescing replica has to do."""
        return QUIESCE[self._mode]

    @property
    def published(self) -> int:
        """The oldest version on a replica that is up; the target when none is."""
        up = [v for v, phase in zip(self._versions, self._phases, strict=True) if phase is not Phase.DOWN]
        return min(up, default=self.target)

    def phase(self, replica: int) -> Phase:
        """Where a replica stands."""
        return self._phases[replica]

    def version(self, replica: int) -> int:
        """Version that a replica holds."""
        return self._versions[replica]

    def admits_requests(self, replica: int) -> bool:
        """Whether a request that waits may start on this replica now."""
        phase = self._phases[replica]
        return phase is Phase.SERVING or (phase is Phase.QUIESCING and self._mode is SyncMode.DRAIN_EPISODES)

    def admits_episodes(self) -> bool:
        """Whether a new episode may start now, as far as the sync is concerned."""
        return not (self._busy and self._mode is SyncMode.DRAIN_EPISODES)

    def begin(self, version: int) -> tuple[int, ...]:
        """Start to publish `version`; returns the replicas that have to quiesce now."""
        if self._busy:
            raise LawError(f"version {version} cannot be published while {self.target} is on its way")
        if version <= self.target:
            raise LawError(f"version {version} published after {self.target}")
        self.target = version
        self._busy = True
        return self._advance()

    def quiesced(self, replica: int) -> tuple[int, ...]:
        """A replica has nothing left that the mode waits for; returns the replicas that have to install now."""
        self._expect(replica, Phase.QUIESCING, "quiesced")
        self._phases[replica] = Phase.READY
        return self._install()

    def installed(self, replica: int) -> tuple[int, ...]:
        """A replica has the weights and serves; returns the replicas that have to quiesce now."""
        self._expect(replica, Phase.INSTALLING, "installed")
        self._phases[replica] = Phase.SERVING
        self._versions[replica] = self.target
        return self._advance()

    def lost(self, replica: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """A replica is down; returns who has to quiesce and who has to install now, so that the rest does not wait for it."""
        if self._phases[replica] is Phase.DOWN:
            raise LawError(f"replica {replica} was lost twice")
        self._phases[replica] = Phase.DOWN
        if not self._busy:
            return (), ()
        install = self._install()
        return (() if install else self._advance()), install

    def restored(self, replica: int, version: int) -> None:
        """A replica is up again with the weights of `version`, the target."""
        self._expect(replica, Phase.DOWN, "restored")
        if version != self.target:
            raise LawError(f"replica {replica} came back with version {version}, not {self.target}")
        self._phases[replica] = Phase.SERVING
        self._versions[replica] = version

    def _advance(self) -> tuple[int, ...]:
        """Send the next replicas into quiescence, or end the sync."""
        if any(phase in (Phase.QUIESCING, Phase.READY, Phase.INSTALLING) for phase in self._phases):
            return ()
        behind = [
            replica
            for replica, phase in enumerate(self._phases)
            if phase is Phase.SERVING and self._versions[replica] < self.target
        ]
        if not behind:
            self._busy = False
            return ()
        now = behind[:1] if self._rolling else behind
        for replica in now:
            self._phases[replica] = Phase.QUIESCING
        return tuple(now)

    def _install(self) -> tuple[int, ...]:
        """Replicas that may install: all that are ready, once nobody is on the way there."""
        if Phase.QUIESCING in self._phases:
            return ()
        ready = tuple(replica for replica, phase in enumerate(self._phases) if phase is Phase.READY)
        for replica in ready:
            self._phases[replica] = Phase.INSTALLING
        return ready

    def _expect(self, replica: int, phase: Phase, what: str) -> None:
        if not 0 <= replica < len(self._phases):
            raise LawError(f"there is no replica {replica}")
        if self._phases[replica] is not phase:
            raise LawError(f"replica {replica} is {self._phases[replica]} and {what}")
