"""What is asked of an inference engine: the generation of one turn, and the installation of a weight version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.core.work import Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.core.accounts import Account
    from harness.core.lanes import Lane
    from harness.core.runtime import Event, Runtime
    from pipeline.policies.sync import Quiesce


class Request:
    """What an episode asks of an engine: the generation of one turn, and its answer. Used again for the next turn.

    Attributes:
        ticket: unique per admission to a replica; completions name it.
        episode: for whom.
        group: of the episode, -1 for none: its members have the first `prompt_tokens` of their contexts in common.
        prompt_tokens: of the episode's first prompt.
        kv_tokens: tokens whose KV it holds once it is prefilled, and what it generated since.
        new_tokens: the part of them that has to be prefilled at admission.
        reserved_tokens: KV that it may come to hold.
        payload: opaque: the prompt, or the simulated length.
        done: set when it has ended, or was let go.
        tokens: generated so far.
        oldest: oldest version that made a token of this episode, -1 before the first one. A replica that is behind the others
            (a sync in turn, a loss) may make a later token with an older version.
        newest: newest version of them.
        left: its caller was cancelled.
        status: how its generation ended: `Status.OK`, or the failure of an engine outside.
        progress: tells how many tokens an engine outside has made since it was sent, where that is known.
        resumed: it was taken out by a weight swap; its prefill then is a repetition.
        result: opaque: what was generated.

    """

    __slots__ = (
        "account",
        "done",
        "entered",
        "episode",
        "group",
        "kv_tokens",
        "lane",
        "left",
        "new_tokens",
        "newest",
        "oldest",
        "payload",
        "price",
        "progress",
        "prompt_tokens",
        "replica",
        "reserved_tokens",
        "result",
        "resumed",
        "status",
        "ticket",
        "tokens",
    )

    def __init__(self, episode: int, account: Account, lane: Lane, group: int = -1, prompt_tokens: int = 0) -> None:
        self.episode = episode
        self.group = group
        self.prompt_tokens = prompt_tokens
        self.account = account
        self.lane = lane
        self.left = False
        self.status = Status.OK
        self.progress: Callable[[], int] | None = None
        self.result: Any = None
        self.ticket = -1
        self.replica = -1
        self.entered = 0
        self.price = 0.0
        self.oldest = self.newest = -1

    def ask(self, cached_tokens: int, new_tokens: int, max_tokens: int, payload: Any, done: Event) -> None:
        """Make it the request of the next turn (`pipeline.environments.base.Prompt`)."""
        kv_tokens = cached_tokens + new_tokens
        self.kv_tokens = kv_tokens
        self.new_tokens = new_tokens
        self.reserved_tokens = kv_tokens + max_tokens
        self.payload = payload
        self.done = done
        self.tokens = 0
        self.resumed = False

    def again(self, done: Event) -> None:
        """Ask for the rest of an answer that failed in the middle, with everything to prefill."""
        self.new_tokens = self.kv_tokens
        self.status = Status.OK
        self.done = done


class Swap:
    """An order to install a version on one replica.

    Attributes:
        quiesced: set by the replica when nothing that the mode waits for is left.
        go: set by the publisher when the replica may install.
        done: set by the replica when it serves with the new weights.

    """

    __slots__ = ("done", "go", "payload", "quiesce", "quiesced", "version", "weights_bytes")

    def __init__(self, rt: Runtime, version: int, quiesce: Quiesce, weights_bytes: int, payload: Any) -> None:
        self.version = version
        self.quiesce = quiesce
        self.weights_bytes = weights_bytes
        self.payload = payload
        self.quiesced = rt.event()
        self.go = rt.event()
        self.done = rt.event()

    def let_go(self) -> None:
        """The replica was lost: nobody waits for it any more."""
        self.quiesced.set()
        self.go.set()
        self.done.set()


class Aside:
    """An order to let go of the chips, which the learner shares.

    Attributes:
        quiesced: set by the replica when nothing that the mode waits for is left.
        go: set when it has its chips again.
        held: requests that it kept meanwhile.

    """

    __slots__ = ("go", "held", "quiesce", "quiesced")

    def __init__(self, rt: Runtime, quiesce: Quiesce) -> None:
        self.quiesce = quiesce
        self.quiesced = rt.event()
        self.go = rt.event()
        self.held = 0


def arrival(entry: tuple[int, int, int, Request]) -> tuple[int, int, int]:
    """Key of a request that waits: (since, episode, order of asking)."""
    return entry[:3]
