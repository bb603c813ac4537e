"""Batches without I/O: items, answers, totals, and the flow control. Both clients share them."""

import threading
from collections import deque
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sized
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from .convert.requests import batch_item, batch_open, batch_request
from .errors import EvaluatorError, InvalidInput
from .evaluation import Evaluation
from .fields import positive, shown
from .records import present, read_kind
from .result import Kind, Verdict
from .spec import OptionsLike, SpecLike
from .turn import Turn, TurnLike, as_turn

if TYPE_CHECKING:
    from .v1 import evaluation_service_pb2


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """The answer to one item of a batch: an evaluation, or the error that prevented it.

    Truthy only if the item passed.
    """

    id: str
    evaluation: Evaluation | None = None
    error: EvaluatorError | None = None

    @property
    def verdict(self) -> Verdict:
        """The verdict of the evaluation; ERROR if there is none."""
        return Verdict.ERROR if self.evaluation is None else self.evaluation.verdict

    @property
    def reason(self) -> str:
        """The reason of the evaluation; if there is none, the error's message."""
        if self.evaluation is not None:
            return self.evaluation.reason
        return self.error.message if self.error is not None else ""

    @property
    def passed(self) -> bool:
        """True only for PASSED."""
        return self.verdict is Verdict.PASSED

    def __bool__(self) -> bool:
        """Return `passed`, so that `assert` fails for any other verdict."""
        return self.passed

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON data in camelCase."""
        return present(
            {
                "id": self.id,
                "verdict": self.verdict.name,
                "evaluation": None if self.evaluation is None else self.evaluation.to_dict(),
                "error": self.error.to_dict() if self.error else None,
            }
        )

    @classmethod
    def from_pb(cls, pb: "evaluation_service_pb2.BatchAnswer") -> "BatchAnswer":
        """Create the record from the server's message."""
        if pb.HasField("summary"):
            return cls(pb.item_id, Evaluation.from_pb(pb.summary))
        if pb.HasField("error"):
            return cls(pb.item_id, None, EvaluatorError.from_pb(pb.error))
        return cls(
            pb.item_id,
            None,
            EvaluatorError.of_code(
                "CONTRACT_VIOLATION",
                "the server sent an answer of a kind that this client does not know; it may be older than the server",
            ),
        )


class EvaluatorTotals(NamedTuple):
    """The totals of one evaluator over a batch.

    mean_value: mean of the measured values without unavailable ones; None if there are none.
    kind: None from a server that does not say it.
    shadow: whether none of its verdicts counted; False from a server that does not say it.
    """

    passed_count: int = 0
    failed_count: int = 0
    error_count: int = 0
    mean_value: float | None = None
    kind: Kind | None = None
    shadow: bool = False

    @property
    def pass_rate(self) -> float | None:
        """The ratio passed / (passed + failed), 0 to 1; None if both are 0."""
        decided = self.passed_count + self.failed_count
        return self.passed_count / decided if decided else None


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """The totals of a batch. It counts items; error_count includes items that could not be evaluated.

    evaluators: totals by evaluator name.
    """

    item_count: int = 0
    passed_count: int = 0
    failed_count: int = 0
    error_count: int = 0
    skipped_count: int = 0
    evaluators: Mapping[str, EvaluatorTotals] = field(default_factory=dict)

    @property
    def pass_rate(self) -> float | None:
        """The ratio passed / (passed + failed), 0 to 1; None if both are 0. Ignores errors and skips."""
        decided = self.passed_count + self.failed_count
        return self.passed_count / decided if decided else None

    @classmethod
    def from_pb(cls, pb: "evaluation_service_pb2.BatchSummary", refused_here: int = 0) -> "BatchSummary":
        """Create the summary from the server's message.

        refused_here: number of items that this client could not send; counted as errors.
        """
        return cls(
            pb.item_count + refused_here,
            pb.passed_count,
            pb.failed_count,
            pb.error_count + refused_here,
            pb.skipped_count,
            {
                name: EvaluatorTotals(
                    totals.passed_count,
                    totals.failed_count,
                    totals.error_count,
                    totals.mean_value if totals.HasField("mean_value") else None,
                    read_kind(totals.kind) if totals.kind else None,
                    totals.enforcement == 2,  # ENFORCEMENT_SHADOW
                )
                for name, totals in pb.evaluators.items()
            },
        )


@dataclass(frozen=True, slots=True)
class BatchItem:
    """One item of a batch.

    id: unique in the batch; "" means its index in the iterable, from "0".
    evaluators: replace the shared evaluators for this item; empty means the shared ones.
    """

    turn: TurnLike
    id: str = ""
    evaluators: tuple[SpecLike, ...] | list[SpecLike] = ()


BatchItemLike: TypeAlias = BatchItem | tuple[str, TurnLike] | TurnLike
"""An item, an (id, turn) pair, or a turn."""


class BatchProgress(NamedTuple):
    """The progress of a batch. total: None if the iterable has no length.

    done is the sum of passed, failed, errors and skipped.
    """

    done: int
    total: int | None
    passed: int = 0
    failed: int = 0
    errors: int = 0
    skipped: int = 0


OnProgress: TypeAlias = Callable[[BatchProgress], object]

# 1,024 items keep a server with several cores busy, and are far below its queue limit.
IN_FLIGHT: Final = 1024
# With 256 items, the overhead of a message is below 1 % of the cost of its items.
_MAX_ITEMS: Final = 256
_MAX_BYTES: Final = 1 << 20
# Upper bound of the bytes of a field's tag and length before an item.
_FIELD_BYTES: Final = 16
_MAX_BUFFERED_BYTES: Final = 16 << 20


class BatchFlow:
    """The client-side state of a batch: items to send, flow control and counts.

    items: as the caller gave them. The caller adds them while there is `room`. The sender takes requests; each contains
    all queued items, so a slow caller's items are sent one by one and a fast caller's by the hundred. The reader passes
    the responses to `read`. One thread may add items while another takes requests.
    """

    def __init__(
        self,
        items: Any,
        evaluators: Iterable[SpecLike],
        options: OptionsLike | None,
        labels: Mapping[str, str] | None,
        *,
        brief: bool,
        max_in_flight: int,
        max_message_bytes: int,
        on_progress: OnProgress | None,
    ) -> None:
        # Iterating over a text or a single turn would evaluate each of its letters or keys.
        if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable | AsyncIterable):
            raise InvalidInput("items", shown(items), "an iterable of turns")
        self.items: Any = items
        self._max_in_flight = positive(max_in_flight, "max_in_flight")
        self.summary: BatchSummary | None = None
        self._open: Any = batch_open(evaluators, options, labels, brief=brief)
        self._max_message_bytes = max_message_bytes
        self._total = len(items) if isinstance(items, Sized) else None
        self._on_progress = on_progress
        self._lock = threading.Lock()
        self._begun = False
        self._waiting: deque[tuple[Any, int]] = deque()
        self._waiting_bytes = 0
        self._added = 0
        self._sent_or_waiting = 0
        self._done = 0
        self._refused = 0
        self._verdicts = dict.fromkeys(Verdict, 0)

    def begin(self) -> None:
        """Record that iteration has begun. Raises RuntimeError the second time."""
        with self._lock:
            if self._begun:
                raise RuntimeError(
                    "a batch can be iterated over only once; create another one with client.batch()"
                )
            self._begun = True

    @property
    def room(self) -> bool:
        """True if another item may be added now."""
        return (
            self._sent_or_waiting + self._refused - self._done < self._max_in_flight
            and self._waiting_bytes < _MAX_BUFFERED_BYTES
        )

    def add(self, item: BatchItemLike) -> BatchAnswer | None:
        """Queue an item for sending. Returns an answer with an error if the item cannot be sent, else None."""
        place = self._added
        self._added += 1
        item_id = str(place)
        try:
            item_id, turn, evaluators = _parts(item, place)
            pb = batch_item(item_id, turn.to_proto(), evaluators)
            size = pb.ByteSize() + _FIELD_BYTES
            if size > self._max_message_bytes:
                raise InvalidInput(
                    "",
                    f"an item of {size} bytes",
                    f"at most max_message_bytes of the client, {self._max_message_bytes}",
                )
        except InvalidInput as problem:
            self._refused += 1
            answer = BatchAnswer(item_id, None, EvaluatorError.of_code("INVALID_ITEM", str(problem)))
            self._count([answer])
            return answer
        with self._lock:
            self._waiting.append((pb, size))
            self._waiting_bytes += size
            self._sent_or_waiting += 1
        return None

    def take(self) -> "evaluation_service_pb2.EvaluateBatchRequest | None":
        """Return the next request: the opening, if not sent yet, and queued items. None if there is nothing to send."""
        with self._lock:
            opening, self._open = self._open, None
            items: list[Any] = []
            size = 0 if opening is None else opening.ByteSize()
            while self._waiting and len(items) < _MAX_ITEMS and size < _MAX_BYTES:
                pb, bytes_ = self._waiting[0]
                if size and size + bytes_ > self._max_message_bytes:
                    break  # send it with the next request
                self._waiting.popleft()
                items.append(pb)
                size += bytes_
                self._waiting_bytes -= bytes_
        return batch_request(opening, items) if opening is not None or items else None

    def read(self, response: "evaluation_service_pb2.EvaluateBatchResponse") -> list[BatchAnswer]:
        """Read a response: count its answers, keep its summary, and return the answers."""
        answers = [BatchAnswer.from_pb(answer) for answer in response.answers]
        if answers:
            self._count(answers)
        if response.HasField("summary"):
            self.summary = BatchSummary.from_pb(response.summary, self._refused)
        return answers

    def _count(self, answers: list[BatchAnswer]) -> None:
        self._done += len(answers)
        for answer in answers:
            self._verdicts[answer.verdict] += 1
        if self._on_progress is not None:
            verdicts = self._verdicts
            self._on_progress(
                BatchProgress(
                    self._done,
                    self._total,
                    verdicts[Verdict.PASSED],
                    verdicts[Verdict.FAILED],
                    verdicts[Verdict.ERROR],
                    verdicts[Verdict.SKIPPED],
                )
            )


def _parts(item: BatchItemLike, place: int) -> tuple[str, Turn, Iterable[SpecLike]]:
    if isinstance(item, BatchItem):
        return item.id or str(place), as_turn(item.turn), item.evaluators
    if isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str):
        return item[0], as_turn(item[1]), ()
    return str(place), as_turn(item), ()
