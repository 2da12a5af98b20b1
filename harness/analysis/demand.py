"""What one episode asks of each resource on average: closed forms from a scenario's laws, once for each workload.

With T turns, prompts p, responses r and observations o (means), turn j reads a context of p + (j - 1)(r + o) tokens, so that

    tokens generated        E[T] r
    context read by them    r (E[T] p + (r + o) E[T(T-1)]/2) + E[T] E[R(R-1)]/2
    tokens of the sequence  p + E[T] r + (E[T] - 1) o
    tokens prefilled        p + (E[T] - 1) o, and the part of the earlier context that the prefix cache has lost

Means of counts are those of the rounded and capped laws, summed from their tables. Where an episode can reach the longest
context, turns are weighted with the probability that it has not, for a normal context with its mean and variance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from harness.costs.laws import normal_cdf, sampler
from harness.costs.workload import cumulative_counts

if TYPE_CHECKING:
    from harness.scenario.schema import World
    from harness.scenario.workload import Workload

QUADRATURE = 2000
"""Midpoints of the quantile function over which a capped duration is averaged, once for each law."""

NEVER = 1e-6
"""A cap that is passed less often than this changes no mean that matters: the closed form is used."""


@dataclass(frozen=True, slots=True)
class Moments:
    """Mean and mean square."""

    mean: float
    square: float

    @property
    def variance(self) -> float:
        """Mean square less squared mean, never below 0."""
        return max(self.square - self.mean * self.mean, 0.0)


@dataclass(frozen=True, slots=True)
class Demand:
    """One episode's demand, if nothing fails and nobody cuts it short.

    Attributes:
        turns: turns of generation, each with a tool call.
        tokens: generated.
        context: sum over generated tokens of the tokens of context that each reads.
        prefill_tokens: computed in prefills.
        sequence_tokens: of the whole sequence, as the learner sees it.
        tool_s: seconds of all its tool calls.
        tool_call_s: seconds of one call.
        turn_tokens: of one answer.
        reset_s: seconds to start its environment.
        close_s: mean seconds to tear it down.
        reward_s: seconds to score it.
        cut_by_context: probability that it ends at the longest context.

    """

    turns: Moments
    tokens: float
    context: float
    prefill_tokens: float
    sequence_tokens: float
    tool_s: Moments
    tool_call_s: Moments
    turn_tokens: Moments
    reset_s: Moments
    close_s: float
    reward_s: Moments
    cut_by_context: float


def demand(workload: Workload, world: World, tool_limit_s: float = math.inf) -> Demand:
    """Demand of an episode. A workload that was seen before costs a look-up.

    Args:
        workload: the scenario's.
        world: for environments, scoring and the prefix cache.
        tool_limit_s: deadline of a tool call, which cuts longer ones.

    """
    try:
        return _remembered(workload, world, tool_limit_s)
    except TypeError:  # a law that holds lists cannot be hashed
        return _demand(workload, world, tool_limit_s)


@lru_cache(maxsize=64)
def _remembered(workload: Workload, world: World, tool_limit_s: float) -> Demand:
    return _demand(workload, world, tool_limit_s)


def _demand(workload: Workload, world: World, tool_limit_s: float) -> Demand:
    prompt, response = count_moments(workload.prompt_tokens), count_moments(workload.response_tokens)
    seen = count_moments(workload.observation_tokens)
    survival, cut = _survival(workload, prompt, response, seen)
    # E[sum over turns of f(j)] = sum over j of P(turn j happens) f(j).
    happens = _happens(workload.turns)
    weights = [p * s for p, s in zip(happens, survival, strict=True)]
    turns = math.fsum(weights)
    square = math.fsum((2 * j + 1) * weight for j, weight in enumerate(weights))
    grows = response.mean + seen.mean
    earlier = math.fsum(j * weight for j, weight in enumerate(weights)) * grows + turns * prompt.mean
    own = (response.square - response.mean) / 2
    lost = 1 - world.inference.prefix_reuse
    later = max(turns - weights[0], 0.0)
    tool = _mixed(
        [(kind.share, capped(kind.duration, min(kind.time_limit_s or math.inf, tool_limit_s))) for kind in workload.tools]
    )
    number = Moments(turns, square)
    run = workload.agent_run
    if run is None:
        calls = Moments(turns * tool.mean, turns * tool.variance + square * tool.mean * tool.mean)
    else:
        whole, share = capped(run.duration, math.inf), run.tool_share
        calls = Moments(whole.mean * share, whole.square * share * share)
        tool = Moments(calls.mean / turns, calls.square / square)
    return Demand(
        turns=number,
        tokens=turns * response.mean,
        context=response.mean * earlier + turns * own,
        prefill_tokens=prompt.mean + later * seen.mean + lost * (earlier - prompt.mean - later * seen.mean),
        sequence_tokens=prompt.mean + turns * response.mean + later * seen.mean,
        tool_s=calls,
        tool_call_s=tool,
        turn_tokens=response,
        reset_s=capped(world.environments.reset, math.inf),
        close_s=world.environments.close.expected_s(),
        reward_s=capped(world.scoring.duration, world.scoring.time_limit_s or math.inf),
        cut_by_context=cut,
    )


def _happens(law: Any) -> list[float]:
    """P(T > j) for j = 0, 1, …: the probability that turn j takes place."""
    if law.law == "constant":
        return [1.0] * max(law.value, 1)
    lowest, table = cumulative_counts(law)
    return [1.0] * max(lowest, 1) + [1 - below for below in table if below < 1]


def _survival(workload: Workload, prompt: Moments, response: Moments, seen: Moments) -> tuple[list[float], float]:
    """Probability that the context still has room at the start of turn j, and that an episode ends for want of it."""
    happens = _happens(workload.turns)
    room = workload.max_context_tokens
    mean, variance = prompt.mean, prompt.variance
    survival: list[float] = []
    cut = 0.0
    for j, p in enumerate(happens):
        spread = math.sqrt(variance)
        fits = 1.0 if j == 0 else normal_cdf((room - mean) / spread) if spread else float(mean < room)
        if j and p > 0:
            cut += p * max(survival[-1] - fits, 0.0)
        survival.append(min(fits, survival[-1]) if survival else fits)
        mean += response.mean + seen.mean
        variance += response.variance + seen.variance
    return survival, cut


@lru_cache(maxsize=256)
def count_moments(law: Any) -> Moments:
    """Mean and mean square of a law of counts, as it is drawn: E[N] = Σ P(N > n), E[N²] = Σ (2n + 1) P(N > n)."""
    if law.law == "constant":
        return Moments(float(law.value), float(law.value) ** 2)
    lowest, table = cumulative_counts(law)
    above = [1.0 - below for below in table]
    mean = lowest + math.fsum(above)
    square = lowest * lowest + math.fsum((2 * n + 1) * p for n, p in enumerate(above, lowest))
    return Moments(mean, square)


@lru_cache(maxsize=256)
def capped(law: Any, limit_s: float) -> Moments:
    """Mean and mean square of min(X, limit): closed forms where the limit is hardly ever met, else over quantiles."""
    if math.isinf(limit_s) or law.cdf(limit_s) > 1 - NEVER:
        return Moments(law.expected_s(), law.second_moment_s2())
    sample = sampler(law)
    values = [min(sample((i + 0.5) / QUADRATURE), limit_s) for i in range(QUADRATURE)]
    return Moments(math.fsum(values) / QUADRATURE, math.fsum(value * value for value in values) / QUADRATURE)


def _mixed(parts: list[tuple[float, Moments]]) -> Moments:
    return Moments(math.fsum(w * m.mean for w, m in parts), math.fsum(w * m.square for w, m in parts))


@lru_cache(maxsize=256)
def _largest_normals(of: int) -> tuple[float, ...]:
    """Quantiles of the largest of `of` standard normals, at the midpoints of 100 equal parts of probability."""
    from statistics import NormalDist

    quantile = NormalDist().inv_cdf
    return tuple([quantile(((i + 0.5) / 100) ** (1 / of)) for i in range(100)])


def slowest(moments: Moments, of: int, correlation: float = 0.0) -> float:
    """Mean of the largest of `of` lognormal numbers with these moments, whose logarithms are correlated.

    With correlation c, ln Y = m + s (√c z + √(1-c) e), z shared and e each one's own:

        E[max] = exp(m + c s²/2) E[exp(s √(1-c) max e)]

    Source: the order statistic by its quantile function, F⁻¹(u^(1/n)): David and Nagaraja, "Order Statistics", 3rd ed. 2003.
    """
    if of <= 1 or moments.variance <= 0 or moments.mean <= 0:
        return moments.mean
    log_variance = math.log1p(moments.variance / moments.mean**2)
    own = math.sqrt(log_variance * (1 - correlation))
    median = moments.mean * math.exp(-log_variance / 2 + correlation * log_variance / 2)
    return median * math.fsum([math.exp(own * z) for z in _largest_normals(of)]) / 100
