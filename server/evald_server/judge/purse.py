"""Ceilings on what judges may spend, checked before each request."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, Protocol

from .question import JudgeFault, Spending

_CODE: Final = "JUDGE_BUDGET_EXCEEDED"


class Ledger(Protocol):
    """Remembers what a day has cost, so that a restart does not begin it anew."""

    def spent(self, day: str) -> float:
        """US dollars spent on that day, "2026-01-31", as far as known."""

    def note(self, day: str, usd: float) -> None:
        """Keep what the day has cost so far. Returns at once."""

    def close(self) -> None:
        """Finish what is under way."""


class Forgetful:
    """A ledger for servers that keep nothing: every start begins the day anew."""

    def spent(self, day: str) -> float:
        """Nothing, as far as known."""
        return 0.0

    def note(self, day: str, usd: float) -> None:
        """Forget it."""

    def close(self) -> None:
        """Nothing is under way."""


def utc_day() -> str:
    """Today."""
    return datetime.now(UTC).strftime("%Y-%m-%d")


class Purse:
    """What a call and a day may cost at most, in US dollars; None: no ceiling.

    A request is let through only when the most that it can cost, on top of what is spent and what
    requests under way can cost, stays within both ceilings.
    """

    def __init__(
        self,
        *,
        per_call_usd: float | None = None,
        per_day_usd: float | None = None,
        ledger: Ledger | None = None,
        today: Callable[[], str] = utc_day,
    ) -> None:
        self._per_call = per_call_usd
        self._per_day = per_day_usd
        self._ledger = ledger or Forgetful()
        self._today = today
        self._day = today()
        self._spent = self._ledger.spent(self._day)
        self._reserved = 0.0

    @property
    def limited(self) -> bool:
        """Whether there is any ceiling, so that every model needs a price."""
        return self._per_call is not None or self._per_day is not None

    def reserve(self, most_usd: float | None, spending: Spending) -> "Charge":
        """Set the most that a request can cost aside. Settle the charge when the request is over.

        Raises JudgeFault JUDGE_BUDGET_EXCEEDED: a ceiling would be broken, or could be, because nobody knows
        the price.
        """
        self._turn()
        if most_usd is None:
            if self.limited:
                raise JudgeFault(
                    _CODE, "The judge's model has no price, so that the ceiling on costs cannot be kept"
                )
            return Charge(self, spending, 0.0)
        already = (spending.cost_usd or 0.0) + spending.reserved_usd
        if self._per_call is not None and already + most_usd > self._per_call:
            raise JudgeFault(
                _CODE,
                f"The next request to the judge may cost up to ${most_usd:.4g}; this evaluation has used "
                f"${already:.4g} of the ${self._per_call:.4g} that it may cost (judge_max_usd_per_call)",
            )
        today = self._spent + self._reserved
        if self._per_day is not None and today + most_usd > self._per_day:
            raise JudgeFault(
                _CODE,
                f"The next request to the judge may cost up to ${most_usd:.4g}, and the server's ceiling of "
                f"${self._per_day:.4g} a day (judge_max_usd_per_day) is used up to ${today:.4g}; "
                f"the day ends at midnight UTC",
            )
        self._reserved += most_usd
        spending.reserved_usd += most_usd
        return Charge(self, spending, most_usd)

    def settle(self, reserved_usd: float, cost_usd: float) -> None:
        """Turn what was set aside into what was spent."""
        self._turn()
        self._reserved = max(0.0, self._reserved - reserved_usd)
        if cost_usd:
            self._spent += cost_usd
            self._ledger.note(self._day, self._spent)

    def close(self) -> None:
        """Finish what is under way in the ledger. May block for as long as a file is written."""
        self._ledger.close()

    def _turn(self) -> None:
        day = self._today()
        if day != self._day:
            self._day, self._spent = day, 0.0


class Charge:
    """What was set aside for one request. The first way in which it is settled counts."""

    __slots__ = ("_open", "_purse", "_reserved", "_spending")

    def __init__(self, purse: Purse, spending: Spending, reserved_usd: float) -> None:
        self._purse = purse
        self._spending = spending
        self._reserved = reserved_usd
        self._open = True

    def paid(self, cost_usd: float | None) -> None:
        """The endpoint has answered. cost_usd: None when it did not say how much it was, which `lost` then
        settles; 0 for an error, which costs nothing."""
        if cost_usd is None or not self._open:
            return
        self._open = False
        self._purse.settle(self._reserved, cost_usd)
        self._spending.reserved_usd = max(0.0, self._spending.reserved_usd - self._reserved)

    def lost(self) -> None:
        """Nobody knows what it cost, because no answer came: it counts as if it had cost the most it could."""
        if self._open:
            self._open = False
            self._purse.settle(self._reserved, self._reserved)
