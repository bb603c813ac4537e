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


class Trial(NamedTuple):
    """One plugin under test.

    samples: its types, each with a config that fits; without those for which none is known.
    slow: a type with a config that takes its time, when one was given.
    """

    link: Link
    samples: list[Sample]
    slow: Sample | None

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
