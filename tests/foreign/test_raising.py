"""Whatever a plugin raises is its own result, at once; the server, its siblings and its next call go on."""

import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest

import evald
from evald.result import Verdict
from evald.v1 import evaluation_service_pb2 as pb
from evald_server.engine.registry import Origin, Registry
from evald_server.plugins import PluginError, load_plugins
from tests.thorough import first_of

from ..batch.batches import serving_with
from ..loop import run
from ..rpc.live import CONTAINS, Live, request, spec, until
from ..rpc.test_batches import items
from ..rpc.test_batches import opened as opened_batch
from ..rpc.test_sessions import opened as opened_session
from ..rpc.test_sessions import turn
from .faults import FAULTS, FORMS, TURN_THAT_BREAKS, UNPREPARED, broken_evaluators, sibling

# Far less than the deadline, and more than a busy machine needs.
AT_ONCE = 15.0
WORKERS = {
    "listening": {"own_loop": False},
    "listening-own": {"own_loop": True},
    "dialling": {"own_loop": False},
    "dialling-own": {"own_loop": True},
}

broken = pytest.mark.parametrize(
    ("form", "fault"),
    [pytest.param(form, fault, id=f"{form}-{fault}") for form in FORMS for fault in FAULTS],
)


class Server(NamedTuple):
    live: Live
    processes: int


@pytest.fixture(
    scope="module", params=first_of([0, 1], 1), ids=["no-processes", "batch-process"], name="server"
)
def _server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server with every broken plugin, for all tests."""
    stack = AsyncExitStack()
    plugins = [*broken_evaluators("acme"), *UNPREPARED.values(), sibling]

    async def start() -> Live:
        live: Live = await stack.enter_async_context(serving_with(request.param))
        for plugin in plugins:
            live.app.registry.register(plugin, Origin.PLUGIN)
        return live

    yield Server(run(start()), request.param)
    run(stack.aclose())


@pytest.fixture(scope="module", name="workers")
def _workers() -> Iterator[Live]:
    """A server with every broken evaluator at a worker of each kind."""
    stack = AsyncExitStack()

    async def start() -> Live:
        live: Live = await stack.enter_async_context(
            serving_with(0, remote_allowed=["127.0.0.1"], remote_max_instances=1000)
        )
        for name, options in WORKERS.items():
            evaluators = broken_evaluators(name)
            worker: Any
            if name.startswith("listening"):
                worker = evald.ListeningWorker(*evaluators, register=live.app.address, **options)
            else:
                worker = evald.DiallingWorker(*evaluators, server=live.app.address, **options)
            await stack.enter_async_context(worker)
        for name in WORKERS:

            async def works(name: str = name) -> bool:
                try:
                    answer = await live.unary(request(spec(f"{name}.thread.plain")), timeout=20)
                except grpc.aio.AioRpcError as problem:
                    if problem.code() is grpc.StatusCode.NOT_FOUND:
                        return False  # its description is still being read
                    raise
                return bool(answer.summary.success)

            await until(works)
        return live

    yield run(start())
    run(stack.aclose())


def codes(answer: pb.EvaluateUnaryResponse) -> list[str]:
    return [one.error.code or Verdict(one.verdict).name for one in answer.summary.results]


@broken
async def test_it_is_its_own_result_at_once_in_every_kind_of_call(
    server: Server, form: str, fault: str
) -> None:
    live, name = server.live, f"acme.{form}.{fault}"
    specs = (spec(name), CONTAINS, spec("acme.sibling"))
    wanted = ["EVALUATOR_EXCEPTION", "FAILED", "PASSED"]
    on_boom = request(*specs, answer=TURN_THAT_BREAKS)

    began = time.monotonic()
    # Alone, with others, as a stream, in a session, in a batch.
    alone = await live.unary(request(spec(name), answer=TURN_THAT_BREAKS), timeout=20)
    assert codes(alone) == wanted[:1]
    assert codes(await live.unary(on_boom, timeout=20)) == wanted
    streamed = [result for event in await live.stream(on_boom, timeout=20) for result in event.results]
    streamed.sort(key=lambda result: result.index)
    assert [one.error.code or Verdict(one.verdict).name for one in streamed] == wanted
    *turns, _ = await live.session([opened_session(*specs), turn(1, TURN_THAT_BREAKS), turn(2, "hello")])
    assert [frame.event.summary.verdict for frame in turns if frame.event.HasField("summary")] == [
        Verdict.FAILED,
        Verdict.PASSED,
    ]
    batch = await live.batch([opened_batch(*specs), items(TURN_THAT_BREAKS, "hello")])
    answers = {answer.item_id: answer.summary for message in batch for answer in message.answers}
    assert (answers["i0"].error_count, answers["i0"].failed_count) == (1, 1)
    assert answers["i1"].verdict == Verdict.PASSED
    assert time.monotonic() - began < AT_ONCE
    # The next call of the same one.
    assert codes(await live.unary(request(*specs), timeout=20)) == ["PASSED"] * 3


@pytest.mark.parametrize("fault", FAULTS)
async def test_it_is_an_error_of_a_combinator(server: Server, fault: str) -> None:
    specs = [
        one
        for form in FORMS
        for child in ({"type": f"acme.{form}.{fault}"},)
        for one in (
            spec("all-of", {"evaluators": [child, {"type": "acme.sibling"}]}),
            spec("any-of", {"evaluators": [child, {"type": "contains", "config": {"text": "boom"}}]}),
            spec("all-of", {"evaluators": [child]}, negate=True),
        )
    ]

    answer = await server.live.unary(request(*specs, answer=TURN_THAT_BREAKS), timeout=20)
    assert codes(answer) == ["UNEVALUABLE", "PASSED", "UNEVALUABLE"] * len(FORMS)


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_raised_as_a_config_is_made_ready_is_its_own_result(server: Server, fault: str) -> None:
    name = UNPREPARED[fault].type
    specs = (spec(name, {"breaks": True}), spec(name), spec("acme.sibling"))

    async def main() -> None:
        for _ in range(2):
            found = codes(await server.live.unary(request(*specs), timeout=20))
            assert found == ["EVALUATOR_EXCEPTION", "PASSED", "PASSED"]

    if fault == "plain":  # a ValueError is how an evaluator refuses a config
        return
    run(main())


@pytest.mark.parametrize("fault", FAULTS)
async def test_in_a_worker_it_is_its_own_result_at_once(workers: Live, fault: str) -> None:
    specs = [spec(f"{worker}.{form}.{fault}") for worker in WORKERS for form in FORMS]

    began = time.monotonic()
    answer = await workers.unary(request(*specs, answer=TURN_THAT_BREAKS), timeout=20)
    found = {one.type: one.error.code for one in answer.summary.results}
    assert found == {one.type: "EVALUATOR_EXCEPTION" for one in specs}
    assert time.monotonic() - began < AT_ONCE
    again = await workers.unary(request(*specs), timeout=20)
    assert again.summary.success, again


@pytest.mark.parametrize("place", ["import", "definition"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_plugin_that_raises_as_it_is_loaded_is_named(
    tmp_path: Path, fault: str, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plugin.py"
    lines = ["from tests.foreign.faults import FAULTS", "import evald"]
    if place == "import":
        lines.append(f"FAULTS[{fault!r}]()")
    else:
        lines += [
            "class Written(evald.Evaluator):",
            "    type = 'acme.written'",
            "    kind = evald.ASSERTION",
            "    @classmethod",
            "    def definition(cls):",
            f"        FAULTS[{fault!r}]()",
        ]
    file.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(PluginError, match=r'^Evaluator plugin ".*plugin\.py"'):
        load_plugins(Registry(), [str(file)])


def test_the_log_has_what_was_raised_and_where(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> str:
        answer = await server.live.unary(
            request(spec("acme.thread.own-base"), answer=TURN_THAT_BREAKS), timeout=20
        )
        error = answer.summary.results[0].error
        assert "own" not in error.message
        return error.metadata["incident"]

    incident = run(main())
    (record,) = [record for record in caplog.records if incident in record.getMessage()]
    assert "OwnBaseException: own" in record.getMessage()
    assert "faults.py" in record.__dict__["exception"]


async def _stop_the_loop(_ctx: Any) -> bool:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0)
    return True


async def _exit_in_a_callback(_ctx: Any) -> bool:
    asyncio.get_running_loop().call_soon(sys.exit, 5)
    await asyncio.sleep(0.01)
    return True


async def _exit_in_a_task(_ctx: Any) -> bool:
    async def leave() -> None:
        sys.exit(5)

    await asyncio.gather(asyncio.create_task(leave()), return_exceptions=True)
    return True


async def _cancel_its_own_task(_ctx: Any) -> bool:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)
    return True


_used: list[Any] = []


async def _later() -> evald.Result:
    return evald.passed("once")


def _the_same_again(_ctx: Any) -> Any:
    if not _used:
        _used.append(_later())
    return _used[0]


async def _swallow(_ctx: Any) -> bool:
    while True:
        try:
            await asyncio.sleep(0.2)
        except asyncio.CancelledError:
            continue


def _exit_when_asked(_ctx: Any) -> Any:
    class Odd:
        @property
        def __class__(self) -> Any:  # type: ignore[override]
            raise SystemExit(1)

    return Odd()


ODD: dict[str, tuple[Any, str]] = {
    "stop-the-loop": (_stop_the_loop, "PASSED"),
    "exit-in-a-callback": (_exit_in_a_callback, "PASSED"),
    "exit-in-a-task": (_exit_in_a_task, ""),
    "cancel-its-own-task": (_cancel_its_own_task, "EVALUATOR_EXCEPTION"),
    "the-same-again": (_the_same_again, "EVALUATOR_EXCEPTION"),
    "generator": (lambda _ctx: (yield True), "CONTRACT_VIOLATION"),
    "swallow": (_swallow, "TIMEOUT"),
    "exit-when-asked": (_exit_when_asked, "EVALUATOR_EXCEPTION"),
}


@pytest.mark.parametrize("name", ODD)
async def test_other_odd_ways_harm_nobody_else(server: Server, name: str) -> None:
    behave, wanted = ODD[name]
    definition = evald.define_evaluator(type=f"odd.{name}", kind=evald.ASSERTION, evaluate=behave)
    if server.live.app.registry.get(definition.type) is None:
        server.live.app.registry.register(definition, Origin.PLUGIN)
    one = spec(f"odd.{name}")
    one.timeout.FromMilliseconds(20_000 if wanted not in ("", "TIMEOUT") else 500)

    for _ in range(3):
        answer = await server.live.unary(request(one, spec("acme.sibling")), timeout=20)
        found = codes(answer)
        assert found[1] == "PASSED"
    assert found[0] == wanted or not wanted
