"""Bad plugins beside good ones: each bad one gets its own error, the good ones never notice."""

import asyncio
import time
from collections import Counter
from typing import Any

import grpc
import pytest

from evald.plugin.v1 import task_pb2

from ..rpc.live import request, serving, spec, until
from .scripted import (
    PASSED,
    WORD,
    Listening,
    Refused,
    active,
    answers,
    code_of,
    deregister,
    hangs,
    listening,
    passes,
    register,
    states,
    worker,
)

LOOPBACK = ["127.0.0.1/32"]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("UNAVAILABLE", "REMOTE_UNAVAILABLE"),
        ("CANCELLED", "REMOTE_UNAVAILABLE"),
        ("DEADLINE_EXCEEDED", "TIMEOUT"),
        ("RESOURCE_EXHAUSTED", "EVALUATOR_BUSY"),
        ("UNIMPLEMENTED", "CONTRACT_VIOLATION"),
        ("INTERNAL", "EVALUATOR_EXCEPTION"),
        ("UNKNOWN", "EVALUATOR_EXCEPTION"),
        ("INVALID_ARGUMENT", "EVALUATOR_EXCEPTION"),
        ("PERMISSION_DENIED", "EVALUATOR_EXCEPTION"),
    ],
)
async def test_every_status_of_a_plugin_has_its_error_code_and_leaks_nothing(
    code: str, expected: str
) -> None:
    async def refuses(_task: Any) -> Any:
        raise Refused(grpc.StatusCode[code], "secret-of-the-plugin")

    async with (
        serving(remote_allowed=LOOPBACK) as live,
        listening("acme.word", behave=refuses) as plugin,
    ):
        await register(live, plugin)
        (result,) = (await live.unary(request(WORD))).summary.results
        assert result.error.code == expected
        assert "secret" not in str(result)
        assert result.instance_id == "listening-1"


@pytest.mark.alone
async def test_a_plugin_that_hangs_is_timed_out_cancelled_and_then_left_alone() -> None:
    async with serving(remote_allowed=LOOPBACK) as live, listening("acme.word", behave=hangs) as plugin:
        await register(live, plugin)
        brief = {"timeout": {"nanos": 120_000_000}}
        for _ in range(5):
            assert await code_of(live, **brief) == "TIMEOUT"
        await until(lambda: plugin.cancelled == 5)
        took = []
        for _ in range(21):
            began = time.perf_counter()
            assert await code_of(live, **brief) == "REMOTE_CIRCUIT_OPEN"
            took.append(time.perf_counter() - began)
        # The one in the middle, because other work shares the machine.
        assert sorted(took)[10] < 0.005
        assert await states(live) == {"listening-1": "unhealthy"}
        assert "evald_remote_circuit_open 1.0" in live.app.telemetry.exposition("")[0].decode()
        plugin.behave = passes

        async def closed() -> bool:
            return not await code_of(live)

        await until(closed)
        assert await states(live) == {"listening-1": "active"}


async def test_hasty_callers_do_not_open_the_circuit_for_others() -> None:
    async def slow(_task: Any) -> task_pb2.EvaluationOutput:
        await asyncio.sleep(0.6)
        return PASSED

    async with serving() as live, worker(live, "acme.word", behave=slow, credit=50):
        assert not await code_of(live)
        hasty = {"timeout": {"nanos": 250_000_000}}
        assert {await code_of(live, **hasty) for _ in range(8)} == {"TIMEOUT"}
        assert not await code_of(live)


async def test_the_least_loaded_instance_gets_the_next_task() -> None:
    release = asyncio.Event()

    async def waits(_task: Any) -> task_pb2.EvaluationOutput:
        await release.wait()
        return PASSED

    async with (
        serving() as live,
        worker(live, "acme.word", behave=waits, instance_id="small", credit=2) as small,
        worker(live, "acme.word", behave=waits, instance_id="large", credit=8) as large,
    ):
        calls = [asyncio.create_task(live.unary(request(WORD))) for _ in range(10)]
        await until(lambda: len(small.tasks) + len(large.tasks) == 10)
        assert (len(small.tasks), len(large.tasks)) == (2, 8)
        release.set()
        await asyncio.gather(*calls)
        for _ in range(20):
            await live.unary(request(WORD))
        # Nobody is loaded: they take turns.
        assert abs((len(small.tasks) - 2) - (len(large.tasks) - 8)) <= 2


async def test_a_listening_plugin_gets_no_more_than_it_takes_at_a_time() -> None:
    most = now = 0

    async def counts(_task: Any) -> task_pb2.EvaluationOutput:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.01)
        now -= 1
        return PASSED

    async with (
        serving(remote_allowed=LOOPBACK) as live,
        listening("acme.word", behave=counts, max_concurrency=3) as plugin,
    ):
        await register(live, plugin)
        answers = await asyncio.gather(*(live.unary(request(WORD)) for _ in range(30)))
        assert all(answer.summary.success for answer in answers)
        assert most == 3


async def test_the_bulkhead_refuses_what_would_only_wait() -> None:
    async with (
        serving(remote_max_inflight=4, remote_max_queued=3, remote_max_queue_seconds=0.2) as live,
        worker(live, "acme.word", behave=hangs, credit=100, instance_id="stuck") as stuck,
        worker(live, "acme.good", instance_id="good"),
    ):
        calls = [asyncio.create_task(code_of(live, timeout={"seconds": 2})) for _ in range(20)]
        await until(lambda: len(stuck.tasks) == 4)
        assert (await live.unary(request(spec("acme.good")))).summary.success
        assert sum(not call.done() for call in calls) >= 4, "it waited for no other type"
        codes = Counter(await asyncio.gather(*calls))
        assert codes == {"EVALUATOR_BUSY": 16, "TIMEOUT": 4}
        assert len(stuck.tasks) == 4


async def test_an_unavailable_instance_is_retried_on_another_one_with_the_same_task() -> None:
    async def down(_task: Any) -> Any:
        raise Refused(grpc.StatusCode.UNAVAILABLE)

    async with (
        serving(remote_allowed=LOOPBACK) as live,
        listening("acme.word") as good,
        listening("acme.word", behave=down) as bad,
    ):
        await register(live, good, "good")
        for _ in range(20):
            assert not await code_of(live)
        await register(live, bad, "bad")
        offered = 20
        while not bad.tasks:
            assert not await code_of(live)
            offered += 1
        (failed,) = bad.tasks
        retried = next(task for task in good.tasks if task.task_id == failed.task_id)
        assert (failed.attempt, retried.attempt) == (1, 2)
        assert retried.timeout.ToNanoseconds() <= failed.timeout.ToNanoseconds()
        # Half-dead: what the budget does not allow is an error, the rest is never noticed.
        codes = Counter([await code_of(live) for _ in range(60)])
        assert set(codes) <= {"", "REMOTE_UNAVAILABLE"}
        assert len(good.tasks) + len(bad.tasks) <= 1.2 * (offered + 60)


async def test_only_unavailable_is_retried() -> None:
    async def breaks(_task: Any) -> Any:
        raise Refused(grpc.StatusCode.INTERNAL)

    async with (
        serving(remote_allowed=LOOPBACK) as live,
        listening("acme.word", behave=breaks) as one,
        listening("acme.word", behave=breaks) as two,
    ):
        await register(live, one, "one")
        await register(live, two, "two")
        for _ in range(10):
            assert await code_of(live) == "EVALUATOR_EXCEPTION"
        assert len(one.tasks) + len(two.tasks) == 10


async def test_a_plugin_that_dies_leaves_rotation_and_comes_back_by_itself() -> None:
    async with (
        serving(remote_allowed=LOOPBACK) as live,
        listening("acme.word") as mortal,
        listening("acme.word") as other,
    ):
        await register(live, mortal, "mortal")
        await register(live, other, "other")
        address = mortal.address
        await mortal.stop()

        async def gone() -> bool:
            return (await states(live)) == {"mortal": "unhealthy", "other": "active"}

        await until(gone)
        assert {await code_of(live) for _ in range(20)} == {""}
        await mortal.start(address)
        await active(live, "mortal", seconds=20)


async def test_ten_remotes_in_one_call_run_at_the_same_time_on_one_copy_of_the_context() -> None:
    began = 0

    async def together(_task: Any) -> task_pb2.EvaluationOutput:
        nonlocal began
        began += 1
        await until(lambda: began == 10)
        return PASSED

    async with (
        serving() as live,
        worker(live, *(f"acme.t{n}" for n in range(10)), behave=together, credit=10),
    ):
        summary = (await live.unary(request(*(spec(f"acme.t{n}") for n in range(10))))).summary
        assert summary.passed_count == 10


async def test_a_deregistered_plugin_is_not_dialled_again() -> None:
    async with (
        serving(remote_allowed=LOOPBACK, remote_health_seconds=0.05) as live,
        listening("acme.word") as plugin,
    ):
        lease = await register(live, plugin)
        await deregister(live, lease.lease_id)
        seen = plugin.describes
        await asyncio.sleep(0.3)
        assert plugin.describes == seen


class Flapping:
    """Every other task finds it down."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self, _task: Any) -> task_pb2.EvaluationOutput:
        self.calls += 1
        if self.calls % 2:
            raise Refused(grpc.StatusCode.UNAVAILABLE)
        return PASSED


async def test_four_bad_plugins_beside_three_honest_ones_under_load() -> None:
    async def honest(task: task_pb2.EvaluationTask) -> task_pb2.EvaluationOutput:
        await asyncio.sleep(0.005)
        text = task.context.messages[-1].text
        passed = len(text) % 2 == 0
        return task_pb2.EvaluationOutput(verdict=1 if passed else 2, score=float(passed), reason=text)

    crashing = Listening("bad.crashing", behave=passes)

    async def dies(_task: Any) -> Any:
        asyncio.get_running_loop().create_task(crashing.stop())
        return await hangs(_task)

    crashing.behave = dies
    bad: dict[str, Listening] = {
        "bad.hanging": Listening("bad.hanging", behave=hangs),
        "bad.flapping": Listening("bad.flapping", behave=Flapping()),
        "bad.lying": Listening("bad.lying", behave=answers(verdict=1, score=7)),
        "bad.crashing": crashing,
    }
    good = [Listening(f"good.n{number}", behave=honest) for number in range(3)]
    async with serving(remote_allowed=LOOPBACK, max_inflight=512) as live:
        for plugin in [*bad.values(), *good]:
            await plugin.start()
            await register(live, plugin, plugin.info.evaluator_types[0].type)
        codes: dict[str, Counter[str]] = {name: Counter() for name in bad}
        offered = 0
        wrong: list[Any] = []

        async def load(number: int) -> None:
            nonlocal offered
            while offered < 300:
                answer = "x" * (number + offered % 7)
                specs = [
                    spec("bad.hanging", timeout={"nanos": 200_000_000}),
                    *(spec(name) for name in bad if name != "bad.hanging"),
                    *(spec(f"good.n{n}") for n in range(3)),
                ]
                offered += 1
                results = (await live.unary(request(*specs, answer=answer))).summary.results
                for result in results[:4]:
                    codes[result.type][result.error.code or "passed"] += 1
                wanted = (1 if len(answer) % 2 == 0 else 2, answer)
                wrong.extend(one for one in results[4:] if (one.verdict, one.reason) != wanted)

        await asyncio.gather(*(load(number) for number in range(8)))
        assert not wrong
        assert codes["bad.lying"].keys() == {"CONTRACT_VIOLATION"}
        assert codes["bad.hanging"].keys() == {"TIMEOUT", "REMOTE_CIRCUIT_OPEN"}
        assert codes["bad.crashing"].keys() <= {"REMOTE_UNAVAILABLE"}
        assert codes["bad.flapping"].keys() <= {"passed", "REMOTE_UNAVAILABLE", "REMOTE_CIRCUIT_OPEN"}
        for plugin in [*bad.values(), *good]:
            assert len(plugin.tasks) <= 1.2 * offered, plugin.info.evaluator_types[0].type
        for plugin in [*bad.values(), *good]:
            await plugin.stop()
