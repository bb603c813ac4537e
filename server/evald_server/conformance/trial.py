"""What a check has to work with, and how it says what it found."""

from typing import NamedTuple

from .links import Link
from .samples import Sample
from .session import SessionLink
from .target import TargetLink


class Broken(Exception):
    """The rule does not hold. The message says what, got, wanted."""


class NotShown(Exception):
    """The rule could not be tried. The message says what would be needed."""


class Pace(NamedTuple):
    """How long things may take, in seconds.

    short: given to tasks that are slow on purpose. notice: what a plugin may take to notice that a task
        is over, or to say that it is alive.
    grace: given to open tasks when the server stops. away: how long a plugin is then asked to stay away,
        and how long a server that was killed is not there.
    back: what a user is promised after a restart of the server.
    """

    short: float = 0.5
    notice: float = 1.0
    grace: float = 5.0
    away: float = 1.0
    back: float = 10.0


class Trial(NamedTuple):
    """One plugin under test.

    samples: its types, each with a config that fits; without those for which none is known.
    slow: a type with a config that takes its time, when one was given.
    """

    link: Link
    samples: list[Sample]
    slow: Sample | None
    pace: Pace = Pace()

    @property
    def target(self) -> TargetLink:
        """The link of a plugin that listens."""
        assert isinstance(self.link, TargetLink)
        return self.link

    @property
    def session(self) -> SessionLink:
        """The link of a plugin that dials."""
        assert isinstance(self.link, SessionLink)
        return self.link

    def need_samples(self) -> list[Sample]:
        """The samples. Raises NotShown when there are none."""
        if not self.samples:
            raise NotShown("no config is known that fits; give --config TYPE=JSON")
        return self.samples

    def need_slow(self) -> Sample:
        """The slow one. Raises NotShown when there is none."""
        if self.slow is None:
            raise NotShown("needs a config that takes 5 s or more; give --slow TYPE=JSON")
        return self.slow
