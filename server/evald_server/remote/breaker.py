"""The circuit breaker of one instance."""

import random
import time
from collections import deque
from collections.abc import Callable
from typing import Final

# Of the last 20 calls half have failed, and at least 5: a flapping instance opens it as well as a dead one,
# two unlucky calls do not.
_WINDOW: Final = 20
_LEAST_FAILURES: Final = 5
_RATIO: Final = 0.5

_FIRST_WAIT: Final = 1.0
_LONGEST_WAIT: Final = 30.0


class Breaker:
    """Closed: calls go through. Open: none does, for a while. Then half-open: one call, the probe, tries.

    A call asks `allows`, says `begin`, and in the end `end` with what `begin` gave. Waits are
    1 s after the first opening, twice as long after every probe that fails, at most 30 s, and up to a fifth
    longer at random, so that several servers do not probe at the same moment.
    """

    __slots__ = ("_clock", "_jitter", "_outcomes", "_probing", "_until", "_wait")

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._clock = clock
        self._jitter = jitter
        self._outcomes: deque[bool] = deque(maxlen=_WINDOW)
        self._until: float | None = None  # None: closed
        self._wait = _FIRST_WAIT
        self._probing = False

    @property
    def is_open(self) -> bool:
        """Open, or half-open: no verdict yet that the instance works."""
        return self._until is not None

    def allows(self) -> bool:
        """Whether a call may begin now."""
        return self._until is None or (not self._probing and self._clock() >= self._until)

    def begin(self) -> bool:
        """A call begins. True: it is the probe."""
        if self._until is None:
            return False
        self._probing = True
        return True

    def end(self, *, probe: bool, worked: bool | None) -> bool:
        """A call is over; worked: None when it says nothing about the instance. True: it has opened or closed."""
        if probe:
            self._probing = False
            if worked:
                self._until, self._wait = None, _FIRST_WAIT
                self._outcomes.clear()
                return True
            if worked is False:
                self._wait = min(self._wait * 2, _LONGEST_WAIT)
                self._open()
            return False
        if worked is None or self._until is not None:
            return False
        outcomes = self._outcomes
        outcomes.append(worked)
        if worked:
            return False
        failures = outcomes.count(False)
        if failures < _LEAST_FAILURES or failures < _RATIO * len(outcomes):
            return False
        self._open()
        return True

    def _open(self) -> None:
        self._until = self._clock() + self._wait * (1 + self._jitter() / 5)
