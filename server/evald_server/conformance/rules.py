"""What a rule is, what it checks a plugin with, and the exceptions by which it reports. `checks` has all rules."""

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from .link import Link, Mode
from .samples import Sample
from .session_link import SessionLink
from .target_link import TargetLink


class RuleBroken(Exception):
    """The rule does not hold. The message says what, got, wanted."""


class NotTestable(Exception):
    """The rule cannot be checked. The message says what would be needed."""


class Pace(NamedTuple):
    """Time limits in seconds.

    short: timeout of tasks that are slow on purpose. notice: for a plugin to notice that a task is over, or
        to answer a health check or ping.
    grace: for open tasks when the server stops. away: how long a plugin is then asked to stay away, and how
        long a killed server is gone.
    back: for a plugin to reconnect after a restart of the server.
    """

    short: float = 0.5
    notice: float = 1.0
    grace: float = 5.0
    away: float = 1.0
    back: float = 10.0


class Trial(NamedTuple):
    """One plugin under test.

    samples: its types, each with a config that fits, except types for which none is known.
    slow: a type with a config that takes 5 s or more, if one was given.
    """

    link: Link
    samples: list[Sample]
    slow: Sample | None
    pace: Pace = Pace()

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
            raise NotTestable("no config is known that fits; give --config TYPE=JSON")
        return self.samples

    def need_slow(self) -> Sample:
        """Return the slow sample. Raises NotTestable if there is none."""
        if self.slow is None:
            raise NotTestable("needs a config that takes 5 s or more; give --slow TYPE=JSON")
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
