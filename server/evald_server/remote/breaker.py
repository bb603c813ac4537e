"""Circuit breaker of an instance, and retry budget of an evaluator type."""

import random
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

# Opens when half of the last 20 calls failed, and at least 5: a flapping instance opens it as well as a dead
# one, two accidental failures do not.
_WINDOW: Final = 20
_MIN_FAILURES: Final = 5
_FAILURE_RATIO: Final = 0.5

_FIRST_WAIT: Final = 1.0
_MAX_WAIT: Final = 30.0

# Share of calls that may be retried. Retries add load to an instance that may fail because of its load.
_RETRY_RATIO: Final = 0.2
_MAX_TOKENS: Final = 100.0


class _Opening(NamedTuple):
    """An open circuit. until: time of the next probe. late: the principal with late tasks, "" for none.

    others_until: time of the next probe of the others, if there is a late principal; None if their calls pass.
    """

    until: float
    late: str
    others_until: float | None


class CircuitBreaker:
    """A circuit breaker. Closed: calls pass. Open: no call passes until the wait is over. Half-open: one probe passes.

    Call `allows`, then `begin`, then `end` with the return value of `begin`. The wait is 1 s after the first
    opening and doubles after every failed probe, up to 30 s. Each wait is extended at random by up to a fifth, so that
    several servers do not probe at the same moment.

    Late tasks of one principal alone show little about the instance: its deadlines may be short, or its tasks large.
    So they open the circuit for this principal only, and after its late probe the others wait half as long.
    """

    __slots__ = ("_clock", "_jitter", "_opening", "_outcomes", "_probing", "_wait")

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._clock = clock
        self._jitter = jitter
        # None: worked; else the principal whose task was late, "" if the task failed otherwise.
        self._outcomes: deque[str | None] = deque(maxlen=_WINDOW)
        self._opening: _Opening | None = None  # None: closed
        self._wait = _FIRST_WAIT
        self._probing = False

    @property
    def is_open(self) -> bool:
        """Whether the circuit is open or half-open, if only for one principal."""
        return self._opening is not None

    @property
    def only(self) -> str:
        """The principal for which alone the circuit is open; "" if it is closed, or open for all."""
        opening = self._opening
        return opening.late if opening is not None and opening.others_until is None else ""

    def allows(self, principal: str) -> bool:
        """Return whether a call of a principal may begin now."""
        until = self._until(principal)
        return until is None or (not self._probing and self._clock() >= until)

    def begin(self, principal: str) -> bool:
        """Begin a call. Returns True if it is the probe."""
        if self._until(principal) is None:
            return False
        self._probing = True
        return True

    def end(self, *, probe: bool, worked: bool | None, late: str = "") -> bool:
        """Record the outcome of a call. worked: None if the outcome shows nothing about the instance.

        late: the principal of a call that failed because it was late, if others may have more luck.

        Returns True if the circuit has opened or closed.
        """
        if worked and (probe or self._is_forgotten()):
            self._opening, self._probing = None, False
            self._outcomes.clear()
            return True
        if probe:
            self._probing = False
            if worked is False:
                self._wait = min(self._wait * 2, _MAX_WAIT)
                self._open(self.only or late, for_others=not self.only)
            return False
        if worked is None or (self.is_open and self.only in ("", late)):
            return False
        outcomes = self._outcomes
        outcomes.append(None if worked else late)
        if worked:
            return False
        failures = [outcome for outcome in outcomes if outcome is not None]
        if len(failures) < _MIN_FAILURES or len(failures) < _FAILURE_RATIO * len(outcomes):
            return False
        most = max(failures, key=failures.count)
        is_alone = failures.count(most) >= _MIN_FAILURES > len(failures) - failures.count(most)
        # A second principal's late tasks open it for all.
        only = most if is_alone and not self.is_open else ""
        self._wait = _FIRST_WAIT
        outcomes.clear()
        self._open(only, for_others=not only)
        return True

    def _until(self, principal: str) -> float | None:
        """Return when a principal may make the next probe; None if its calls pass."""
        opening = self._opening
        if opening is None:
            return None
        return opening.until if opening.late in ("", principal) else opening.others_until

    def _is_forgotten(self) -> bool:
        """Return whether the only principal for which the circuit is open has not probed it for long."""
        if self._opening is None or not self.only or self._probing:
            return False
        return self._clock() >= self._opening.until + _MAX_WAIT

    def _open(self, late: str, *, for_others: bool) -> None:
        """Open the circuit. late: the principal with late tasks, "" for none. for_others: for the others, too."""
        until = self._clock() + self._wait * (1 + self._jitter() / 5)
        self._opening = _Opening(until, late, until - self._wait / 2 if for_others else None)


class RetryBudget:
    """A token bucket that starts empty: each call adds a fifth of a token, each retry takes one token.

    So instances never get more than 1.2 times the offered calls.
    """

    __slots__ = ("_tokens",)

    def __init__(self) -> None:
        self._tokens = 0.0

    def record_call(self) -> None:
        """Add a call's share of a token."""
        self._tokens = min(_MAX_TOKENS, self._tokens + _RETRY_RATIO)

    def take(self) -> bool:
        """Take a token for a retry. Returns False if there is none."""
        # 0.2 has no exact binary form, so the sum of five may be slightly below 1.
        if self._tokens < 1 - 1e-9:
            return False
        self._tokens -= 1
        return True
