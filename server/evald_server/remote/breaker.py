"""Circuit breaker of an instance, and retry budget of an evaluator type."""

import random
import time
from collections import deque
from collections.abc import Callable
from typing import Final

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


class CircuitBreaker:
    """A circuit breaker. Closed: calls pass. Open: no call passes until the wait is over. Half-open: one probe passes.

    Call `allows`, then `begin`, then `end` with the return value of `begin`. The wait is 1 s after the first
    opening and doubles after every failed probe, up to 30 s. Each wait is extended at random by up to a fifth, so that
    several servers do not probe at the same moment.

    Late tasks of one principal alone show little about the instance: its deadlines may be short, or its tasks large.
    So they open the circuit for this principal only, and after its late probe the others wait half as long.
    """

    __slots__ = ("_clock", "_jitter", "_late_probe", "_only", "_open_until", "_outcomes", "_probing", "_wait")

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._clock = clock
        self._jitter = jitter
        # None: worked; else the principal whose task was late, "" if the task failed otherwise.
        self._outcomes: deque[str | None] = deque(maxlen=_WINDOW)
        self._open_until: float | None = None  # None: closed
        self._only = ""  # the principal for which it is open; "" for all
        self._late_probe = ""  # the principal whose probe was late
        self._wait = _FIRST_WAIT
        self._probing = False

    @property
    def is_open(self) -> bool:
        """Whether the circuit is open or half-open, if only for one principal."""
        return self._open_until is not None

    @property
    def only(self) -> str:
        """The principal for which alone the circuit is open; "" if it is closed, or open for all."""
        return self._only

    def allows(self, principal: str) -> bool:
        """Return whether a call of a principal may begin now."""
        if self._open_until is None or self._passes(principal):
            return True
        until = self._open_until
        if self._late_probe not in ("", principal):
            until -= self._wait / 2
        return not self._probing and self._clock() >= until

    def begin(self, principal: str) -> bool:
        """Begin a call. Returns True if it is the probe."""
        if self._open_until is None or self._passes(principal):
            return False
        self._probing = True
        return True

    def end(self, *, probe: bool, worked: bool | None, late: str = "") -> bool:
        """Record the outcome of a call. worked: None if the outcome shows nothing about the instance.

        late: the principal of a call that failed because it was late, if others may have more luck.

        Returns True if the circuit has opened or closed.
        """
        if worked and (probe or self._is_forgotten()):
            self._open_until, self._only, self._probing = None, "", False
            self._outcomes.clear()
            return True
        if probe:
            self._probing = False
            if worked is False:
                self._wait = min(self._wait * 2, _MAX_WAIT)
                self._late_probe = late
                self._open()
            return False
        is_open = self._open_until is not None
        if worked is None or (is_open and self._only in ("", late)):
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
        self._only = most if is_alone and not is_open else ""
        self._late_probe, self._wait = "", _FIRST_WAIT
        outcomes.clear()
        self._open()
        return True

    def _passes(self, principal: str) -> bool:
        return self._only not in ("", principal)

    def _is_forgotten(self) -> bool:
        """Return whether the only principal for which the circuit is open has not probed it for long."""
        if self._open_until is None or not self._only or self._probing:
            return False
        return self._clock() >= self._open_until + _MAX_WAIT

    def _open(self) -> None:
        self._open_until = self._clock() + self._wait * (1 + self._jitter() / 5)


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
