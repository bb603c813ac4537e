"""Tasks are done once, in time, side by side, and whatever an evaluator does, there is an output."""

import asyncio
import logging
import threading
import time
from typing import Any

import pytest

import evald
from evald.plugin.v1 import task_pb2
from evald.v1 import result_pb2
from evald.worker.offer import OfferedEvaluators
from evald.worker.tasks import Tasks

from ..loop import run
from ..rpc.live import until
from .evaluators import BROKEN, Blocking, Counting, Sleepy, length, polite, scoped, scoped_async, scopes
from .registry import task

PASSED, FAILED, ERROR = (
    result_pb2.VERDICT_PASSED,
    result_pb2.VERDICT_FAILED,
    result_pb2.VERDICT_ERROR,
)


def tasks_of(*evaluators: Any, max_concurrency: int = 4, own_loop: bool = False) -> Tasks:
    return Tasks(OfferedEvaluators(evaluators, max_concurrency=max_concurrency), own_loop=own_loop)


def outputs(tasks: Tasks, *wanted: task_pb2.EvaluationTask) -> list[task_pb2.EvaluationOutput]:
    async def main() -> list[task_pb2.EvaluationOutput]:
        try:
            return await asyncio.gather(*map(tasks.run, wanted))
        finally:
            tasks.close()

    return run(main())


def one_by_one(tasks: Tasks, *wanted: task_pb2.EvaluationTask) -> list[task_pb2.EvaluationOutput]:
    """The same, each task after the one before."""

    async def main() -> list[task_pb2.EvaluationOutput]:
        try:
            return [await tasks.run(one) for one in wanted]
        finally:
            tasks.close()

    return run(main())


def test_an_output_says_what_the_evaluator_said() -> None:
    passed, failed, measured = outputs(
        tasks_of(polite, length),
        task("1"),
        task("2", answer="No."),
        task("3", "acme.length", answer="12345"),
    )
    assert (passed.verdict, failed.verdict, measured.verdict) == (PASSED, FAILED, PASSED)
    assert measured.value == 5
    assert not measured.HasField("score")
    assert not passed.HasField("value")


def test_everything_that_a_result_has_room_for_arrives() -> None:
    def rich(ctx: evald.EvaluatorContext) -> evald.Result:
        result = evald.failed(
            "why", 0.25, 7, {"deep": {"list": [1, None, "é"]}}, [evald.Check("a", True, "line 1")], True
        )
        result.token_usage = evald.result.TokenUsage(1, None, 3)
        result.cost_usd = 0.5
        return result

    rich_evaluator = evald.assertion("acme.rich")(rich)
    (output,) = outputs(tasks_of(rich_evaluator), task(type="acme.rich"))
    assert (output.verdict, output.reason, output.score, output.value) == (FAILED, "why", 0.25, 7)
    assert output.metadata["deep"]["list"][2] == "é"
    assert (output.checks[0].text, output.checks[0].met, output.checks[0].evidence) == ("a", True, "line 1")
    assert output.pending
    assert (output.token_usage.input_tokens, output.token_usage.total_tokens) == (1, 3)
    assert not output.token_usage.HasField("output_tokens")
    assert (output.cost.currency_code, output.cost.amount) == ("USD", 0.5)
    assert not output.HasField("error")
    assert not output.unproven


def test_an_output_says_that_there_was_nothing_to_look_at() -> None:
    blind = evald.assertion("acme.blind")(lambda _ctx: evald.unproven("no answer"))
    (output,) = outputs(tasks_of(blind), task(type="acme.blind"))
    assert (output.verdict, output.unproven) == (FAILED, True)


@pytest.mark.parametrize(
    ("evaluator", "code"),
    [pytest.param(one, code, id=one.type) for code, broken in BROKEN.items() for one in broken],
)
@pytest.mark.parametrize("own_loop", [False, True])
def test_a_broken_evaluator_is_an_error_that_tells_nothing_of_its_inside(
    evaluator: evald.EvaluatorDefinition, code: str, own_loop: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        broken, fine = outputs(
            tasks_of(evaluator, polite, own_loop=own_loop), task("1", evaluator.type), task("2")
        )
    assert (broken.verdict, broken.error.code) == (ERROR, code)
    assert not broken.HasField("score")
    assert "secret-7f3a" not in str(broken)
    assert evaluator.type in caplog.text
    if code == "EVALUATOR_EXCEPTION":
        assert broken.error.metadata["incident"] in caplog.text
    assert fine.verdict == PASSED


def _odd_turn(*texts: str) -> task_pb2.EvaluationTask:
    """A task whose turn is not the end of its conversation."""
    odd = task()
    for text in texts:
        odd.context.last_invocation.messages.add(role="assistant", text=text)
    return odd


@pytest.mark.parametrize(
    ("wanted", "code", "names"),
    [
        pytest.param(task(type="acme.other"), "UNKNOWN_TYPE", "acme.polite", id="unknown type"),
        pytest.param(task(version="9"), "UNKNOWN_TYPE", "1.0.0", id="unknown version"),
        pytest.param(task(config={"loud": True}), "INVALID_CONFIG", "loud", id="function's config"),
        pytest.param(
            task(type="acme.sleepy", config={"seconds": "3"}),
            "INVALID_CONFIG",
            "seconds",
            id="class's config",
        ),
        pytest.param(
            task(type="acme.counting", config={"tag": "wrong"}), "INVALID_CONFIG", "no such tag", id="prepare"
        ),
        pytest.param(
            _odd_turn("Please."),
            "INVALID_ITEM",
            "context.last_invocation.messages[0]: differs",
            id="other turn",
        ),
        pytest.param(
            _odd_turn("a", "b", "c"), "INVALID_ITEM", "more than the 2 of messages", id="longer turn"
        ),
    ],
)
def test_what_cannot_be_run_is_refused_with_a_hint(
    wanted: task_pb2.EvaluationTask, code: str, names: str
) -> None:
    (output,) = outputs(tasks_of(polite, Sleepy, Counting), wanted)
    assert (output.verdict, output.error.code) == (ERROR, code)
    assert names in output.error.message
    assert not output.error.retryable


async def test_a_task_that_is_asked_for_again_is_not_done_again() -> None:
    Counting.reset()
    tasks = tasks_of(Counting)
    first = await tasks.run(task(type="acme.counting"))
    again = task(type="acme.counting", timeout_ms=5000)
    again.attempt = 2
    again.trace_context["traceparent"] = "00-1-1-00"
    assert await tasks.run(again) == first
    assert Counting.evaluated == 1
    # Another server may count its tasks in the same way.
    assert await tasks.run(task(type="acme.counting", answer="another turn")) != first
    assert Counting.evaluated == 2


async def test_one_that_is_asked_for_while_it_runs_is_joined() -> None:
    Counting.reset()
    tasks = tasks_of(Counting)
    wanted = task(type="acme.counting", config={"seconds": 0.1})
    first, second = await asyncio.gather(tasks.run(wanted), tasks.run(wanted))
    assert first == second
    assert Counting.evaluated == 1


async def test_work_ends_when_the_last_who_waits_has_gone_and_not_before() -> None:
    Counting.reset()
    tasks = tasks_of(Counting)
    wanted = task(type="acme.counting", config={"seconds": 30})
    waiting = [asyncio.create_task(tasks.run(wanted)) for _ in range(2)]
    await until(lambda: Counting.evaluated)
    waiting[0].cancel()
    await asyncio.sleep(0)
    assert (tasks.active, Counting.ended) == (1, 0)
    waiting[1].cancel()
    await asyncio.wait(waiting)
    await until(lambda: Counting.ended)
    assert tasks.active == 0
    assert all(one.cancelled() for one in waiting)


async def test_what_may_work_later_is_tried_again() -> None:
    Counting.reset()
    tasks = tasks_of(Counting)
    wanted = task(type="acme.counting", config={"seconds": 0.2}, timeout_ms=20)
    assert (await tasks.run(wanted)).error.code == "TIMEOUT"
    wanted.timeout.FromMilliseconds(20_000)
    assert (await tasks.run(wanted)).verdict == PASSED


@pytest.mark.parametrize("evaluator", [Sleepy, Blocking], ids=lambda one: one.type)
@pytest.mark.parametrize("how", ["task", "call"])
async def test_time_that_is_up_is_an_error(evaluator: type[evald.Evaluator], how: str) -> None:
    tasks = tasks_of(evaluator)
    wanted = task(type=evaluator.type, config={"seconds": 30}, timeout_ms=50 if how == "task" else 60_000)
    began = time.monotonic()
    output = await tasks.run(wanted, seconds=None if how == "task" else 0.05)
    assert output.error.code == "TIMEOUT"
    assert output.error.retryable
    assert time.monotonic() - began < 20


async def test_without_time_nothing_is_begun() -> None:
    Counting.reset()
    tasks = tasks_of(Counting)
    wanted = task(type="acme.counting")
    wanted.timeout.SetInParent()
    assert (await tasks.run(wanted)).error.code == "TIMEOUT"
    assert Counting.evaluated == 0


def test_a_config_is_compiled_once() -> None:
    Counting.reset()
    same = [task(str(n), "acme.counting", config={"tag": "a", "seconds": 0.01}) for n in range(20)]
    other = task("other", "acme.counting", config={"seconds": 0.01, "tag": "b"})
    assert {output.verdict for output in outputs(tasks_of(Counting), *same, other)} == {PASSED}
    assert (Counting.prepared, Counting.evaluated) == (2, 21)


def test_no_more_run_at_a_time_than_there_are_places() -> None:
    running: list[int] = []
    most = 0

    async def watch(ctx: evald.EvaluatorContext) -> bool:
        nonlocal most
        running.append(1)
        most = max(most, len(running))
        await asyncio.sleep(0.01)
        running.pop()
        return True

    watched = evald.assertion("acme.watched")(watch)
    many = [task(str(n), "acme.watched") for n in range(12)]
    assert {one.verdict for one in outputs(tasks_of(watched, max_concurrency=3), *many)} == {PASSED}
    assert most == 3


def test_who_would_wait_too_long_is_told_at_once() -> None:
    many = [task(str(n), "acme.sleepy", config={"seconds": 0.01}) for n in range(20)]
    codes = [output.error.code for output in outputs(tasks_of(Sleepy, max_concurrency=1), *many)]
    # One place, and sixteen that wait for it.
    assert codes == [""] * 17 + ["EVALUATOR_BUSY"] * 3


async def test_stuck_threads_are_an_error_that_may_pass() -> None:
    tasks = tasks_of(Blocking, max_concurrency=1)
    await tasks.run(task("1", "acme.blocking", config={"seconds": 30}, timeout_ms=1000))
    busy = await tasks.run(task("2", "acme.blocking", config={"seconds": 0.3}))
    assert (busy.error.code, busy.error.retryable) == ("EVALUATOR_BUSY", True)
    assert "blocked by earlier calls" in busy.error.message


@pytest.mark.parametrize("evaluator", [Blocking, Sleepy], ids=["plain function", "async function"])
async def test_a_system_without_threads_is_an_error_that_passes_when_it_has_some_again(
    monkeypatch: pytest.MonkeyPatch, evaluator: Any
) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    tasks = tasks_of(evaluator)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        busy = await tasks.run(task(type=evaluator.type, config={"seconds": 0}))
    assert (busy.error.code, busy.error.retryable) == ("EVALUATOR_BUSY", True)
    assert "does not allow this process more threads" in busy.error.message
    # The same task again: an output that may change is not kept.
    done = await tasks.run(task(type=evaluator.type, config={"seconds": 0}, timeout_ms=30_000))
    assert done.verdict == PASSED
    tasks.close()


@pytest.mark.parametrize("evaluator", [scoped, scoped_async], ids=lambda one: one.type)
@pytest.mark.parametrize("own_loop", [False, True])
def test_an_evaluator_knows_its_time_trace_and_listener(
    evaluator: evald.EvaluatorDefinition, own_loop: bool
) -> None:
    async def main() -> list[tuple[str, float | None]]:
        scopes.clear()
        told: list[tuple[str, float | None]] = []
        tasks = tasks_of(evaluator, own_loop=own_loop)
        wanted = task(type=evaluator.type, timeout_ms=5000)
        wanted.trace_context["traceparent"] = "00-1-1-00"
        await tasks.run(wanted, progress=lambda *said: told.append(said))
        tasks.close()
        return told

    assert run(main()) == [("half way", 0.5)]
    (scope,) = scopes
    left = scope.time_left()
    assert left is not None
    assert 0 < left <= 5
    assert scope.trace_context == {"traceparent": "00-1-1-00"}
    assert scope.evaluation_id == "task-1"


@pytest.mark.parametrize(
    "evaluator",
    [one for broken in BROKEN.values() for one in broken if not one.is_async],
    ids=lambda one: one.type,
)
def test_what_never_waits_answers_like_the_rest(evaluator: evald.EvaluatorDefinition) -> None:
    plain = evaluator._replace(type="acme.plain")
    inline = evaluator._replace(type="acme.inline", inline=True)
    found, wanted = outputs(tasks_of(inline, plain), task("1", inline.type), task("2", plain.type))
    assert found.error.code == wanted.error.code != ""


def test_an_inline_evaluator_that_returns_an_awaitable_breaks_the_contract_each_time() -> None:
    async def later() -> bool:
        return True

    @evald.assertion("acme.function", inline=True)
    def function(_ctx: evald.EvaluatorContext) -> Any:
        return later()

    class Later(evald.Evaluator, type="acme.class", kind=evald.ASSERTION, inline=True):
        """Answers later."""

        def evaluate(self, ctx: evald.EvaluatorContext) -> Any:
            return later()

    found = one_by_one(
        tasks_of(function, Later.definition()),
        *(task(str(number), name) for number in range(2) for name in ("acme.function", "acme.class")),
    )
    assert [output.error.code for output in found] == ["CONTRACT_VIOLATION"] * 4
    assert all("got coroutine, wanted a Result" in output.error.message for output in found)
