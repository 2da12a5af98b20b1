"""Plain numbers from what a run left behind, live or simulated: where its chip time, tokens, episodes and dollars went."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from harness.analysis import ledger, money, underfill, waste
from harness.analysis.episode_time import episode_time_ns
from harness.analysis.summary import RunSummary
from harness.core.accounts import Fate
from harness.core.lanes import State
from harness.scenario.host import CROWDED
from harness.tuning.measured import HONEST_STEPS
from pipeline import usage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.scenario.schema import Scenario
    from pipeline.build import Report


def summarise(report: Report, seed: int) -> RunSummary:
    """Plain numbers from what a run left behind, live or simulated."""
    tally, accounts = report.tally, report.accounts
    window_ns = report.end_ns - report.start_ns
    lags = sorted(tally.lags)
    in_flight_tokens, _ = accounts.window_in_flight
    return RunSummary(
        seed=seed,
        window_s=window_ns / 1e9,
        total_s=report.end_ns / 1e9,
        chips=report.chips,
        learner_steps=tally.steps,
        groups=tally.groups,
        turns=tally.turns,
        episodes=tally.episodes,
        tokens_made=sum(accounts.window_tokens) + in_flight_tokens,
        tokens_trained=accounts.window_tokens[Fate.TRAINED],
        chip_ns=chip_split(report),
        lag_mean=_mean(lags),
        lag_p95=float(lags[math.ceil(0.95 * len(lags)) - 1]) if lags else 0.0,
        lag_max=lags[-1] if lags else 0,
        lag_in_queue_mean=_mean(tally.lags_in_queue),
        dropped_groups=dict(sorted(tally.dropped.items())),
        settled={fate.name.lower(): accounts.settled[fate] for fate in Fate if accounts.settled[fate]},
        utilisation=dict(report.pools),
        episode_ns=episode_time_ns(report.lanes, report.lane_ns),
        idle_by_role_ns=ledger.idle_by_role(_chip_lanes(report), window_ns),
        provider_queue_ns=tally.provider_queue_ns,
        generated_length_mean=_mean(tally.generated_lengths),
        trained_length_mean=_mean(tally.trained_lengths),
        slice_losses=tally.losses,
        recoveries=len(tally.recoveries_ns),
        recovery_mean_s=_mean(tally.recoveries_ns) / 1e9,
        rollbacks=tally.rollbacks,
        steps_lost=tally.steps_lost,
        warnings=_warnings(report),
        trained_episodes=accounts.window_settled[Fate.TRAINED],
        role_bubbles=_role_bubbles(report),
        tokens_by_fate=waste.tokens_by_fate(accounts),
        episodes_by_fate=waste.episodes_by_fate(accounts),
        lengths=waste.lengths_by_fate(accounts),
    )


def _role_bubbles(report: Report) -> dict[str, float]:
    """How long each role stood still; where roles have chips of their own, the chips' idle time says it."""
    if all(lane.role != ledger.SHARED for lane in report.lanes):
        return {}
    return {role: 1.0 - report.pools.get(role, 0.0) for role in (ledger.INFERENCE, ledger.LEARNER)}


def priced(summary: RunSummary, report: Report, scenario: Scenario[Any]) -> RunSummary:
    """The summary with what its window cost, where the scenario has prices."""
    prices = scenario.world.prices
    if prices is None:
        return summary
    held_ns = usage.sandbox_ns(report.lanes, report.lane_ns)
    of_call = [tool.price_usd or prices.tool_call_usd for tool in scenario.workload.tools]
    return replace(summary, usd=money.bill(prices, summary.chip_ns, held_ns, report.tally.calls, of_call))


def _chip_lanes(report: Report) -> list[ledger.ChipLane]:
    return [ledger.ChipLane(lane.name, lane.role, lane.chips, report.lane_ns[lane.name]) for lane in report.lanes if lane.chips]


def chip_split(report: Report) -> dict[str, int]:
    """Every chip-nanosecond of the window, in exactly one class."""
    lanes = _chip_lanes(report)
    _, in_flight = report.accounts.window_in_flight
    books = ledger.GenerationBooks(report.accounts.window_ns, in_flight)
    blame = [ledger.Blame(name, causes) for name, causes in report.idle_ns.items()]
    lost = ledger.LearnerBooks(report.tally.lost_learner_ns)
    return ledger.split(lanes, report.end_ns - report.start_ns, books, lost, blame)


def _warnings(report: Report) -> tuple[str, ...]:
    steps, said = report.tally.steps, []
    if steps < HONEST_STEPS:
        said.append(f"only {steps} learner steps were reported on; a claim needs at least {HONEST_STEPS}")
    if report.pools.get("host loop", 0.0) > CROWDED:
        said.append(
            f"the event loop was busy for more than {CROWDED:.0%} of the time: what follows then depends on more than the "
            "costs in world.host; take what computes off the loop, or start fewer and longer calls"
        )
    return tuple(said)


def _mean(values: Sequence[int]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def summarise_whole(report: Report, seed: int, scenario: Scenario[Any]) -> RunSummary:
    """The summary of a simulated run, with all that its scenario knows of prices and step times."""
    return with_underfill(priced(summarise(report, seed), report, scenario), report, scenario)


def with_underfill(summary: RunSummary, report: Report, scenario: Scenario[Any]) -> RunSummary:
    """The summary with what full slots would have saved, where step times have a law and the pipeline schedules them."""
    inference, config = scenario.world.inference, scenario.pipeline
    if inference.server is not None:
        return summary
    lanes = [report.lane_ns[lane.name] for lane in report.lanes if lane.role == ledger.INFERENCE]
    decoding, prefill = (sum([spent[state] for spent in lanes]) for state in (State.GENERATE, State.PREFILL))
    filled = underfill.fill(
        report.accounts.decoding.values(),
        report.accounts.window_ns[Fate.TRAINED],
        inference.decode,
        slots=config.slots_per_replica,
        kv_tokens=inference.kv_capacity_tokens,
        decode_share=decoding / (decoding + prefill) if decoding else 0.0,
    )
    return replace(summary, underfill_ns=filled.underfill_ns)
