"""Where every episode, token and chip-nanosecond went: double entry, by id.

Whoever *makes* something books it twice: on the episode it was made for (`spend`) and on its own counter (`made_tokens`,
`made_ns`). An episode's account is open until its fate is known. At the end of a run

    episodes admitted = settled by fate + open (in flight)
    tokens made       = tokens on settled accounts + tokens on open accounts

hold exactly, and a breach names the ids. `mark` starts the window that is reported: what was made before it is left out of
the totals, whatever becomes of it later.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from harness.core.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Mapping


class Fate(IntEnum):
    """What became of an episode. Numbers never change; new ones are appended."""

    TRAINED = 0
    STALE = 1  # dropped: its lag would exceed the bound
    FILTERED = 2  # its group carried no signal
    FAILED = 3  # the episode, or too many of its group, failed
    ABORTED = 4  # cut off on purpose: sync that drains episodes, deadline of the run
    SURPLUS = 5  # over-provisioned and not needed
    LOST = 6  # a crash took it
    EVALUATION = 7
    EVICTED = 8  # pushed out of a full buffer


class Account:
    """One open episode: tokens and chip-nanoseconds made for it so far."""

    __slots__ = ("base_ns", "base_tokens", "tokens", "work_ns")

    def __init__(self) -> None:
        self.tokens = 0
        self.work_ns = 0.0
        self.base_tokens = 0
        self.base_ns = 0.0


LENGTH_CLASSES = 64
"""Classes of lengths: class c holds lengths of 2^(c-1) to 2^c - 1 tokens, class 0 those of none."""


class Decoding:
    """What one replica decoded in the window: sums over its chunks.

    Attributes:
        spent_ns: time.
        tokens: made.
        slot_steps: steps x requests in the batch.
        context_steps: steps x context held at the start of the chunk, in tokens.

    """

    __slots__ = ("context_steps", "slot_steps", "spent_ns", "tokens")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """The window starts now."""
        self.spent_ns = self.tokens = self.slot_steps = self.context_steps = 0


class Accounts:
    """The books of one run.

    Attributes:
        admitted: episodes ever opened.
        made_tokens: tokens generated, counted by those who generated them.
        settled: episodes by fate, all of the run.
        tokens: tokens by fate, all of the run.
        window_tokens: tokens by fate made since `mark`.
        window_ns: chip-nanoseconds of generation by fate made since `mark`.
        window_settled: episodes by fate settled since `mark`.
        window_lengths: those by fate and length class (`LENGTH_CLASSES`).
        window_length_tokens: all their tokens, those made before `mark` too, by fate and length class.
        decoding: what each replica decoded since `mark`, by its number.

    """

    __slots__ = (
        "_closed",
        "_journal",
        "_marks",
        "admitted",
        "decoding",
        "made_tokens",
        "open",
        "settled",
        "tokens",
        "window_length_tokens",
        "window_lengths",
        "window_ns",
        "window_settled",
        "window_tokens",
    )

    def __init__(self) -> None:
        self.open: dict[int, Account] = {}
        self._closed: dict[int, Fate] = {}
        self._journal: dict[int, tuple[Account, int]] | None = None
        self._marks = 0
        self.decoding: dict[int, Decoding] = {}
        self.admitted = 0
        self.made_tokens = 0
        n = len(Fate)
        self.settled = [0] * n
        self.tokens = [0] * n
        self.window_settled = [0] * n
        self.window_tokens = [0] * n
        self.window_ns = [0.0] * n
        self.window_lengths = [[0] * LENGTH_CLASSES for _ in range(n)]
        self.window_length_tokens = [[0] * LENGTH_CLASSES for _ in range(n)]

    def admit(self, episode: int) -> Account:
        """Open an account."""
        if episode in self.open or episode in self._closed:
            raise TraceError("an episode is admitted once", (episode,))
        self.admitted += 1
        account = self.open[episode] = Account()
        return account

    def settle(self, episode: int, fate: Fate) -> None:
        """Close an account for good."""
        account = self.open.pop(episode, None)
        if account is None:
            before = self._closed.get(episode)
            raise TraceError(
                "an episode ends once",
                (episode,),
                f"now {fate.name}, before {before.name if before is not None else 'never admitted'}",
            )
        self._closed[episode] = fate
        if self._journal is not None:
            self._journal[episode] = (account, self._marks)
        self.settled[fate] += 1
        self.tokens[fate] += account.tokens
        self.window_settled[fate] += 1
        self.window_tokens[fate] += account.tokens - account.base_tokens
        self.window_ns[fate] += account.work_ns - account.base_ns
        length = account.tokens.bit_length()
        self.window_lengths[fate][length] += 1
        self.window_length_tokens[fate][length] += account.tokens

    def resume(
        self, admitted: int, made_tokens: int, settled: Mapping[Fate, int], tokens: Mapping[Fate, int], held: Mapping[int, int]
    ) -> None:
        """Go on with the books of a checkpoint. Whoever was neither settled nor comes with it is lost, and so are its tokens.

        Args:
            admitted: episodes opened by then.
            made_tokens: tokens made by then.
            settled: episodes by fate.
            tokens: tokens by fate.
            held: finished episodes that come with it, still open, with their tokens; all made before the window.

        """
        self.admitted, self.made_tokens = admitted, made_tokens
        for fate, episodes in settled.items():
            self.settled[fate] = episodes
        for fate, made in tokens.items():
            self.tokens[fate] = made
        for episode, made in held.items():
            account = self.open[episode] = Account()
            account.tokens = account.base_tokens = made
        self.settled[Fate.LOST] += admitted - sum(self.settled) - len(held)
        self.tokens[Fate.LOST] += made_tokens - sum(self.tokens) - sum(held.values())

    def keep_journal(self) -> None:
        """From now on keep what is closed, so that `roll_back` can open it again."""
        self._journal = {}

    @property
    def journal_entries(self) -> int:
        """Accounts in the journal."""
        return len(self._journal or ())

    def forget(self, entries: int) -> None:
        """The first entries of the journal are final: a checkpoint was made when they had been closed."""
        journal = self._journal or {}
        for episode in list(journal)[:entries]:
            del journal[episode]

    def roll_back(self, moved: Mapping[int, int]) -> None:
        """The work since the last checkpoint is lost.

        An episode of `moved` that came with the checkpoint is open again, under a new id, whatever had become of it: it will
        be trained again, and its tokens are kept once. One that was trained since then is lost, and so is one that is open.

        Args:
            moved: episode → its new id, never admitted before.

        """
        journal = self._journal or {}
        again = {}
        for episode, new in moved.items():
            account = self.open.pop(episode, None)
            again[new] = self._reopen(episode, *journal.pop(episode)) if account is None else account
            self._closed[episode] = Fate.LOST
        for episode, (account, mark) in journal.items():
            if self._closed[episode] is Fate.TRAINED:
                self.open[episode] = self._reopen(episode, account, mark)
        self._journal = None
        for episode in list(self.open):
            self.settle(episode, Fate.LOST)
        self.open = again
        self._journal = {}

    def _reopen(self, episode: int, account: Account, mark: int) -> Account:
        """Take an entry out of the books again. One of an earlier window has left the totals already, and stays out."""
        fate = self._closed.pop(episode)
        self.settled[fate] -= 1
        self.tokens[fate] -= account.tokens
        if mark == self._marks:
            self.window_settled[fate] -= 1
            self.window_tokens[fate] -= account.tokens - account.base_tokens
            self.window_ns[fate] -= account.work_ns - account.base_ns
            length = account.tokens.bit_length()
            self.window_lengths[fate][length] -= 1
            self.window_length_tokens[fate][length] -= account.tokens
        else:
            account.base_tokens, account.base_ns = account.tokens, account.work_ns
        return account

    def lose_work(self, work_ns: float) -> None:
        """Chip time of a step that a crash cut off: it made nothing, and is lost at once."""
        self.window_ns[Fate.LOST] += work_ns

    def mark(self) -> None:
        """The reported window starts now."""
        self._marks += 1
        n = len(Fate)
        self.window_settled = [0] * n
        self.window_tokens = [0] * n
        self.window_ns = [0.0] * n
        self.window_lengths = [[0] * LENGTH_CLASSES for _ in range(n)]
        self.window_length_tokens = [[0] * LENGTH_CLASSES for _ in range(n)]
        for decoding in self.decoding.values():
            decoding.clear()
        for account in self.open.values():
            account.base_tokens = account.tokens
            account.base_ns = account.work_ns

    @property
    def in_flight_tokens(self) -> int:
        """Tokens on open accounts."""
        return sum(account.tokens for account in self.open.values())

    @property
    def window_in_flight(self) -> tuple[int, float]:
        """Tokens and chip-nanoseconds made since `mark` for episodes that are still open."""
        tokens = sum(account.tokens - account.base_tokens for account in self.open.values())
        return tokens, sum(account.work_ns - account.base_ns for account in self.open.values())

    def fate_of(self, episode: int) -> Fate | None:
        """What became of it; None while it is open."""
        return self._closed.get(episode)

    def check(self, holders: dict[int, str]) -> None:
        """Conservation, against what the actors still hold.

        Args:
            holders: every episode that an actor says is in its hands at the end, and who.

        Raises:
            TraceError: with the ids that are on one side only.

        """
        lost = tuple(sorted(self.open.keys() - holders.keys()))
        if lost:
            raise TraceError("every admitted episode is trained, dropped for a reason or in somebody's hands", lost)
        ghosts = tuple(sorted(holders.keys() - self.open.keys()))
        if ghosts:
            raise TraceError("nobody holds an episode that has ended or was never admitted", ghosts, holders[ghosts[0]])
        if self.admitted != sum(self.settled) + len(self.open):
            raise TraceError(
                "episodes admitted = settled + in flight", (), f"{self.admitted} != {sum(self.settled)} + {len(self.open)}"
            )
        lengths = [sum(classes) for classes in self.window_lengths]
        if lengths != self.window_settled:
            raise TraceError("episodes by length = episodes settled", (), f"{lengths} != {self.window_settled}")
        booked = sum(self.tokens) + self.in_flight_tokens
        if booked != self.made_tokens:
            raise TraceError("tokens made = tokens on the books", tuple(sorted(self.open)), f"{self.made_tokens} != {booked}")
