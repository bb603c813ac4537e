"""How long to wait before the next attempt."""

import random
from typing import Final

# Short enough that a worker is back within 10 s of a restart, long enough that a thousand of them, spread
# by the jitter, are some hundred attempts a second.
MAX_DELAY_SECONDS: Final = 3.0


class Backoff:
    """Exponential, with full jitter: each delay is drawn from 0 to a bound that doubles.

    first: bound of the first delay in seconds. most: the bound's bound.
    Source: M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
    """

    def __init__(
        self, first: float = 0.2, most: float = MAX_DELAY_SECONDS, draw: random.Random | None = None
    ) -> None:
        self._first = first
        self._most = most
        self._bound = first
        self._draw = draw or random.SystemRandom()

    def next(self) -> float:
        """Seconds to wait now."""
        delay = self._draw.uniform(0, self._bound)
        self._bound = min(self._most, 2 * self._bound)
        return delay

    def reset(self) -> None:
        """It worked: begin anew."""
        self._bound = self._first
