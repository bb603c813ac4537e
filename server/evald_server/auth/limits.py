"""Limits of the calls of one principal, and of the failures of one address."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from .audit import peer_host
from .principal import Principal
from .refusals import AccessDenied

# Principals in memory. Beyond that, those without open calls are dropped. More principals with keys are a mistake.
_MAX_PRINCIPALS: Final = 10_000

_MAX_HOSTS: Final = 1000


@dataclass(slots=True)
class _Usage:
    """The calls of a principal. tokens: calls that may begin, as of `at`. in_flight: open calls."""

    tokens: float
    at: float
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
            now = self._clock()
            usage.tokens = min(max(1.0, principal.rate), usage.tokens + (now - usage.at) * principal.rate)
            usage.at = now
            if usage.tokens < 1:
                self._limited("rate")
                wait = (1 - usage.tokens) / principal.rate
                raise _refused(principal, f"{principal.rate:g} calls per second", "rate", wait)
            usage.tokens -= 1
        usage.in_flight += 1
        return usage.end

    def _new_usage(self, principal: Principal) -> _Usage:
        if len(self._usages) >= _MAX_PRINCIPALS:
            self._usages = {name: usage for name, usage in self._usages.items() if usage.in_flight}
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
