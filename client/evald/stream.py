"""The events of a streamed evaluation."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from .convert.spec import read_spec
from .errors import ServerError
from .evaluation import Evaluation, EvaluatorResult
from .spec import Spec

if TYPE_CHECKING:
    from .v1 import evaluation_service_pb2


@dataclass(frozen=True, slots=True)
class Started:
    """The first event of a stream. plan: the specs that will run, with their final names and versions."""

    evaluation_id: str
    plan: tuple[Spec, ...]


@dataclass(frozen=True, slots=True)
class Progress:
    """A progress report of a running evaluator. index: its position in the plan. fraction: 0 to 1."""

    index: int
    message: str
    fraction: float | None = None


Event: TypeAlias = Started | Progress | EvaluatorResult | Evaluation
"""An event of a stream. Started is the first, the Evaluation the last."""


class EvaluationStream:
    """Assembles the responses of one streamed evaluation to events and the evaluation."""

    def __init__(self) -> None:
        self._id = ""
        self._results: list[EvaluatorResult] = []
        self.evaluation: Evaluation | None = None

    def read(self, response: "evaluation_service_pb2.EvaluateResponse") -> list[Event]:
        """Read the next response and return its events."""
        events: list[Event] = []
        if response.HasField("started"):
            self._id = response.started.evaluation_id
            events.append(Started(self._id, tuple(map(read_spec, response.started.plan))))
        for progress in response.progress:
            fraction = progress.fraction if progress.HasField("fraction") else None
            events.append(Progress(progress.index, progress.message, fraction))
        results = [EvaluatorResult.from_pb(result) for result in response.results]
        self._results += results
        events += results
        if response.HasField("summary"):
            self._results.sort(key=lambda result: result.index)
            self.evaluation = Evaluation.from_pb(response.summary, self._id, self._results)
            events.append(self.evaluation)
        return events


def unfinished(what: str) -> ServerError:
    """Return the error for a stream that ended with status OK before it was complete."""
    return ServerError(f"the server ended the {what} without a summary, so it did not finish")
