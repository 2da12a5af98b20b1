"""Retries: two budgets and one exponential back-off.

An *infrastructure* failure (host gone, connection lost, deadline of a wait on something outside) may succeed when tried
again; a *data* failure (the task itself is broken) would most likely fail again. Each kind has a budget of its own, so
that an outage does not use up what is meant for bad data. The n-th retry of an episode, of either kind, waits

    min(backoff_max, backoff · 2^(n - 1))

without jitter: randomness is not a policy's business.
"""

from __future__ import annotations

from enum import StrEnum

from harness.core.errors import LawError


class FailureKind(StrEnum):
    """Whose fault a failure is."""

    INFRA = "infra"
    DATA = "data"


class RetryPolicy:
    """Budgets and back-off of every episode.

    Args:
        retry_infra: retries after infrastructure failures, per episode.
        retry_data: retries after data failures, per episode.
        backoff_ns: wait before the first retry, in nanoseconds.
        backoff_max_ns: longest wait, in nanoseconds.

    """

    __slots__ = ("_backoff_max_ns", "_backoff_ns", "_budgets")

    def __init__(self, *, retry_infra: int, retry_data: int, backoff_ns: int, backoff_max_ns: int) -> None:
        if retry_infra < 0 or retry_data < 0 or not 0 <= backoff_ns <= backoff_max_ns:
            raise LawError(f"retry budgets that cannot be: {retry_infra}, {retry_data}, {backoff_ns}, {backoff_max_ns}")
        self._budgets = {FailureKind.INFRA: retry_infra, FailureKind.DATA: retry_data}
        self._backoff_ns = backoff_ns
        self._backoff_max_ns = backoff_max_ns

    def budget(self, kind: FailureKind) -> int:
        """Retries that an episode has after failures of this kind."""
        return self._budgets[kind]

    def delay_ns(self, retry: int) -> int:
        """Wait before the `retry`-th retry (from 1)."""
        if retry < 1:
            raise LawError(f"retries are counted from 1, not {retry}")
        if self._backoff_ns == 0:
            return 0
        # Beyond this many doublings the cap holds for certain; a huge shift would only cost memory.
        doublings = min(retry - 1, self._backoff_max_ns.bit_length())
        return min(self._backoff_max_ns, self._backoff_ns << doublings)


class Attempts:
    """Failures of one episode so far.

    Attributes:
        attempt: which attempt runs now, from 0.

    """

    __slots__ = ("_policy", "_used", "attempt")

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._used = {FailureKind.INFRA: 0, FailureKind.DATA: 0}
        self.attempt = 0

    def failed(self, kind: FailureKind) -> int | None:
        """The current attempt failed: nanoseconds to wait before the next one, or None to give up."""
        if self._used[kind] >= self._policy.budget(kind):
            return None
        self._used[kind] += 1
        self.attempt += 1
        return self._policy.delay_ns(self.attempt)
