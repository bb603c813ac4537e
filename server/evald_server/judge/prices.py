"""What models cost."""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from evald.result import TokenUsage


class Price(NamedTuple):
    """US dollars for a million tokens. Cached input is counted at the full price, so costs are upper bounds."""

    input_usd: float
    output_usd: float

    def cost(self, usage: TokenUsage) -> float | None:
        """US dollars; None when the usage does not say how many tokens were read or written."""
        if usage.input_tokens is None or usage.output_tokens is None:
            return None
        return (usage.input_tokens * self.input_usd + usage.output_tokens * self.output_usd) / 1e6

    def most(self, input_bytes: int, output_tokens: int) -> float:
        """No request of this size costs more: a token is a byte at least."""
        return (input_bytes * self.input_usd + output_tokens * self.output_usd) / 1e6


# List prices of the makers, without models whose price depends on the length of the prompt or the time of day.
# Source: the data of genai-prices 0.2.3 (MIT), taken on 2026-11-21, which names the makers' price pages:
# openai.com/api/pricing, anthropic.com/pricing, ai.google.dev/gemini-api/docs/pricing, mistral.ai/pricing.
SHIPPED: Final[Mapping[str, Price]] = {
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
    """The operator's own price of a model, else the shipped one, also for its dated snapshots; else None."""
    undated = _DATE.sub("", model)
    for table in (own, SHIPPED):
        for name in (model, undated):
            if name in table:
                return table[name]
    return None
