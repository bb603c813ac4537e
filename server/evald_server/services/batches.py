"""EvaluateBatch: many independent turns over one stream."""

import asyncio
from typing import Final

from evald.result import ErrorInfo, Verdict
from evald.v1 import evaluation_service_pb2, result_pb2
from evald_server import wire_pb2
from evald_server.engine.plan import Plan
from evald_server.engine.run import Evaluation, fill_error

from .edge import Context, Stream, parse
from .errors import CallError, invalid
from .runner import EvaluationObserver, EvaluationTally, Runner

_Request = wire_pb2.EvaluateBatchRequest
_Response = wire_pb2.EvaluateBatchResponse
_Item = wire_pb2.BatchItem
_Answer = evaluation_service_pb2.BatchAnswer

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
        self._tally = observer.evaluation("EvaluateBatch")

    async def serve(self, stream: Stream, _context: Context) -> None:
        """Evaluate items until the caller half-closes."""
        batch: _Batch | None = None
        try:
            async for data in stream:
                message = parse(_Request, data, "evald.v1.EvaluateBatchRequest")
                if batch is None:
                    if not message.HasField("open"):
                        raise invalid("open", "missing; the first message opens the batch")
                    batch = _Batch(self._runner, self._tally, stream, message.open)
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
        self, runner: Runner, tally: EvaluationTally, stream: Stream, opened: wire_pb2.BatchOpen
    ) -> None:
        self._runner = runner
        self._tally = tally
        self._stream = stream
        self._specs = tuple(opened.evaluators)
        self._options = opened.options
        self._brief = opened.brief
        if self._specs:
            # What is wrong with the shared specs is wrong with every item: refuse it before the first.
            runner.plan(self._specs, self._options, _Item().context)
        self._answers: list[bytes] = []
        self._bytes = 0
        self._sending = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._taken = 0
        self._verdicts = dict.fromkeys(_NUMBERS, 0)
        self._totals: dict[str, _Totals] = {}

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
        response = _Response(answers=self._answers)
        summary = response.summary
        summary.item_count = self._taken
        summary.passed_count = self._verdicts[Verdict.PASSED]
        summary.failed_count = self._verdicts[Verdict.FAILED]
        summary.error_count = self._verdicts[Verdict.ERROR]
        summary.skipped_count = self._verdicts[Verdict.SKIPPED]
        for name, totals in self._totals.items():
            totals.write(summary.evaluators[name])
        await self._stream.send(response.SerializeToString())

    async def close(self) -> None:
        """Stop what still runs: the caller went away, or all is done."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _start(self, data: bytes) -> None:
        item_id = ""
        try:
            item = parse(_Item, data, f"evald.v1.BatchItem (item {self._taken} of the stream)")
            item_id = item.item_id
            view = self._runner.contexts.view(item.context)
            plan = self._runner.plan(item.evaluators or self._specs, self._options, item.context)
        except CallError as problem:
            self._refuse(item_id, problem.message)
            return
        answer = _Answer(item_id=item_id)
        summary = answer.summary
        summary.CopyFrom(plan.blank)
        evaluation = Evaluation(plan, view, summary.results, summary, self._runner.threads)
        if evaluation.run_inline():
            self._done(plan, evaluation, answer)
        else:
            task = asyncio.create_task(self._wait(plan, evaluation, answer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _wait(
        self, plan: Plan, evaluation: Evaluation, answer: evaluation_service_pb2.BatchAnswer
    ) -> None:
        await self._runner.finish(evaluation, None, patient=True)
        self._done(plan, evaluation, answer)
        await self._flush()

    def _done(
        self, plan: Plan, evaluation: Evaluation, answer: evaluation_service_pb2.BatchAnswer
    ) -> None:
        verdict = evaluation.finish().verdict
        self._verdicts[verdict] += 1
        self._tally.add(verdict, evaluation.seconds)
        totals = self._totals
        for use, settled in zip(plan.uses, evaluation.settled, strict=True):
            if settled is None:
                continue
            own = totals.get(use.name)
            if own is None:
                own = totals[use.name] = _Totals()
            if use.is_metric and settled[0] is Verdict.PASSED:
                own.measure(evaluation.results[use.index])
            else:
                own.counts[settled[0]] += 1
        if self._brief and verdict is Verdict.PASSED:
            for result in answer.summary.results:
                for name in ("reason", "checks", "metadata"):
                    result.ClearField(name)
        self._add(answer.SerializeToString())

    def _refuse(self, item_id: str, message: str) -> None:
        answer = _Answer(item_id=item_id)
        fill_error(answer.error, ErrorInfo("INVALID_ITEM", message))
        self._verdicts[Verdict.ERROR] += 1
        self._add(answer.SerializeToString())

    def _add(self, answer: bytes) -> None:
        self._answers.append(answer)
        self._bytes += len(answer)

    async def _flush(self) -> None:
        if not self._answers:
            return
        async with self._sending:
            answers, self._answers, self._bytes = self._answers, [], 0
            if answers:
                await self._stream.send(_Response(answers=answers).SerializeToString())


class _Totals:
    """One evaluator over a batch. counts: by verdict number."""

    __slots__ = ("counts", "measured", "total")

    def __init__(self) -> None:
        self.counts = [0, 0, 0, 0, 0]
        self.measured = 0
        self.total = 0.0

    def measure(self, result: result_pb2.EvaluationResult) -> None:
        if result.HasField("value"):
            self.measured += 1
            self.total += result.value

    def write(self, pb: evaluation_service_pb2.EvaluatorTotals) -> None:
        pb.passed_count = self.counts[Verdict.PASSED]
        pb.failed_count = self.counts[Verdict.FAILED]
        pb.error_count = self.counts[Verdict.ERROR]
        if self.measured:
            pb.mean_value = self.total / self.measured
