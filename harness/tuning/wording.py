"""The answer in words. Every front end (terminal, page, JSON) says the same sentences."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from harness.tuning.measured import HONEST_STEPS
from harness.tuning.result import INDIFFERENCE, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from harness.analysis.agreement import Agreement
    from harness.analysis.statistics import Interval
    from harness.tuning.measured import Measured
    from harness.tuning.result import TuneResult
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

DENSER = 0.05
"""From this much more tokens per busy chip-second on, fuller batches are named as a reason."""

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


def answer(result: TuneResult) -> tuple[str, ...]:
    """The answer, one sentence each, the first one alone worth reading."""
    today = f"Today's configuration leaves the accelerators idle {share_with_interval(result.baseline.idle_share)}"
    if result.settings is None or result.best is None or result.gain is None:
        return (today + ".", "Nothing else was tried: that is all that can be said.")
    best, words = result.best, settings_in_words(result.changed)
    kept = f"{gain_with_interval(result.gain)} kept groups per chip-second"
    if result.verdict is Verdict.BETTER:
        first = f"{today}; with {words} it is {share_with_interval(best.idle_share)}: {kept}."
        return (first, *_because(result), _lag(result))
    if result.verdict is Verdict.WITHIN_CEILING:
        first = f"{today}, and exceeds the lag ceiling of {result.ceiling_lag} (it reaches {result.baseline.lag_max})."
        second = f"Within the ceiling the best found is {words}: idle {share_with_interval(best.idle_share)}, {kept}."
        return (first, second, _lag(result))
    if result.verdict is Verdict.NO_BETTER:
        tried = f"No setting is better than yours by more than {percent(INDIFFERENCE)}, of {result.effort.candidates} tried"
        return (f"{today}.", f"{tried}; the closest, {words}, gives {kept}.", *_because(result))
    if result.objective == "kept" and result.gain.mean <= 0:
        none = (
            f"None of the {result.effort.candidates} settings tried looks better than yours: the closest, {words}, gives {kept}"
        )
        return (f"{today}.", f"{none}; a larger --budget tries more.", *_because(result))
    cannot = f"It cannot be told whether any setting is better: the most promising, {words}, gives {kept}"
    remedy = "a larger --budget narrows this" if not result.interrupted else "the search was interrupted"
    return (f"{today}.", f"{cannot}; {remedy}.", *_because(result))


def _because(result: TuneResult) -> tuple[str, ...]:
    causes = idle_causes(result.baseline, 2)
    if not causes or result.baseline.share("idle") < 0.02:
        return ()
    if result.verdict is Verdict.BETTER and result.best is not None:
        gone = [
            (result.baseline.chip_share[f"idle:{name}"] - result.best.chip_share.get(f"idle:{name}", 0.0), name)
            for name, _ in result.baseline.causes("idle")
            if name
        ]
        removed = [
            f"{cause(name)} ({percent(change)} of chip time)"
            for change, name in sorted(gone, reverse=True)[:2]
            if change > 0.01
        ]
        why = [f"Why: the chips no longer wait for {listed(removed)}."] if removed else []
        denser = result.best.tokens_per_busy_chip_s / max(result.baseline.tokens_per_busy_chip_s, 1e-12) - 1
        if denser >= DENSER:
            why.append(f"{'A' if removed else 'Why: a'} busy chip-second makes {percent(denser)} more tokens: fuller batches.")
        return tuple(why)
    return (
        (f"Why: the chips wait for {causes}, and no searched knob removes that.",)
        if result.verdict is Verdict.NO_BETTER
        else ()
    )


def _lag(result: TuneResult) -> str:
    before, after = result.baseline, result.best
    if after is None:
        return ""
    change = after.lag_p95 - before.lag_p95
    verb = "rises" if change > 0.05 else "falls" if change < -0.05 else "does not change"
    p95, largest = f"{before.lag_p95:.1f} to {after.lag_p95:.1f}", f"{before.lag_max} to {after.lag_max}"
    moved = f"Lag {verb}, from {p95} optimizer steps at p95 and from {largest} at most"
    if result.ceiling_given:
        return f"{moved}, within your ceiling of {result.ceiling_lag}."
    return (
        f"{moved}. Whether the loss bears that cannot be known from throughput: "
        f"set your own ceiling with --max-lag (this search went up to {result.ceiling_lag})."
    )


def how_sure(result: TuneResult) -> tuple[str, ...]:
    """What the figures rest on, and what a reader must know."""
    effort, measured = result.effort, result.baseline
    pairs = "1 replication" if measured.replications == 1 else f"{measured.replications} replications, paired by seed,"
    rests = (
        f"{pairs} of {measured.learner_steps} learner steps after {measured.warmup_steps} of warm-up; "
        f"each {measured.groups:,.0f} groups, {measured.episodes:,.0f} episodes and {measured.turns:,.0f} turns."
    )
    spent = (
        f"{effort.candidates} settings tried in {effort.evaluations} simulations, {effort.refused} refused as contradictory, "
        f"{effort.over_ceiling} over the lag ceiling; {effort.wall_s:.0f} s of {effort.budget_s:.0f} s."
    )
    lines = [rests, spent]
    found = result.best
    if found is not None and (found.learner_steps, found.warmup_steps) != (measured.learner_steps, measured.warmup_steps):
        lines.insert(
            1,
            f"With the settings found {found.learner_steps} steps after {found.warmup_steps} of warm-up: a deep pipeline takes "
            "longer to fill, and its window holds whole sync intervals.",
        )
    if result.provisional:
        lines.append(f"Provisional: a claim needs 3 replications or more of at least {HONEST_STEPS} learner steps.")
    return (*lines, *result.notes)
