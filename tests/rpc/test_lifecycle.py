"""Start, health, reflection, drain and stop."""

import asyncio
import socket
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from evald.evaluator import define_evaluator
from evald.result import Kind
from evald.v1 import evaluation_service_pb2
from evald_server.app import App, StartError
from evald_server.config import RemoteTarget, Settings
from evald_server.store.database import FILE_NAME

from . import raw_http2
from .live import CONTAINS, EVALUATION, Live, refusal, request, serving, spec, until


async def health(live: Live, service: str = "") -> int:
    data = await live.raw(
        "/grpc.health.v1.Health/Check", health_pb2.HealthCheckRequest(service=service).SerializeToString()
    )
    return health_pb2.HealthCheckResponse.FromString(data).status


async def test_health_answers_for_the_server_and_each_service() -> None:
    async with serving() as live:
        for service in ("", "evald.v1.EvaluationService", "evald.v1.CatalogService"):
            assert await health(live, service) == health_pb2.HealthCheckResponse.SERVING
        assert (await refusal(health(live, "nope"))).code is grpc.StatusCode.NOT_FOUND
        refused = await refusal(live.raw("/grpc.health.v1.Health/Check", b"\xff\xff"))
        assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
        watch = live.channel.unary_stream("/grpc.health.v1.Health/Watch")
        refused = await refusal(watch(b"\xff\xff").read())
        assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
        unknown = watch(health_pb2.HealthCheckRequest(service="nope").SerializeToString())
        answer = health_pb2.HealthCheckResponse.FromString(await unknown.read())
        assert answer.status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        unknown.cancel()


async def test_a_store_that_cannot_be_used_is_told_and_evaluation_goes_on(tmp_path: Path) -> None:
    path, away = tmp_path / FILE_NAME, tmp_path / "away"
    async with (
        serving(http="127.0.0.1:0", data_dir=tmp_path) as live,
        httpx.AsyncClient(base_url=f"http://{live.app.http_address}") as web,
    ):

        async def state() -> tuple[Any, ...]:
            ready = await web.get("/readyz")
            (degraded,) = [
                line
                for line in (await web.get("/metrics")).text.splitlines()
                if "store_degraded " in line and "#" not in line
            ]
            services = [
                await health(live, f"evald.v1.{name}Service") for name in ("Evaluation", "Run", "Suite")
            ]
            assert (await live.unary(request(CONTAINS))).summary.success
            return ready.status_code, ready.text, degraded[-3:], services

        serving_, not_serving = (
            health_pb2.HealthCheckResponse.SERVING,
            health_pb2.HealthCheckResponse.NOT_SERVING,
        )
        well = (200, "ready\n", "0.0", [serving_] * 3)
        assert await state() == well
        path.rename(away)
        problem = await refusal(live.raw("/evald.v1.RunService/ListRuns", b""))
        assert problem.reason == "STORAGE_UNAVAILABLE"
        status, text, degraded, services = await state()
        assert (status, degraded, services) == (200, "1.0", [serving_, not_serving, not_serving])
        assert text == f"ready, but the store cannot be used: {problem.message}\n"
        away.rename(path)
        await live.app.database.probe()
        assert await state() == well


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_reflection_lists_the_services_and_describes_them(version: str) -> None:
    async with serving() as live:
        asked = [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol="evald.v1.EvaluationService"),
            reflection_pb2.ServerReflectionRequest(
                file_containing_symbol=f"grpc.reflection.{version}.ServerReflection"
            ),
        ]
        stream = live.channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
        )(iter([one.SerializeToString() for one in asked]))
        listed, described, own = [
            reflection_pb2.ServerReflectionResponse.FromString(data) async for data in stream
        ]
        names = {service.name for service in listed.list_services_response.service}
        assert {
            "evald.v1.EvaluationService",
            "evald.v1.CatalogService",
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
            "grpc.reflection.v1alpha.ServerReflection",
        } <= names
        assert described.file_descriptor_response.file_descriptor_proto
        (data,) = own.file_descriptor_response.file_descriptor_proto
        # All messages are of this version, too.
        assert (b".v1alpha." in data) == (version == "v1alpha")


def _watch_without_window(address: str) -> socket.socket:
    """Watch the health over a connection whose flow-control window is 0, so that no answer can be written."""
    initial_window_size = (4).to_bytes(2, "big") + bytes(4)
    return raw_http2.call(address, b"/grpc.health.v1.Health/Watch", settings=initial_window_size)


async def test_a_watcher_that_takes_no_answer_holds_up_neither_others_nor_the_change() -> None:
    async with serving(drain_delay=3.0) as live:
        with await asyncio.to_thread(_watch_without_window, live.app.address):
            await asyncio.sleep(0.2)  # the server has read it
            watch = live.channel.unary_stream("/grpc.health.v1.Health/Watch")(b"")
            assert health_pb2.HealthCheckResponse.FromString(await watch.read()).status == 1
            stopping = asyncio.create_task(live.app.stop(0.1))
            assert health_pb2.HealthCheckResponse.FromString(await watch.read()).status == 2
            assert await health(live) == health_pb2.HealthCheckResponse.NOT_SERVING
            again = asyncio.ensure_future(watch.read())
            assert not (await asyncio.wait([again], timeout=0.2))[0], "the status was sent twice"
            again.cancel()
            await stopping


async def test_two_servers_cannot_have_the_same_port() -> None:
    async with serving() as live:
        second = App(Settings(listen=live.app.address, http=None, web=None))
        with pytest.raises(StartError, match="is not available"):
            await second.start()


async def test_a_server_that_cannot_listen_leaves_nothing_running(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        settings = Settings(
            listen=address,
            http=None,
            web=None,
            data_dir=tmp_path,
            remote_targets=[RemoteTarget(target="127.0.0.1:9")],
        )
        before = asyncio.all_tasks()
        with pytest.raises(StartError, match="is not available"):
            await App(settings).start()
        assert asyncio.all_tasks() == before


def test_a_public_address_is_refused_unless_asked_for() -> None:
    with pytest.raises(ValueError, match="neither encrypted nor"):
        Settings(listen="0.0.0.0:0")
    assert Settings(listen="0.0.0.0:0", insecure_public=True).listen == "0.0.0.0:0"


async def test_stopping_turns_health_first_refuses_new_calls_and_lets_open_ones_finish() -> None:
    begun, release = threading.Event(), threading.Event()

    def slow(_ctx: Any) -> bool:
        begun.set()
        return release.wait(30)

    waiting = define_evaluator(type="slow", kind=Kind.ASSERTION, evaluate=slow)
    async with serving([waiting], drain_delay=3.0) as live:
        watch = live.channel.unary_stream("/grpc.health.v1.Health/Watch")(b"")
        assert health_pb2.HealthCheckResponse.FromString(await watch.read()).status == 1
        open_call = asyncio.create_task(live.unary(request(spec("slow"))))
        await until(begun.is_set)
        stopping = asyncio.create_task(live.app.stop(30))
        assert health_pb2.HealthCheckResponse.FromString(await watch.read()).status == 2
        # Within the delay, calls are still answered: load balancers have not noticed yet.
        assert (await live.unary(request(CONTAINS))).summary.success

        async def is_refused() -> bool:
            try:
                await live.unary(request(CONTAINS))
            except grpc.aio.AioRpcError as error:
                return error.code() is grpc.StatusCode.UNAVAILABLE
            return False

        await until(is_refused)
        release.set()
        assert (await open_call).summary.success
        watch.cancel()
        async with asyncio.timeout(15):  # and not as long as the grace
            await stopping


async def test_sessions_that_outlast_the_grace_are_told_why_they_end() -> None:
    async with serving() as live:
        frame = evaluation_service_pb2.EvaluateSessionRequest()
        frame.open.evaluators.append(CONTAINS)
        call = live.channel.stream_stream(EVALUATION + "EvaluateSession")()
        await call.write(frame.SerializeToString())
        await until(lambda: live.app._rpc.open_streams)
        stopping = asyncio.create_task(live.app.stop(0.2))
        refused = await refusal(call.read())
        await stopping
        assert (refused.code, refused.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")


async def test_more_streams_than_allowed_are_refused_with_a_time_to_come_back() -> None:
    async with serving(max_streams=1) as live:
        first = live.channel.stream_stream(EVALUATION + "EvaluateSession")()
        frame = evaluation_service_pb2.EvaluateSessionRequest()
        frame.open.evaluators.append(CONTAINS)
        await first.write(frame.SerializeToString())
        await until(lambda: live.app._rpc.open_streams)
        second = live.channel.stream_stream(EVALUATION + "EvaluateSession")()
        refused = await refusal(second.read())
        assert (refused.code, refused.reason) == (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "TOO_MANY_STREAMS",
        )
        assert refused.retry
        first.cancel()


async def test_an_unknown_method_is_unimplemented() -> None:
    async with serving() as live:
        for method in (EVALUATION + "Nope", "/other.Service/Method"):
            refused = await refusal(live.raw(method, b""))
            assert refused.code is grpc.StatusCode.UNIMPLEMENTED
            assert refused.reason == "UNKNOWN_METHOD"


async def test_metrics_answer_the_hosts_of_the_web_port() -> None:
    async with (
        serving(http="127.0.0.1:0", web_hosts=["evald.example.org"]) as live,
        httpx.AsyncClient(base_url=f"http://{live.app.http_address}") as web,
    ):
        for host, status in {
            "127.0.0.1:9464": 200,
            "LOCALHOST": 200,
            "[::1]:9464": 200,
            "evald.example.org:9464": 200,
            "evald.example.org.": 200,
            "attacker.example": 421,
            "127.0.0.1.attacker.example": 421,
            "": 421,
        }.items():
            answer = await web.get("/metrics", headers={"Host": host})
            assert (host, answer.status_code) == (host, status)
        assert "EVALD_WEB_HOSTS" in answer.text
        assert (await web.get("/readyz", headers={"Host": "attacker.example"})).status_code == 200
