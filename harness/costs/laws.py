"""Laws of durations, in seconds: one uniform number in, one duration out.

Every law is sampled by inverting its distribution function. One uniform in and one duration out, increasing in the uniform,
keeps common random numbers monotone: two laws compared on the same uniforms see the same luck.

The inverse is evaluated one number at a time, by `math` and `statistics.NormalDist` (Wichura's algorithm AS 241, Applied
Statistics 37, 1988, in C). For the few dozen draws of an episode that is faster than NumPy's vector functions, whose last
bit moreover depends on the processor; arrays go through the same function, so a vector equals its scalars to the last bit.

=============  ====================================================================================================
law            parameters
=============  ====================================================================================================
`constant`     `value_s`
`exponential`  `mean_s`; `max_s` truncates
`lognormal`    `mu`, `sigma` of the logarithm of seconds; `max_s` truncates
`gamma`        `shape`, `mean_s`; `max_s` truncates
`body_tail`    `body`, a law up to `threshold_s`; `tail`, a `pareto` or `lognormal` law above it; `max_s` truncates
`mixture`      `parts`, each a law with a `weight`; `atoms`, each `at_s` with a `weight`; all weights add up to 1
`empirical`    `probabilities` from 0 to 1 and `values_s`: quantiles with straight lines between them
=============  ====================================================================================================

Truncation at `max_s` is conditioning: the law of a duration given that it is no longer, without a heap at the end. A time
limit, where longer work piles up, is an atom.

**Body and tail** are spliced: below the threshold the body's own law given that it is below, above it the tail given that it
is above, each with its share of the probability. The distribution function has no jump there.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from functools import lru_cache
from statistics import NormalDist
from typing import Annotated, Literal, Self, overload

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from harness.costs import gamma
from harness.costs.inversion import SMALLEST_UNIFORM as SMALLEST_UNIFORM
from harness.costs.inversion import Sampler as Sampler
from harness.costs.inversion import interpolation
from harness.costs.inversion import normal_cdf as normal_cdf
from harness.costs.pareto import Pareto
from harness.costs.records import Record as Record

Floats = NDArray[np.float64]

MIXTURE_KNOTS = 1024
"""Exact points of each part's distribution function between which a mixture is inverted along straight lines.

They are equally spaced in log-odds between 1e-9 and 1 - 1e-9, 0.04 apart: for a lognormal of sigma 1.5 neighbours differ by
4 % and the chord is off by at most 0.1 %, less than any fit. More knots cost memory and a millisecond per thousand at load.
"""

LEAST_MASS = 1e-6
"""A truncation that leaves less of a law than this is a mistake in a unit, and beyond what inversion can resolve."""

_WEIGHT_TOLERANCE = 1e-6


class _Law(Record):
    """What every law has."""

    source: str = Field(default="", description="Where the parameters come from: file or publication, and its date.")
    note: str = Field(default="", description="What a reader should know: rows, held-out error, assumption.")

    @overload
    def quantile(self, u: float) -> float: ...
    @overload
    def quantile(self, u: Floats) -> Floats: ...
    def quantile(self, u: float | Floats) -> float | Floats:
        """Seconds not exceeded with probability `u` in [0, 1); an array element by element, equal to the last bit."""
        sample = sampler(self)
        if isinstance(u, np.ndarray):
            return np.fromiter(map(sample, u.ravel().tolist()), np.float64, u.size).reshape(u.shape)
        return sample(u)

    def cdf(self, x_s: float) -> float:
        """Probability of a duration of at most `x_s` seconds."""
        raise NotImplementedError

    def expected_s(self) -> float:
        """Mean in seconds, closed form."""
        raise NotImplementedError

    def second_moment_s2(self) -> float:
        """Mean square in seconds squared, closed form."""
        raise NotImplementedError

    @property
    def cv(self) -> float:
        """Coefficient of variation: standard deviation over mean. 0 for a law that is always 0."""
        mean = self.expected_s()
        return math.sqrt(max(self.second_moment_s2() - mean * mean, 0.0)) / mean if mean else 0.0


class Constant(_Law):
    """Always the same."""

    law: Literal["constant"] = "constant"
    value_s: float = Field(ge=0, description="Seconds.")

    def cdf(self, x_s: float) -> float:
        """A step at the value."""
        return 1.0 if x_s >= self.value_s else 0.0

    def expected_s(self) -> float:
        """The value."""
        return self.value_s

    def second_moment_s2(self) -> float:
        """Its square."""
        return self.value_s**2


class Exponential(_Law):
    """Memoryless: F(x) = 1 - exp(-x / mean)."""

    law: Literal["exponential"] = "exponential"
    mean_s: float = Field(gt=0, description="Mean before truncation, seconds.")
    max_s: float | None = Field(default=None, gt=0, description="Longest duration, seconds; the law is conditioned on it.")

    @property
    def mass(self) -> float:
        """Probability that the law without truncation gives to durations up to `max_s`."""
        return 1.0 if self.max_s is None else -math.expm1(-self.max_s / self.mean_s)

    def cdf(self, x_s: float) -> float:
        """Distribution function, truncated."""
        if x_s <= 0:
            return 0.0
        return min(-math.expm1(-x_s / self.mean_s) / self.mass, 1.0)

    def expected_s(self) -> float:
        """Mean, truncated: m - M e^(-M/m) / F(M)."""
        m, top = self.mean_s, self.max_s
        return m if top is None else m - top * math.exp(-top / m) / self.mass

    def second_moment_s2(self) -> float:
        """Mean square, truncated: (2m² - e^(-M/m) (M² + 2mM + 2m²)) / F(M)."""
        m, top = self.mean_s, self.max_s
        if top is None:
            return 2 * m * m
        return (2 * m * m - math.exp(-top / m) * (top * top + 2 * m * top + 2 * m * m)) / self.mass


class Lognormal(_Law):
    """The logarithm of seconds is Normal(mu, sigma)."""

    law: Literal["lognormal"] = "lognormal"
    mu: float = Field(ge=-50, le=50, description="Mean of the natural logarithm of seconds; the median is exp(mu).")
    sigma: float = Field(gt=0, le=20, description="Standard deviation of the natural logarithm of seconds.")
    max_s: float | None = Field(default=None, gt=0, description="Longest duration, seconds; the law is conditioned on it.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.mass < LEAST_MASS:
            raise ValueError(f"max_s = {self.max_s:g} cuts off the whole law, whose median is {math.exp(self.mu):g} s")
        return self

    @property
    def mass(self) -> float:
        """Probability that the law without truncation gives to durations up to `max_s`."""
        return normal_cdf(self._z)

    @property
    def _z(self) -> float:
        return math.inf if self.max_s is None else (math.log(self.max_s) - self.mu) / self.sigma

    def cdf(self, x_s: float) -> float:
        """Distribution function, truncated."""
        if x_s <= 0:
            return 0.0
        return min(normal_cdf((math.log(x_s) - self.mu) / self.sigma) / normal_cdf(self._z), 1.0)

    def _moment(self, order: int) -> float:
        """E[X^n | X <= max] = exp(n mu + (n sigma)²/2) F(z - n sigma) / F(z), z = (ln max - mu) / sigma."""
        plain = math.exp(order * self.mu + (order * self.sigma) ** 2 / 2)
        return plain * normal_cdf(self._z - order * self.sigma) / normal_cdf(self._z)

    def expected_s(self) -> float:
        """Mean, truncated."""
        return self._moment(1)

    def second_moment_s2(self) -> float:
        """Mean square, truncated."""
        return self._moment(2)


class Normal(_Law):
    """Normal(mean, sd), drawn again while it is negative: the law conditioned on durations from 0 on.

    With a = -mean / sd, φ and Φ the standard normal density and distribution function and h = φ(a) / Φ(-a):
    mean + sd·h and variance sd²·(1 + a·h - h²).
    Source: Johnson, Kotz, Balakrishnan, "Continuous Univariate Distributions", volume 1, 1994, section 13.10.1.
    """

    law: Literal["normal"] = "normal"
    mean_s: float = Field(description="Mean before truncation, seconds.")
    sd_s: float = Field(gt=0, description="Standard deviation before truncation, seconds.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.mass < LEAST_MASS:
            raise ValueError(f"mean_s = {self.mean_s:g} with sd_s = {self.sd_s:g} leaves nothing that is not negative")
        return self

    @property
    def mass(self) -> float:
        """Probability that the law without truncation gives to durations from 0 on."""
        return normal_cdf(self.mean_s / self.sd_s)

    def cdf(self, x_s: float) -> float:
        """Distribution function, truncated."""
        if x_s <= 0:
            return 0.0
        return max(1.0 - normal_cdf((self.mean_s - x_s) / self.sd_s) / self.mass, 0.0)

    @property
    def _hazard(self) -> float:
        return math.exp(-((self.mean_s / self.sd_s) ** 2) / 2) / math.sqrt(2 * math.pi) / self.mass

    def expected_s(self) -> float:
        """Mean, truncated."""
        return self.mean_s + self.sd_s * self._hazard

    def second_moment_s2(self) -> float:
        """Mean square, truncated."""
        a, h = -self.mean_s / self.sd_s, self._hazard
        return self.sd_s**2 * (1 + a * h - h * h) + self.expected_s() ** 2


class Gamma(_Law):
    """As many exponential stages as `shape` says, where that is a whole number; the coefficient of variation is 1/√shape."""

    law: Literal["gamma"] = "gamma"
    shape: float = Field(ge=0.01, le=1000, description="Shape; the coefficient of variation is 1 / sqrt(shape).")
    mean_s: float = Field(gt=0, description="Mean before truncation, seconds.")
    max_s: float | None = Field(default=None, gt=0, description="Longest duration, seconds; the law is conditioned on it.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.mass < LEAST_MASS:
            raise ValueError(f"max_s = {self.max_s:g} cuts off the whole law, whose mean is {self.mean_s:g} s")
        return self

    @property
    def mass(self) -> float:
        """Probability that the law without truncation gives to durations up to `max_s`."""
        return 1.0 if self.max_s is None else gamma.lower(self.shape, self.max_s * self.shape / self.mean_s)

    def cdf(self, x_s: float) -> float:
        """Distribution function, truncated."""
        if x_s <= 0:
            return 0.0
        return min(gamma.lower(self.shape, x_s * self.shape / self.mean_s) / self.mass, 1.0)

    def _moment(self, order: int) -> float:
        """E[X^n | X <= M] = θ^n (a)_n P(a + n, M/θ) / P(a, M/θ), with a the shape and θ = mean / a."""
        rising = self.shape * (self.shape + 1) if order == 2 else self.shape
        plain = (self.mean_s / self.shape) ** order * rising
        if self.max_s is None:
            return plain
        return plain * gamma.lower(self.shape + order, self.max_s * self.shape / self.mean_s) / self.mass

    def expected_s(self) -> float:
        """Mean, truncated."""
        return self._moment(1)

    def second_moment_s2(self) -> float:
        """Mean square, truncated."""
        return self._moment(2)


class Empirical(_Law):
    """Measured quantiles with straight lines between them."""

    law: Literal["empirical"] = "empirical"
    probabilities: tuple[float, ...] = Field(strict=False, min_length=2, description="Rising from 0 to 1.")
    values_s: tuple[float, ...] = Field(strict=False, min_length=2, description="Seconds at these probabilities, not falling.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        p, x = self.probabilities, self.values_s
        if len(p) != len(x):
            raise ValueError(f"probabilities and values_s differ in length ({len(p)} and {len(x)})")
        if p[0] != 0 or p[-1] != 1 or any(a >= b for a, b in itertools.pairwise(p)):
            raise ValueError("probabilities must rise from exactly 0 to exactly 1")
        if x[0] < 0 or any(a > b for a, b in itertools.pairwise(x)):
            raise ValueError("values_s must not be negative and must not fall")
        return self

    def cdf(self, x_s: float) -> float:
        """Distribution function: the largest probability whose quantile is at most `x_s`."""
        p, x = self.probabilities, self.values_s
        i = bisect_right(x, x_s)
        if i == 0:
            return 0.0
        if i == len(x):
            return 1.0
        return p[i - 1] + (p[i] - p[i - 1]) * (x_s - x[i - 1]) / (x[i] - x[i - 1])

    def _pieces(self) -> zip[tuple[float, float, float, float]]:
        p, x = self.probabilities, self.values_s
        return zip(p, p[1:], x, x[1:], strict=False)

    def expected_s(self) -> float:
        """Mean of the straight pieces."""
        return math.fsum((q - p) * (a + b) / 2 for p, q, a, b in self._pieces())

    def second_moment_s2(self) -> float:
        """Mean square of the straight pieces."""
        return math.fsum((q - p) * (a * a + a * b + b * b) / 3 for p, q, a, b in self._pieces())


class BodyTail(_Law):
    """A body up to a threshold and a tail above it."""

    law: Literal["body_tail"] = "body_tail"
    body: Annotated[Exponential | Lognormal | Gamma, Field(discriminator="law")] = Field(
        description="Law of durations up to the threshold, as it is without one."
    )
    threshold_s: float = Field(gt=0, description="Where the tail begins, seconds.")
    tail: Annotated[Pareto | Lognormal, Field(discriminator="law")] = Field(
        description="Law above the threshold: `pareto` of the excess, or a `lognormal` of which only what is above counts."
    )
    tail_weight: float | None = Field(
        default=None, gt=0, lt=1, description="Probability of the tail; absent: what the body has above the threshold."
    )
    max_s: float | None = Field(default=None, gt=0, description="Longest duration, seconds; the law is conditioned on it.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        cut = [name for name, law in (("body", self.body), ("tail", self.tail)) if getattr(law, "max_s", None) is not None]
        if cut:
            raise ValueError(f"{cut[0]}.max_s has no place here: the threshold ends the body, and max_s of this law the tail")
        if self.max_s is not None and self.max_s <= self.threshold_s:
            raise ValueError(
                f"max_s = {self.max_s:g} is not above threshold_s = {self.threshold_s:g}: nothing is left of the tail"
            )
        if self.body.cdf(self.threshold_s) < LEAST_MASS:
            raise ValueError(f"the body has nothing below threshold_s = {self.threshold_s:g}")
        if isinstance(self.tail, Lognormal) and self._beyond(self.threshold_s) < LEAST_MASS:
            raise ValueError(f"the tail has nothing above threshold_s = {self.threshold_s:g}: its median is far below")
        if isinstance(self.tail, Pareto) and self.tail.shape >= 1 and self.max_s is None:
            raise ValueError(f"a tail of shape {self.tail.shape:g} has no finite mean: lower it below 1, or set max_s")
        if self.tail_weight is None and not 0 < self.weight < 1:
            raise ValueError(f"the body leaves the tail above {self.threshold_s:g} s no probability: set tail_weight")
        return self

    @property
    def weight(self) -> float:
        """Probability of the tail before truncation."""
        return 1 - self.body.cdf(self.threshold_s) if self.tail_weight is None else self.tail_weight

    def _beyond(self, x_s: float) -> float:
        """Survival function of the tail's own law at x: of the excess for a Pareto tail, unconditioned for a lognormal one."""
        if isinstance(self.tail, Lognormal):
            return normal_cdf((self.tail.mu - math.log(x_s)) / self.tail.sigma)
        return self.tail.survival(x_s - self.threshold_s)

    @property
    def beyond_s(self) -> tuple[float, float]:
        """Survival of the tail's own law at the threshold and at `max_s`."""
        top = 0.0 if self.max_s is None else self._beyond(self.max_s)
        return self._beyond(self.threshold_s), top

    @property
    def tail_share(self) -> float:
        """Probability of the tail, truncated."""
        weight, (start, top) = self.weight, self.beyond_s
        return (kept := weight * (1 - top / start)) / (1 - weight + kept)

    def cdf(self, x_s: float) -> float:
        """Distribution function, truncated; without a jump at the threshold."""
        share = self.tail_share
        if x_s <= self.threshold_s:
            return (1 - share) * min(self.body.cdf(x_s) / self.body.cdf(self.threshold_s), 1.0)
        if self.max_s is not None and x_s >= self.max_s:
            return 1.0
        start, top = self.beyond_s
        return min(1 - share * (self._beyond(x_s) - top) / (start - top), 1.0)

    def _moment(self, order: int) -> float:
        below = self.body.model_copy(update={"max_s": self.threshold_s})
        share = self.tail_share
        body = below.expected_s() if order == 1 else below.second_moment_s2()
        return (1 - share) * body + share * self._tail_moment(order)

    def _tail_moment(self, order: int) -> float:
        """E[X^n | threshold < X <= max], closed."""
        start, top = self.beyond_s
        if isinstance(self.tail, Lognormal):
            mu, sigma = self.tail.mu, self.tail.sigma
            z = [(math.log(x) - mu) / sigma - order * sigma for x in (self.threshold_s, self.max_s) if x is not None]
            above = normal_cdf(-z[0]) - (normal_cdf(-z[1]) if len(z) == 2 else 0.0)
            return math.exp(order * mu + (order * sigma) ** 2 / 2) * above / (start - top)
        first, second = self.tail.moments(top)
        at = self.threshold_s
        return at + first if order == 1 else at * at + 2 * at * first + second

    def expected_s(self) -> float:
        """Mean, truncated."""
        return self._moment(1)

    def second_moment_s2(self) -> float:
        """Mean square, truncated; infinite for a Pareto tail of shape 1/2 and above that is not."""
        return self._moment(2)


AnySimple = Constant | Exponential | Lognormal | Normal | Gamma | Empirical | BodyTail
Simple = Annotated[AnySimple, Field(discriminator="law")]


class Atom(Record):
    """A single value that is taken with some probability: a time limit, a cached answer."""

    at_s: float = Field(ge=0, description="Seconds.")
    weight: float = Field(gt=0, le=1, description="Probability.")


class Part(Record):
    """One law of a mixture and its probability."""

    weight: float = Field(gt=0, le=1, description="Probability.")
    of: Simple = Field(description="The law of this part.")


class Mixture(_Law):
    """With these probabilities one of these laws, or exactly one of these values."""

    law: Literal["mixture"] = "mixture"
    parts: tuple[Part, ...] = Field(default=(), strict=False, description="Laws and their weights.")
    atoms: tuple[Atom, ...] = Field(default=(), strict=False, description="Exact values and their weights.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        total = math.fsum([part.weight for part in self.parts] + [atom.weight for atom in self.atoms])
        if abs(total - 1) > _WEIGHT_TOLERANCE:
            raise ValueError(f"the weights of parts and atoms add up to {total:g}, not 1")
        return self

    def cdf(self, x_s: float) -> float:
        """Weighted sum of the parts' distribution functions and of the atoms passed."""
        below = [part.weight * part.of.cdf(x_s) for part in self.parts]
        below += [atom.weight for atom in self.atoms if atom.at_s <= x_s]
        return min(math.fsum(below), 1.0)

    def expected_s(self) -> float:
        """Weighted mean."""
        terms = [part.weight * part.of.expected_s() for part in self.parts]
        return math.fsum(terms + [atom.weight * atom.at_s for atom in self.atoms])

    def second_moment_s2(self) -> float:
        """Weighted mean square."""
        terms = [part.weight * part.of.second_moment_s2() for part in self.parts]
        return math.fsum(terms + [atom.weight * atom.at_s**2 for atom in self.atoms])


AnyLaw = AnySimple | Mixture
Law = Annotated[AnyLaw, Field(discriminator="law")]
"""Any law of durations, told apart by its field `law`."""


@lru_cache(maxsize=1024)
def sampler(law: AnyLaw) -> Sampler:
    """The law's inverse distribution function as a plain function from [0, 1) to seconds. Hot loops hold on to it."""
    match law:
        case Constant(value_s=value):
            return lambda _u: value
        case Exponential():
            return _exponential(law.mean_s, law.mass)
        case Lognormal():
            return _lognormal(law)
        case Normal():
            return _normal(law)
        case Gamma():
            return _gamma(law)
        case BodyTail():
            return _body_tail(law)
        case Empirical():
            return interpolation(list(law.probabilities), list(law.values_s))
        case Mixture():
            return mixture_sampler(law)


def _exponential(mean_s: float, mass: float) -> Sampler:
    log1p = math.log1p
    return lambda u: -mean_s * log1p(-u * mass)


def _lognormal(law: Lognormal) -> Sampler:
    inverse = NormalDist(law.mu, law.sigma).inv_cdf
    exp, mass, top = math.exp, law.mass, law.max_s
    if top is None:
        return lambda u: exp(inverse(u if u > SMALLEST_UNIFORM else SMALLEST_UNIFORM))
    return lambda u: min(exp(inverse((u if u > SMALLEST_UNIFORM else SMALLEST_UNIFORM) * mass)), top)


def _normal(law: Normal) -> Sampler:
    """From the upper tail, which is exact however little of the law is cut off below 0."""
    inverse = NormalDist(law.mean_s, law.sd_s).inv_cdf
    mirror, mass = 2 * law.mean_s, law.mass
    most = 1.0 - 2.0**-53  # where nothing is cut off, u = 0 asks for a quantile that does not exist
    return lambda u: max(mirror - inverse(min((1.0 - u) * mass, most)), 0.0)


def _gamma(law: Gamma) -> Sampler:
    standard, scale, mass, top = gamma.quantile_of_standard(law.shape), law.mean_s / law.shape, law.mass, law.max_s
    if top is None:
        return lambda u: scale * standard(u if u > SMALLEST_UNIFORM else SMALLEST_UNIFORM)
    return lambda u: min(scale * standard((u if u > SMALLEST_UNIFORM else SMALLEST_UNIFORM) * mass), top)


def _body_tail(law: BodyTail) -> Sampler:
    """Below: the body at the level that leaves its law below the threshold. Above: the tail's survival, uniform."""
    split, threshold, top_s = 1 - law.tail_share, law.threshold_s, law.max_s
    body, scale = sampler(law.body), law.body.cdf(threshold) / split
    start, top = law.beyond_s
    per_unit = (start - top) / law.tail_share
    tail = _lognormal_of(law.tail) if isinstance(law.tail, Lognormal) else _beyond(law.tail, threshold)
    longest = math.inf if top_s is None else top_s

    def sample(u: float) -> float:
        if u < split:
            return min(body(u * scale), threshold)
        survival = start - (u - split) * per_unit
        return min(max(tail(survival if survival > SMALLEST_UNIFORM else SMALLEST_UNIFORM), threshold), longest)

    return sample


def _lognormal_of(law: Lognormal) -> Sampler:
    inverse, mu, sigma, exp = NormalDist().inv_cdf, law.mu, law.sigma, math.exp
    return lambda survival: exp(mu - sigma * inverse(survival))


def _beyond(law: Pareto, threshold_s: float) -> Sampler:
    excess = law.excess_of()
    return lambda survival: threshold_s + excess(survival)


def mixture_sampler(law: Mixture, knots: int = MIXTURE_KNOTS) -> Sampler:
    """Exact points of the mixture's distribution function at the quantiles of its parts, joined by straight lines.

    No root finding: every quantile of a part is a point x at which F(x) is known in closed form. Beyond the outermost
    points (probability 1e-9 of a part) the mixture stays at their values. Fewer `knots` are faster to set up and coarser.
    """
    spread = np.linspace(-20.7, 20.7, knots)
    grid = (1.0 / (1.0 + np.exp(-spread))).tolist()
    points = {atom.at_s for atom in law.atoms}
    for part in law.parts:
        if isinstance(part.of, Empirical):
            points.update(part.of.values_s)
        else:
            points.update(map(sampler(part.of), grid))
    jumps = _jumps(law)
    levels: list[float] = []
    values: list[float] = []
    parts = [(part.weight, _distribution(part.of)) for part in law.parts]
    below, passed = 0.0, sorted((atom.at_s, atom.weight) for atom in law.atoms)
    for x in sorted(points):
        while passed and passed[0][0] <= x:
            below += passed.pop(0)[1]
        level, jump = min(below + math.fsum([weight * cdf(x) for weight, cdf in parts]), 1.0), jumps.get(x, 0.0)
        for at in (level - jump, level) if jump else (level,):
            levels.append(max(at, levels[-1]) if levels else at)  # equal levels at two values: a gap that nothing falls into
            values.append(x)
    return interpolation(levels, values)


def _distribution(law: AnyLaw) -> Sampler:
    """`law.cdf` with its constants worked out beforehand, for positive durations."""
    erfc, log = math.erfc, math.log
    match law:
        case Lognormal(mu=mu, sigma=sigma, mass=mass):
            scale = -0.7071067811865476 / sigma
            return lambda x: min(0.5 * erfc(scale * (log(x) - mu)) / mass, 1.0) if x > 0 else 0.0
        case _:
            return law.cdf


def _jumps(law: Mixture) -> dict[float, float]:
    """Probability of every value that has some of its own: atoms, constant parts, flat stretches of empirical parts."""
    jumps: dict[float, float] = {}
    for atom in law.atoms:
        jumps[atom.at_s] = jumps.get(atom.at_s, 0.0) + atom.weight
    for part in law.parts:
        if isinstance(part.of, Constant):
            jumps[part.of.value_s] = jumps.get(part.of.value_s, 0.0) + part.weight
        elif isinstance(part.of, Empirical):
            p, values = part.of.probabilities, part.of.values_s
            for i in range(1, len(values)):
                if values[i] == values[i - 1]:
                    jumps[values[i]] = jumps.get(values[i], 0.0) + part.weight * (p[i] - p[i - 1])
    return jumps
