"""EvaluateBatch: many independent turns over one stream."""

import asyncio
from typing import Final

from google.protobuf.message import DecodeError

from evald.result import ErrorInfo, Verdict
from evald.scope import Scope
from evald.v1 import context_pb2, evaluation_service_pb2, result_pb2
from evald_server import wire_pb2
from evald_server.encoding import delimited
from evald_server.engine.plan import Plan
from evald_server.engine.report import fill_error
from evald_server.engine.run import Evaluation

from .edge import Context, Stream, parse
from .errors import CallError, invalid
from .runner import Count, EvaluationObserver, EvaluationTally, Runner, scope_of

_Request = wire_pb2.EvaluateBatchRequest
_Response = wire_pb2.EvaluateBatchResponse
_Item = wire_pb2.BatchItem

# Turns between two looks at what else the server has to do: at 4, callers beside a batch wait
# three times as long as without it (p99); at 16 it is ten times.
_YIELD_EVERY: Final = 4

# Answers are sent when a request message is done, or when there are this many, or bytes: half of
# what gRPC clients accept by default.
_FLUSH_COUNT: Final = 256
_FLUSH_BYTES: Final = 2 << 20

# Items of one batch that wait for something at a time.
_WAITING: Final = 64

_NUMBERS: Final = (Verdict.PASSED, Verdict.FAILED, Verdict.ERROR, Verdict.SKIPPED)


class Batches:
    """The handler of EvaluateBatch."""

    def __init__(self, runner: Runner, observer: EvaluationObserver) -> None:
        self._runner = runner
        self._count = Count(observer, "EvaluateBatch")

    async def serve(self, stream: Stream, context: Context) -> None:
        """Evaluate items until the caller half-closes."""
        batch: _Batch | None = None
        try:
            async for data in stream:
                message = parse(_Request, data, "evald.v1.EvaluateBatchRequest")
                if batch is None:
                    if not message.HasField("open"):
                        raise invalid("open", "missing; the first message opens the batch")
                    tally = self._count.tally(message.open.labels)
                    scope = scope_of(context, self._runner.new_id())
                    batch = _Batch(self._runner, tally, stream, message.open, scope)
                elif message.HasField("open"):
                    raise invalid("open", "only the first message may open the batch")
                await batch.take(message)
            if batch is None:
                raise invalid("open", "the batch ended before its first message")
            await batch.finish()
        finally:
            if batch is not None:
                await batch.close()


class _Batch:
    """What the items share, and what has become of them."""

    def __init__(
        self,
        runner: Runner,
        tally: EvaluationTally,
        stream: Stream,
        opened: wire_pb2.BatchOpen,
        scope: Scope,
    ) -> None:
        self._runner = runner
        self._scope = scope
        self._tally = tally
        self._stream = stream
        self._specs = tuple(opened.evaluators)
        self._options = opened.options
        self._brief = opened.brief
        if self._specs:
            # What is wrong with the shared specs is wrong with every item: refuse it before the first.
            runner.plan(self._specs, self._options, _Item().context)
        self._plan: Plan | None = None
        self._generation = -1
        self._answers: list[bytes] = []
        self._bytes = 0
        self._sending = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._taken = 0
        self._verdicts = dict.fromkeys(_NUMBERS, 0)
        self._totals: dict[int, _Totals] = {}

    async def take(self, message: wire_pb2.EvaluateBatchRequest) -> None:
        """Evaluate the items of one message, and send what is done by then."""
        for number, data in enumerate(message.items, 1):
            self._taken += 1
            self._start(data)
            if len(self._tasks) >= _WAITING:
                await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            if len(self._answers) >= _FLUSH_COUNT or self._bytes >= _FLUSH_BYTES:
                await self._flush()
            if not number % _YIELD_EVERY:
                await asyncio.sleep(0)
        await self._flush()

    async def finish(self) -> None:
        """Wait for what is still running and send the summary."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        response = _Response()
        summary = response.summary
        summary.item_count = self._taken
        summary.passed_count = self._verdicts[Verdict.PASSED]
        summary.failed_count = self._verdicts[Verdict.FAILED]
        summary.error_count = self._verdicts[Verdict.ERROR]
        summary.skipped_count = self._verdicts[Verdict.SKIPPED]
        means: dict[str, list[float]] = {}
        for totals in self._totals.values():
            totals.write(summary, means)
        for name, (total, count) in means.items():
            summary.evaluators[name].mean_value = total / count
        await self._stream.send(b"".join(self._answers) + response.SerializeToString())

    async def close(self) -> None:
        """Stop what still runs: the caller went away, or all is done."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _start(self, data: bytes) -> None:
        item_id = ""
        try:
            item = self._parsed(data)
            item_id, context = item.item_id, item.context
            view = self._runner.contexts.view(context)
            plan = self._plan_of(item, context)
        except CallError as problem:
            self._refuse(item_id, problem.message)
            return
        evaluation = Evaluation(plan, view, self._runner.threads)
        if evaluation.run_inline():
            self._done(evaluation, item_id)
        else:
            task = asyncio.create_task(self._wait(evaluation, item_id))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _parsed(self, data: bytes) -> wire_pb2.BatchItem:
        try:
            return _Item.FromString(data)
        except DecodeError:
            return parse(_Item, data, f"evald.v1.BatchItem (item {self._taken} of the stream)")

    def _plan_of(self, item: wire_pb2.BatchItem, context: context_pb2.EvaluatorContext) -> Plan:
        """The shared plan where the item has nothing of its own; found once, not once an item."""
        if item.evaluators or context.HasField("scenario"):
            return self._runner.plan(item.evaluators or self._specs, self._options, context)
        generation = self._runner.generation
        if self._plan is None or self._generation != generation:
            self._plan = self._runner.plan(self._specs, self._options, context)
            self._generation = generation
        return self._plan

    async def _wait(self, evaluation: Evaluation, item_id: str) -> None:
        await self._runner.finish(evaluation, None, self._scope, patient=True)
        self._done(evaluation, item_id)
        await self._flush()

    def _done(self, evaluation: Evaluation, item_id: str) -> None:
        verdict = evaluation.finish()
        plan = evaluation.plan
        self._verdicts[verdict] += 1
        self._tally.add(verdict, evaluation.nanos * 1e-9)
        totals = self._totals.get(id(plan))
        if totals is None:
            totals = self._totals[id(plan)] = _Totals(plan)
        totals.add(evaluation)
        summary = evaluation.whole()
        if self._brief and verdict is Verdict.PASSED:
            summary = _brief(summary)
        self._add(item_id, delimited(2, summary))

    def _refuse(self, item_id: str, message: str) -> None:
        error = result_pb2.EvaluationError()
        fill_error(error, ErrorInfo("INVALID_ITEM", message))
        self._verdicts[Verdict.ERROR] += 1
        self._add(item_id, delimited(3, error.SerializeToString()))

    def _add(self, item_id: str, outcome: bytes) -> None:
        """Keep a BatchAnswer: item_id is field 1, the summary 2, the error 3."""
        answer = delimited(1, delimited(1, item_id.encode()) + outcome)
        self._answers.append(answer)
        self._bytes += len(answer)

    async def _flush(self) -> None:
        if not self._answers:
            return
        async with self._sending:
            answers, self._answers, self._bytes = self._answers, [], 0
            if answers:
                # Each is a serialised field `answers` already: joined, they are the message.
                await self._stream.send(b"".join(answers))


class _Totals:
    """The evaluators of one plan over a batch. perfect: items in which all of them simply passed."""

    __slots__ = ("_counts", "_perfect", "_plan", "_sums")

    def __init__(self, plan: Plan) -> None:
        # Holding the plan also keeps its id from being given to another one.
        self._plan = plan
        self._perfect = 0
        self._counts = [[0] * (len(Verdict) + 1) for _ in plan.uses]
        self._sums = [0.0] * len(plan.uses)

    def add(self, evaluation: Evaluation) -> None:
        """Count the results of one item."""
        if evaluation.perfect and not self._plan.measures:
            self._perfect += 1
            return
        for use, outcome in zip(self._plan.uses, evaluation.outcomes, strict=True):
            if outcome is None:
                continue
            if use.is_metric and outcome.verdict is Verdict.PASSED:
                if outcome.value is None:
                    continue
                self._sums[use.index] += outcome.value
            self._counts[use.index][outcome.verdict] += 1

    def write(self, summary: evaluation_service_pb2.BatchSummary, means: dict[str, list[float]]) -> None:
        """Add up by the evaluators' names. means: sum and count of what metrics measured."""
        for use, counts, total in zip(self._plan.uses, self._counts, self._sums, strict=True):
            pb = summary.evaluators[use.name]
            measured = counts[Verdict.PASSED]
            pb.error_count += counts[Verdict.ERROR]
            if not use.is_metric:
                pb.passed_count += measured + self._perfect
                pb.failed_count += counts[Verdict.FAILED]
            elif measured:
                mean = means.setdefault(use.name, [0.0, 0])
                mean[0] += total
                mean[1] += measured


def _brief(data: bytes) -> bytes:
    """A serialised AggregatedEvaluation without what only explains."""
    summary = result_pb2.AggregatedEvaluation.FromString(data)
    for result in summary.results:
        for name in ("reason", "checks", "metadata"):
            result.ClearField(name)
    return summary.SerializeToString()
