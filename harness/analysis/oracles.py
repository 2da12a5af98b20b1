"""What queueing theory says of a simulated run: exact recursions, path by path, and means in closed form.

**Path by path.** Given when customers come and how long each is served, the instants of a first-come-first-served stage follow
by a recursion, in whole nanoseconds, so that a simulation either makes the same instants or is wrong:

- several servers (Kiefer and Wolfowitz 1955; Lindley 1952 for one): each starts at max(its arrival, first server to be free);
- two stages with a buffer of K places between them, blocking: the n-th leaves the first stage at max(the end of its service,
  the instant at which the second takes number n - K), and only then does the first begin its next: max-plus linear;
- batches of B: the j-th batch starts at max(end of the one before, arrival of customer B·j).

**In the mean.** Formulas below, each with its source. Waits are before service, in the unit of the arguments.

Sources: Lindley, "The theory of queues with a single server", Proc. Cambridge Phil. Soc. 48, 1952; Kiefer and Wolfowitz, "On
the theory of queues with many servers", Trans. AMS 78, 1955; Baccelli, Cohen, Olsder, Quadrat, "Synchronization and Linearity",
1992 (max-plus); Gross, Shortle, Thompson, Harris, "Fundamentals of Queueing Theory", 4th ed. 2008 (means).
"""

from __future__ import annotations

import math
from heapq import heapify, heapreplace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# ── path by path ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def fifo_starts(arrivals: Sequence[int], services: Sequence[int], servers: int) -> list[int]:
    """When each customer's service begins. Arrivals in the order of the queue, not falling."""
    free = [0] * servers
    heapify(free)
    starts = []
    for arrival, service in zip(arrivals, services, strict=True):
        start = max(arrival, free[0])
        heapreplace(free, start + service)
        starts.append(start)
    return starts


def blocked_departures(
    services: Sequence[int], second: Sequence[int], places: int, begins: int = 0
) -> tuple[list[int], list[int]]:
    """A saturated first stage, `places` between, a second stage: (when each leaves the first, when the second takes it)."""
    left: list[int] = []
    taken: list[int] = []
    free, ready = begins, begins
    for n, (one, two) in enumerate(zip(services, second, strict=True)):
        done = free + one
        left.append(max(done, taken[n - places]) if n >= places else done)
        free = left[-1]
        taken.append(max(left[-1], ready))
        ready = taken[-1] + two
    return left, taken


def batch_starts(arrivals: Sequence[int], services: Sequence[int], batch: int) -> list[int]:
    """When each batch of a single server begins: `services[j]` is the time of batch j."""
    free, starts = 0, []
    for j, service in enumerate(services):
        start = max(free, arrivals[batch * (j + 1) - 1])
        starts.append(start)
        free = start + service
    return starts


def area(spans: Sequence[tuple[int, int]], until: int) -> int:
    """Area under the number of open spans, from their edges: Σ over instants of number x time, each span cut at `until`."""
    edges = sorted([(min(a, until), 1) for a, _ in spans] + [(min(b, until), -1) for _, b in spans])
    total = inside = last = 0
    for at, step in edges:
        total += inside * (at - last)
        inside, last = inside + step, at
    return total


def most_at_once(spans: Sequence[tuple[int, int]]) -> int:
    """Largest number of spans that are open at one instant; a span that ends where another begins is over."""
    inside = most = 0
    for _, step in sorted([(a, 1) for a, b in spans if b > a] + [(b, -1) for a, b in spans if b > a]):
        inside += step
        most = max(most, inside)
    return most


# ── in the mean ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def erlang_b(load: float, servers: int) -> float:
    """Share of customers lost by M/G/c/c; `load` is arrival rate x mean service."""
    lost = 1.0
    for n in range(1, servers + 1):
        lost = load * lost / (n + load * lost)
    return lost


def erlang_c(load: float, servers: int) -> float:
    """Share of customers that wait in M/M/c."""
    lost = erlang_b(load, servers)
    return servers * lost / (servers - load * (1 - lost))


def mmc_wait(rate: float, service: float, servers: int) -> float:
    """Mean wait of M/M/c: C / (c/service - rate)."""
    return erlang_c(rate * service, servers) / (servers / service - rate)


def mg1_wait(rate: float, service: float, square: float) -> float:
    """Mean wait of M/G/1 (Pollaczek and Khinchine): rate x E[S²] / (2 (1 - load))."""
    return rate * square / (2 * (1 - rate * service))


def mm1k_lost(rate: float, service: float, places: int) -> float:
    """Share of customers that M/M/1 with room for `places`, the one in service included, turns away."""
    load = rate * service
    return 1 / (places + 1) if load == 1 else (1 - load) * load**places / (1 - load ** (places + 1))


def mm1k_inside(rate: float, service: float, places: int) -> float:
    """Mean number in that system."""
    load = rate * service
    if load == 1:
        return places / 2
    return load / (1 - load) - (places + 1) * load ** (places + 1) / (1 - load ** (places + 1))


def sharing_response(rate: float, service: float) -> float:
    """Mean time in M/G/1 with processor sharing, whatever the law of service: service / (1 - load)."""
    return service / (1 - rate * service)


def poisson(mean: float, count: int) -> float:
    """Probability of `count`: the number in M/G/infinity, with mean rate x service."""
    return math.exp(count * math.log(mean) - mean - math.lgamma(count + 1)) if mean else float(count == 0)


def repairman(customers: int, think: float, service: float) -> float:
    """Throughput of `customers` that think and then queue for one exponential server: exact, by mean value analysis.

    R(n) = service (1 + Q(n - 1)), X(n) = n / (think + R(n)), Q(n) = X(n) R(n). The law of thinking does not matter.
    """
    waiting = rate = 0.0
    for n in range(1, customers + 1):
        spent = service * (1 + waiting)
        rate = n / (think + spent)
        waiting = rate * spent
    return rate


def slowest_exponential(mean: float, of: int) -> float:
    """Mean of the largest of `of` exponential numbers: mean x (1 + 1/2 + … + 1/of)."""
    return mean * math.fsum(1 / k for k in range(1, of + 1))
