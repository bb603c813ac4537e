"""Spending of judges: model prices, and ceilings checked before each request."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from evald.result import TokenUsage
from evald_server.day_totals import SERVER, DayTotals

from .prompt_request import CallSpending, JudgeError

_CODE: Final = "JUDGE_BUDGET_EXCEEDED"
_RESETS: Final = "; the limit resets at midnight UTC"

# A token issuer can name any number of subjects, and every cost rewrites the file with all accounts of the day. Beyond
# this number, principals without a ceiling get no account of their own.
_MAX_ACCOUNTS: Final = 1000


class Price(NamedTuple):
    """US dollars per million tokens. Cached input is charged at the full price, so costs are upper bounds."""

    input_usd: float
    output_usd: float

    def cost(self, usage: TokenUsage) -> float | None:
        """Return the cost in US dollars; None when the usage lacks input or output tokens.

        Every request has input, so usage with 0 input tokens is incomplete. Total tokens beyond input and output are
        reasoning tokens, which some endpoints bill as output but do not count as output.
        """
        if not usage.input_tokens or usage.output_tokens is None:
            return None
        output = max(usage.output_tokens, (usage.total or 0) - usage.input_tokens)
        return (usage.input_tokens * self.input_usd + output * self.output_usd) / 1e6

    def max_cost(self, input_bytes: int, output_tokens: int) -> float:
        """Return the highest possible cost of a request of this size: a token has at least one byte."""
        return (input_bytes * self.input_usd + output_tokens * self.output_usd) / 1e6


# The makers' list prices. Models whose price depends on the prompt's length or the time of day are left out.
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

# Makers append a date to their snapshots: gpt-4o-2024-11-20, claude-haiku-4-5-20251001.
_DATE: Final = re.compile(r"-(?:20\d\d-\d\d-\d\d|20\d{6})$")


def price_of(model: str, own: Mapping[str, Price]) -> Price | None:
    """Return the operator's price of the model or of its undated name, else the shipped price, else None."""
    undated = _DATE.sub("", model)
    for prices in (own, SHIPPED_PRICES):
        for name in (model, undated):
            if name in prices:
                return prices[name]
    return None


class Caller(NamedTuple):
    """The principal whose evaluation asks a judge. name: "" if unknown. per_day_usd: its ceiling, None for none."""

    name: str = ""
    per_day_usd: float | None = None


class Budget:
    """Ceilings in US dollars on the cost of a call, of a principal's day and of the server's day; None for no ceiling.

    A request is allowed only if the amount spent, plus the maximum cost of requests in flight, plus the maximum cost
    of this request stays within all ceilings.
    spent: the day's costs; by default a restart resets them. caller: returns the current caller. limited: called when a
    principal's ceiling refuses a request.
    """

    def __init__(
        self,
        *,
        per_call_usd: float | None = None,
        per_day_usd: float | None = None,
        spent: DayTotals | None = None,
        caller: Callable[[], Caller] = Caller,
        limited: Callable[[], None] = lambda: None,
    ) -> None:
        self._per_call = per_call_usd
        self._per_day = per_day_usd
        self._caller = caller
        self._limited = limited
        self._spent = DayTotals() if spent is None else spent
        # The maximum cost of requests in flight, by account.
        self._reserved: dict[str, float] = {}

    @property
    def has_ceiling(self) -> bool:
        """Whether there is a server-wide ceiling, so that every model needs a price."""
        return self._per_call is not None or self._per_day is not None

    @property
    def limits_caller(self) -> bool:
        """Whether any ceiling applies to the current caller."""
        return self.has_ceiling or self._caller().per_day_usd is not None

    def reserve(self, max_usd: float | None, spending: CallSpending) -> "Reservation":
        """Reserve the maximum cost of a request; None when its model has no price.

        Raises JudgeError JUDGE_BUDGET_EXCEEDED when the request could exceed a ceiling.
        """
        name, per_day = self._caller()
        if max_usd is None:
            if self.limits_caller:
                raise JudgeError(
                    _CODE,
                    "The judge's model has no price, so the limit on costs cannot be enforced; the "
                    "operator sets its price in the config file",
                )
            max_usd = 0.0
        call = (spending.cost_usd or 0.0) + spending.reserved_usd
        if self._per_call is not None and call + max_usd > self._per_call:
            raise _exceeded(
                max_usd, "; this evaluation", call, f"${self._per_call:.4g} (judge_max_usd_per_call)"
            )
        day = self._used(SERVER)
        if self._per_day is not None and day + max_usd > self._per_day:
            limit = f"${self._per_day:.4g} a day (judge_max_usd_per_day){_RESETS}"
            raise _exceeded(max_usd, ", and the server", day, limit)
        if per_day is not None and self._used(name) + max_usd > per_day:
            self._limited()
            limit = f"${per_day:.4g} a day (judge_usd_per_day){_RESETS}"
            raise _exceeded(max_usd, f", and {name}", self._used(name), limit)
        counted = per_day is not None or name in self._spent or len(self._spent) < _MAX_ACCOUNTS
        accounts = (SERVER, name) if name and counted else (SERVER,)
        for account in accounts:
            self._reserved[account] = self._reserved.get(account, 0.0) + max_usd
        spending.reserved_usd += max_usd
        return Reservation(self, accounts, spending, max_usd)

    def settle(self, accounts: Sequence[str], reserved_usd: float, cost_usd: float) -> None:
        """Replace a reserved amount with the actual cost."""
        for account in accounts:
            reserved = self._reserved.pop(account, 0.0) - reserved_usd
            # Rounding errors may leave slightly more than 0.
            if reserved > 1e-12:
                self._reserved[account] = reserved
        if cost_usd:
            self._spent.add(accounts, cost_usd)

    def close(self) -> None:
        """Finish pending writes. May block until the file is written."""
        self._spent.close()

    def _used(self, account: str) -> float:
        return self._spent.get(account) + self._reserved.get(account, 0.0)


def _exceeded(max_usd: float, who: str, used: float, limit: str) -> JudgeError:
    return JudgeError(
        _CODE,
        f"The next request to the judge may cost up to ${max_usd:.4g}{who} has used ${used:.4g} of its limit of {limit}",
    )


@dataclass(slots=True)
class Reservation:
    """The amount reserved for one request. The first settlement counts; later ones do nothing."""

    budget: Budget
    accounts: Sequence[str]
    spending: CallSpending
    reserved_usd: float
    is_open: bool = True

    def settle(self, cost_usd: float | None) -> None:
        """Charge the cost; 0 for an error. Does nothing for None, an unknown cost."""
        if cost_usd is None or not self.is_open:
            return
        self.is_open = False
        self.budget.settle(self.accounts, self.reserved_usd, cost_usd)
        self.spending.reserved_usd = max(0.0, self.spending.reserved_usd - self.reserved_usd)

    def settle_unknown(self) -> None:
        """Charge the reserved maximum, because there is no response or none with a cost."""
        if self.is_open:
            self.is_open = False
            self.budget.settle(self.accounts, self.reserved_usd, self.reserved_usd)
