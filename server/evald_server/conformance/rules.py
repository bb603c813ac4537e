"""What a rule of the contract is. `checks` has them all."""

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from .link import Mode
from .trial import Trial

Check: TypeAlias = Callable[[Trial], Awaitable[None]]
"""Checks a plugin. Raises RuleBroken or NotTestable."""

TARGET: Final[tuple[Mode, ...]] = ("target",)
CONNECT: Final[tuple[Mode, ...]] = ("connect",)


class Severity(Enum):
    """Severity of a broken rule."""

    MUST = "must"
    """The plugin breaks the contract."""
    SHOULD = "should"
    """The plugin works, but not as well as it could."""


class ContractRule(NamedTuple):
    """One rule.

    number: never changes and is never reused. modes: to which it applies. looks_back: it checks the outputs of
    earlier rules.
    """

    number: str
    sentence: str
    check: Check
    modes: tuple[Mode, ...]
    severity: Severity
    looks_back: bool


def rule(
    number: str,
    sentence: str,
    modes: tuple[Mode, ...] = TARGET + CONNECT,
    *,
    severity: Severity = Severity.MUST,
    looks_back: bool = False,
) -> Callable[[Check], ContractRule]:
    """Make a rule of the function that checks it."""
    return lambda check: ContractRule(number, sentence, check, modes, severity, looks_back)
