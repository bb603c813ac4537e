"""The one evaluator that waits runs in the call's own task, and nobody can tell."""

import asyncio
from typing import Any

import pytest

from evald.context import EvaluatorContext
from evald.evaluator import define_evaluator
from evald.result import Kind, Result, passed
from evald.scope import Scope, current_scope
from evald.threads import Threads
from evald.v1 import context_pb2, evaluation_service_pb2
from evald_server.engine.planner import Planner
from evald_server.engine.registry import Origin, Registry
from evald_server.engine.run import EvaluationRun
from tests.summaries import aggregated

from .scripted import spec


def evaluation_of(behaviour: Any, *specs: Any, **options: Any) -> EvaluationRun:
    """An evaluation of a type `waits` that behaves so, begun."""
    registry = Registry()
    registry.register(
        define_evaluator(type="waits", kind=Kind.ASSERTION, evaluate=behaviour), Origin.BUILT_IN
    )
    raw = tuple(one.SerializeToString() for one in specs or (spec("waits"),))
    given = evaluation_service_pb2.EvaluateOptions(**options).SerializeToString()
    plan = Planner(registry).plan(raw, given)
    evaluation = EvaluationRun(plan, EvaluatorContext(context_pb2.EvaluatorContext()), Threads())
    assert not evaluation.finished
    return evaluation


async def complete(run: EvaluationRun, seconds: float, scope: Scope = Scope()) -> list[int]:  # noqa: B008
    """The indexes of what was pending, in the order in which it finished."""
    return [index async for finished in run.run_pending(seconds, 16, scope) for index in finished]


async def told(_ctx: EvaluatorContext) -> Result:
    scope = current_scope()
    await asyncio.sleep(0)
    left = scope.time_left()
    return passed(f"{scope.evaluation_id}, {scope.skip_cache}, {left is not None and 0 < left <= 2}")


async def test_it_sees_its_call_and_leaves_nothing_of_it_behind() -> None:
    evaluation = evaluation_of(told, skip_cache=True)
    assert await complete(evaluation, 2, Scope(evaluation_id="call-1")) == [0]
    assert current_scope() == Scope()
    summary = aggregated(evaluation)
    assert summary.results[0].reason == "call-1, True, True"
    assert summary.results[0].start_time.seconds
    assert summary.success


async def test_its_time_is_limited_and_the_call_goes_on() -> None:
    async def hangs(_ctx: EvaluatorContext) -> Result:
        await asyncio.Event().wait()
        raise AssertionError

    evaluation = evaluation_of(hangs)
    await complete(evaluation, 0.02)
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()
    (result,) = aggregated(evaluation).results
    assert result.error.code == "TIMEOUT"


async def test_a_call_that_is_cancelled_cancels_it() -> None:
    cancelled = asyncio.Event()

    async def hangs(_ctx: EvaluatorContext) -> Result:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        raise AssertionError

    call = asyncio.create_task(complete(evaluation_of(hangs), 5))
    await asyncio.sleep(0.01)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert cancelled.is_set()


@pytest.mark.parametrize(
    ("specs", "options"),
    [((spec("waits"), spec("waits")), {}), ((), {"include_progress": True})],
    ids=["two", "progress"],
)
async def test_with_others_or_with_progress_it_is_not_alone(specs: Any, options: Any) -> None:
    tasks = set()

    async def notes_task(_ctx: EvaluatorContext) -> Result:
        tasks.add(asyncio.current_task())
        return passed("ran")

    done = await complete(evaluation_of(notes_task, *specs, **options), 2)
    assert sorted(done) == list(range(len(specs) or 1))
    assert asyncio.current_task() not in tasks
