"""Items of a batch that are evaluated in one process, and what has become of them.

The server evaluates items with it, and so does a batch process: there is one way to do it.
"""

from collections.abc import Callable
from typing import Final

from evald.result import ErrorInfo, Verdict
from evald.threads import Threads
from evald.v1 import evaluator_pb2, result_pb2
from evald_server import wire_pb2
from evald_server.encoding import delimited, size
from evald_server.engine.contexts import Contexts
from evald_server.engine.plan import Plan
from evald_server.engine.report import fill_error
from evald_server.engine.run import SLICE_NANOS, Evaluation

from .rules import Report
from .totals import Totals

MAX_ITEMS: Final = 256
"""Items after which answers are sent."""

MAX_BYTES: Final = 2 << 20
"""Bytes of answers after which they are sent: half of what gRPC clients accept by default."""

_PASSED: Final = Verdict.PASSED

# Fields of evald.v1.BatchAnswer, as they begin on the wire.
_SUMMARY, _ERROR = b"\x12", b"\x1a"


class Part:
    """Evaluates items.

    answers: serialised fields `answers` of evald.v1.EvaluateBatchResponse; joined, they are the message.
    size: their bytes. verdicts: how many items had each, by its number. totals: by the plan's id.
    """

    __slots__ = (
        "_brief",
        "_contexts",
        "_observe",
        "_slice",
        "_threads",
        "answers",
        "size",
        "totals",
        "verdicts",
    )

    def __init__(
        self,
        contexts: Contexts,
        threads: Threads,
        observe: Callable[[int, float], None],
        *,
        brief: bool,
        slice_nanos: int = SLICE_NANOS,
    ) -> None:
        """observe: hears the verdict of every item evaluated, and how many seconds it took. brief: leave
        what only explains out of what passed. slice_nanos: how long an item may take before it is left to
        the caller like one that waits."""
        self._contexts = contexts
        self._threads = threads
        self._observe = observe
        self._brief = brief
        self._slice = slice_nanos
        self.answers: list[bytes] = []
        self.size = 0
        self.verdicts = [0] * (len(Verdict) + 1)
        self.totals: dict[int, Totals] = {}

    def evaluate(self, item: wire_pb2.BatchItem, plan: Plan) -> Evaluation | None:
        """Evaluate an item. None when it is done; an evaluation that has to wait for something is the
        caller's to finish, and to hand to `add`. Raises InvalidContext."""
        evaluation = Evaluation(plan, self._contexts.view(item.context), self._threads, self._slice)
        if not evaluation.run_inline():
            return evaluation
        self.add(item.item_id, evaluation)
        return None

    def add(self, item_id: str, evaluation: Evaluation) -> None:
        """Finish an evaluation in which nothing waits any more."""
        verdict = evaluation.finish()
        plan = evaluation.plan
        self.verdicts[verdict] += 1
        self._observe(verdict, evaluation.nanos * 1e-9)
        totals = self.totals.get(id(plan))
        if totals is None:
            totals = self.totals[id(plan)] = Totals(plan)
        totals.add(evaluation)
        summary = evaluation.whole()
        if self._brief and verdict is _PASSED:
            summary = _brief(summary)
        self._answer(item_id, _SUMMARY, summary)

    def refuse(self, item_id: str, message: str) -> None:
        """Answer an item that cannot be evaluated."""
        error = result_pb2.EvaluationError()
        fill_error(error, ErrorInfo("INVALID_ITEM", message))
        self.verdicts[Verdict.ERROR] += 1
        self._answer(item_id, _ERROR, error.SerializeToString())

    def merge(self, plan: Plan, report: Report) -> None:
        """Take over what another process has done of this part. plan: equal to the one that it had."""
        for verdict, count in enumerate(report.verdicts):
            self.verdicts[verdict] += count
        totals = self.totals.get(id(plan))
        if totals is None:
            totals = self.totals[id(plan)] = Totals(plan)
        totals.merge(report.sums)
        if report.answers:
            self.answers.append(report.answers)
            self.size += len(report.answers)

    def take(self) -> list[bytes]:
        """The answers that there are, joined to messages of at most MAX_BYTES, or of a single larger one."""
        messages: list[list[bytes]] = []
        size = MAX_BYTES
        for answer in self.answers:
            size += len(answer)
            if size > MAX_BYTES:
                messages.append([])
                size = len(answer)
            messages[-1].append(answer)
        self.answers, self.size = [], 0
        return [b"".join(message) for message in messages]

    def _answer(self, item_id: str, tag: bytes, outcome: bytes) -> None:
        """Keep a BatchAnswer."""
        body = b"".join((delimited(1, item_id.encode()), tag, size(outcome), outcome))
        answer = delimited(1, body)
        self.answers.append(answer)
        self.size += len(answer)


def _brief(data: bytes) -> bytes:
    """A serialised AggregatedEvaluation without what only explains.

    That a metric is unavailable is more than an explanation: without it, its value 0 is taken for a measurement.
    """
    summary = result_pb2.AggregatedEvaluation.FromString(data)
    for result in summary.results:
        is_metric = result.kind == evaluator_pb2.EVALUATOR_KIND_METRIC
        if is_metric and result.verdict == result_pb2.VERDICT_PASSED and result.name not in summary.metrics:
            continue
        for name in ("reason", "checks", "metadata"):
            result.ClearField(name)
    return summary.SerializeToString()
