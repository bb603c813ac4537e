"""EvaluateBatch: many independent turns over one stream."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from evald_server import wire_pb2
from evald_server.batch.chunk import can_run, slice_of
from evald_server.batch.item_chunk import ItemChunk, ItemChunkResult
from evald_server.batch.pool import BatchPool
from evald_server.batch.results import MAX_BYTES, MAX_ITEMS, BatchResults
from evald_server.call_errors import CallError, invalid
from evald_server.engine.engine import Engine
from evald_server.engine.plan import InvalidPlan, Plan, check_kinds
from evald_server.engine.planner import LARGE_BYTES
from evald_server.engine.run import EvaluationRun
from evald_server.monitoring import Telemetry

from .admission import Admission, scope_of
from .errors import as_call_error
from .server import RpcStream, parse
from .stream_tasks import CHUNKS_PER_PROCESS, StreamSlices, StreamTasks, count_chunk, next_part

_Request = wire_pb2.EvaluateBatchRequest
_Item = wire_pb2.BatchItem

# Maximum concurrent waiting items of one batch.
_MAX_WAITING: Final = 64


class BatchService:
    """The handler of EvaluateBatch. slices: the lock of StreamSlices."""

    def __init__(
        self, engine: Engine, admission: Admission, metrics: Telemetry, pool: BatchPool, slices: asyncio.Lock
    ) -> None:
        self.engine = engine
        self.admission = admission
        self.metrics = metrics
        self.pool = pool
        self.slices = slices

    async def evaluate_batch(self, stream: RpcStream) -> None:
        """Evaluate items until the caller half-closes."""
        batch: _Batch | None = None
        try:
            async for data in stream:
                message = parse(_Request, data)
                if batch is None:
                    if not message.HasField("open"):
                        raise invalid("open", "missing; the first message must open the batch")
                    opened = message.open
                    if opened.evaluators:
                        await self.engine.prepare(opened.evaluators, opened.options, _Item().context)
                    batch = _Batch(self, stream, opened)
                elif message.HasField("open"):
                    raise invalid("open", "only the first message may open the batch")
                await batch.add(message.items)
            if batch is None:
                raise invalid("open", "the batch ended before its first message")
            await batch.finish()
        finally:
            if batch is not None:
                await batch.close()


class _Batch:
    """One stream: the specs and options that its items share, and their results."""

    def __init__(self, service: BatchService, stream: RpcStream, opened: wire_pb2.BatchOpen) -> None:
        """Raises InvalidPlan if the shared specs are not valid."""
        self._engine = engine = service.engine
        self._admission = service.admission
        self._metrics = service.metrics
        self._pool = service.pool
        self._slices = StreamSlices(service.slices)
        self._scope = scope_of(stream.context, engine.new_id())
        self._labels = dict(opened.labels)
        self._stream = stream
        self._specs = tuple(opened.evaluators)
        self._options = opened.options
        self._brief = opened.brief
        self._began = engine.plan(self._specs, self._options, _Item().context) if self._specs else None
        self._plan: Plan | None = None
        self._generation = -1
        self._results = BatchResults(engine, self._count, brief=opened.brief)
        self._sending = asyncio.Lock()
        self._tasks = StreamTasks()
        self._waiting: set[asyncio.Task[None]] = set()  # tasks of waiting items
        self._chunks: set[asyncio.Task[None]] = set()
        self._item_count = 0
        # False once processes have skipped most items of a chunk.
        self._use_processes = True

    async def add(self, items: Sequence[bytes]) -> None:
        """Evaluate the items of one message, here or in processes, and send the finished answers."""
        first, self._item_count = self._item_count + 1, self._item_count + len(items)
        plan = self._plan_of_chunks(len(items))
        if plan is None:
            await self._evaluate(enumerate(items, first))
        else:
            for begin in range(0, len(items), MAX_ITEMS):
                await self._submit(plan, items[begin : begin + MAX_ITEMS], first + begin)
        await self._flush()

    async def finish(self) -> None:
        """Wait for all items and send the summary."""
        while self._chunks or self._waiting:
            await self._tasks.any_of(self._chunks or self._waiting)
        self._tasks.check()
        await self._flush()
        response = wire_pb2.EvaluateBatchResponse(summary=self._results.summary(self._item_count))
        await self._stream.send(response.SerializeToString())

    async def close(self) -> None:
        """Cancel all tasks that still run, as after a disconnect of the caller."""
        await self._tasks.close()

    def _plan_of_chunks(self, count: int) -> Plan | None:
        """Return the plan for evaluating the next `count` items in processes; None to evaluate them here."""
        if not (self._use_processes and self._specs and self._pool.is_worth_it(self._item_count, count)):
            return None
        try:
            plan = self._shared_plan()
        except InvalidPlan:
            return None  # a type was removed since the batch began: each item gets the error
        return plan if can_run(plan) else None

    async def _submit(self, plan: Plan, items: Sequence[bytes], first: int) -> None:
        """Evaluate a chunk in a process, or here if none is available. first: number of the first item."""
        # Limit the answers that a slow caller has not received yet.
        while len(self._chunks) >= CHUNKS_PER_PROCESS * self._pool.size:
            await self._tasks.any_of(self._chunks)
        nanos = slice_of(plan, self._admission.seconds_for(plan))
        chunk = ItemChunk(self._specs, self._options, plan.template.specs, items, self._brief, nanos)
        future = await self._pool.submit(chunk, self._item_count)
        if future is None:
            await self._evaluate(enumerate(items, first))
        else:
            self._tasks.spawn(self._chunks, self._follow(future, plan, chunk, first))

    async def _follow(
        self,
        future: "asyncio.Future[ItemChunkResult | None] | None",
        plan: Plan,
        chunk: ItemChunk,
        first: int,
    ) -> None:
        """Await the results of a chunk. Evaluate the items here that the process has skipped or not reached."""
        items = chunk.items
        while future is not None and (result := await future) is not None:
            self._results.merge(plan, result.answers, result.counts)
            count_chunk(self._metrics, "EvaluateBatch", self._labels, plan, result.counts)
            await self._evaluate((first + index, items[index]) for index in result.skipped)
            # Stop using processes that skip most items: they cost more than they save.
            self._use_processes &= 2 * len(result.skipped) <= result.end
            items = items[result.end :]
            first += result.end
            await self._flush()
            if not items:
                return
            chunk = chunk._replace(items=next_part(items, result.end))
            future = await self._pool.submit(chunk, self._item_count)
        await self._evaluate(enumerate(items, first))
        await self._flush()

    async def _evaluate(self, items: Iterable[tuple[int, bytes]]) -> None:
        """Evaluate items in this process. items: pairs of the number in the batch, from 1, and the encoded item."""
        for number, data in items:
            await self._slices.pause()
            await self._start(number, data)
            while len(self._waiting) >= _MAX_WAITING:
                await self._tasks.any_of(self._waiting)
            await self._flush_if_full()

    async def _start(self, number: int, data: bytes) -> None:
        item_id = ""
        try:
            item = parse(_Item, data, f"item {number} of the stream")
            item_id = item.item_id
            if len(data) > LARGE_BYTES and item.evaluators:
                await self._engine.prepare(item.evaluators, self._options, item.context)
            waiting = self._results.evaluate(item, self._plan_of(item))
        except (CallError, InvalidPlan) as problem:
            error = as_call_error(problem) if isinstance(problem, InvalidPlan) else problem
            self._results.refuse(item_id, error.message)
            return
        if waiting is not None:
            self._tasks.spawn(self._waiting, self._wait(waiting, item_id))

    def _plan_of(self, item: wire_pb2.BatchItem) -> Plan:
        if item.evaluators or item.context.HasField("scenario"):
            plan = self._engine.plan(item.evaluators or self._specs, self._options, item.context)
            if not item.evaluators and self._began is not None:
                check_kinds(self._began, plan)
            return plan
        return self._shared_plan()

    def _shared_plan(self) -> Plan:
        """Return the plan of items without their own specs, cached until the registry changes."""
        generation = self._engine.planner.generation
        if self._plan is None or self._generation != generation:
            plan = self._engine.plan(self._specs, self._options, _Item().context)
            if self._began is not None:
                check_kinds(self._began, plan)
            self._plan, self._generation = plan, generation
        return self._plan

    async def _wait(self, run: EvaluationRun, item_id: str) -> None:
        await self._admission.finish(run, self._scope)
        self._results.add(item_id, run)
        await self._flush()

    def _count(self, run: EvaluationRun) -> None:
        self._results.count(run)
        self._metrics.evaluated(run, "EvaluateBatch", self._labels)

    async def _flush_if_full(self) -> None:
        if len(self._results.answers) >= MAX_ITEMS or self._results.size >= MAX_BYTES:
            await self._flush()

    async def _flush(self) -> None:
        """Send the finished answers."""
        if not self._results.answers:
            return
        async with self._sending:
            for message in self._results.take():
                await self._stream.send(message)
