"""Limits of the calls and turns of one principal, and of the failures of one address."""

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from .audit import peer_host
from .current_call import caller
from .principal import Principal
from .refusals import AccessDenied

# Principals in memory. Beyond that, those without open calls are dropped. More principals with keys are a mistake.
_MAX_PRINCIPALS: Final = 10_000

_MAX_HOSTS: Final = 1000

# While a stream must wait, its turns begin together in groups of this many seconds' worth, because each group costs a
# wake-up and, in a batch, a message of answers.
_GROUP_SECONDS: Final = 0.1

LONGEST_WAIT_OF_CALLS: Final = 1.0
"""Maximum seconds that a call with one turn waits for its principal's limit of turns per second; beyond that it is
refused. Without a wait, a batch of the same principal, which waits for every turn, would leave nothing to its calls."""


@dataclass(slots=True)
class _TokenBucket:
    """A token bucket that holds one second's worth, at least one token. tokens: as of `at`; negative ones are owed."""

    tokens: float
    at: float

    def refill(self, rate: float, now: float) -> float:
        """Add the tokens of the time since the last call, and return the number of tokens."""
        self.tokens = min(max(1.0, rate), self.tokens + (now - self.at) * rate)
        self.at = now
        return self.tokens


@dataclass(slots=True)
class _Usage(_TokenBucket):
    """The calls of a principal. A token lets a call begin. in_flight: open calls."""

    in_flight: int = 0

    def end(self, _call: object = None) -> None:
        """Count the end of a call."""
        self.in_flight -= 1


class PrincipalLimits:
    """Counts the calls of each principal over all of its keys.

    limited: called with the limit that refuses a call: "rate" or "in_flight". max_in_flight: for principals without
    such a limit of their own, so that none of them uses up the server's maximum of calls. clock: monotonic seconds.
    """

    def __init__(
        self,
        limited: Callable[[str], None],
        max_in_flight: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limited = limited
        self._max_in_flight = max_in_flight
        self._clock = clock
        self._usages: dict[str, _Usage] = {}

    def begin(self, principal: Principal) -> Callable[[object], None]:
        """Count the start of a call. Returns a function to call at its end. Raises AccessDenied beyond a limit.

        The burst of the rate limit is one second's worth of calls.
        """
        usage = self._usages.get(principal.name) or self._new_usage(principal)
        most = self._max_in_flight if principal.in_flight is None else principal.in_flight
        if usage.in_flight >= most:
            self._limited("in_flight")
            raise _refused(principal, f"{most} calls in flight", "in_flight", 1.0)
        if principal.rate is not None:
            tokens = usage.refill(principal.rate, self._clock())
            if tokens < 1:
                self._limited("rate")
                wait = (1 - tokens) / principal.rate
                raise _refused(principal, f"{principal.rate:g} calls per second", "rate", wait)
            usage.tokens -= 1
        usage.in_flight += 1
        return usage.end

    def _new_usage(self, principal: Principal) -> _Usage:
        if len(self._usages) >= _MAX_PRINCIPALS:
            self._usages = {name: one for name, one in self._usages.items() if one.in_flight}
        usage = self._usages[principal.name] = _Usage(max(1.0, principal.rate or 1.0), self._clock())
        return usage


def _refused(principal: Principal, what: str, limit: str, seconds: float) -> AccessDenied:
    return AccessDenied(
        "RATE_LIMITED",
        f"{principal.name} has reached its limit of {what}; try again in {seconds:.3g} s",
        f"limit {limit}",
        principal,
        retry_seconds=seconds,
        limit=limit,
    )


class TurnLimits:
    """Counts the turns of each principal over all of its keys: evaluations of one context each.

    limited: called with the limit that refuses or delays turns: "turn_rate". clock: monotonic seconds.
    """

    def __init__(
        self,
        limited: Callable[[str], None] = lambda _limit: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limited = limited
        self._clock = clock
        self._buckets: dict[str, _TokenBucket] = {}

    @property
    def limits_caller(self) -> bool:
        """Whether the turns of the current caller are limited."""
        return caller().turn_rate is not None

    async def take(self, count: int = 1, longest_wait: float = math.inf) -> int:
        """Wait until turns of the current caller may begin. Returns how many of `count`, at least one.

        Callers of one principal wait in order; cancelling one gives its turns back. longest_wait: in seconds.
        Raises AccessDenied if the wait would be longer.
        """
        principal = caller()
        rate = principal.turn_rate
        if rate is None:
            return count
        tokens = self._bucket(principal.name, rate).refill(rate, self._clock())
        count = min(count, max(1, int(tokens), int(rate * _GROUP_SECONDS)))
        wait = max(0.0, count - tokens) / rate
        if wait:
            self._limited("turn_rate")
        if wait > longest_wait:
            raise _refused(principal, f"{rate:g} turns per second", "turn_rate", wait)
        self._bucket(principal.name, rate).tokens -= count
        if wait:
            try:
                await asyncio.sleep(wait)
            except BaseException:
                self._bucket(principal.name, rate).tokens += count
                raise
        return count

    def _bucket(self, name: str, rate: float) -> _TokenBucket:
        bucket = self._buckets.get(name)
        if bucket is None:
            if len(self._buckets) >= _MAX_PRINCIPALS:
                self._buckets = {other: one for other, one in self._buckets.items() if one.tokens < 0}
            bucket = self._buckets[name] = _TokenBucket(max(1.0, rate), self._clock())
        return bucket


class FailedAttempts:
    """Counts failures by address and second. Addresses beyond a thousand share one count.

    most: maximum per second and address. clock: monotonic seconds.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._second = 0
        self._hosts: dict[str, int] = {}

    def check(self, peer: str, what: str, limit: str) -> None:
        """Raise AccessDenied if a peer's address has reached the limit. what: failures, in words. limit: its name."""
        second = int(self._clock())
        if second != self._second:
            self._second, self._hosts = second, {}
        if self._hosts.get(self._counted(peer), 0) >= self._most:
            raise AccessDenied(
                "RATE_LIMITED",
                f"{self._most} {what} have come from this address within a second; try again in a second",
                f"limit {limit}",
                retry_seconds=1.0,
                limit=limit,
            )

    def add(self, peer: str) -> None:
        """Count a failure."""
        host = self._counted(peer)
        self._hosts[host] = self._hosts.get(host, 0) + 1

    def _counted(self, peer: str) -> str:
        host = peer_host(peer)
        return host if len(self._hosts) < _MAX_HOSTS or host in self._hosts else ""
