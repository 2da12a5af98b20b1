"""Every error this project raises on purpose, split by whose fault it is.

::

    HarnessError                    carries `exit_code` for the command line
    ├── ConfigError                 a field of a scenario or an option is wrong: path, value, allowed, remedy
    ├── DataError                   a file that the user gave cannot be read or is not what it should be
    ├── OutputError                 a result could not be written (disk full, no permission)
    ├── LawError                    an engine broke a law, or a program broke the engine's contract
    │   ├── DeadlockError           nothing runnable, no event, no deadline; names the waiters
    │   └── LivelockError           too many steps at one instant
    ├── ModelError                  no cost model for a piece of work
    ├── TraceError                  an invariant of a run record does not hold; names the ids
    └── ActorError                  an actor failed; wraps the cause with the actor's name and the time

    Flow control of the waist (not HarnessErrors, and not failures by themselves):
    WouldBlock · EndOfChannel · ClosedChannelError · BrokenChannelError · DeadlineExceeded

A failed *episode* is none of these: it is a recorded outcome.

Exit codes of the command line: 0 done, 1 our own bug, 2 the user's input, 3 a broken law or invariant, 4 output could
not be written, 130 interrupted.
"""

from __future__ import annotations


class HarnessError(Exception):
    """Base of all deliberate errors."""

    exit_code = 1


class ConfigError(HarnessError):
    """A configuration value is wrong.

    Args:
        problem: what is wrong, in a few words.
        field: dotted path of the field (`pipeline.max_staleness`), or the option (`--budget`).
        value: the offending value, as given.
        allowed: what would be accepted.
        remedy: what to do.
        file: the file it stands in.
        line: its line there, from 1.

    """

    exit_code = 2

    def __init__(
        self,
        problem: str,
        *,
        field: str = "",
        value: object = None,
        allowed: str = "",
        remedy: str = "",
        file: str = "",
        line: int = 0,
    ) -> None:
        self.problem = problem
        self.field = field
        self.value = value
        self.allowed = allowed
        self.remedy = remedy
        self.file = file
        self.line = line
        super().__init__(problem)

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.file and self.line else self.file
        head = ": ".join(part for part in (where, self.field, self.problem) if part)
        lines = [head]
        if self.value is not None:
            lines.append(f"  value:   {self.value!r}")
        if self.allowed:
            lines.append(f"  allowed: {self.allowed}")
        if self.remedy:
            lines.append(f"  do:      {self.remedy}")
        return "\n".join(lines)


class DataError(ConfigError):
    """A data file cannot be read, or does not hold what was asked of it."""


class OutputError(HarnessError):
    """A result could not be written. Whatever was finished before is kept."""

    exit_code = 4


class LawError(HarnessError):
    """An engine broke one of its laws, or a program broke the engine's contract."""

    exit_code = 3


class DeadlockError(LawError):
    """Nothing is runnable, no event is pending and no deadline is set."""

    def __init__(self, waiters: tuple[str, ...], at_ns: int) -> None:
        self.waiters = waiters
        self.at_ns = at_ns
        shown = ", ".join(waiters[:12]) + (f" and {len(waiters) - 12} more" if len(waiters) > 12 else "")
        super().__init__(f"deadlock at {at_ns} ns: nothing can happen any more; waiting: {shown}")


class LivelockError(LawError):
    """The program takes step after step without time passing."""

    def __init__(self, steps: int, at_ns: int, tasks: tuple[str, ...]) -> None:
        self.steps = steps
        self.at_ns = at_ns
        self.tasks = tasks
        super().__init__(f"livelock at {at_ns} ns: {steps} steps without time passing; running: {', '.join(tasks[:12])}")


class ModelError(HarnessError):
    """There is no performer or cost model for a piece of work."""

    exit_code = 2


class ProcessError(HarnessError):
    """Another process of the run failed, is gone or does not move; the message names it."""


class TraceError(HarnessError):
    """An invariant of a run does not hold.

    Args:
        law: the broken law, in a few words.
        ids: the entities that break it.
        detail: the two sides that differ.

    """

    exit_code = 3

    def __init__(self, law: str, ids: tuple[object, ...] = (), detail: str = "") -> None:
        self.law = law
        self.ids = ids
        self.detail = detail
        shown = ", ".join(str(i) for i in ids[:20]) + (f" and {len(ids) - 20} more" if len(ids) > 20 else "")
        super().__init__(f"{law}" + (f" [{shown}]" if ids else "") + (f": {detail}" if detail else ""))


class ActorError(HarnessError):
    """An actor failed. `__cause__` is the failure itself."""

    def __init__(self, actor: str, at_ns: int, cause: BaseException) -> None:
        self.actor = actor
        self.at_ns = at_ns
        if isinstance(cause, TimeoutError):  # a world that does not get done in its time is no bug of ours
            self.exit_code = ConfigError.exit_code
        super().__init__(f"{actor} failed at {at_ns / 1e9:.3f} s: {type(cause).__name__}: {cause}")
        self.__cause__ = cause


class ActorCancelled(Exception):
    """An actor was cancelled while the run went on."""


class WouldBlock(Exception):
    """A `…_nowait` verb could not be done at once; nothing has changed."""


class EndOfChannel(Exception):
    """Every sender is closed and the channel is empty."""


class ClosedChannelError(Exception):
    """You closed this end yourself."""


class BrokenChannelError(Exception):
    """The other end was closed: nobody will ever receive this."""


class DeadlineExceeded(Exception):
    """A `fail_after` scope ran out of time (trio: `TooSlowError`)."""
