"""Delays between retries of HTTP requests."""

import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple

# A longer delay than a day is a mistake of the server.
_MAX_RETRY_AFTER_SECONDS: Final = 86_400.0


class RetryBackoff(NamedTuple):
    """Exponential backoff with jitter: each delay is multiplied by a random factor of 0.5 to 1, so that callers that
    failed together do not retry together.

    first_seconds: the first delay. max_seconds: the maximum delay, unless the endpoint asks for more.
    """

    first_seconds: float = 0.5
    max_seconds: float = 8.0

    def delay(
        self, failures: int, retry_after: float | None, chance: Callable[[], float] = random.random
    ) -> float:
        """Return the seconds to wait. failures: number so far, from 1. retry_after: the minimum; None: no minimum."""
        delay = min(self.max_seconds, self.first_seconds * 2.0 ** min(failures - 1, 30))
        delay *= 0.5 + chance() / 2
        return delay if retry_after is None else max(retry_after, delay)


def parse_retry_after(
    headers: Mapping[str, str], now: Callable[[], datetime] = lambda: datetime.now(UTC)
) -> float | None:
    """Return the seconds that the endpoint asks to wait; None without a valid header.

    `retry-after-ms`, which OpenAI sends, has precedence over `retry-after` in seconds or as a date.
    """
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    seconds = _number(value)
    if seconds is not None or not value:
        return seconds
    try:
        date = parsedate_to_datetime(value)
        if date.tzinfo is None:
            date = date.replace(tzinfo=UTC)
        wait = (date - now()).total_seconds()
    except (ValueError, OverflowError):
        return None
    return min(_MAX_RETRY_AFTER_SECONDS, max(0.0, wait))


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return min(_MAX_RETRY_AFTER_SECONDS, number) if number >= 0 else None
