"""Sessions without I/O: what both clients share of a conversation that is evaluated turn by turn."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .convert.requests import session_turn
from .errors import EvaluatorError, InvalidInput, TurnRefused
from .evaluation import Evaluation
from .records import read_verdict
from .result import Verdict
from .stream import EvaluationStream
from .turn import TurnLike, as_turn

if TYPE_CHECKING:
    from .v1 import evaluation_service_pb2


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """The summary of a session. True when it passed, else false.

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
        """Return `passed`, so that `assert` fails for what did not pass."""
        return self.passed

    @classmethod
    def from_pb(cls, pb: "evaluation_service_pb2.SessionSummary") -> "SessionSummary":
        """Create the record from a server's message."""
        return cls(read_verdict(pb.verdict), pb.turn_count, tuple(pb.failed_turn_ids))


class SessionFlow:
    """The client's state of a session: numbers the turns and assembles their answers."""

    def __init__(self) -> None:
        self.summary: SessionSummary | None = None
        self._turn_id = 0
        self._stream = EvaluationStream()
        self._turn_under_way = threading.Lock()

    @contextmanager
    def turn(self, turn: TurnLike) -> "Iterator[evaluation_service_pb2.EvaluateSessionRequest]":
        """Begin the next turn and yield its request. The caller waits for the answer inside of the block.

        Raises InvalidInput, also while another turn is waited for, whose answer would be lost.
        """
        pb = as_turn(turn).to_proto()
        if not self._turn_under_way.acquire(blocking=False):
            raise InvalidInput(
                "session",
                "a turn while another one is evaluated",
                "one after the other, or a session for each",
            )
        try:
            request = session_turn(self._turn_id + 1, pb)
            self._turn_id += 1
            self._stream = EvaluationStream()
            yield request
        finally:
            self._turn_under_way.release()

    def read(self, response: "evaluation_service_pb2.EvaluateSessionResponse") -> Evaluation | None:
        """Read a response. Returns the turn's evaluation once it is complete, else None. Raises TurnRefused."""
        if response.HasField("session_summary"):
            self.summary = SessionSummary.from_pb(response.session_summary)
        if response.turn_id != self._turn_id:
            return None  # of an earlier turn, whose caller stopped waiting
        if response.HasField("error"):
            raise TurnRefused(EvaluatorError.from_pb(response.error))
        if response.HasField("event"):
            self._stream.read(response.event)
        return self._stream.evaluation
