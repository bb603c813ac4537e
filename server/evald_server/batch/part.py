"""Items of a batch that are evaluated in one process, and what has become of them.

The server evaluates items with it, and so does a batch process: there is one way to do it.
"""

from collections.abc import Callable
from typing import Final

from evald.result import ErrorInfo, Verdict
from evald.v1 import evaluation_service_pb2, evaluator_pb2, result_pb2
from evald_server import wire_pb2
from evald_server.engine.engine import Engine
from evald_server.engine.plan import Plan
from evald_server.engine.response import fill_aggregated, fill_error
from evald_server.engine.run import SLICE_NANOS, EvaluationRun

from .rules import Report
from .totals import Totals

MAX_ITEMS: Final = 256
"""Items after which answers are sent."""

MAX_BYTES: Final = 2 << 20
"""Bytes of answers after which they are sent: half of what gRPC clients accept by default."""

_PASSED: Final = Verdict.PASSED


class Part:
    """Evaluates items.

    answers: serialised fields `answers` of evald.v1.EvaluateBatchResponse; joined, they are the message.
    size: their bytes. verdicts: how many items had each, by its number. totals: by the plan's id.
    """

    __slots__ = (
        "_brief",
        "_engine",
        "_observe",
        "_slice",
        "answers",
        "size",
        "totals",
        "verdicts",
    )

    def __init__(
        self,
        engine: Engine,
        observe: Callable[[EvaluationRun], None],
        *,
        brief: bool,
        slice_nanos: int = SLICE_NANOS,
    ) -> None:
        """observe: called with the finished run of every item. brief: leave what only explains out of what
        passed. slice_nanos: how long an item may take before it is left to the caller like one that waits."""
        self._engine = engine
        self._observe = observe
        self._brief = brief
        self._slice = slice_nanos
        self.answers: list[bytes] = []
        self.size = 0
        self.verdicts = [0] * (len(Verdict) + 1)
        self.totals: dict[int, Totals] = {}

    def evaluate(self, item: wire_pb2.BatchItem, plan: Plan) -> EvaluationRun | None:
        """Evaluate an item. Returns None when it is done, else a run that the caller has to finish and to hand
        to `add`. Raises InvalidContext."""
        run = self._engine.start(plan, item.context, self._slice)
        if run.pending:
            return run
        self.add(item.item_id, run)
        return None

    def add(self, item_id: str, run: EvaluationRun) -> None:
        """Add the answer of a finished run."""
        verdict = run.aggregate.verdict
        self.verdicts[verdict] += 1
        self._observe(run)
        totals = self.totals.get(id(run.plan))
        if totals is None:
            totals = self.totals[id(run.plan)] = Totals(run.plan)
        totals.add(run)
        answer = evaluation_service_pb2.BatchAnswer(item_id=item_id)
        fill_aggregated(answer.summary, run)
        if self._brief and verdict is _PASSED:
            _make_brief(answer.summary)
        self._answer(answer)

    def refuse(self, item_id: str, message: str) -> None:
        """Answer an item that cannot be evaluated."""
        answer = evaluation_service_pb2.BatchAnswer(item_id=item_id)
        fill_error(answer.error, ErrorInfo("INVALID_ITEM", message))
        self.verdicts[Verdict.ERROR] += 1
        self._answer(answer)

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

    def _answer(self, answer: evaluation_service_pb2.BatchAnswer) -> None:
        data = wire_pb2.EvaluateBatchResponse(answers=[answer.SerializeToString()]).SerializeToString()
        self.answers.append(data)
        self.size += len(data)


def _make_brief(summary: result_pb2.AggregatedEvaluation) -> None:
    """Leave out what only explains.

    That a metric is unavailable is more than an explanation: without it, its value 0 is taken for a measurement.
    """
    for result in summary.results:
        is_metric = result.kind == evaluator_pb2.EVALUATOR_KIND_METRIC
        if is_metric and result.verdict == result_pb2.VERDICT_PASSED and result.name not in summary.metrics:
            continue
        for name in ("reason", "checks", "metadata"):
            result.ClearField(name)
