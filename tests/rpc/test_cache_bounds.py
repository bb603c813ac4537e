"""A cache that may take so many bytes takes about so many bytes of memory, however long it is filled."""

import gc
import json
import tracemalloc
from collections.abc import Awaitable, Callable

import pytest

from evald_server.engine.plan import PlanLimits
from evald_server.engine.planner import Planner
from evald_server.engine.registry import Origin, Registry
from evald_server.evaluators import BUILT_INS
from evald_server.judge.cache import CachedAnswer, MemoryCache
from evald_server.rpc.idempotency import IdempotencyStore, StoredResponse
from evald_server.wire_pb2 import EvaluateRequest as Request

from .live import spec

BOUND = 1 << 20
# Dictionaries grow by doubling.
MOST = 1.25 * BOUND

Put = Callable[[int], Awaitable[None]]


def answers() -> Put:
    store = IdempotencyStore(BOUND)

    async def put(number: int) -> None:
        async def call() -> StoredResponse:
            return StoredResponse(b"x" * (1000 + number % 100), [b"y" * (300 + number % 100)])

        await store.once(Request(request_id=f"request-{number}"), call)

    return put


def judge() -> Put:
    cache = MemoryCache(BOUND)

    async def put(number: int) -> None:
        answer = {
            "score": 0.9,
            "hits": [f"names booking {number}"],
            "misses": [],
            "reasoning": "As was asked.",
        }
        text = json.dumps(answer)
        cache.put(number.to_bytes(32, "big"), CachedAnswer(text, json.loads(text), "model"))

    return put


def plans() -> Put:
    registry = Registry()
    for evaluator in BUILT_INS.values():
        registry.register(evaluator.definition(), Origin.BUILT_IN)
    planner = Planner(registry, PlanLimits(cache_bytes=BOUND))

    async def put(number: int) -> None:
        specs = (
            spec("contains", {"text": f"booking {number}"}),
            spec("json-schema", {"schema": {"type": "object", "title": str(number), "required": ["a", "b"]}}),
        )
        planner.plan(tuple(one.SerializeToString() for one in specs))

    return put


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("cache", "entries"), [(answers, 2500), (judge, 3000), (plans, 200)], ids=["answers", "judge", "plans"]
)
async def test_a_cache_takes_no_more_memory_than_it_may(cache: Callable[[], Put], entries: int) -> None:
    put = cache()
    await put(0)  # what is made once
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(1, entries):
            await put(number)
        gc.collect()
        half, _ = tracemalloc.get_traced_memory()
        for number in range(entries, 2 * entries):
            await put(number)
        gc.collect()
        whole, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert half < MOST
    assert whole < MOST
    assert whole > BOUND / 10, "too few entries to fill it"
