"""The turn barrier against a slow obvious model: two sets, looked at after every event."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from harness.core.errors import LawError
from pipeline.policies.stepping import TurnBarrier

episodes = st.integers(0, 5)


class BarrierMachine(RuleBasedStateMachine):
    @initialize()
    def build(self):
        self.barrier = TurnBarrier()
        self.in_turn: set[int] = set()
        self.standing: list[int] = []
        self.turns = dict.fromkeys(range(6), 0)

    def begun(self, told):
        due = tuple(self.standing) if not self.in_turn else ()
        assert told == due, "the barrier opens for all, when nobody is in a turn"
        for episode in due:
            self.turns[episode] += 1
        if due:
            self.in_turn, self.standing = set(due), []

    @rule(episode=episodes)
    def join(self, episode):
        if episode in self.in_turn or episode in self.standing:
            with pytest.raises(LawError):
                self.barrier.joined(episode)
            return
        self.barrier.joined(episode)
        self.in_turn.add(episode)
        self.turns[episode] = max(self.turns.values())

    @rule(episode=episodes)
    def arrive(self, episode):
        if episode not in self.in_turn:
            with pytest.raises(LawError):
                self.barrier.arrived(episode)
            return
        self.in_turn.discard(episode)
        self.standing.append(episode)
        self.begun(self.barrier.arrived(episode))

    @rule(episode=episodes)
    def leave(self, episode):
        if episode not in self.in_turn and episode not in self.standing:
            with pytest.raises(LawError):
                self.barrier.left(episode)
            return
        self.in_turn.discard(episode)
        if episode in self.standing:
            self.standing.remove(episode)
        self.begun(self.barrier.left(episode))

    @invariant()
    def agrees(self):
        assert (self.barrier.in_turn, self.barrier.standing) == (len(self.in_turn), len(self.standing))
        assert self.in_turn or not self.standing, "somebody is always waited for"
        members = self.in_turn.union(self.standing)
        assert len({self.turns[episode] for episode in members}) <= 1, "all are at the same turn"


BarrierMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)
TestBarrier = BarrierMachine.TestCase
