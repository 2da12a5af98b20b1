"""A tiny pipeline without an engine: it keeps every law of a record, in random ways."""

from __future__ import annotations

import random

import pytest

from harness.core.events import EventKind as K
from harness.core.lanes import Lanes, State
from harness.core.work import Status, WorkKind
from harness.trace.recorder import TraceRecorder
from harness.trace.store import Manifest, take_record

CAPACITY = 3


class TinyPipeline:
    """Groups of two episodes go through tools and generation into a bounded buffer and are trained or dropped."""

    def __init__(self, seed, groups, recorder=None):
        self.random = random.Random(seed)
        self.now_ns = self.version = self.published = 0
        self.recorder = recorder or TraceRecorder()
        self.lanes = Lanes(lambda: self.now_ns, self.recorder.append_interval)
        self.learner = self.lanes.add("learner", "learner", chips=4)
        self.slots = [self.lanes.add(f"rollout/{i}", "rollout") for i in range(2)]
        self.buffer = []
        for group in range(groups):
            self.tick()
            self.play(group)
            while self.buffer and (len(self.buffer) == CAPACITY or self.random.random() < 0.4):
                self.train()
        self.tick()

    def tick(self):
        self.now_ns += self.random.randrange(4)

    def emit(self, kind, entity, *fields):
        self.recorder.append_event((self.now_ns, kind, entity, *fields, *[0] * (5 - len(fields))))

    def work(self, kind, entity, lane, state):
        lane.to(state, entity)
        self.emit(K.WORK_START, entity, kind, 1, 2, 3)
        began = self.now_ns
        self.tick()
        self.emit(K.WORK_END, entity, kind, self.random.choice(list(Status)), 5, began)

    def play(self, group):
        self.emit(K.GROUP_ADMIT, group, group, 0, self.version + 1, self.published, 2)
        episodes = [2 * group, 2 * group + 1]
        for member, episode in enumerate(episodes):
            self.emit(K.EPISODE_START, episode, group, member, 0, self.published)
        for lane, episode in zip(self.slots, episodes, strict=True):
            self.work(WorkKind.ENV_RESET, episode, lane, State.ENV_RESET)
            for _ in range(self.random.randrange(3)):
                self.work(WorkKind.TOOL_CALL, episode, lane, State.TOOL_EXEC)
            self.emit(K.EPISODE_END, episode, 0, 2, 30, self.published, self.published)
            lane.to(State.GATED)
        if self.random.random() < 0.2:
            self.emit(K.DROP, group, 2, 60, 0, len(self.buffer))
            return
        self.emit(K.GROUP_RELEASE, group, 2, 60, self.published, self.version)
        self.buffer.append((group, self.published, self.version))
        self.emit(K.BUFFER_PUT, group, len(self.buffer))

    def train(self):
        group, oldest, entered = self.buffer.pop(0)
        if self.random.random() < 0.2:
            self.emit(K.DROP, group, 1, 60, self.version - oldest, len(self.buffer))
            return
        lag, in_queue = self.version - oldest, self.version - entered
        self.emit(K.CONSUME, group, self.version + 1, lag, lag - in_queue, in_queue, 60)
        self.work(WorkKind.TRAIN_STEP, self.version + 1, self.learner, State.TRAIN)
        self.version += 1
        self.emit(K.STEP, self.version, 1, 2, 60, self.version)
        if self.random.random() < 0.5:
            self.emit(K.SYNC_START, self.version, 0, 1)
            self.learner.to(State.SYNC_SEND, self.version)
            self.tick()
            self.emit(K.SYNC_INSTALL, self.version, 0, 0)
            self.emit(K.PUBLISHED, self.version, self.published)
            self.published = self.version
        self.learner.to(State.WAIT_BATCH)

    def record(self):
        self.lanes.close()
        manifest = Manifest(seed=1, clock="virtual", end_ns=self.now_ns, config={"pipeline": {"buffer_groups": CAPACITY}})
        return take_record(self.recorder, self.lanes.lanes, manifest)


@pytest.fixture(scope="session")
def tiny():
    """Makes a tiny pipeline that has run: `tiny(seed, groups)`."""
    return TinyPipeline


@pytest.fixture(scope="session")
def record():
    """The record of one run."""
    return TinyPipeline(3, 40).record()
