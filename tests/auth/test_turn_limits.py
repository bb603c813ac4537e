"""The turns of a principal: so many per second."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count, repeat
from pathlib import Path
from typing import Any

import grpc
import pytest

from evald.v1 import evaluation_service_pb2 as pb
from evald.v1 import run_service_pb2
from evald.v1.suite_service_pb2_grpc import SuiteServiceStub
from evald_server.auth.keys import add_key, new_key, read_keys
from evald_server.auth.limits import TurnLimits
from evald_server.auth.principal import Principal, Role
from evald_server.auth.refusals import AccessDenied

from ..http.api import CHAT, REGEX
from ..http.exchange import JSON, send
from ..http.test_bridge import web
from ..monitoring.scrape import value
from ..rpc import suite_floor as suites
from ..rpc import test_batches as batches
from ..rpc import test_sessions as sessions
from ..rpc.live import CONTAINS, EVALUATION, Live, Refusal, refusal, request, until
from ..rpc.test_runs import Floor
from .keyring import Metadata, bearer, guarded


def make_key(path: Path, principal: str = "ci", **limits: Any) -> str:
    """A key with these limits."""
    text, key = new_key(principal, [Role.CALLER, Role.ADMIN], **limits)
    add_key(path, key)
    return text


def change_limits(path: Path, principal: str, **limits: Any) -> None:
    """Change the keys of a principal in a file."""
    keys = read_keys(path)
    path.unlink()
    for key in keys.values():
        add_key(path, key.model_copy(update=limits) if key.principal == principal else key)


async def reason_of(call: Awaitable[Any]) -> str:
    """Why a call is refused; "" for one that is not."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return Refusal(error).reason
    return ""


# Each way asks for the turns that are said, and gives an outcome for each: "passed", or why it was not evaluated.


async def by_unary(live: Live, metadata: Metadata, turns: int) -> list[str]:
    calls = [await reason_of(live.unary(request(CONTAINS), metadata=metadata)) for _ in range(turns)]
    return [reason or "passed" for reason in calls]


async def by_stream(live: Live, metadata: Metadata, turns: int) -> list[str]:
    calls = [await reason_of(live.stream(request(CONTAINS), metadata=metadata)) for _ in range(turns)]
    return [reason or "passed" for reason in calls]


async def by_batch(live: Live, metadata: Metadata, turns: int) -> list[str]:
    call = live.channel.stream_stream(EVALUATION + "EvaluateBatch")
    frames = [batches.opened(CONTAINS), batches.items(*repeat("hello", turns))]
    stream = call(iter([frame.SerializeToString() for frame in frames]), metadata=metadata)
    found = [pb.EvaluateBatchResponse.FromString(data) async for data in stream]
    answers = {answer.item_id: answer for message in found for answer in message.answers}
    outcomes = [answers[f"i{number}"] for number in range(turns)]
    passed = [answer.summary.success for answer in outcomes]
    summary = found[-1].summary
    assert (summary.item_count, summary.passed_count) == (turns, sum(passed))
    assert (summary.error_count, summary.failed_count) == (turns - sum(passed), 0)
    return ["passed" if answer.summary.success else answer.error.code for answer in outcomes]


async def by_session(live: Live, metadata: Metadata, turns: int) -> list[str]:
    call = live.channel.stream_stream(EVALUATION + "EvaluateSession")
    frames = [sessions.opened(CONTAINS), *(sessions.turn(number, "hello") for number in range(1, turns + 1))]
    stream = call(iter([frame.SerializeToString() for frame in frames]), metadata=metadata)
    *answers, last = [pb.EvaluateSessionResponse.FromString(data) async for data in stream]
    outcomes = ["passed" if one.event.summary.success else one.error.code for one in answers]
    assert last.session_summary.success == (outcomes == ["passed"] * turns)
    assert last.session_summary.turn_count == turns
    return outcomes


async def by_suite(live: Live, metadata: Metadata, turns: int) -> list[str]:
    """Cases of one turn, in one message. The stream ends at the first case that may not be evaluated."""

    async def requests() -> AsyncIterator[Any]:
        cases = [suites.recorded(f"case {number}", "hello") for number in range(turns)]
        yield suites.RunSuiteRequest(open=suites.opened(), cases=cases)

    outcome = suites.Outcome()
    try:
        async for response in SuiteServiceStub(live.channel).RunSuite(requests(), metadata=metadata):
            suites.note(outcome, response)
    except grpc.aio.AioRpcError as error:
        passed = [str(verdict == suites.PASSED and "passed") for verdict in outcome.verdicts.values()]
        assert outcome.ended is None
        return [*passed, *repeat(Refusal(error).reason, turns - len(passed))]
    return ["passed"] * outcome.run.passed_count


async def by_run(live: Live, metadata: Metadata, turns: int) -> list[str]:
    """Runs of two turns each."""
    floor = Floor(live, metadata)
    name = str(next(_NUMBERS))
    scenario, connector = await floor.scenario(name=name), await floor.connector(name=name)
    outcomes: list[str] = []
    while len(outcomes) < turns:
        run = await floor.start(scenario, connector)

        async def settled(run_id: str = run.id) -> bool:
            status = (await floor.get(run_id)).status
            return status not in (run_service_pb2.RUN_STATUS_QUEUED, run_service_pb2.RUN_STATUS_RUNNING)

        await until(settled, 30)
        run = await floor.get(run.id)
        outcomes += ["passed"] * run.turn_count
    return outcomes


async def by_http(live: Live, metadata: Metadata, turns: int) -> list[str]:
    body = json.dumps({"messages": CHAT, "evaluators": [REGEX]}).encode()
    outcomes = []
    for _ in range(turns):
        found = await send(web(live), "POST", "/api/evaluate", JSON | dict(metadata), body)
        if found.status == 429:
            assert int(found.headers["retry-after"]) <= 86_400
            outcomes.append(str(found.json["details"][0]["reason"]))
        else:
            assert found.json["success"] is True
            outcomes.append("passed")
    return outcomes


_NUMBERS = count()

WAYS: dict[str, Callable[[Live, Metadata, int], Awaitable[list[str]]]] = {
    "unary calls": by_unary,
    "streamed calls": by_stream,
    "a batch": by_batch,
    "a session": by_session,
    "a suite": by_suite,
    "runs": by_run,
    "the HTTP API": by_http,
}


async def test_the_time_that_a_run_waits_for_its_turns_is_no_part_of_its_duration(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    metadata = bearer(make_key(path, turn_rate=0.5))
    async with guarded(path) as live:
        began = asyncio.get_running_loop().time()
        run = await Floor(live, metadata).played()
        took = asyncio.get_running_loop().time() - began
        assert (run.turn_count, run.verdict) == (2, 1)
        assert took >= 1.9, "the second turn is due after two seconds"
        lasted = run.complete_time.ToNanoseconds() - run.start_time.ToNanoseconds()
        assert 0 < lasted / 1e9 <= took - 1.9


async def test_a_batch_waits_for_its_turns_and_holds_up_nobody_else(tmp_path: Path) -> None:
    """The server stops reading: of a hundred messages, those that wait for a turn stay with the caller."""
    path = tmp_path / "keys.toml"
    slow, other = make_key(path, turn_rate=0.01), make_key(path, "other", turn_rate=1000)
    async with guarded(path) as live:
        batch = live.channel.stream_stream(EVALUATION + "EvaluateBatch")(metadata=bearer(slow))
        frame = batches.opened(CONTAINS)
        frame.MergeFrom(batches.items("hello"))
        await batch.write(frame.SerializeToString())
        for number in range(1, 100):
            await batch.write(batches.items("hello", start=number).SerializeToString())
        await batch.done_writing()
        first = pb.EvaluateBatchResponse.FromString(await batch.read())
        assert [answer.item_id for answer in first.answers] == ["i0"]
        assert await by_unary(live, bearer(other), 20) == ["passed"] * 20
        assert await by_batch(live, bearer(other), 20) == ["passed"] * 20
        received = value(live.app.telemetry, "grpc_server_msg_received_total", grpc_method="EvaluateBatch")
        assert received is not None
        assert received <= 2 + 2, "of this batch, and of the other one"
        limited = value(live.app.telemetry, "evald_principal_limited_total", limit="turn_rate")
        assert limited == 1

        refused = await refusal(live.unary(request(CONTAINS), metadata=bearer(slow)))
        assert (refused.reason, refused.info.metadata["limit"]) == ("RATE_LIMITED", "turn_rate")
        assert refused.retry
        assert refused.retry > 1

        # More turns per second hold for what comes next.
        change_limits(path, "ci", turn_rate=1000)
        await until(lambda: live.app._gate._streams and _rate_of(live, "ci") == 1000)
        batch.cancel()
        await until(lambda: not live.app._rpc.open_streams)
        await until(lambda: _passes(live, slow))


def _rate_of(live: Live, principal: str) -> float | None:
    streams = live.app._gate._streams.values()
    (rate,) = {
        call.principal.turn_rate
        for calls in streams
        for call in calls.values()
        if call.principal.name == principal
    }
    return rate


async def _passes(live: Live, key: str) -> bool:
    return await by_unary(live, bearer(key), 1) == ["passed"]


@pytest.mark.parametrize("way", ["batch", "session"])
async def test_the_deadline_of_a_stream_that_waits_holds(way: str, tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    key = make_key(path, turn_rate=0.01)
    async with guarded(path) as live:
        assert await by_unary(live, bearer(key), 1) == ["passed"]
        if way == "batch":
            frames: list[Any] = [batches.opened(CONTAINS), batches.items("hello")]
        else:
            frames = [sessions.opened(CONTAINS), sessions.turn(1, "hello")]
        stream = live.channel.stream_stream(f"{EVALUATION}Evaluate{way.title()}")(
            iter([frame.SerializeToString() for frame in frames]), metadata=bearer(key), timeout=0.5
        )
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await stream.read()
        assert ended.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: not live.app._rpc.open_streams)
        # What a cancelled caller has waited for is there for others: the next turn is not a second one away.
        refused = await refusal(live.unary(request(CONTAINS), metadata=bearer(key)))
        assert refused.retry
        assert refused.retry <= 100


async def test_every_way_keeps_to_the_rate(tmp_path: Path) -> None:
    """Thirty turns at twenty per second, of which twenty may begin at once."""
    path = tmp_path / "keys.toml"
    keys = {name: make_key(path, f"p{number}", turn_rate=20) for number, name in enumerate(WAYS)}
    async with guarded(path, web="127.0.0.1:0") as live:
        loop = asyncio.get_running_loop()
        for name, way in WAYS.items():
            began = loop.time()
            assert await way(live, bearer(keys[name]), 30) == ["passed"] * 30, name
            assert loop.time() - began >= 0.4, name


async def test_one_second_s_worth_may_begin_at_once_and_waits_are_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, counted = [100.0], list[str]()
    limits = TurnLimits(counted.append, clock=lambda: now[0])
    limited = Principal("ci", frozenset((Role.CALLER,)), turn_rate=40.0)
    monkeypatch.setattr("evald_server.auth.limits.caller", lambda: limited)
    assert await limits.take(100) == 40
    with pytest.raises(AccessDenied) as refused:
        await limits.take(longest_wait=0.02)
    assert refused.value.retry_seconds == pytest.approx(1 / 40)
    waiting = [asyncio.create_task(limits.take(100)) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(AccessDenied) as refused:
        await limits.take(longest_wait=0.02)
    assert refused.value.retry_seconds == pytest.approx((3 * 4 + 1) / 40), "a tenth of a second's worth each"
    waiting[0].cancel()
    assert await asyncio.gather(*waiting[1:]) == [4, 4]
    with pytest.raises(AccessDenied) as refused:
        await limits.take(longest_wait=0.02)
    assert refused.value.retry_seconds == pytest.approx((2 * 4 + 1) / 40), (
        "the cancelled one has given its turns back"
    )
    now[0] += 3600
    assert await limits.take(100) == 40
    assert counted == ["turn_rate"] * 6
