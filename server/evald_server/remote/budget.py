"""How many retries one evaluator type may cost."""

from typing import Final

# Of the calls offered: a retry doubles the load of those that fail, just when the load is the trouble.
_RATIO: Final = 0.2
_MOST_TOKENS: Final = 100.0


class RetryBudget:
    """A bucket of tokens. A call puts a fifth of a token in, a retry takes one out; it starts empty.

    So there are never more upstream calls than 1.2 times those offered, whatever fails when.
    """

    __slots__ = ("_tokens",)

    def __init__(self) -> None:
        self._tokens = 0.0

    def offer(self) -> None:
        """A call was offered."""
        self._tokens = min(_MOST_TOKENS, self._tokens + _RATIO)

    def take(self) -> bool:
        """Whether a call may be retried. If so, the token is gone."""
        # A fifth has no exact binary form: five of them may lack the last bit.
        if self._tokens < 1 - 1e-9:
            return False
        self._tokens -= 1
        return True
