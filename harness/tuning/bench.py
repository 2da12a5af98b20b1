"""Simulations on a crew of workers, within a deadline, each done once.

Work comes lazily from an iterator, so that what is tried next can depend on what has just come back. A job that was done
before, here or in an earlier session, is answered from memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING

from harness.tuning.worker import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from harness.analysis.summary import RunSummary
    from harness.tuning.crew import Crew
    from harness.tuning.plan import CostModel
    from harness.tuning.space import Settings, Value

PATIENCE = 4.0
"""A call that takes this many times what was expected is stopped: one candidate must not eat the others' time."""

GRACE_S = 0.75
"""Added to that, so that a slow start of a process is not taken for a slow simulation."""


@dataclass(frozen=True, slots=True)
class Job:
    """One simulation.

    Attributes:
        key: the settings, as sorted pairs.
        seed: of its draws.
        steps: learner steps after warm-up.

    """

    key: tuple[tuple[str, Value], ...]
    seed: int
    steps: int

    @classmethod
    def of(cls, settings: Settings, seed: int, steps: int) -> Job:
        """The simulation of these settings."""
        return cls(tuple(sorted(settings.items())), seed, steps)

    @property
    def settings(self) -> Settings:
        """The settings."""
        return dict(self.key)


@dataclass(slots=True)
class Bench:
    """Runs jobs and remembers them.

    Attributes:
        crew: who runs them.
        cost: what they cost, learnt here.
        deadline: on the crew's clock; nothing runs after it.
        runs: results.
        failures: what went wrong where something did.
        cut: jobs that were stopped.
        heard: called after every job that is over.
        known: what earlier sessions found; taken over into `runs` and `failures` when it is asked for.
        filed: called with every job that ended by itself, what came of it and the seconds that it took.
        met: jobs that ended by themselves here; others may be known from before.

    """

    crew: Crew
    cost: CostModel
    deadline: float
    runs: dict[Job, RunSummary] = field(default_factory=dict)
    failures: dict[Job, Failure] = field(default_factory=dict)
    cut: list[Job] = field(default_factory=list)
    heard: Callable[[], None] = lambda: None
    known: Mapping[Job, RunSummary | Failure] = field(default_factory=dict)
    filed: Callable[[Job, RunSummary | Failure, float], None] = lambda job, result, seconds: None
    met: int = 0

    @property
    def left_s(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - self.crew.now()

    def runs_of(self, settings: Settings, seeds: Sequence[int], steps: int) -> list[RunSummary]:
        """What is known of these settings, in the order of the seeds, up to the first that is missing."""
        found = []
        for seed in seeds:
            run = self.runs.get(Job.of(settings, seed, steps))
            if run is None:
                break
            found.append(run)
        return found

    def kept(self, settings: Settings, seeds: Sequence[int], steps: int) -> int:
        """On how many of the seeds earlier sessions have run these settings, up to the first that is missing."""
        found = (self.known.get(Job.of(settings, seed, steps)) for seed in seeds)
        return sum(1 for _ in takewhile(lambda run: run is not None and not isinstance(run, Failure), found))

    def drive(
        self, jobs: Iterator[Job], *, until: float = math.inf, finished: Callable[[Job], None] = lambda job: None
    ) -> None:
        """Run jobs until there are no more or the next could not end in time.

        Args:
            jobs: what to run; asked for the next one whenever a worker is free.
            until: no job starts that is not expected to end by then.
            finished: called with every job that is over, however it ended.

        """
        running: dict[int, tuple[Job, float]] = {}
        limit = min(until, self.deadline)
        more = True
        while True:
            while more and self.crew.idle:
                job = self._next(jobs, limit, finished)
                if job is None:
                    more = False
                    break
                patience = PATIENCE * self.cost.expected_s(job.steps) + GRACE_S
                # Before the first has come back, processes may still be starting.
                stop = self.deadline if not self.met else min(self.deadline, self.crew.now() + patience)
                running[self.crew.submit(job.settings, job.seed, job.steps)] = (job, stop)
            if not running:
                return
            done = self.crew.wait(min(stop for _, stop in running.values()))
            if done is None:
                self._cut_late(running, finished)
            else:
                job, _ = running.pop(done.ticket)
                self._file(job, done.seconds, done.result)
                finished(job)
                self.heard()

    def _next(self, jobs: Iterator[Job], limit: float, finished: Callable[[Job], None]) -> Job | None:
        """The next job that must be run and is expected to end by `limit`."""
        while self.crew.now() < limit:
            job = next(jobs, None)
            if job is None:
                return None
            self._recall(job)
            if job in self.runs or job in self.failures:
                finished(job)
            elif self.crew.now() + self.cost.expected_s(job.steps) > limit:
                return None
            else:
                return job
        return None

    def _recall(self, job: Job) -> None:
        found = self.known.get(job)
        if isinstance(found, Failure):
            self.failures.setdefault(job, found)
        elif found is not None:
            self.runs.setdefault(job, found)

    def _file(self, job: Job, seconds: float, result: RunSummary | Failure) -> None:
        if isinstance(result, Failure):
            self.failures[job] = result
        elif result.groups <= 0 or result.chip_total_ns <= 0:
            self.failures[job] = Failure("NoProgress", "no group was trained in the window", 1)
        else:
            self.runs[job] = result
            self.cost.note(job.steps, seconds)
        self.met += 1
        self.filed(job, self.runs.get(job) or self.failures[job], seconds)

    def _cut_late(self, running: dict[int, tuple[Job, float]], finished: Callable[[Job], None]) -> None:
        now = self.crew.now()
        for ticket in [ticket for ticket, (_, stop) in running.items() if stop <= now]:
            job, _ = running.pop(ticket)
            self.crew.cut(ticket)
            self.cut.append(job)
            self.failures[job] = Failure("CutOff", "stopped: it would have taken too long", 1)
            finished(job)
            self.heard()
