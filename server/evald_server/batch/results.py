"""Evaluates the items of a batch and collects the answers, in the server and in batch processes."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final

from evald.result import ErrorInfo, Verdict
from evald.v1 import evaluation_service_pb2, evaluator_pb2, result_pb2
from evald_server import wire_pb2
from evald_server.engine.engine import Engine
from evald_server.engine.plan import Plan
from evald_server.engine.response import fill_aggregated, fill_error
from evald_server.engine.run import SLICE_NANOS, EvaluationRun
from evald_server.evaluator_counts import EvaluatorCounts

from .chunk import ChunkCounts, result_keys

MAX_ITEMS: Final = 256
"""Number of items after which answers are sent."""

MAX_BYTES: Final = 2 << 20
"""Size of answers after which they are sent: half of the default message limit of gRPC clients."""


class BatchResults:
    """A collector of the answers of a batch, which evaluates its items.

    answers: serialised evald.v1.BatchAnswer messages, until taken. size: their bytes.
    verdicts: number of items by the verdict's number.
    """

    def __init__(
        self,
        engine: Engine,
        observe: Callable[[EvaluationRun], None],
        *,
        brief: bool,
        slice_nanos: int = SLICE_NANOS,
    ) -> None:
        """observe: called with the finished run of every item. brief: drop explanations from passed items.
        slice_nanos: maximum time of an item before `evaluate` returns it unfinished."""
        self._engine = engine
        self._observe = observe
        self._brief = brief
        self._slice = slice_nanos
        self.answers: list[bytes] = []
        self.size = 0
        self.verdicts = [0] * (len(Verdict) + 1)
        self._evaluators: defaultdict[str, EvaluatorCounts] = defaultdict(EvaluatorCounts)  # by name

    def evaluate(self, item: wire_pb2.BatchItem, plan: Plan) -> EvaluationRun | None:
        """Evaluate an item.

        Returns None if it is finished, else the pending run: finish it and pass it to `add`. Raises InvalidContext.
        """
        run = self._engine.start(plan, self._engine.contexts.view(item.context), self._slice)
        if run.pending:
            return run
        self.add(item.item_id, run)
        return None

    def add(self, item_id: str, run: EvaluationRun) -> None:
        """Add a finished run."""
        verdict = run.aggregate.verdict
        self.verdicts[verdict] += 1
        self._observe(run)
        answer = evaluation_service_pb2.BatchAnswer(item_id=item_id)
        fill_aggregated(answer.summary, run)
        if self._brief and verdict is Verdict.PASSED:
            _drop_explanations(answer.summary)
        self._add_answer(answer)

    def count(self, run: EvaluationRun) -> None:
        """Count the results of a finished run for the summary. Only the server does this."""
        for (index, verdict, _, value, _), _ in result_keys(run):
            self._count(run.plan, index, verdict, value)

    def refuse(self, item_id: str, message: str) -> None:
        """Add the error of an item that cannot be evaluated."""
        answer = evaluation_service_pb2.BatchAnswer(item_id=item_id)
        fill_error(answer.error, ErrorInfo("INVALID_ITEM", message))
        self.verdicts[Verdict.ERROR] += 1
        self._add_answer(answer)

    def merge(self, plan: Plan, answers: Sequence[bytes], counted: ChunkCounts) -> None:
        """Add the results of a batch process. plan: the server's."""
        for verdict, _ in counted.durations:
            self.verdicts[verdict] += 1
        for (index, verdict, _, value, _), count, _ in counted.results:
            self._count(plan, index, verdict, value, count)
        self.answers += answers
        self.size += sum(map(len, answers))

    def take(self) -> list[bytes]:
        """Return the answers as serialised evald.v1.EvaluateBatchResponse messages and clear them.

        A message has at most MAX_BYTES, or one larger answer.
        """
        messages: list[wire_pb2.EvaluateBatchResponse] = []
        size = MAX_BYTES
        for answer in self.answers:
            size += len(answer)
            if size > MAX_BYTES:
                messages.append(wire_pb2.EvaluateBatchResponse())
                size = len(answer)
            messages[-1].answers.append(answer)
        self.answers, self.size = [], 0
        return [message.SerializeToString() for message in messages]

    def summary(self, item_count: int) -> evaluation_service_pb2.BatchSummary:
        """Return the summary of the batch."""
        summary = evaluation_service_pb2.BatchSummary(
            item_count=item_count,
            passed_count=self.verdicts[Verdict.PASSED],
            failed_count=self.verdicts[Verdict.FAILED],
            error_count=self.verdicts[Verdict.ERROR],
            skipped_count=self.verdicts[Verdict.SKIPPED],
        )
        for name, counts in self._evaluators.items():
            counts.fill(summary.evaluators[name])
        return summary

    def _count(self, plan: Plan, index: int, verdict: int, value: float | None, count: int = 1) -> None:
        evaluator = plan.evaluators[index]
        counts = self._evaluators[evaluator.name]
        counts.add(evaluator.definition.kind, evaluator.enforced, verdict, value, count)

    def _add_answer(self, answer: evaluation_service_pb2.BatchAnswer) -> None:
        data = answer.SerializeToString()
        self.answers.append(data)
        self.size += len(data)


def _drop_explanations(summary: result_pb2.AggregatedEvaluation) -> None:
    """Clear reasons, checks, metadata and provenance.

    Unavailable metrics keep them, because without them their value 0 would look like a measurement.
    """
    for result in summary.results:
        is_metric = result.kind == evaluator_pb2.EVALUATOR_KIND_METRIC
        if is_metric and result.verdict == result_pb2.VERDICT_PASSED and result.name not in summary.metrics:
            continue
        for name in ("reason", "checks", "metadata", "provenance"):
            result.ClearField(name)
