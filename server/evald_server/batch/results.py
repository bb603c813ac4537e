"""Evaluates the items of a batch and collects the answers, in the server and in batch processes."""

from collections.abc import Callable, Sequence
from typing import Final

from evald.result import ErrorInfo, Verdict
from evald.v1 import evaluation_service_pb2, evaluator_pb2, result_pb2
from evald_server import wire_pb2
from evald_server.engine.engine import Engine
from evald_server.engine.plan import Plan
from evald_server.engine.response import fill_aggregated, fill_error
from evald_server.engine.run import SLICE_NANOS, EvaluationRun

from .chunk import ChunkCounts, result_keys

MAX_ITEMS: Final = 256
"""Number of items after which answers are sent."""

MAX_BYTES: Final = 2 << 20
"""Size of answers after which they are sent: half of the default message limit of gRPC clients."""


class EvaluatorCounts:
    """Counts of verdicts and sums of measured values of a plan's evaluators."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._counts = [[0] * (len(Verdict) + 1) for _ in plan.evaluators]
        self._sums = [0.0] * len(plan.evaluators)

    def add(self, index: int, verdict: int, value: float | None, count: int = 1) -> None:
        """Count equal results of one evaluator. value: None if unavailable."""
        if self._plan.evaluators[index].is_metric and verdict == Verdict.PASSED:
            if value is None:
                return
            self._sums[index] += count * value
        self._counts[index][verdict] += count

    def write(self, summary: evaluation_service_pb2.BatchSummary, means: dict[str, list[float]]) -> None:
        """Add the counts to a summary, by the evaluators' names.

        means: sum and count of the values of each metric; plans of a batch may share metrics.
        """
        results = self._plan.template.results
        for evaluator, result, counts, total in zip(
            self._plan.evaluators, results, self._counts, self._sums, strict=True
        ):
            pb = summary.evaluators[evaluator.name]
            if not (pb.kind and evaluator.is_metric):  # a name that is an assertion in any plan can fail
                pb.kind = result.kind
            if not (pb.enforcement and result.enforcement == evaluator_pb2.ENFORCEMENT_SHADOW):
                pb.enforcement = result.enforcement
            measured = counts[Verdict.PASSED]
            pb.error_count += counts[Verdict.ERROR]
            if not evaluator.is_metric:
                pb.passed_count += measured
                pb.failed_count += counts[Verdict.FAILED]
            elif measured:
                mean = means.setdefault(evaluator.name, [0.0, 0])
                mean[0] += total
                mean[1] += measured


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
        self._counts: dict[Plan, EvaluatorCounts] = {}

    def evaluate(self, item: wire_pb2.BatchItem, plan: Plan) -> EvaluationRun | None:
        """Evaluate an item.

        Returns None if it is finished, else the pending run: finish it and pass it to `add`. Raises InvalidContext.
        """
        run = self._engine.start(plan, item.context, self._slice)
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
        counts = self._counts_of(run.plan)
        for (index, verdict, _, value, _), _ in result_keys(run):
            counts.add(index, verdict, value)

    def refuse(self, item_id: str, message: str, code: str = "INVALID_ITEM") -> None:
        """Add the error of an item that cannot be evaluated."""
        answer = evaluation_service_pb2.BatchAnswer(item_id=item_id)
        fill_error(answer.error, ErrorInfo(code, message))
        self.verdicts[Verdict.ERROR] += 1
        self._add_answer(answer)

    def merge(self, plan: Plan, answers: Sequence[bytes], counted: ChunkCounts) -> None:
        """Add the results of a batch process. plan: the server's."""
        for verdict, _ in counted.durations:
            self.verdicts[verdict] += 1
        counts = self._counts_of(plan)
        for (index, verdict, _, value, _), count, _ in counted.results:
            counts.add(index, verdict, value, count)
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
        means: dict[str, list[float]] = {}
        for counts in self._counts.values():
            counts.write(summary, means)
        for name, (total, count) in means.items():
            summary.evaluators[name].mean_value = total / count
        return summary

    def _counts_of(self, plan: Plan) -> EvaluatorCounts:
        found = self._counts.get(plan)
        if found is None:
            found = self._counts[plan] = EvaluatorCounts(plan)
        return found

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
