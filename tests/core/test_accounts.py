"""The books against a model that remembers every entry."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.accounts import Accounts, Fate
from harness.core.errors import TraceError

QUIET = settings(max_examples=150, deadline=None, derandomize=True, database=None)
EPISODES = st.integers(0, 7)
ENTRIES = st.lists(
    st.one_of(
        st.tuples(st.just("admit"), EPISODES),
        st.tuples(st.just("make"), EPISODES, st.integers(1, 50), st.integers(1, 90)),
        st.tuples(st.just("settle"), EPISODES, st.sampled_from(list(Fate))),
        st.tuples(st.just("mark")),
    ),
    max_size=50,
)


class Ledger:
    """The slow obvious model: a list of what was made, for whom, and when; and what became of each episode, and when."""

    def __init__(self) -> None:
        self.books = Accounts()
        self.made: list[tuple[int, int, int, int]] = []  # when, episode, tokens, chip-nanoseconds
        self.admitted: dict[int, int] = {}
        self.fates: dict[int, tuple[int, Fate]] = {}
        self.marked = -1
        self.clock = 0

    def admit(self, episode: int) -> None:
        if episode in self.admitted:
            with pytest.raises(TraceError, match="admitted once"):
                self.books.admit(episode)
            return
        self.books.admit(episode)
        self.admitted[episode] = self.clock

    def make(self, episode: int, tokens: int, work_ns: int) -> None:
        account = self.books.open.get(episode)
        assert (account is not None) == (episode in self.admitted and episode not in self.fates)
        if account is not None:
            account.tokens += tokens
            account.work_ns += work_ns
            self.books.made_tokens += tokens
            self.made.append((self.clock, episode, tokens, work_ns))

    def settle(self, episode: int, fate: Fate) -> None:
        if episode not in self.admitted or episode in self.fates:
            with pytest.raises(TraceError, match="ends once"):
                self.books.settle(episode, fate)
            return
        self.books.settle(episode, fate)
        self.fates[episode] = (self.clock, fate)

    def mark(self) -> None:
        self.books.mark()
        self.marked = self.clock

    def tokens(self, fate: Fate | None, since: int) -> int:
        return sum(n for at, e, n, _ in self.made if at > since and self._fate(e) == fate)

    def settled_tokens_in_window(self, fate: Fate) -> tuple[int, float]:
        """Of episodes that were settled in the window: what was made for them since its start."""
        rows = [(n, w) for at, e, n, w in self.made if at > self.marked and e in self.fates and self.fates[e][1] == fate]
        return sum(n for n, _ in rows), float(sum(w for _, w in rows))

    def _fate(self, episode: int) -> Fate | None:
        return self.fates[episode][1] if episode in self.fates else None


@QUIET
@given(ENTRIES)
def test_books_agree_with_the_ledger(entries):
    ledger = Ledger()
    for entry, *args in entries:
        ledger.clock += 1
        getattr(ledger, entry)(*args)
    books = ledger.books
    assert books.admitted == len(ledger.admitted) == sum(books.settled) + len(books.open)
    assert books.made_tokens == sum(books.tokens) + books.in_flight_tokens
    for fate in Fate:
        assert books.tokens[fate] == ledger.tokens(fate, -1)
        assert books.settled[fate] == sum(f == fate for _, f in ledger.fates.values())
        assert books.window_settled[fate] == sum(f == fate and at > ledger.marked for at, f in ledger.fates.values())
        assert (books.window_tokens[fate], books.window_ns[fate]) == ledger.settled_tokens_in_window(fate)
    open_rows = [(n, w) for at, e, n, w in ledger.made if e not in ledger.fates and at > ledger.marked]
    assert books.window_in_flight == (sum(n for n, _ in open_rows), sum(w for _, w in open_rows))
    assert {e: books.fate_of(e) for e in range(8)} == {e: ledger._fate(e) for e in range(8)}
    books.check(dict.fromkeys(books.open, "an actor"))


def _two_open() -> Accounts:
    books = Accounts()
    for episode in (3, 5):
        books.admit(episode).tokens += 10
    books.made_tokens = 20
    return books


@pytest.mark.parametrize(
    ("holders", "ids"), [({3: "rollout"}, (5,)), ({}, (3, 5)), ({3: "rollout", 5: "buffer", 9: "learner"}, (9,))]
)
def test_a_lost_or_invented_episode_is_named(holders, ids):
    with pytest.raises(TraceError) as caught:
        _two_open().check(holders)
    assert caught.value.ids == ids


def test_tokens_off_the_books_are_found():
    books = _two_open()
    books.made_tokens += 1
    with pytest.raises(TraceError, match="21 != 20"):
        books.check({3: "rollout", 5: "rollout"})


def test_an_episode_settled_behind_the_books_back_is_found():
    books = _two_open()
    books.admitted += 1
    with pytest.raises(TraceError, match="3 != 0 \\+ 2"):
        books.check({3: "rollout", 5: "rollout"})


def test_numbers_of_fates_never_change():
    wanted = ["TRAINED", "STALE", "FILTERED", "FAILED", "ABORTED", "SURPLUS", "LOST", "EVALUATION", "EVICTED"]
    assert [fate.name for fate in Fate][: len(wanted)] == wanted
