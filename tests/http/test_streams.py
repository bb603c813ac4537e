"""Answers that are sent as they come: cut ones go on where they were, quiet ones say that they live, and much data is
converted beside the event loop."""

import asyncio
import gc
import json
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from evald.evaluator import define_evaluator
from evald.result import Kind
from evald_server import app
from evald_server.calibration.card import CalibrationCard
from evald_server.http import calls
from evald_server.http.api import evaluate
from evald_server.testing import async_server

from ..rpc.live import serving, until
from .api import CHAT, REGEX, api, lines_of, ndjson
from .cutting_proxy import CuttingProxy
from .exchange import JSON, connected, head, receive, send
from .test_bridge import web
from .test_console_browser import GATE, Gated, start_run


class Heard(NamedTuple):
    """A server-sent event."""

    id: str
    event: str
    data: str


async def events(address: str, run_id: str, after: str = "") -> AsyncIterator[Heard]:
    """The events of a run, each when it is whole. Raises httpx.TransportError when the connection is cut."""
    headers = {"last-event-id": after} if after else {}
    url = f"http://{address}/api/runs/{run_id}/events"
    rest = ""
    async with (
        httpx.AsyncClient(timeout=30, trust_env=False, verify=False) as client,
        client.stream("GET", url, headers=headers) as response,
    ):
        async for text in response.aiter_text():
            *whole, rest = (rest + text).split("\n\n")
            for one in whole:
                fields = dict(line.split(": ", 1) for line in one.splitlines() if not line.startswith(":"))
                if fields:
                    yield Heard(**fields)


async def test_a_watch_that_is_cut_again_and_again_loses_nothing_and_doubles_nothing() -> None:
    """The connection is broken after 400 bytes of the answer, the next after 800, and so on: in the head, between
    events and in the midst of them, while the run goes on and after its end."""
    heard: list[Heard] = []
    cuts = 0
    async with async_server(Gated, web="127.0.0.1:0") as found:
        assert found.web_address is not None
        run_id = await asyncio.to_thread(start_run, found)
        with CuttingProxy(found.web_address) as proxy:
            while not heard or heard[-1].event != "end":
                proxy.budget = 400 * (cuts + 1)
                try:
                    async for event in events(proxy.address, run_id, heard[-1].id if heard else ""):
                        heard.append(event)
                        if (
                            event.event == "message"
                            and json.loads(event.data)["message"]["role"] == "assistant"
                        ):
                            GATE.open()
                except httpx.TransportError:
                    cuts += 1
        assert cuts > 3
        assert heard == [event async for event in events(found.web_address, run_id)]
        assert [one.event for one in heard].count("result") == 3


async def test_a_quiet_watch_is_open_at_once_and_then_says_that_it_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calls, "KEEPALIVE_SECONDS", 0.02)
    async with async_server(Gated, web="127.0.0.1:0") as found:
        assert found.web_address is not None
        run_id = await asyncio.to_thread(start_run, found)
        async with connected(found.web_address) as (reader, writer):
            path = f"/api/runs/{run_id}/events?after={2**50}"  # after all that there will be
            writer.write(head("GET", path, {"host": "localhost"}))
            answer = await reader.readuntil(b":\n\n\r\n3\r\n:\n\n")
        assert answer.startswith(b"HTTP/1.1 200")
        for _ in range(3):
            GATE.open()
        assert [event async for event in events(found.web_address, run_id)][-1].event == "end"


@pytest.mark.parametrize("path", ["/api/runs/{}/events", "/console/runs/{}/events"])
async def test_the_head_of_a_watch_ends_while_the_run_goes_on_and_takes_no_place_of_a_stream(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "web_streams", lambda: 1)
    async with async_server(Gated, web="127.0.0.1:0") as found, AsyncExitStack() as open_ones:
        assert found.web_address is not None
        run_id = await asyncio.to_thread(start_run, found)
        for after in (0, 2**50):
            reader, writer = await open_ones.enter_async_context(connected(found.web_address))
            writer.write(head("HEAD", f"{path.format(run_id)}?after={after}", {"host": "localhost"}))
            async with asyncio.timeout(30):
                answer = await receive(reader, "HEAD")
            assert (answer.status, answer.headers["content-type"]) == (200, "text/event-stream")
        for _ in range(3):
            GATE.open()
        assert [event async for event in events(found.web_address, run_id)][-1].event == "end"


async def test_what_fails_after_it_began_says_so_in_its_last_event() -> None:
    async with serving([Gated.definition()], web="127.0.0.1:0") as live:
        address = web(live)
        body = json.dumps({"messages": CHAT, "evaluators": [REGEX, "gated"]}).encode()
        async with connected(address) as (reader, writer):
            sent = JSON | {
                "host": "localhost",
                "accept": "text/event-stream",
                "content-length": str(len(body)),
            }
            writer.write(head("POST", "/api/evaluate", sent) + body)
            await reader.readuntil(b"event: result\n")
            stopping = asyncio.create_task(live.app.stop(0))
            rest = await reader.read()
            await stopping
        last = rest.decode().split("\n\n")[-2]
        assert "event: error" in last
        assert '"error":{"code":' in last
        GATE.open()


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
async def test_a_large_batch_is_read_beside_the_event_loop(
    large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: dict[str, int] = {}

    def note(name: str) -> None:
        """Have a function say in which thread it ran."""
        function = getattr(evaluate, name)

        def noted(*arguments: Any) -> Any:
            threads[name] = threading.get_ident()
            return function(*arguments)

        monkeypatch.setattr(evaluate, name, noted)

    note("_opened")
    note("_add")
    said = "x" * (1 << 20 if large else 10)
    turn = [CHAT[0], {"role": "assistant", "content": f"{said} BK-1"}]
    async with api() as client:
        answers = lines_of(
            await client.post("/api/evaluate-batch", **ndjson([{"evaluators": [REGEX]}, {"messages": turn}]))
        )
    assert answers[0]["evaluation"]["verdict"] == "PASSED"
    assert [thread != threading.get_ident() for thread in threads.values()] == [large, large]


async def test_calibration_cards_are_read_beside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []
    read = CalibrationCard.model_validate_json

    def noted(data: bytes) -> Any:
        threads.append(threading.get_ident())
        return read(data)

    monkeypatch.setattr(CalibrationCard, "model_validate_json", noted)
    (tmp_path / "calibrations").mkdir()
    (tmp_path / "calibrations" / "a.json").write_text("{}")
    async with api(data_dir=tmp_path) as client:
        assert (await client.get("/api/calibrations")).json() == []
        assert (await client.get("/api/calibrations/a")).status_code == 404
        assert (await client.get("/console/judge")).status_code == 200
    assert len(threads) == 3
    assert threading.get_ident() not in threads


async def test_callers_who_leave_amid_a_stream_leave_no_generator_to_the_collector(tmp_path: Path) -> None:
    """Such a one would be closed at any time, even while the loop ends."""

    async def hang(_ctx: Any) -> bool:
        await asyncio.Event().wait()
        return True

    left: list[str] = []

    def collected(generator: AsyncGenerator[Any]) -> None:
        if "evald_server" in generator.ag_code.co_filename:
            left.append(generator.ag_code.co_qualname)
        before.finalizer(generator)

    hanging = define_evaluator(type="hang", kind=Kind.ASSERTION, evaluate=hang)
    evaluators = [{"type": "hang"}]
    spoken = {"turns": [{"input": [CHAT[0]]}], "recordedTrials": [{"answers": [{"messages": [CHAT[-1]]}]}]}
    case = {"id": "1", "messages": CHAT}
    requests = {
        "/api/evaluate-batch": [{"evaluators": evaluators}, *[case] * 2000],
        "/api/suite-runs": [
            {"suite": "s", "evaluators": evaluators},
            *({"caseId": str(number), **spoken} for number in range(2000)),
        ],
        "/api/evaluate": [{"messages": CHAT, "evaluators": evaluators}],
        "/console/scenarios/export": [],
    }
    async with serving([hanging], web="127.0.0.1:0", data_dir=tmp_path) as live:
        stored = {"name": "s", "successCriteria": "c", "instructions": "i" * 200_000}
        for number in range(60):
            body = json.dumps(stored | {"name": f"s{number}"}).encode()
            assert (await send(web(live), "POST", "/api/scenarios", JSON, body)).status == 201
        before: Any = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(before.firstiter, collected)
        for path, lines in requests.items():
            body = b"\n".join(json.dumps(line).encode() for line in lines)
            sent = {"host": web(live), "accept": "application/x-ndjson", "content-length": str(len(body))}
            async with connected(web(live)) as (reader, writer):
                kind = {"content-type": "application/x-ndjson"} if len(lines) > 1 else JSON
                writer.write(head("POST" if lines else "GET", path, sent | kind) + body)
                if lines:
                    await until(lambda: live.app.admission.inflight, 60)
                else:
                    assert await reader.readexactly(12) == b"HTTP/1.1 200"
                writer.transport.abort()
            await until(lambda: not live.app.admission.inflight and not live.app._web._state.tasks, 60)  # type: ignore[union-attr]
        gc.collect()
        sys.set_asyncgen_hooks(before.firstiter, before.finalizer)
    assert not left
