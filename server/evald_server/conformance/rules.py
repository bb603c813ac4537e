"""Rules, the plugin under test, and the exceptions of checks. `checks` has all rules."""

from collections.abc import Awaitable, Callable, Iterable
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from .link import Link, Mode
from .samples import Sample
from .session_link import SessionLink
from .target_link import TargetLink


class RuleBroken(Exception):
    """The rule does not hold. The message names the problem, the value got and the value wanted."""


class NotTestable(Exception):
    """The rule cannot be checked. The message says what is missing."""


class Timeouts(NamedTuple):
    """Time limits in seconds.

    short: timeout of tasks that are slow on purpose. notice: time for a plugin to notice that a task has ended, or
        to answer a health check or ping.
    grace: time for open tasks when the server stops. away: how long a plugin is then asked to stay away, and how
        long a killed server is unavailable.
    back: time for a plugin to reconnect after a restart of the server.
    """

    short: float = 0.5
    notice: float = 1.0
    grace: float = 5.0
    away: float = 1.0
    back: float = 10.0


class Trial(NamedTuple):
    """One plugin under test.

    samples: its types, each with a valid config; without types for which none is known.
    slow: a type with a config that takes 5 s or more, if one was given.
    """

    link: Link
    samples: list[Sample]
    slow: Sample | None
    timeouts: Timeouts = Timeouts()

    @property
    def target(self) -> TargetLink:
        """The link to a plugin that listens."""
        assert isinstance(self.link, TargetLink)
        return self.link

    @property
    def session(self) -> SessionLink:
        """The link to a plugin that dials out."""
        assert isinstance(self.link, SessionLink)
        return self.link

    def need_samples(self) -> list[Sample]:
        """Return the samples. Raises NotTestable if there are none."""
        if not self.samples:
            raise NotTestable("no valid config is known; give one with --config TYPE=JSON")
        return self.samples

    def need_slow(self) -> Sample:
        """Return the slow sample. Raises NotTestable if there is none."""
        if self.slow is None:
            raise NotTestable("needs a config that takes 5 s or more; give one with --slow TYPE=JSON")
        return self.slow


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

    number: never changes and is never reused. modes: the modes that it applies to. looks_back: it checks the outputs of
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
    """Return a decorator that makes a rule of its check function."""
    return lambda check: ContractRule(number, sentence, check, modes, severity, looks_back)


async def need_unbroken(trial: Trial, rules: Iterable[ContractRule]) -> None:
    """Raise NotTestable if one of the rules is broken."""
    for other in rules:
        try:
            await other.check(trial)
        except RuleBroken:
            raise NotTestable(f"{other.number} is broken; mend that first") from None
