"""EvaluateBatch: many independent turns over one stream."""

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from evald.result import Verdict
from evald.scope import Scope
from evald_server import wire_pb2
from evald_server.batch.part import MAX_BYTES, MAX_ITEMS, Part
from evald_server.batch.pool import Pool
from evald_server.batch.process import Job
from evald_server.batch.rules import Report
from evald_server.engine.contexts import InvalidContext
from evald_server.engine.engine import Engine
from evald_server.engine.plan import InvalidPlan, Plan
from evald_server.engine.run import EvaluationRun
from evald_server.telemetry import Telemetry

from .admission import Admission
from .errors import CallError, as_call_error, invalid
from .server import RpcStream, parse
from .trace_context import scope_of

_Request = wire_pb2.EvaluateBatchRequest
_Response = wire_pb2.EvaluateBatchResponse
_Item = wire_pb2.BatchItem

# Turns between two looks at what else the server has to do: at 4, callers beside a batch wait
# three times as long as without it (p99); at 16 it is ten times.
_YIELD_EVERY: Final = 4

# Items of one batch that wait for something at a time.
_WAITING: Final = 64

# Portions of one batch under way, for each batch process: evaluated, or on the way to the caller.
_HANDED_OVER: Final = 2


class BatchService:
    """The handler of EvaluateBatch."""

    def __init__(self, engine: Engine, admission: Admission, metrics: Telemetry, pool: Pool) -> None:
        self._engine = engine
        self._admission = admission
        self._metrics = metrics
        self._pool = pool

    async def evaluate_batch(self, stream: RpcStream) -> None:
        """Evaluate items until the caller half-closes."""
        batch: _Batch | None = None
        try:
            async for data in stream:
                message = parse(_Request, data, "evald.v1.EvaluateBatchRequest")
                if batch is None:
                    if not message.HasField("open"):
                        raise invalid("open", "missing; the first message opens the batch")
                    scope = scope_of(stream.context, self._engine.new_id())
                    batch = _Batch(
                        self._engine, self._admission, self._metrics, self._pool, stream, message.open, scope
                    )
                elif message.HasField("open"):
                    raise invalid("open", "only the first message may open the batch")
                await batch.take(message.items, data)
            if batch is None:
                raise invalid("open", "the batch ended before its first message")
            await batch.finish()
        finally:
            if batch is not None:
                await batch.close()


class _Portion(NamedTuple):
    """Some items in a message of their own. first: how many items of the batch came before them."""

    first: int
    size: int
    data: bytes

    def numbered(self, indexes: Iterable[int] | None = None) -> Iterator[tuple[int, bytes]]:
        """Some of the items, or all, with their numbers in the batch, from 1."""
        items = _Request.FromString(self.data).items
        for index in range(self.size) if indexes is None else indexes:
            yield self.first + index + 1, items[index]


class _Batch:
    """What the items share, and what has become of them."""

    def __init__(
        self,
        engine: Engine,
        admission: Admission,
        metrics: Telemetry,
        pool: Pool,
        stream: RpcStream,
        opened: wire_pb2.BatchOpen,
        scope: Scope,
    ) -> None:
        self._engine = engine
        self._admission = admission
        self._metrics = metrics
        self._pool = pool
        self._scope = scope
        self._labels = dict(opened.labels)
        self._stream = stream
        self._specs = tuple(opened.evaluators)
        self._options = opened.options
        self._brief = opened.brief
        if self._specs:
            # What is wrong with the shared specs is wrong with every item: refuse it before the first.
            engine.plan(self._specs, self._options, _Item().context)
        self._plan: Plan | None = None
        self._generation = -1
        self._part = Part(engine, self._count, brief=opened.brief)
        self._sending = asyncio.Lock()
        self._waiting: set[asyncio.Task[None]] = set()
        self._portions: set[asyncio.Task[None]] = set()
        self._taken = 0
        self._problem: BaseException | None = None
        # Whether batch processes help: not where they leave most of the items.
        self._worth_it = True

    async def take(self, items: Sequence[bytes], data: bytes) -> None:
        """Evaluate the items of one message, and send what is done by then; or have a batch process do it.

        data: the message."""
        first, self._taken = self._taken, self._taken + len(items)
        found = self._job_for(len(items))
        if found is None:
            await self._evaluate(enumerate(items, first + 1))
        else:
            for portion in _portions(items, data, first):
                await self._hand_over(*found, portion)
        await self._flush()

    async def finish(self) -> None:
        """Wait for what is still running and send the summary."""
        while self._portions or self._waiting:
            await self._any_of(self._portions or self._waiting)
        self._check()
        part = self._part
        response = _Response()
        summary = response.summary
        summary.item_count = self._taken
        summary.passed_count = part.verdicts[Verdict.PASSED]
        summary.failed_count = part.verdicts[Verdict.FAILED]
        summary.error_count = part.verdicts[Verdict.ERROR]
        summary.skipped_count = part.verdicts[Verdict.SKIPPED]
        means: dict[str, list[float]] = {}
        for totals in part.totals.values():
            totals.write(summary, means)
        for name, (total, count) in means.items():
            summary.evaluators[name].mean_value = total / count
        await self._stream.send(b"".join(part.answers) + response.SerializeToString())

    async def close(self) -> None:
        """Stop what still runs: the caller went away, or all is done."""
        tasks = self._portions | self._waiting
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _job_for(self, count: int) -> tuple[Plan, Job] | None:
        """How batch processes are to evaluate so many items more; None when they are not to."""
        if not (self._worth_it and self._specs and self._pool.is_for(self._taken, count)):
            return None
        try:
            plan = self._shared_plan()
        except InvalidPlan:
            return None  # a type has gone since the batch began: each item says so
        job = self._pool.job(plan, self._specs, self._options)
        return None if job is None else (plan, job)

    async def _hand_over(self, plan: Plan, job: Job, portion: _Portion) -> None:
        """Have a batch process evaluate a portion, or do it here while there is none."""
        # Answers that the caller is slow to take must not pile up.
        while len(self._portions) >= _HANDED_OVER * self._pool.size:
            await self._any_of(self._portions)
        process = await self._pool.place(self._taken)
        if process is None:
            await self._evaluate(portion.numbered())
        else:
            answer = process.evaluate(job, portion.data, 0, brief=self._brief)
            self._spawn(self._portions, self._follow(answer, plan, job, portion))

    async def _follow(
        self, answer: "asyncio.Future[Report | None]", plan: Plan, job: Job, portion: _Portion
    ) -> None:
        """Take what a batch process says of a portion, and do what it leaves."""
        begin = 0
        while (report := await answer) is not None:
            if report.answers:
                self._part.merge(plan, report)
                tally = self._metrics.evaluation("EvaluateBatch", self._labels)
                for verdict, seconds in report.seconds:
                    tally.add(verdict, seconds)
                report.heard.tell(plan, self._metrics.tally_of)
            if report.left:
                await self._evaluate(portion.numbered(report.left))
                # Doing most of them twice is no help.
                self._worth_it &= 2 * len(report.left) <= report.end - begin
            begin = report.end
            if begin == portion.size:
                break
            await self._flush()
            process = await self._pool.place(self._taken)
            if process is None:
                break
            answer = process.evaluate(job, portion.data, begin, brief=self._brief)
        # A process that is gone has neither answered nor counted anything from there on.
        await self._evaluate(portion.numbered(range(begin, portion.size)))
        await self._flush()

    async def _evaluate(self, items: Iterable[tuple[int, bytes]]) -> None:
        """Evaluate items here. They come with their number in the batch, from 1."""
        for done, (number, data) in enumerate(items, 1):
            self._start(number, data)
            while len(self._waiting) >= _WAITING:
                await self._any_of(self._waiting)
            if len(self._part.answers) >= MAX_ITEMS or self._part.size >= MAX_BYTES:
                await self._flush()
            if not done % _YIELD_EVERY:
                await asyncio.sleep(0)

    def _start(self, number: int, data: bytes) -> None:
        item_id = ""
        try:
            item = _parsed(data, number)
            item_id = item.item_id
            waiting = self._part.evaluate(item, self._plan_of(item))
        except (CallError, InvalidContext, InvalidPlan) as problem:
            error = as_call_error(problem) if isinstance(problem, InvalidPlan) else problem
            self._part.refuse(item_id, error.message)
            return
        if waiting is not None:
            self._spawn(self._waiting, self._wait(waiting, item_id))

    def _plan_of(self, item: wire_pb2.BatchItem) -> Plan:
        if item.evaluators or item.context.HasField("scenario"):
            return self._engine.plan(item.evaluators or self._specs, self._options, item.context)
        return self._shared_plan()

    def _shared_plan(self) -> Plan:
        """Of items that have nothing of their own; found once, not once an item."""
        generation = self._engine.planner.generation
        if self._plan is None or self._generation != generation:
            self._plan = self._engine.plan(self._specs, self._options, _Item().context)
            self._generation = generation
        return self._plan

    async def _wait(self, run: EvaluationRun, item_id: str) -> None:
        async for _ in self._admission.run_pending(run, None, self._scope, patient=True):
            run.take_progress()
        self._part.add(item_id, run)
        await self._flush()

    def _count(self, run: EvaluationRun) -> None:
        self._metrics.evaluated(run, "EvaluateBatch", self._labels, lambda: None)

    async def _flush(self) -> None:
        if not self._part.answers:
            return
        async with self._sending:
            for answers in self._part.take():
                await self._stream.send(answers)

    def _spawn(self, tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
        """Have something done beside, as one of those tasks."""

        def ended(task: asyncio.Task[None]) -> None:
            tasks.discard(task)
            if not task.cancelled() and task.exception() is not None:
                self._problem = task.exception()

        task = asyncio.create_task(work)
        tasks.add(task)
        task.add_done_callback(ended)

    async def _any_of(self, tasks: set[asyncio.Task[None]]) -> None:
        """Wait for one of the tasks. Raises what any task of the batch has raised."""
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        self._check()

    def _check(self) -> None:
        if self._problem is not None:
            raise self._problem


def _parsed(data: bytes, number: int) -> wire_pb2.BatchItem:
    try:
        return _Item.FromString(data)
    except DecodeError:
        return parse(_Item, data, f"evald.v1.BatchItem (item {number} of the stream)")


def _portions(items: Sequence[bytes], data: bytes, first: int) -> Iterator[_Portion]:
    """Cut a message into such as a batch process is given. data: the message as it came."""
    total = len(items)
    if total <= MAX_ITEMS:
        yield _Portion(first, total, data)
        return
    for begin in range(0, total, MAX_ITEMS):
        some = items[begin : begin + MAX_ITEMS]
        yield _Portion(first + begin, len(some), _Request(items=some).SerializeToString())
