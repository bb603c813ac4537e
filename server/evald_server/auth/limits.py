"""What one principal may ask for at a time: calls a second, and calls in flight."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from .authenticator import AccessDenied
from .principal import Principal

# Principals that are remembered; keys of more than these are a mistake.
_MAX_PRINCIPALS: Final = 10_000


@dataclass(slots=True)
class _Usage:
    """tokens: calls that may begin now, as of `at`. in_flight: calls that go on."""

    tokens: float
    at: float
    in_flight: int = 0


class PrincipalLimits:
    """Counts the calls of each principal, whichever of its keys they bring. clock: monotonic seconds.

    limited: called with the limit that refuses a call: "rate" or "in_flight".
    """

    def __init__(self, limited: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._limited = limited
        self._clock = clock
        self._usages: dict[str, _Usage] = {}

    def begin(self, principal: Principal) -> None:
        """Count the start of a call; `end` has to follow. Raises AccessDenied if it is one too many.

        A second's worth of calls may begin at once.
        """
        usage = self._usage(principal)
        if principal.in_flight is not None and usage.in_flight >= principal.in_flight:
            self._limited("in_flight")
            raise _refused(principal, f"{principal.in_flight} calls in flight", "in_flight", 1.0)
        if principal.rate is not None:
            now, burst = self._clock(), max(1.0, principal.rate)
            usage.tokens = min(burst, usage.tokens + (now - usage.at) * principal.rate)
            usage.at = now
            if usage.tokens < 1:
                self._limited("rate")
                wait = (1 - usage.tokens) / principal.rate
                raise _refused(principal, f"{principal.rate:g} calls a second", "rate", wait)
            usage.tokens -= 1
        usage.in_flight += 1

    def end(self, principal: Principal) -> None:
        """Count the end of a call that has begun."""
        self._usages[principal.name].in_flight -= 1

    def _usage(self, principal: Principal) -> _Usage:
        usage = self._usages.get(principal.name)
        if usage is None:
            if len(self._usages) >= _MAX_PRINCIPALS:
                self._usages = {name: one for name, one in self._usages.items() if one.in_flight}
            usage = self._usages[principal.name] = _Usage(max(1.0, principal.rate or 1.0), self._clock())
        return usage


def _refused(principal: Principal, what: str, limit: str, seconds: float) -> AccessDenied:
    return AccessDenied(
        "RATE_LIMITED",
        f"{principal.name} may have {what}, and has them; try again in {seconds:.3g} s",
        f"limit {limit}",
        principal,
        retry_seconds=seconds,
        limit=limit,
    )
