"""A call that has used its slice of the event loop goes on in a thread, and its deadline cuts it there."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from evald.context import EvaluatorContext
from evald.result import Result, Verdict, passed
from evald.threads import Threads
from evald.v1 import context_pb2, evaluation_service_pb2
from evald_server.engine.combinators import combinators
from evald_server.engine.planner import Planner
from evald_server.engine.registry import Origin, Registry
from evald_server.engine.run import EvaluationRun
from tests.summaries import aggregated
from tests.thorough import first_of

from .scripted import definition, spec

PASSED, FAILED, ERROR, SKIPPED = Verdict.PASSED, Verdict.FAILED, Verdict.ERROR, Verdict.SKIPPED


def checks_for(seconds: float) -> Callable[[EvaluatorContext], Result]:
    """A plain evaluator that works for so long, and checks the time as built-ins do."""

    def work(ctx: EvaluatorContext) -> Result:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            ctx.check_time()
        return passed("worked")

    return work


def burns(seconds: float) -> Callable[[EvaluatorContext], Result]:
    """A plain evaluator that works for so long and looks at no clock."""

    def work(_ctx: EvaluatorContext) -> Result:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass
        return passed("burnt")

    return work


def begin(
    types: dict[str, Callable[[EvaluatorContext], Any]], *specs: Any, **options: Any
) -> tuple[EvaluationRun, bool]:
    """A run of plain types that behave so, its slice used, and whether it is done."""
    registry, threads = Registry(), Threads()
    for name, behaviour in types.items():
        registry.register(definition(name, behaviour), Origin.BUILT_IN)
    for one in combinators(threads):
        registry.register(one, Origin.BUILT_IN)
    raw = tuple(one.SerializeToString() for one in specs or (spec(name) for name in types))
    plan = Planner(registry).plan(raw, evaluation_service_pb2.EvaluateOptions(**options).SerializeToString())
    evaluation = EvaluationRun(plan, EvaluatorContext(context_pb2.EvaluatorContext()), threads)
    return evaluation, evaluation.finished


async def complete(evaluation: EvaluationRun, seconds: float | None = 20) -> Any:
    """The results of an evaluation that has more to do."""
    async for _ in evaluation.run_pending(seconds, 16):
        pass
    return aggregated(evaluation).results


async def test_an_evaluator_that_checks_the_time_starts_again_in_a_thread_and_the_loop_goes_on() -> None:
    threads: list[int] = []
    rounds = 0

    def work(ctx: EvaluatorContext) -> Result:
        threads.append(threading.get_ident())
        while rounds < 5:  # of the loop, which stands still while this runs in it
            ctx.check_time()
        return passed("worked")

    evaluation, done = begin({"slow": work})
    assert not done

    async def turn_over() -> None:
        nonlocal rounds
        while True:
            await asyncio.sleep(0.005)
            rounds += 1

    other = asyncio.create_task(turn_over())
    (result,) = await complete(evaluation)
    other.cancel()
    assert (result.verdict, result.reason) == (PASSED, "worked")
    assert threads[0] == threading.get_ident() != threads[1]
    assert len(threads) == 2


async def test_what_comes_after_the_slice_is_not_run_in_the_loop() -> None:
    here: list[int] = []

    def where(_ctx: EvaluatorContext) -> Result:
        here.append(threading.get_ident())
        return passed("seen")

    evaluation, done = begin({"first": where, "burns": burns(0.02), "last": where})
    assert not done
    assert here == [threading.get_ident()]
    results = await complete(evaluation)
    assert [result.reason for result in results] == ["seen", "burnt", "seen"]
    assert len(here) == 2
    assert here[1] != here[0]


@pytest.mark.parametrize("others", first_of([0, 3], 1), ids=["alone", "with others"])
async def test_the_deadline_cuts_it_with_a_timeout_and_its_thread_ends(others: int) -> None:
    ended = threading.Event()

    def work(ctx: EvaluatorContext) -> Result:
        try:
            return checks_for(60)(ctx)
        finally:
            if threading.current_thread() is not threading.main_thread():
                ended.set()

    types = {"slow": work, **{f"other{n}": checks_for(0.02) for n in range(others)}}
    evaluation, done = begin(types)
    assert not done
    slow, *rest = await complete(evaluation, 2)
    assert (slow.verdict, slow.error.code) == (ERROR, "TIMEOUT")
    assert [result.verdict for result in rest] == [PASSED] * others
    assert await asyncio.to_thread(ended.wait, 5)


async def test_a_caller_that_goes_away_ends_its_thread() -> None:
    began, ended = threading.Event(), threading.Event()

    def work(ctx: EvaluatorContext) -> Result:
        if threading.current_thread() is not threading.main_thread():
            began.set()
        try:
            return checks_for(60)(ctx)
        finally:
            if began.is_set():
                ended.set()

    evaluation, _ = begin({"slow": work})
    call = asyncio.create_task(complete(evaluation, None))
    assert await asyncio.to_thread(began.wait, 5)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await asyncio.to_thread(ended.wait, 5)


async def test_children_of_combinators_are_metered_together() -> None:
    child = {"type": "burns"}
    evaluation, done = begin({"burns": burns(0.004)}, spec("all-of", evaluators=[child] * 20))
    assert not done
    (result,) = await complete(evaluation)
    assert result.verdict == PASSED
    assert len(result.checks) == 20


async def test_fail_fast_holds_for_what_was_left_for_later() -> None:
    ran: list[str] = []

    def last(_ctx: EvaluatorContext) -> Result:
        ran.append("last")
        return passed("")

    def fails(_ctx: EvaluatorContext) -> Result:
        burns(0.02)(_ctx)
        return Result(FAILED, "failed", 0.0)

    evaluation, done = begin({"fails": fails, "last": last}, fail_fast=True)
    results = aggregated(evaluation).results if done else await complete(evaluation)
    assert [result.verdict for result in results] == [FAILED, SKIPPED]
    assert not ran
