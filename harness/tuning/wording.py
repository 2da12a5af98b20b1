"""Figures, causes and limits in words. Every front end (terminal, page, JSON) says the same sentences."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from harness.analysis.agreement import Agreement
    from harness.analysis.statistics import Interval
    from harness.tuning.measured import Measured
    from harness.tuning.space import Settings

CAUSES = {
    "tools": "tool calls running",
    "tool_queue": "tool calls waiting for a free worker",
    "env_start": "environments starting",
    "env_queue": "episodes waiting for a free environment",
    "env_close": "environments closing",
    "generation": "episodes still generating",
    "generation_queue": "requests queued for a slot",
    "reward": "rewards being computed",
    "reward_queue": "rewards waiting to be computed",
    "admission": "admission closed, no credit for an episode",
    "no_task": "no task has come",
    "stale_wait": "waiting so that no sample grows too old",
    "turn_barrier": "episodes waiting for the slowest one's turn",
    "weight_sync": "weight sync",
    "sync_wait": "waiting for a weight sync to begin",
    "evaluation": "evaluation",
    "backoff": "back-off after failures",
    "host": "the host's event loop",
    "down": "lost chips that are not replaced yet",
    "buffer_full": "finished episodes blocked on a full buffer",
    "no_work": "no work sent",
    "no_request": "no request in sight",
    "no_batch": "no whole batch",
    "absent": "not yet there or gone",
    "unattributed": "no cause found",
    "untraced": "not traced",
}
"""What the chips waited for, by cause of `idle`."""

CLOGGED = 0.9
"""A pool in use above this share is named: what waits for it waits long."""

CLASSES = {
    "kept": "kept work",
    "in_flight": "work still in flight",
    "discarded": "work later discarded",
    "overhead": "overhead",
    "idle": "idle",
}
"""The classes of chip time, in the order in which they are drawn."""


EPISODE_STATES = {
    "generate": "generating",
    "tool_exec": "in a tool call",
    "reward": "being scored",
    "gen_queue": "waiting for a slot",
    "tool_queue": "waiting for a tool worker",
    "reward_queue": "waiting to be scored",
    "env_queue": "waiting for an environment",
    "env_reset": "starting its environment",
    "env_close": "closing its environment",
    "blocked_put": "blocked on a full buffer",
    "sync_pause": "paused by a weight sync",
    "backoff": "backing off after a failure",
    "provider_queue": "queued at a tool's provider",
    "turn_wait": "waiting for the others' turn",
}
"""States of an episode's lane, in words."""


def cause(key: str) -> str:
    """Words for a cause, its own name with spaces when there are none."""
    return CAUSES.get(key, key.replace("_", " "))


def percent(share: float) -> str:
    """`41%`, `4.1%`; one digit behind the point below ten."""
    value = 100 * share
    shown = f"{value:.1f}" if abs(value) < 9.95 else f"{value:.0f}"
    return f"{'0.0' if shown == '-0.0' else shown}%"


def share_with_interval(interval: Interval) -> str:
    """`41% (38 to 44%)`; a share cannot leave 0 to 100%."""
    if not math.isfinite(interval.half_width):
        return f"{percent(interval.mean)} (one run, no interval)"
    low, high = max(0.0, interval.low), min(1.0, interval.high)
    return f"{percent(interval.mean)} ({_number(low)} to {percent(high)})"


def gain_with_interval(interval: Interval) -> str:
    """`+25% (+21 to +29%)`."""
    if not math.isfinite(interval.half_width):
        return f"{_signed(interval.mean)}% (one pair, no interval)"
    return f"{_signed(interval.mean)}% ({_signed(interval.low)} to {_signed(interval.high)}%)"


def _number(share: float) -> str:
    return percent(share).removesuffix("%")


def _signed(share: float) -> str:
    value = 100 * share
    shown = f"{value:+.1f}" if abs(value) < 9.95 else f"{value:+.0f}"
    return "0.0" if shown in ("+0.0", "-0.0") else shown


def listed(items: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    parts = list(items)
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1] if parts else ""


def settings_in_words(changed: Settings) -> str:
    """`max_staleness = 2 and steps_per_sync = 1`."""
    return listed(f"{path.rpartition('.')[2]} = {value}" for path, value in changed.items()) or "today's settings"


def idle_causes(measured: Measured, most: int = 3) -> str:
    """`tool calls running (22%), …`, the largest causes of idle chips."""
    named = [(name, share) for name, share in measured.causes("idle") if share >= 0.005]
    return listed(f"{cause(name)} ({percent(share)})" for name, share in named[:most])


def bottleneck(before: Measured, after: Measured | None) -> tuple[str, ...]:
    """Where chip time goes today and with the answer, largest first."""
    lines = [_bottleneck("Today", before)]
    if after is not None:
        lines.append(_bottleneck("With the settings found", after))
    return tuple(lines)


def limits_in_words(measured: Measured, agreement: Agreement | None = None) -> tuple[str, ...]:
    """What holds a simulated run back, one sentence each: whose chips stand idle and why, and a bound that it has reached."""
    lines = [_bottleneck("", measured)]
    roles = [(role, share) for role, share in measured.idle_by_role.items() if share >= SOME_IDLE]
    if len(measured.idle_by_role) > 1 and roles:
        roles.sort(key=lambda pair: -pair[1])
        shares = listed(f"those of {ROLE_CHIPS.get(role, role)} {percent(share)}" for role, share in roles)
        lines.append(f"Whose chips: {shares} of all chip time.")
    queued = measured.episode_s.get("provider_queue", 0.0)
    if queued and queued >= SOME_QUEUE * math.fsum(measured.episode_s.values()):
        called = queued + measured.episode_s.get("tool_exec", 0.0)
        lines.append(f"{percent(queued / called)} of the time in tool calls is a queue at their provider: its rate limits.")
    if agreement is not None and agreement.expected.limits:
        narrowest = agreement.expected.narrowest
        used = agreement.complete_groups_per_s / narrowest.groups_per_s
        if used >= AT_A_BOUND:
            lines.append(f"{_capital(narrowest.name)}: {percent(used)} of what that lets through is made, so it is the limit.")
        else:
            lines.append(
                f"No resource is at its bound; the nearest, {narrowest.name}, lets through {1 / used:.2g} times as much."
                if used > 0
                else "Nothing was made."
            )
    return tuple(lines)


def provisional(measured: Measured) -> tuple[str, ...]:
    """Said beside a result that too few replications made."""
    few = measured.replications < HONEST_REPLICATIONS
    return (f"provisional: a claim needs {HONEST_REPLICATIONS} replications or more",) if few else ()


HONEST_REPLICATIONS = 3
"""Replications that a claim needs."""

AT_A_BOUND = 0.85
"""Share of a bound on throughput from which it is called the limit: below, variability and waits for others take more."""

SOME_IDLE, SOME_QUEUE = 0.01, 0.02
"""Shares from which they are worth a sentence."""

ROLE_CHIPS = {"inference": "the replicas", "learner": "the learner", "chips": "the shared chips"}

POOLS = {"slots": "episode places"}
"""Pools whose key is not what a reader would call them: places for episodes in flight are no slots of a replica."""


def pool(key: str) -> str:
    """A pool or role in words."""
    return POOLS.get(key, key.replace("_", " "))


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _bottleneck(when: str, measured: Measured) -> str:
    idle = measured.share("idle")
    if idle < 0.02:
        text = f"{when} the chips are hardly ever idle ({percent(idle)})".strip()
    else:
        causes = idle_causes(measured)
        text = f"{when} {percent(idle)} of chip time is idle".strip() + (f": the chips wait for {causes}" if causes else "")
    rest = [
        f"{CLASSES[klass]} takes {percent(measured.share(klass))}"
        for klass in ("overhead", "discarded")
        if measured.share(klass) >= 0.02
    ]
    full = [f"{pool(name)} {percent(share)}" for name, share in measured.utilisation.items() if share >= CLOGGED]
    clogged = f" Nearly all in use: {listed(full)}." if full else ""
    return text[0].upper() + text[1:] + (f"; {listed(rest)}" if rest else "") + "." + clogged
