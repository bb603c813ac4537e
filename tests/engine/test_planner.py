"""Large specs are compiled once, in one thread at a time, whatever becomes of the callers."""

import asyncio
import threading
from itertools import permutations
from typing import Any

import pytest

from evald.v1 import evaluator_pb2
from evald_server.engine.compiler import Compiler
from evald_server.engine.plan import PlanLimits
from evald_server.engine.planner import LARGE_BYTES, Planner
from evald_server.engine.registry import Origin, Registry
from evald_server.evaluators import BUILT_INS


def _registry() -> Registry:
    registry = Registry()
    for one in BUILT_INS.values():
        registry.register(one.definition(), Origin.BUILT_IN)
    return registry


def _planner(cache_bytes: int) -> Planner:
    return Planner(_registry(), PlanLimits(cache_bytes=cache_bytes))


def _large(text: str = "x") -> tuple[bytes, ...]:
    spec = evaluator_pb2.EvaluatorSpec(type="contains")
    spec.config.update({"text": text * (LARGE_BYTES + 1)})
    return (spec.SerializeToString(),)


class Compilations:
    """The threads that compiled. begun: set by each, which then waits for `go`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads: list[threading.Thread] = []
        self.go, self.begun = threading.Event(), threading.Event()
        real = Compiler.plan

        def plan(compiler: Compiler, *key: Any) -> Any:
            self.threads.append(threading.current_thread())
            self.begun.set()
            self.go.wait(20)
            return real(compiler, *key)

        monkeypatch.setattr(Compiler, "plan", plan)


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> Compilations:
    """What is compiled."""
    return Compilations(monkeypatch)


@pytest.mark.parametrize("cache_bytes", [0, 64 << 20])
async def test_what_was_prepared_is_not_compiled_again(cache_bytes: int, compilations: Compilations) -> None:
    compilations.go.set()
    planner = _planner(cache_bytes)
    await planner.prepare(_large(), b"", None)
    planner.plan(_large())
    (thread,) = compilations.threads
    assert thread is not threading.main_thread()


async def test_a_prepared_plan_is_outdated_with_the_registry(compilations: Compilations) -> None:
    compilations.go.set()
    registry = _registry()
    planner = Planner(registry, PlanLimits(cache_bytes=0))
    await planner.prepare(_large(), b"", None)
    generation = planner.generation
    registry.remove("regex")
    assert planner.generation > generation
    planner.plan(_large())
    assert len(compilations.threads) == 2


async def test_a_caller_that_goes_away_leaves_no_second_thread_beside_its_own(
    compilations: Compilations,
) -> None:
    planner = _planner(0)
    first = asyncio.create_task(planner.prepare(_large("a"), b"", None))
    await asyncio.to_thread(compilations.begun.wait, 20)
    compilations.begun.clear()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    second = asyncio.create_task(planner.prepare(_large("b"), b"", None))
    assert not await asyncio.to_thread(compilations.begun.wait, 0.2)
    compilations.go.set()
    await second
    assert len(compilations.threads) == 2


def test_specs_are_compiled_once_whatever_the_order_of_their_keys(compilations: Compilations) -> None:
    # 24 orders are more than the planner remembers: those that it forgot are parsed, and find the plan.
    config = {"expected": "yes", "ignoreCase": True, "message": "last", "trim": False}
    keys = [evaluator_pb2.EvaluatorSpec() for _ in config]
    for key, item in zip(keys, config.items(), strict=True):
        key.config.update(dict([item]))
    head = evaluator_pb2.EvaluatorSpec(type="exact-match").SerializeToString()
    compilations.go.set()
    planner = _planner(64 << 20)
    orders = [b"".join(key.SerializeToString() for key in order) for order in permutations(keys)]
    plans = {id(planner.plan((head + order,))) for order in orders * 2}
    assert len(plans) == len(compilations.threads) == 1
