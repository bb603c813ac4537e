"""What the server and its batch processes say to each other. Frames hold these, as `marshal` writes them."""

import marshal
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from evald_server.engine.plan import Limits
from evald_server.logs import LogFormat

from .recorder import Heard
from .totals import Sums

OPEN: Final = 0
CLOSE: Final = 1
EVALUATE: Final = 2
"""What a message to a batch process is about: it is (kind, number of the work, detail).

OPEN: detail is a Work. CLOSE: None. EVALUATE: the item to begin with, and whether to be brief; a frame with a serialised
evald.v1.EvaluateBatchRequest follows, and a Report is the answer.
"""


class Rules(NamedTuple):
    """The settings that decide what a plan is and how it runs.

    auto: config of the built-in types that run on every call. log: format and level.
    """

    limits: Limits
    fail_open: bool
    max_messages: int
    auto: Mapping[str, Mapping[str, Any]]
    log: tuple[LogFormat, str]

    def packed(self) -> bytes:
        """For a frame."""
        fields: Any = (tuple(self.limits), *self[1:])
        return marshal.dumps(fields)

    @classmethod
    def unpacked(cls, data: bytes) -> "Rules":
        """Out of a frame."""
        limits, *rest = marshal.loads(data)  # noqa: S302 - from our own parent
        return cls(Limits(*limits), *rest)


class Work(NamedTuple):
    """What items of a batch share.

    specs, options: of the plan, serialised. announced: the specs of the server's plan; a process that comes
    to other ones must not evaluate.
    """

    specs: Sequence[bytes]
    options: bytes
    announced: Sequence[bytes]


class Report(NamedTuple):
    """What has become of the items of one message.

    end: index of the item after the last one that was looked at; the answers had no more room.
    left: indexes of the items that the server has to evaluate itself; all of them when it sees the plan in another
    way, and `sums` and `heard` are empty then. verdicts, answers: as those of `Part`.
    seconds: verdict and time of each item evaluated. sums: of the plan. heard: by its tallies.
    """

    end: int
    left: Sequence[int]
    verdicts: Sequence[int]
    answers: bytes
    seconds: Sequence[tuple[int, float]]
    sums: Sums
    heard: Heard

    def packed(self) -> bytes:
        """For a frame."""
        fields: Any = (*self[:-2], tuple(self.sums), tuple(self.heard))
        return marshal.dumps(fields)

    @classmethod
    def unpacked(cls, data: bytes) -> "Report":
        """Out of a frame."""
        *rest, sums, heard = marshal.loads(data)  # noqa: S302 - from our own child
        return cls._make((*rest, Sums(*sums), Heard(*heard)))
