"""What a whole session comes to."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .records import read_verdict
from .result import Verdict

if TYPE_CHECKING:
    from .v1 import evaluation_service_pb2


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """What a whole session comes to. True when it passed, else false.

    verdict: the worst of its turns: FAILED, then ERROR, then PASSED, then SKIPPED.
    failed_turn_ids: turns that did not pass, counted from 1.
    """

    verdict: Verdict
    turn_count: int
    failed_turn_ids: tuple[int, ...] = ()

    @property
    def passed(self) -> bool:
        """True for PASSED alone."""
        return self.verdict is Verdict.PASSED

    def __bool__(self) -> bool:
        """Same as `passed`, so that `assert` fails for what did not pass."""
        return self.passed

    @classmethod
    def from_pb(cls, pb: "evaluation_service_pb2.SessionSummary") -> "SessionSummary":
        """Read from a server's message."""
        return cls(read_verdict(pb.verdict), pb.turn_count, tuple(pb.failed_turn_ids))
