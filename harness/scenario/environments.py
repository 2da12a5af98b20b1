"""Sandboxes, tools and scoring: how long they take and how they fail. How many there are is a knob of the pipeline."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from harness.core.errors import ConfigError
from harness.costs.laws import Constant, Law, Record

Probability = Annotated[float, Field(ge=0, le=1)]


class Environments(Record):
    """Sandboxes: how long they take to start and stop, and how they fail. How many there are is a knob of the pipeline."""

    reset: Law = Field(description="Seconds to start and reset an environment.")
    reset_infra_failure: Probability = Field(default=0.0, description="Probability that a start fails; a retry draws anew.")
    reset_hang: Probability = Field(default=0.0, description="Probability that a start never returns.")
    close: Law = Field(description="Seconds to tear an environment down.")
    starts_at_once: int | None = Field(
        default=None, ge=1, description="Most starts that are served at once; further ones queue. Absent: any number."
    )
    start_queue: int | None = Field(
        default=None, ge=0, description="Most starts that wait for their turn; a further one is refused. Absent: all wait."
    )
    refuse_s: float = Field(default=0.0, ge=0, description="Seconds until a refused start says so.")
    slowdown_per_start: float = Field(
        default=0.0, ge=0, le=100, description="A start that finds n others under way takes 1 + n times this as long."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        total = self.reset_infra_failure + self.reset_hang
        if total > 1:
            raise ValueError(f"reset_infra_failure and reset_hang add up to {total:g}, above 1")
        if self.start_queue is not None and self.starts_at_once is None:
            raise ValueError("start_queue says how many may wait, but nothing does: set starts_at_once")
        if self.refuse_s and self.start_queue is None:
            raise ValueError("refuse_s says how long a refusal takes, but nothing is refused: set start_queue")
        return self


class Scoring(Record):
    """Rewards."""

    duration: Law = Field(description="Seconds to score one episode.")
    time_limit_s: float | None = Field(default=None, gt=0, description="Scoring that takes as long or longer ends there.")
    failure: Probability = Field(default=0.0, description="Probability that scoring an episode fails.")
    runs_on: Literal["workers", "loop"] = Field(
        default="workers",
        description="Where it computes: on workers of its own, or on the event loop, where everything else waits meanwhile.",
    )


class Tool(Record):
    """One kind of tool call. `ToolCall.tool` is its index in the table."""

    name: str = Field(min_length=1, description="Name, unique in the table.")
    share: float = Field(gt=0, le=1, description="Share of all calls. The shares add up to 1.")
    duration: Law = Field(description="Seconds of a call; with `agent_run`, its weight in the run.")
    time_limit_s: float | None = Field(
        default=None, gt=0, description="A call that takes this long or longer ends there, timed out."
    )
    failure: Probability = Field(default=0.0, description="Probability that a call fails in itself; a retry would fail again.")
    infra_failure: Probability = Field(default=0.0, description="Probability that what it runs on fails; a retry draws anew.")
    hang: Probability = Field(default=0.0, description="Probability that a call never returns.")
    rate_per_s: float | None = Field(
        default=None, gt=0, le=1e6, description="Calls a second that the tool's provider serves, over all agents. Absent: any."
    )
    burst: int = Field(default=1, ge=1, description="Calls that it serves at once after a pause, under `rate_per_s`.")
    on_excess: Literal["wait", "refuse"] = Field(
        default="wait", description="A call above the rate waits in the provider's queue, or is refused and may be tried again."
    )
    refuse_s: float = Field(default=0.0, ge=0, description="Seconds until a refused call says so.")
    price_usd: float = Field(default=0.0, ge=0, description="US dollars a call, each attempt counted.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        total = self.failure + self.infra_failure + self.hang
        if total > 1:
            raise ValueError(f"failure, infra_failure and hang add up to {total:g}, above 1")
        if self.rate_per_s is None and (self.burst > 1 or self.on_excess == "refuse"):
            raise ValueError("burst and on_excess say what happens at a rate limit, but there is none: set rate_per_s")
        if self.refuse_s and self.on_excess != "refuse":
            raise ValueError('refuse_s says how long a refusal takes, but nothing is refused: set on_excess = "refuse"')
        return self


STARTS, ALL_TOOLS, SCORING = "environments", "tools", "scoring"
"""What an outage can take beside tools by their names."""

SHORTEST_UP_S = 1.0
"""Shortest mean time between two outages, in seconds: what comes more often is a failure, which tools and starts have."""


class Outage(Record):
    """Something that many episodes depend on, and that is down now and then: a vendor, a network, hosts of sandboxes.

    It takes down all that depend on it at once, which failures drawn one by one never do.
    """

    name: str = Field(min_length=1, description="Name, unique in the table; it keys the draws.")
    takes: tuple[str, ...] = Field(
        strict=False,
        min_length=1,
        description="What fails with it: environments (their starts), tools, scoring, a tool's name.",
    )
    up: Law = Field(description="Seconds from the end of one outage to the start of the next.")
    down: Law = Field(description="Seconds of an outage.")
    share: float = Field(
        default=1.0, gt=0, le=1, description="Share of the episodes that depend on it, the same ones in every configuration."
    )
    hosts: int = Field(
        default=1, ge=1, le=10_000, description="Hosts over which these episodes are spread; each is down by itself."
    )
    in_flight: Literal["fail", "hang", "slow", "finish"] = Field(
        default="fail",
        description="What happens to a call that an outage meets: it fails, never returns, slows down or ends well.",
    )
    new_calls: Literal["fail", "hang", "slow"] = Field(
        default="fail", description="What happens to a call that begins in an outage. A retry is one."
    )
    fail_after: Law = Field(
        default=Constant(value_s=0.0),
        description="Seconds until a call fails: from the outage's start, or from its own within one.",
    )
    slow_factor: float | None = Field(
        default=None, gt=1, description="How many times as long calls take during an outage that slows them."
    )
    begins_up: bool = Field(
        default=False, description="The first outage comes one `up` after the start; else outages have come and gone for long."
    )

    @property
    def slows(self) -> bool:
        """Whether any call only slows down."""
        return "slow" in (self.in_flight, self.new_calls)

    @property
    def down_share(self) -> float:
        """Share of the time in which one host is down, in the long run: 1 - 1 / (1 + down / up)."""
        return 1 - 1 / (1 + self.down.expected_s() / self.up.expected_s())

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.up.expected_s() < SHORTEST_UP_S:
            raise ValueError(
                f"up has a mean of {self.up.expected_s():g} s, below {SHORTEST_UP_S:g}: what is down that often is better said "
                "by the failure probabilities of tools and environments"
            )
        if self.down.expected_s() <= 0:
            raise ValueError("down is always 0 s: an outage that takes no time")
        if self.slows != (self.slow_factor is not None):
            raise ValueError("slow_factor belongs to an outage that slows calls down" + (": set it" if self.slows else ""))
        return self


def check_outages(outages: tuple[Outage, ...], tools: tuple[Tool, ...], longest_s: float) -> None:
    """Refuse outages of what does not exist, and outages that never end.

    Args:
        outages: of the world.
        tools: of the workload.
        longest_s: simulated seconds after which a run is stopped.

    Raises:
        ConfigError: names the outage.

    """
    known = (STARTS, ALL_TOOLS, SCORING, *[tool.name for tool in tools])
    names = [outage.name for outage in outages]
    for i, outage in enumerate(outages):
        field = f"world.outages.{i}"
        if outage.name in names[:i]:
            raise ConfigError(
                "is the name of another outage as well", field=f"{field}.name", value=outage.name, remedy="rename it"
            )
        for what in outage.takes:
            if what not in known:
                raise ConfigError(
                    "takes what there is not", field=f"{field}.takes", value=what, allowed=", ".join(known),
                    remedy="name a tool of workload.tools, or one of the others",
                )  # fmt: skip
        if outage.down.quantile(0.0) >= longest_s:
            raise ConfigError(
                "never ends: its shortest outage outlasts the longest run",
                field=f"{field}.down", value=outage.down.quantile(0.0),
                allowed=f"a law that is sometimes below run.max_sim_s = {longest_s:g} s",
                remedy="shorten it; for a part that is always down, take it out of the world",
            )  # fmt: skip
