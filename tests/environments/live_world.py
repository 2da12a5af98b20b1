"""The real actors and host performers on the live engine, round a policy that speaks from a script, and a learner that looks.

Time is a mock clock's: whatever waits for time waits for nothing. Only calls that hang are on threads here, so that the clock
never jumps over a thread that works.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from trio.testing import MockClock

from harness.core.events import EventKind, MemoryRecorder
from harness.core.work import Decode, Outcome, Prefill, Publish, TrainStep
from harness.engines import live
from pipeline.build import Hardware, Pipeline
from pipeline.config import PipelineConfig
from pipeline.data import Ended
from pipeline.environments import BaseTaskEnv, Step
from pipeline.environments.agents import PlainAgent
from pipeline.environments.source import LiveSource
from pipeline.live_config import EnvironmentTable, LiveConfig, SamplingTable
from pipeline.numerics.tokenizers import CharTokenizer
from pipeline.performers.host import host_performers
from pipeline.performers.threads import Threads

S = 1_000_000_000
SHORT = {
    "build_s": 4.0, "reset_s": 4.0, "tool_s": 8.0, "step_s": 40.0, "reward_s": 8.0, "close_s": 8.0, "generation_s": 20.0,
    "episode_s": 300.0,
}  # fmt: skip


class Books:
    """Every environment that was built in a test, and how often each was closed."""

    def __init__(self) -> None:
        self.numbers = itertools.count()
        self.closed: Counter[int] = Counter()
        self.built: list[int] = []
        self.release = threading.Event()  # lets hung threads go, at the end of a test

    def hang(self) -> None:
        """Block the thread until the test is over."""
        self.release.wait(60)


class Counted(BaseTaskEnv):
    """An environment that keeps the books: each turn asks for one more letter. Subclasses misbehave.

    `books` is set by `counted`. `bad` says which environments misbehave, by their number.
    """

    alphabet = "abcdefgh?"
    inline = True
    books: Books
    bad = staticmethod(lambda number: number == 1)

    def __init__(self, task: Any, **options: Any) -> None:
        super().__init__(task, **options)
        self.number = next(self.books.numbers)
        self.turns = 0
        self.starting()
        self.books.built.append(self.number)

    def starting(self) -> None:
        """For subclasses whose constructor fails."""

    @property
    def misbehaves(self) -> bool:
        return self.bad(self.number)

    @classmethod
    def make_task(cls, rng, **options):
        return {"letters": "".join(rng.choice("abcdefgh") for _ in range(8))}

    async def reset(self):
        return self.task["letters"]

    async def step(self, action):
        self.turns += 1
        return Step("ab", done=self.turns == 2)

    async def score(self):
        return 0.5

    async def close(self):
        self.books.closed[self.number] += 1


def counted(base: type[Counted] = Counted, **members: Any) -> type[Counted]:
    """A class with books of its own. (Not inherited: whether it is built inline.)"""
    return type(base.__name__, (base,), {"books": Books(), "inline": True, **members})


@dataclass
class Played:
    """What a run left behind."""

    environment: type[Counted]
    pipeline: Any = None
    report: Any = None
    work: Any = None
    threads: Any = None
    groups: list[Any] = field(default_factory=list)
    memory: MemoryRecorder = field(default_factory=MemoryRecorder)

    def ends(self) -> Counter[Ended]:
        """How episodes ended, those of the end of the run left out."""
        events = [event for event in self.memory.events if event[1] == EventKind.EPISODE_END]
        return Counter(Ended(event[3]) for event in events if event[3] != Ended.CANCELLED)

    def samples(self) -> list[Any]:
        """Members of all groups that were trained on."""
        return [member for group in self.groups for member in group.members]


class ScriptedInference:
    """Each chunk finishes every request that runs, with what `say` answers to the text of its prompt."""

    def __init__(self, tokenizer: CharTokenizer, say: Any) -> None:
        self._tokenizer = tokenizer
        self._say = say

    async def prefill(self, rt: Any, work: Prefill) -> Outcome:
        return Outcome()

    async def decode(self, rt: Any, work: Decode) -> Outcome:
        await rt.sleep(2 * S)
        completed = []
        for ticket, request in work.payload.items():
            asked = request.payload
            answer = self._say(self._tokenizer.decode(asked.prompt), asked.key)
            tokens = [*self._tokenizer.encode(answer), self._tokenizer.end_id]
            made = tokens[: asked.max_tokens]
            asked.tokens += made
            asked.log_probs += [-0.5] * len(made)
            asked.versions += [0] * len(made)
            asked.finished = made == tokens
            completed.append((ticket, len(made)))
        return Outcome(completed=tuple(completed), amount=max(own for _, own in completed))


def play(
    environment: type[Counted], *, say: Any = lambda text, key: "h", steps: int = 8, pipeline: dict[str, Any] | None = None,
    table: dict[str, Any] | None = None, sampling: dict[str, Any] | None = None, threads: Threads | None = None,
    clock: Any = None, retry: int = 0, replaced: Any = lambda own: {}, source_of: Any = lambda source: source,
    ready: Any = lambda pipeline: None, limit_s: int = 20_000, memory: Any = None,
) -> Played:  # fmt: skip
    """Run the pipeline for some steps, and check what holds of every run.

    `replaced` gives performers in the place of some of its `own`, `source_of` another source; `ready` gets the pipeline before
    it runs; `memory` is another recorder.
    """
    played = Played(environment, memory=memory or MemoryRecorder())
    alphabet = "".join(dict.fromkeys(environment.alphabet))
    agent = PlainAgent(CharTokenizer(alphabet))
    config = LiveConfig(
        environment=EnvironmentTable(**{"name": "x:Y", "max_turns": 4, **(table or {})}),
        sampling=SamplingTable(**(sampling or {})),
    )
    source = LiveSource(environment, config, agent, seed=0)
    knobs = {
        "group_size": 2, "groups_per_step": 2, "buffer_capacity": 8, "max_inflight": 8, "env_workers": 8, "tool_workers": 4,
        "reward_workers": 4, "retry_infra": retry, "retry_data": 0, "backoff_s": 0.5, "deadlines": SHORT,
    }  # fmt: skip
    pool = played.threads = threads or Threads(4)
    played.work, performers = host_performers(pool)
    inference = ScriptedInference(agent.tokenizer, say)

    async def train(rt: Any, work: TrainStep) -> Outcome:
        played.groups.extend(work.payload)
        return Outcome()

    async def publish(rt: Any, work: Publish) -> Outcome:
        return Outcome()

    performers |= {Prefill: inference.prefill, Decode: inference.decode, TrainStep: train, Publish: publish}
    performers |= replaced(performers)

    async def main(rt: Any) -> None:
        played.pipeline = Pipeline(
            rt, PipelineConfig.model_validate(knobs | (pipeline or {})), Hardware(1, 1, 16, 100_000, 1, 1), source_of(source)
        )
        ready(played.pipeline)
        played.report = await played.pipeline.run(steps=steps, limit_ns=limit_s * S)

    try:
        live.run(main, performers=performers, recorder=played.memory, clock=clock or MockClock(autojump_threshold=0))
    finally:
        environment.books.release.set()
        pool.close()
    check(played)
    return played


def check(played: Played) -> None:
    """Closed exactly once, permits back, books balanced, lists aligned, counts as the actors counted them."""
    books = played.environment.books
    assert {number: books.closed[number] for number in books.built} == dict.fromkeys(books.built, 1)
    assert set(books.closed) <= set(books.built)
    for pool in played.pipeline.pools.values():
        assert (pool.in_use, pool.waiting) == (0, 0), pool.name
    played.pipeline.accounts.check(played.pipeline.holders())
    for result in played.samples():
        sample = result.payload
        size = len(sample.tokens)
        assert len(sample.trained) == len(sample.log_probs) == len(sample.versions) == size == result.sequence_tokens
        assert sum(sample.trained) == result.tokens
        for trained, log_prob, version in zip(sample.trained, sample.log_probs, sample.versions, strict=True):
            assert (log_prob, version) == ((-0.5, 0) if trained else (0.0, -1))
