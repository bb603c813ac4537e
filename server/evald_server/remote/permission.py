"""Who may offer which evaluator types."""

from typing import Protocol


class Permissions(Protocol):
    """Asked before a plugin's types are taken. principal: who has called, "" without authentication."""

    def may_offer(self, principal: str, type: str, /) -> bool:  # noqa: A002 - the word of the contract
        """Whether the principal may offer a type of that name."""


class Everyone:
    """Without authentication there is nobody to tell apart."""

    def may_offer(self, principal: str, type: str, /) -> bool:  # noqa: A002 - as above
        """Always."""
        return True
