"""What `tune` answers, in words. Every front end (terminal, page, JSON) says the same sentences.

The first sentence alone is worth reading. "Stay synchronous", "buy nothing: a pool is the limit", "no setting is better than
yours" and "it cannot be told" are answers like any other, and each says what it rests on or what would let it tell.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from harness.tuning.measured import HONEST_STEPS
from harness.tuning.result import WITHIN, Verdict
from harness.tuning.wording import (
    AT_A_BOUND,
    CLOGGED,
    ROLE_CHIPS,
    cause,
    gain_with_interval,
    idle_causes,
    listed,
    percent,
    pool,
    settings_in_words,
    share_with_interval,
)

if TYPE_CHECKING:
    from harness.tuning.result import Flatness, Sensitivity, TuneResult

DENSER = 0.05
"""From this much more tokens per busy chip-second on, fuller batches are named as a reason."""

DEPTH = "pipeline.pipeline_depth"
"""The knob that is 0 where the pipeline is synchronous."""

POOL_KNOBS = {"tools": "tool_workers", "environments": "env_workers", "scoring": "reward_workers", "slots": "max_inflight"}
"""Pools, and the knob that widens each."""

OUTSIDE = {
    "rate limit of": "rate_per_s of that tool",
    "starts at once": "world.environments.starts_at_once",
    "tasks that come": "workload.arrivals",
}
"""Limits that no knob of the pipeline moves, by how their names begin, and the fields that do."""

SOME_IDLE = 0.02
"""Share of chip time from which it is worth saying why it is idle."""

NO_CEILING = 10_000
"""A lag ceiling from here on is none."""

WIDEST = 5
"""Percent: a zone of indifference above this is not suggested."""

HELD = {"environments", "slots"}
"""Pools whose places are held while tokens are generated: faster generation frees them sooner."""

HARDLY_BUSY = 0.5
"""Replicas that work less of the time than this are not what the places of an episode wait for."""

MOST_NAMED = 3
"""Inputs, ties and dropped settings that are named one by one."""


def answer(result: TuneResult) -> tuple[str, ...]:
    """The answer, one sentence each, the first one alone worth reading."""
    today = f"Today's configuration leaves the accelerators idle {share_with_interval(result.baseline.idle_share)}"
    limited = today + _chiefly(result)
    if result.settings is None or result.best is None or result.gain is None:
        return (f"{limited}.", "Nothing else was tried: that is all that can be said.", *_buy_nothing(result))
    best, words = result.best, settings_in_words(result.changed)
    kept = f"{gain_with_interval(result.gain)} kept groups per chip-second"
    if result.verdict is Verdict.BETTER:
        first = f"{limited}; with {words} it is {share_with_interval(best.idle_share)}: {kept}."
        return (first, *_because(result), *_synchronous(result), _lag(result), *_cost(result), *_ties(result))
    if result.verdict is Verdict.WITHIN_CEILING:
        first = f"{today}, and exceeds the lag ceiling of {result.ceiling_lag} (it reaches {result.baseline.lag_max})."
        second = f"Within the ceiling the best found is {words}: idle {share_with_interval(best.idle_share)}, {kept}."
        return (first, second, *_synchronous(result), _lag(result), *_cost(result), *_ties(result))
    if result.verdict is Verdict.NO_BETTER:
        worth = percent(result.indifference)
        tried = f"No setting is better than yours by more than {worth}, of {result.effort.candidates} tried"
        same = result.gain.mean == 0 == result.gain.half_width
        closest = f"{tried}; the closest, {words}, {'does the very same' if same else f'gives {kept}'}."
        return (f"{limited}.", *_synchronous(result), closest, *_because(result), *_buy_nothing(result))
    if result.objective == "kept" and result.gain.mean <= 0:
        none = (
            f"None of the {result.effort.candidates} settings tried looks better than yours: the closest, {words}, gives {kept}"
        )
        return (f"{limited}.", f"{none}; a larger --budget tries more.", *_buy_nothing(result))
    asked = "whether any setting is better" if result.gain.low <= 0 else "whether a gain is worth the change"
    cannot = f"It cannot be told {asked}: the most promising, {words}, gives {kept}"
    return (f"{limited}.", f"{cannot}; {_would_tell(result)}.", *_buy_nothing(result))


def _chiefly(result: TuneResult) -> str:
    """What the chips wait for most, where they wait."""
    causes = [pair for pair in result.baseline.causes("idle") if pair[0]]
    if not causes or result.baseline.share("idle") < SOME_IDLE:
        return ""
    name, share = max(causes, key=lambda pair: pair[1])
    return f", first of all for {cause(name)} ({percent(share)})"


def _would_tell(result: TuneResult) -> str:
    """What would let it be told."""
    if result.interrupted:
        return "the search was interrupted"
    remedy = "a larger --budget narrows this"
    if result.effort.final_steps < HONEST_STEPS:
        remedy += f", and lets replications be as long as a claim needs ({HONEST_STEPS} learner steps)"
    enough = math.ceil(100 * result.gain.high) if result.gain is not None and math.isfinite(result.gain.high) else 0
    if result.objective == "kept" and 100 * result.indifference < enough <= WIDEST:
        remedy += f"; with --indifference {enough}% it is not worth asking"
    return remedy


def _because(result: TuneResult) -> tuple[str, ...]:
    causes = idle_causes(result.baseline, 2)
    if not causes or result.baseline.share("idle") < SOME_IDLE:
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
    if result.verdict is not Verdict.NO_BETTER:
        return ()
    return (f"Why: the chips wait for {causes}, and no searched knob removes that.",)


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
    if change <= 0.05 and after.lag_max <= before.lag_max:
        return f"{moved}."
    reach = f" (this search went up to {result.ceiling_lag})" if result.ceiling_lag < NO_CEILING else ""
    return f"{moved}. Whether the loss bears that cannot be known from throughput: set your own ceiling with --max-lag{reach}."


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
    lines = [rests, spent, *told_apart(result)]
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


def _synchronous(result: TuneResult) -> tuple[str, ...]:
    """Whether to run ahead at all, where that was asked and the answer is no."""
    chosen = result.today if result.verdict is Verdict.NO_BETTER else (result.settings or result.today)
    if chosen.get(DEPTH, 1) != 0:
        return ()
    ahead = [
        point
        for point in result.points
        if point.settings.get(DEPTH, result.today[DEPTH]) != 0 and point.lag_max <= result.ceiling_lag
    ]
    if not ahead or result.verdict not in (Verdict.NO_BETTER, Verdict.BETTER):
        return ()  # a ceiling that forbids running ahead is no advice against it
    verb = "Stay" if result.today[DEPTH] == 0 else "Go"
    if result.verdict is Verdict.NO_BETTER:
        gains = f"running ahead gains no more than {percent(result.indifference)}"
    else:
        best = max(ahead, key=lambda point: point.gain.mean)
        gains = f"the best that runs ahead gives {gain_with_interval(best.gain)}"
    return (f"{verb} synchronous: {gains} in any of the {len(ahead)} settings that do, and makes samples older.",)


def _buy_nothing(result: TuneResult) -> tuple[str, ...]:
    """What is at its bound and no searched knob widens: more chips would wait for it, too."""
    if result.baseline.share("idle") < SOME_IDLE:
        return ()
    return _full_pools(result) or _outside(result) or _split(result)


def _full_pools(result: TuneResult) -> tuple[str, ...]:
    names = {path.rpartition(".")[2] for path in result.today}
    used = result.baseline.utilisation
    full = {name: share for name, share in used.items() if share >= CLOGGED and name in POOL_KNOBS}
    # Where a pool serves calls as fast as it can, places fill up behind it: they are no limit of their own.
    limits = {name: share for name, share in full.items() if name not in HELD}
    if not limits and used.get("inference", 1.0) < HARDLY_BUSY:
        limits = full
    if not limits or any(POOL_KNOBS[name] in names for name in limits):
        return ()
    pools = listed(f"{pool(name)} ({percent(share)} in use)" for name, share in limits.items())
    knobs = " ".join(f"--knob {POOL_KNOBS[name]}" for name in limits)
    verb, it = ("is", "it") if len(limits) == 1 else ("are", "them")
    return (
        f"Buy no chips: {pools} {verb} the limit, and more chips would wait for {it}, too. {knobs} asks how far to widen {it}.",
    )


def _outside(result: TuneResult) -> tuple[str, ...]:
    """A provider's rate, starts of environments or the coming of tasks: no knob of the pipeline moves them."""
    if result.by_hand is None or not result.by_hand.limits:
        return ()
    name, groups_per_s = result.by_hand.limits[0]
    field = next((field for start, field in OUTSIDE.items() if name.startswith(start)), "")
    now = result.baseline
    made = (now.groups + math.fsum(now.dropped_groups.values())) * now.replications / now.window_s
    if not field or made < AT_A_BOUND * groups_per_s:
        return ()
    used = f"{percent(made / groups_per_s)} of what it lets through is made"
    return (f"Buy no chips: the limit is outside, {name} ({used}). Only more of that helps: {field}.",)


def _split(result: TuneResult) -> tuple[str, ...]:
    """The learner at its bound while other chips stand idle. Replicas that are never idle may still have room in a batch."""
    busy, idle = result.baseline.utilisation.get("learner", 0.0), result.baseline.idle_by_role.get("inference", 0.0)
    if busy < CLOGGED or idle < SOME_IDLE:
        return ()
    waiting = f"{ROLE_CHIPS['inference']} {percent(idle)} of all chip time"
    return (
        f"The limit is {ROLE_CHIPS['learner']} ({percent(busy)} in use); idle are those of {waiting}. "
        "--chips asks for a better split.",
    )


def _money(result: TuneResult) -> tuple[str, ...]:
    before, after = result.baseline, result.best
    if after is None or not before.usd_per_1000_groups or not after.usd_per_1000_groups:
        return ()
    was, now = before.usd_per_1000_groups, after.usd_per_1000_groups
    return (f"A thousand trained groups cost {now:,.2f} US dollars instead of {was:,.2f} ({100 * (now / was - 1):+.0f}%).",)


def _cost(result: TuneResult) -> tuple[str, ...]:
    """In staleness, and in money."""
    return (*filter(None, [staleness_cost(result)]), *_money(result))


def _ties(result: TuneResult) -> tuple[str, ...]:
    tied = [one for one in result.alternatives if one.tied]
    if not tied:
        return ()
    others = "1 other setting is" if len(tied) == 1 else f"{len(tied)} other settings are"
    why = "this one was chosen for the least lag, then the lowest cost, then the fewest changes"
    return (f"{others} as good, within {percent(result.indifference)}; {why}.",)


def staleness_cost(result: TuneResult) -> str:
    """What the gain costs in lag: optimizer steps, and gain for each of them."""
    before, after, won = result.baseline, result.best, result.gain
    if after is None or won is None or won.mean <= 0 or result.verdict not in (Verdict.BETTER, Verdict.WITHIN_CEILING):
        return ""
    more = after.lag_mean - before.lag_mean
    if more < 0.05:
        return f"It costs nothing in mean lag: {before.lag_mean:.1f} to {after.lag_mean:.1f} optimizer steps."
    each = f", {_rounded(100 * won.mean / more)}% kept groups for each"
    return f"It costs {more:.1f} optimizer steps of mean lag (from {before.lag_mean:.1f} up to {after.lag_mean:.1f}){each}."


def _rounded(value: float) -> str:
    return f"{value:+.1f}" if abs(value) < 9.95 else f"{value:+.0f}"


def flat_in_words(result: TuneResult) -> tuple[str, ...]:
    """How far each knob may move from the answer, all others as in it, before it costs more than `WITHIN`."""
    return tuple(filter(None, (_flat(one) for one in result.flatness)))


def _flat(one: Flatness) -> str:
    name = one.path.rpartition(".")[2]
    inside = [str(value) for value in one.within]
    if len(inside) < 2:
        tried = listed(str(value) for value in one.outside)
        return f"{name}: {one.best} alone; {tried} cost more than {percent(WITHIN)}." if tried else ""
    numbers = all(not isinstance(value, str) for value in one.within)
    span = f"from {inside[0]} to {inside[-1]}" if numbers and len(inside) > 2 else " or ".join(inside)
    beyond = f"; not {listed(str(value) for value in one.outside)}" if one.outside else ""
    return f"{name}: {span} is within {percent(WITHIN)}{beyond}."


def off_in_words(result: TuneResult) -> tuple[str, ...]:
    """What becomes of the answer when an input is off."""
    if not result.sensitivity:
        return ()
    paths = list(dict.fromkeys(one.path for one in result.sensitivity))
    overturned = [one for one in result.sensitivity if one.rival is not None]
    size = max(abs(one.factor - 1) for one in result.sensitivity)
    asked = f"{len(paths)} of {max(result.inputs, len(paths))} inputs asked about"
    if not overturned:
        lines = [f"{asked}: with any of them {percent(size)} lower or higher, it stays the best of those compared."]
    else:
        lines = [f"{asked}, {percent(size)} lower and higher; these would overturn the answer:"]
        lines += [f"{_input(one)}: {settings_in_words(one.rival or {})} would be better." for one in overturned[:MOST_NAMED]]
        lines += [f"… and {len(overturned) - MOST_NAMED} more."] if len(overturned) > MOST_NAMED else []
    by_path: dict[str, list[Sensitivity]] = {}
    for one in result.sensitivity:
        by_path.setdefault(one.path, []).append(one)
    moved = sorted(by_path.values(), key=lambda ones: -max(abs(one.kept.mean) for one in ones))[:MOST_NAMED]
    shown = listed(f"{ones[0].doc} ({' and '.join(f'{100 * one.kept.mean:+.1f}%' for one in ones)})" for ones in moved)
    return (*lines, f"What moves the predicted rate most: {shown}.")


def _input(one: Sensitivity) -> str:
    return f"{one.doc} {'lower' if one.factor < 1 else 'higher'}"


def told_apart(result: TuneResult) -> tuple[str, ...]:
    """How finalists were told apart, and what closed forms spared."""
    lines = []
    hand = result.by_hand
    if hand is not None and hand.looked_at:
        lines.append(
            f"Closed forms were asked about {hand.looked_at:,} of {hand.combinations:,} combinations in {hand.seconds:.1f} s "
            f"and ruled out {hand.ruled_out:,} that cannot win."
        )
    race = result.elimination
    if race is not None:
        ended = "decided" if race.decided else "the rest not told from one another, for want of time,"
        each = "1 replication" if race.rounds == 1 else f"{race.rounds} replications"
        lines.append(
            f"{race.entrants} settings on fresh seeds, today's among them: {len(race.dropped)} shown worse, {ended} "
            f"after {each} of all that were left (indifference {percent(race.indifference)}, error {percent(race.error)})."
        )
    return tuple(lines)
