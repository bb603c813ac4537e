"""A chunk of the items of a batch."""

import time
from collections.abc import Sequence
from typing import NamedTuple

from google.protobuf.message import DecodeError

from evald_server import wire_pb2
from evald_server.engine.contexts import InvalidContext
from evald_server.engine.engine import Engine
from evald_server.engine.plan import Plan

from .chunk import CHUNK_SECONDS, ChunkCounts, ResultCounter, same_plan
from .results import MAX_BYTES, BatchResults


class ItemChunkResult(NamedTuple):
    """The result of a chunk.

    end: index after the last processed item; size and time of a result are limited. skipped: indexes of the items
    that the server must evaluate itself. answers: serialised BatchAnswer messages.
    """

    end: int
    skipped: Sequence[int]
    answers: Sequence[bytes]
    counts: ChunkCounts


class ItemChunk(NamedTuple):
    """Items that share a plan.

    specs, options: serialised, as for the planner. announced: specs of the server's plan; a process with a different
    plan must not evaluate the items. items: serialised BatchItem messages. brief: as in BatchOpen. slice_nanos:
    maximum time of an item.
    """

    specs: tuple[bytes, ...]
    options: bytes
    announced: Sequence[bytes]
    items: Sequence[bytes]
    brief: bool
    slice_nanos: int

    def evaluate(self, engine: Engine) -> ItemChunkResult:
        """Evaluate the items; skip all if this process cannot make the same plan as the server."""
        counter = ResultCounter()
        plan = same_plan(engine, self.specs, self.options, self.announced)
        if plan is None:
            return ItemChunkResult(len(self.items), range(len(self.items)), [], counter.counts())
        results = BatchResults(engine, counter.add, brief=self.brief, slice_nanos=self.slice_nanos)
        skipped: list[int] = []
        end = 0
        stop = time.monotonic() + CHUNK_SECONDS
        for data in self.items:
            if not _evaluated(results, data, plan):
                skipped.append(end)
            end += 1
            if results.size >= MAX_BYTES or time.monotonic() > stop:
                break
        return ItemChunkResult(end, skipped, results.answers, counter.counts())


def _evaluated(results: BatchResults, data: bytes, plan: Plan) -> bool:
    """Evaluate an item. Returns False if it is invalid, has its own evaluators or a scenario, or must wait."""
    try:
        item = wire_pb2.BatchItem.FromString(data)
        if item.evaluators or item.context.HasField("scenario"):
            return False
        waiting = results.evaluate(item, plan)
    except (DecodeError, InvalidContext):
        return False
    if waiting is None:
        return True
    waiting.abandon()
    return False
