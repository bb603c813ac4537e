"""What judges may spend: prices of models, ceilings checked before each request, and the day's total on disk."""

import json
import logging
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from evald.result import TokenUsage

from .prompt_request import CallSpending, JudgeError

_log = logging.getLogger("evald.judge")

_CODE: Final = "JUDGE_BUDGET_EXCEEDED"


class Price(NamedTuple):
    """US dollars for a million tokens. Cached input is counted at the full price, so costs are upper bounds."""

    input_usd: float
    output_usd: float

    def cost(self, usage: TokenUsage) -> float | None:
        """Return US dollars; None when the usage lacks input or output tokens."""
        if usage.input_tokens is None or usage.output_tokens is None:
            return None
        return (usage.input_tokens * self.input_usd + usage.output_tokens * self.output_usd) / 1e6

    def max_cost(self, input_bytes: int, output_tokens: int) -> float:
        """Return the most that a request of this size can cost: a token is a byte at least."""
        return (input_bytes * self.input_usd + output_tokens * self.output_usd) / 1e6


# List prices of the makers, without models whose price depends on the length of the prompt or the time of day.
# Source: the data of genai-prices 0.2.3 (MIT), taken on 2026-11-21, which names the makers' price pages:
# openai.com/api/pricing, anthropic.com/pricing, ai.google.dev/gemini-api/docs/pricing, mistral.ai/pricing.
SHIPPED_PRICES: Final[Mapping[str, Price]] = {
    "gpt-3.5-turbo": Price(0.5, 1.5),
    "gpt-4-turbo": Price(10, 30),
    "gpt-4.1": Price(2, 8),
    "gpt-4.1-mini": Price(0.4, 1.6),
    "gpt-4.1-nano": Price(0.1, 0.4),
    "gpt-4o": Price(2.5, 10),
    "gpt-4o-2024-05-13": Price(5, 15),
    "gpt-4o-mini": Price(0.15, 0.6),
    "gpt-5": Price(1.25, 10),
    "gpt-5-mini": Price(0.25, 2),
    "gpt-5-nano": Price(0.05, 0.4),
    "gpt-5.1": Price(1.25, 10),
    "gpt-5.2": Price(1.75, 14),
    "gpt-5.3": Price(1.75, 14),
    "gpt-5.4-mini": Price(0.75, 4.5),
    "gpt-5.4-nano": Price(0.2, 1.25),
    "o1": Price(15, 60),
    "o3-mini": Price(1.1, 4.4),
    "o4-mini": Price(1.1, 4.4),
    "claude-haiku-4-5": Price(1, 5),
    "claude-opus-4-5": Price(5, 25),
    "claude-opus-4-8": Price(5, 25),
    "claude-opus-5": Price(5, 25),
    "claude-opus-5-5": Price(4, 20),
    "claude-sonnet-4-6": Price(3, 15),
    "claude-sonnet-5": Price(2, 10),
    "claude-sonnet-5-5": Price(2, 10),
    "gemini-2.5-flash": Price(0.3, 2.5),
    "gemini-2.5-flash-lite": Price(0.1, 0.4),
    "gemini-3.1-flash-lite": Price(0.25, 1.5),
    "gemini-3.5-flash": Price(1.5, 9),
    "gemini-3.5-flash-lite": Price(0.3, 2.5),
    "mistral-large-2512": Price(0.5, 1.5),
    "mistral-small-2603": Price(0.15, 0.6),
}

# Makers date their snapshots: gpt-4o-2024-11-20, claude-haiku-4-5-20251001.
_DATE: Final = re.compile(r"-(?:20\d\d-\d\d-\d\d|20\d{6})$")


def price_of(model: str, own: Mapping[str, Price]) -> Price | None:
    """Return the operator's own price of a model or of its undated name, else the shipped one, else None."""
    undated = _DATE.sub("", model)
    for prices in (own, SHIPPED_PRICES):
        for name in (model, undated):
            if name in prices:
                return prices[name]
    return None


def utc_day() -> str:
    """Return today's date in UTC, as in "2026-01-31"."""
    return datetime.now(UTC).strftime("%Y-%m-%d")


class SpendStore:
    """A JSON file with what the day has cost, so that a restart does not reset the daily ceiling.

    A thread of its own replaces the file as a whole. A crash may lose the last request's cost.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._warned = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="evald-judge-spending")

    def load(self, day: str) -> float:
        """Return the US dollars spent on that day; 0 when the file is of another day or cannot be read."""
        try:
            data = json.loads(self._path.read_text(encoding="utf-8"))
            return max(0.0, float(data["usd"])) if data["day"] == day else 0.0
        except FileNotFoundError:
            return 0.0
        except (OSError, ValueError, KeyError, TypeError) as problem:
            self._warn(problem)
            return 0.0

    def save(self, day: str, usd: float) -> None:
        """Have the day's total written. Returns at once."""
        with suppress(RuntimeError):  # closed, because the server stops
            self._thread.submit(self._write, day, usd)

    def close(self) -> None:
        """Finish pending writes. May block for as long as a file is written."""
        self._thread.shutdown()

    def _write(self, day: str, usd: float) -> None:
        temporary = self._path.with_suffix(".new")
        try:
            temporary.write_text(json.dumps({"day": day, "usd": usd}), encoding="utf-8")
            temporary.replace(self._path)
        except OSError as problem:
            self._warn(problem)

    def _warn(self, problem: Exception) -> None:
        """Log the first problem."""
        if not self._warned:
            self._warned = True
            _log.warning(
                "what the judges have cost today cannot be kept in %s, so that a restart begins the day anew: %s",
                self._path.name,
                type(problem).__name__,
            )


class Budget:
    """Ceilings in US dollars on what a call and a day may cost; None for no ceiling.

    A request is allowed only when the most that it can cost, added to what is spent and to what requests in
    flight can cost, stays within both ceilings.
    store: keeps the day's total over restarts; without one a restart resets it.
    """

    def __init__(
        self,
        *,
        per_call_usd: float | None = None,
        per_day_usd: float | None = None,
        store: SpendStore | None = None,
        today: Callable[[], str] = utc_day,
    ) -> None:
        self._per_call = per_call_usd
        self._per_day = per_day_usd
        self._store = store
        self._today = today
        self._day = today()
        self._spent = store.load(self._day) if store else 0.0
        self._reserved = 0.0

    @property
    def has_ceiling(self) -> bool:
        """Whether there is any ceiling, so that every model needs a price."""
        return self._per_call is not None or self._per_day is not None

    def reserve(self, max_usd: float | None, spending: CallSpending) -> "Reservation":
        """Reserve the most that a request can cost; None when its model has no price.

        Raises JudgeError JUDGE_BUDGET_EXCEEDED when the request could exceed a ceiling.
        """
        self._start_new_day()
        if max_usd is None:
            if self.has_ceiling:
                raise JudgeError(
                    _CODE, "The judge's model has no price, so that the ceiling on costs cannot be kept"
                )
            max_usd = 0.0
        call = (spending.cost_usd or 0.0) + spending.reserved_usd
        if self._per_call is not None and call + max_usd > self._per_call:
            raise JudgeError(
                _CODE,
                f"The next request to the judge may cost up to ${max_usd:.4g}; this evaluation has used "
                f"${call:.4g} of the ${self._per_call:.4g} that it may cost (judge_max_usd_per_call)",
            )
        day = self._spent + self._reserved
        if self._per_day is not None and day + max_usd > self._per_day:
            raise JudgeError(
                _CODE,
                f"The next request to the judge may cost up to ${max_usd:.4g}, and the server's ceiling of "
                f"${self._per_day:.4g} a day (judge_max_usd_per_day) is used up to ${day:.4g}; "
                f"the day ends at midnight UTC",
            )
        self._reserved += max_usd
        spending.reserved_usd += max_usd
        return Reservation(self, spending, max_usd)

    def settle(self, reserved_usd: float, cost_usd: float) -> None:
        """Replace a reserved amount by the cost."""
        self._start_new_day()
        self._reserved = max(0.0, self._reserved - reserved_usd)
        if cost_usd:
            self._spent += cost_usd
            if self._store is not None:
                self._store.save(self._day, self._spent)

    def close(self) -> None:
        """Finish pending writes. May block for as long as a file is written."""
        if self._store is not None:
            self._store.close()

    def _start_new_day(self) -> None:
        day = self._today()
        if day != self._day:
            self._day, self._spent = day, 0.0


class Reservation:
    """The amount reserved for one request. The first settlement counts; later ones do nothing."""

    __slots__ = ("_budget", "_open", "_reserved", "_spending")

    def __init__(self, budget: Budget, spending: CallSpending, reserved_usd: float) -> None:
        self._budget = budget
        self._spending = spending
        self._reserved = reserved_usd
        self._open = True

    def settle(self, cost_usd: float | None) -> None:
        """Charge the cost; 0 for an error. Does nothing for None, an unknown cost."""
        if cost_usd is None or not self._open:
            return
        self._open = False
        self._budget.settle(self._reserved, cost_usd)
        self._spending.reserved_usd = max(0.0, self._spending.reserved_usd - self._reserved)

    def settle_unknown(self) -> None:
        """No response, or none with a cost: charge the reserved maximum."""
        if self._open:
            self._open = False
            self._budget.settle(self._reserved, self._reserved)
