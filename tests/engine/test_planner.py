"""Specs are compiled once, large ones in a thread."""

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


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """The thread of each compilation."""
    threads: list[threading.Thread] = []
    real = Compiler.plan

    def plan(compiler: Compiler, *key: Any) -> Any:
        threads.append(threading.current_thread())
        return real(compiler, *key)

    monkeypatch.setattr(Compiler, "plan", plan)
    return threads


@pytest.mark.parametrize("cache_bytes", [0, 64 << 20])
async def test_what_was_prepared_is_not_compiled_again(
    cache_bytes: int, compiling: list[threading.Thread]
) -> None:
    planner = _planner(cache_bytes)
    await planner.prepare(_large(), b"")
    planner.plan(_large())
    (thread,) = compiling
    assert thread is not threading.main_thread()


async def test_a_prepared_plan_is_outdated_with_the_registry(compiling: list[threading.Thread]) -> None:
    registry = _registry()
    planner = Planner(registry, PlanLimits(cache_bytes=0))
    await planner.prepare(_large(), b"")
    generation = planner.generation
    registry.remove("regex")
    assert planner.generation > generation
    planner.plan(_large())
    assert len(compiling) == 2


def test_specs_are_compiled_once_whatever_the_order_of_their_keys(compiling: list[threading.Thread]) -> None:
    config = {"expected": "yes", "ignoreCase": True, "message": "last", "trim": False}
    keys = [evaluator_pb2.EvaluatorSpec() for _ in config]
    for key, item in zip(keys, config.items(), strict=True):
        key.config.update(dict([item]))
    head = evaluator_pb2.EvaluatorSpec(type="exact-match").SerializeToString()
    planner = _planner(64 << 20)
    orders = [b"".join(key.SerializeToString() for key in order) for order in permutations(keys)]
    plans = {id(planner.plan((head + order,))) for order in orders * 2}
    assert len(plans) == len(compiling) == 1
