"""When to ask again after a fault that may pass."""

import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple

# A server that names a longer pause than a day has made a mistake.
_LONGEST_SECONDS: Final = 86_400.0


class Backoff(NamedTuple):
    """Waits that double, each shortened by chance to no less than a half, so that callers who failed together
    do not come back together.

    first_seconds: the wait after the first fault. longest_seconds: no wait is longer by itself.
    """

    first_seconds: float = 0.5
    longest_seconds: float = 8.0

    def delay(
        self, faults: int, retry_after: float | None, chance: Callable[[], float] = random.random
    ) -> float:
        """Seconds to wait. faults: how many there were, from 1. retry_after: what the endpoint asked for; never
        less than that. chance: a number from 0 to 1."""
        wait = min(self.longest_seconds, self.first_seconds * 2.0 ** min(faults - 1, 30))
        wait *= 0.5 + chance() / 2
        return wait if retry_after is None else max(retry_after, wait)


def retry_after(
    headers: Mapping[str, str], now: Callable[[], datetime] = lambda: datetime.now(UTC)
) -> float | None:
    """Seconds that the endpoint wants to be left alone: `retry-after-ms` as OpenAI sends it, or `retry-after`
    in seconds or as a date. None when it does not say, or nothing that makes sense."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    seconds = _number(value)
    if seconds is not None or not value:
        return seconds
    try:
        date = parsedate_to_datetime(value)
    except ValueError:
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return min(_LONGEST_SECONDS, max(0.0, (date - now()).total_seconds()))


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return min(_LONGEST_SECONDS, number) if number >= 0 else None
