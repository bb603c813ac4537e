"""Sessions without I/O: the part that both clients share."""

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .convert.requests import session_open, session_turn
from .errors import EvaluatorError, InvalidInput, TurnRefused
from .evaluation import Evaluation
from .records import read_verdict
from .result import Verdict
from .spec import OptionsLike, SpecLike
from .stream import EvaluationStream
from .turn import TurnLike, as_turn

if TYPE_CHECKING:
    from .v1 import evaluation_service_pb2


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """The summary of a session. Truthy only if the session passed.

    verdict: the worst verdict of its turns, in the order FAILED, ERROR, PASSED, SKIPPED.
    failed_turn_ids: turns that did not pass, counted from 1.
    error: the error of the session as a whole, such as NOT_FINISHED: assertions waited for a final turn.
    """

    verdict: Verdict
    turn_count: int
    failed_turn_ids: tuple[int, ...] = ()
    error: EvaluatorError | None = None

    @property
    def passed(self) -> bool:
        """True only for PASSED."""
        return self.verdict is Verdict.PASSED

    def __bool__(self) -> bool:
        """Return `passed`, so that `assert` fails for any other verdict."""
        return self.passed

    @classmethod
    def from_pb(cls, pb: "evaluation_service_pb2.SessionSummary") -> "SessionSummary":
        """Create the record from the server's message."""
        error = EvaluatorError.from_pb(pb.error) if pb.HasField("error") else None
        return cls(read_verdict(pb.verdict), pb.turn_count, tuple(pb.failed_turn_ids), error)


class SessionFlow:
    """The client-side state of a session. Numbers the turns and assembles their responses.

    opening: its first message. Raises InvalidInput.
    """

    def __init__(
        self,
        base: TurnLike | None,
        evaluators: Iterable[SpecLike],
        options: OptionsLike | None,
        labels: Mapping[str, str] | None,
    ) -> None:
        context = None if base is None else as_turn(base).to_proto()
        self.opening = session_open(context, evaluators, options, labels)
        self.summary: SessionSummary | None = None
        self._turn_id = 0
        self._stream = EvaluationStream()
        self._turn_under_way = threading.Lock()

    @contextmanager
    def turn(self, turn: TurnLike) -> "Iterator[evaluation_service_pb2.EvaluateSessionRequest]":
        """Begin the next turn and yield its request. The caller waits for the response inside the block.

        Raises InvalidInput for an invalid turn, and while another turn is in progress, whose response would be lost.
        """
        pb = as_turn(turn).to_proto()
        if not self._turn_under_way.acquire(blocking=False):
            raise InvalidInput(
                "session",
                "a turn while another turn is being evaluated",
                "one turn at a time, or one session for each concurrent conversation",
            )
        try:
            request = session_turn(self._turn_id + 1, pb)
            self._turn_id += 1
            self._stream = EvaluationStream()
            yield request
        finally:
            self._turn_under_way.release()

    def read(self, response: "evaluation_service_pb2.EvaluateSessionResponse") -> Evaluation | None:
        """Read a response. Returns the turn's evaluation if it is complete, else None. Raises TurnRefused."""
        if response.HasField("session_summary"):
            self.summary = SessionSummary.from_pb(response.session_summary)
        if response.turn_id != self._turn_id:
            return None  # response to an earlier turn, whose caller stopped waiting
        if response.HasField("error"):
            raise TurnRefused(EvaluatorError.from_pb(response.error))
        if response.HasField("event"):
            self._stream.read(response.event)
        return self._stream.evaluation
