"""A worker that listens serves the contract, and keeps itself registered."""

import asyncio
import math
import socket
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import evald
from evald.plugin.v1 import evaluator_plugin_service_pb2 as pb
from evald.plugin.v1 import evaluator_plugin_service_pb2_grpc, registry_service_pb2, task_pb2
from evald.v1 import result_pb2
from evald.worker.listening import SERVICE

from ..attempts import attempts
from ..rpc.live import until
from .evaluators import Blocking, Counting, Sleepy, length, polite, scoped, scopes
from .registry import Registry, registry, take, task


class Plugin:
    """A worker, and a server's channel to it."""

    def __init__(self, worker: evald.ListeningWorker, channel: grpc.aio.Channel) -> None:
        self.worker = worker
        self.channel = channel
        self.stub = evaluator_plugin_service_pb2_grpc.EvaluatorPluginServiceStub(channel)

    async def evaluate(self, wanted: task_pb2.EvaluationTask, **call: Any) -> task_pb2.EvaluationOutput:
        response = await self.stub.Evaluate(pb.EvaluateRequest(task=wanted), **call)
        return response.output  # type: ignore[no-any-return]

    async def health(self, service: str = SERVICE) -> int:
        stub = health_pb2_grpc.HealthStub(self.channel)
        return (await stub.Check(health_pb2.HealthCheckRequest(service=service))).status  # type: ignore[no-any-return]


@asynccontextmanager
async def listening(*evaluators: Any, **options: Any) -> AsyncIterator[Plugin]:
    async with (
        evald.ListeningWorker(*evaluators, **options) as worker,
        grpc.aio.insecure_channel(worker.address) as channel,
    ):
        yield Plugin(worker, channel)


async def test_it_describes_itself() -> None:
    async with listening(polite, length, name="acme.checks", version="2.1") as plugin:
        described = (await plugin.stub.Describe(pb.DescribeRequest())).plugin
        assert (described.name, described.version) == ("acme.checks", "2.1")
        assert [one.type for one in described.evaluator_types] == ["acme.polite", "acme.length"]
        assert not described.capabilities


async def test_it_evaluates_and_refuses_garbage() -> None:
    async with listening(polite) as plugin:
        assert (await plugin.evaluate(task())).verdict == result_pb2.VERDICT_PASSED
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await plugin.channel.unary_unary(f"/{SERVICE}/Evaluate")(b"\xff\xff\xff")
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_the_call_s_deadline_and_trace_reach_the_evaluator() -> None:
    scopes.clear()
    async with listening(scoped) as plugin:
        await plugin.evaluate(
            task(type="acme.scoped"), timeout=5, metadata=(("traceparent", "00-1-1-00"), ("other", "x"))
        )
    left = scopes[0].time_left()
    assert left is not None
    # gRPC rounds the time up on its way.
    assert 0 < left <= 5.1
    assert scopes[0].trace_context == {"traceparent": "00-1-1-00"}


async def test_the_task_s_time_is_kept_whatever_the_call_allows() -> None:
    async with listening(Sleepy) as plugin:
        output = await plugin.evaluate(
            task(type="acme.sleepy", config={"seconds": 30}, timeout_ms=50), timeout=20
        )
        assert output.error.code == "TIMEOUT"


@pytest.mark.alone
async def test_a_caller_that_goes_away_ends_the_work() -> None:
    Counting.reset()
    async with listening(Counting) as plugin:
        for tried, attempt in enumerate(attempts(0.25), start=1):
            wanted = task(str(tried), "acme.counting", config={"seconds": 30})
            call = plugin.stub.Evaluate(pb.EvaluateRequest(task=wanted))
            await until(lambda: Counting.evaluated == tried)  # noqa: B023 - it is over by then
            with attempt:
                call.cancel()
                await until(lambda: Counting.ended == tried)  # noqa: B023


async def test_health_and_reflection_answer() -> None:
    async with listening(polite) as plugin:
        for service in ("", SERVICE):
            assert await plugin.health(service) == health_pb2.HealthCheckResponse.SERVING
        stub = reflection_pb2_grpc.ServerReflectionStub(plugin.channel)
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        async for answer in stub.ServerReflectionInfo(iter([asked])):
            assert SERVICE in [one.name for one in answer.list_services_response.service]


async def test_stopping_says_not_serving_gives_the_lease_back_and_finishes_what_is_open() -> None:
    Counting.reset()
    async with registry() as server:
        worker = evald.ListeningWorker(Counting, register=server.address)
        await worker.__aenter__()
        await worker.registered()
        async with grpc.aio.insecure_channel(worker.address) as channel:
            plugin = Plugin(worker, channel)
            watching = health_pb2_grpc.HealthStub(channel).Watch(
                health_pb2.HealthCheckRequest(service=SERVICE)
            )
            assert (await watching.read()).status == health_pb2.HealthCheckResponse.SERVING
            open_task = asyncio.ensure_future(
                plugin.evaluate(task(type="acme.counting", config={"seconds": 0.4}))
            )
            await until(lambda: Counting.evaluated)
            stopping = asyncio.create_task(worker.__aexit__(None, None, None))
            assert (await watching.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            watching.cancel()
            assert (await take(server.deregistered)).drain
            assert (await open_task).verdict == result_pb2.VERDICT_PASSED
            await stopping


async def test_registering_says_where_it_is_and_renews_at_a_third() -> None:
    async with (
        registry() as server,
        evald.ListeningWorker(polite, register=server.address, tls_profile="mesh") as worker,
    ):
        await worker.registered()
        request = await take(server.registered)
        assert (request.target, request.tls_profile) == (worker.address, "mesh")
        assert request.plugin.evaluator_types[0].type == "acme.polite"
        began = time.monotonic()
        first, *_ = [await take(server.renewed) for _ in range(4)]
        assert first.lease_id == f"lease-{request.instance_id}"
        # Four renewals are three intervals of 100 ms apart.
        assert time.monotonic() - began >= 0.3


async def test_an_expired_lease_is_registered_again() -> None:
    async with registry() as server, evald.ListeningWorker(polite, register=server.address):
        first = await take(server.registered)
        server.lease_state = registry_service_pb2.LEASE_STATE_EXPIRED
        again = await take(server.registered)
        server.lease_state = registry_service_pb2.LEASE_STATE_ACTIVE
        assert again == first


async def test_a_revoked_worker_says_so_and_stays_away(caplog: pytest.LogCaptureFixture) -> None:
    async with registry() as server, listening(polite, register=server.address) as plugin:
        await take(server.registered)
        server.lease_state = registry_service_pb2.LEASE_STATE_REVOKED
        await until(lambda: "has removed this worker" in caplog.text)
        server.lease_state = registry_service_pb2.LEASE_STATE_ACTIVE
        renewals = server.renewed.qsize()
        await asyncio.sleep(0.5)
        assert server.registered.empty()
        assert server.renewed.qsize() == renewals
        # Those who know its address are still served.
        assert (await plugin.evaluate(task())).verdict == result_pb2.VERDICT_PASSED
    assert server.deregistered.empty()


async def test_a_server_that_comes_back_is_told_at_once_that_the_lease_lives() -> None:
    server = Registry()
    server.renew_ms = 60_000
    await server.start()
    async with evald.ListeningWorker(polite, register=server.address):
        lease = (await take(server.renewed)).lease_id
        await server.stop()
        again = Registry()
        await again.start(server.address)
        assert (await take(again.renewed)).lease_id == lease
        assert again.registered.empty()
        await again.stop()


async def test_a_refusal_for_good_is_raised() -> None:
    async with registry() as server:
        server.refuse = grpc.StatusCode.PERMISSION_DENIED
        async with evald.ListeningWorker(polite, register=server.address) as worker:
            with pytest.raises(evald.errors.PermissionDenied):
                await worker.registered()
            with pytest.raises(evald.errors.PermissionDenied):
                await worker.wait()


@pytest.mark.parametrize(
    ("options", "scheme", "target"),
    [
        ({"listen": "0.0.0.0:0", "insecure_public": True}, "", "127.0.0.1"),
        ({"listen": "0.0.0.0:0", "insecure_public": True}, "ipv4:", "127.0.0.1"),
        ({"advertise": "dns:///polite.evals.svc:1"}, "", "dns:///polite.evals.svc:1"),
    ],
    ids=["every interface", "every interface, a listed server", "told"],
)
async def test_the_target_is_one_that_others_can_reach(
    options: dict[str, Any], scheme: str, target: str
) -> None:
    async with (
        registry() as server,
        evald.ListeningWorker(polite, register=scheme + server.address, **options),
    ):
        assert (await take(server.registered)).target.startswith(target)


async def test_a_server_whose_name_nobody_resolves_yet_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    look_up = socket.getaddrinfo
    unknown = True

    def not_yet(host: Any, *args: Any, **kwargs: Any) -> Any:
        if unknown and host == "localhost":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return look_up(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", not_yet)
    async with registry() as server:
        name = server.address.replace("127.0.0.1", "localhost")
        async with evald.ListeningWorker(polite, listen="0.0.0.0:0", insecure_public=True, register=name):
            await until(lambda: "localhost" in caplog.text and "cannot resolve" in caplog.text)
            unknown = False
            assert (await take(server.registered)).target


def test_a_public_address_without_encryption_has_to_be_asked_for() -> None:
    with pytest.raises(ValueError, match="insecure_public"):
        evald.ListeningWorker(polite, listen="0.0.0.0:0")


async def test_an_address_that_is_taken_is_an_error_that_says_so() -> None:
    async with listening(polite) as plugin:
        with pytest.raises(OSError, match="another program may be using it"):
            async with evald.ListeningWorker(polite, listen=plugin.worker.address):
                pass


@pytest.mark.parametrize(
    ("evaluators", "options", "says"),
    [
        pytest.param((), {}, "no evaluators", id="nothing"),
        pytest.param((polite, polite), {}, "twice", id="twice"),
        pytest.param((lambda _: True,), {}, "@evald.assertion", id="bare function"),
        pytest.param((3,), {}, "wanted a subclass of Evaluator", id="no evaluator"),
        pytest.param((polite,), {"max_concurrency": 0}, "1 or more", id="no concurrency"),
        pytest.param((polite,), {"max_concurrency": "5"}, "max_concurrency: got '5'", id="concurrency"),
        pytest.param((polite,), {"grace_seconds": "5"}, "grace_seconds: got '5'", id="grace"),
        pytest.param((polite,), {"grace_seconds": math.nan}, "grace_seconds: got nan", id="grace NaN"),
        pytest.param((polite,), {"name": 5}, "name: got 5", id="name"),
        pytest.param((polite,), {"version": 5}, "version: got 5", id="version"),
    ],
)
@pytest.mark.parametrize("kind", [evald.ListeningWorker, evald.DiallingWorker])
def test_what_cannot_be_served_is_refused_before_anything_starts(
    kind: Any, evaluators: Any, options: dict[str, Any], says: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=says):
        kind(*evaluators, **options)


async def test_a_blocking_evaluator_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    for event in ("begun", "let_go"):
        monkeypatch.setattr(Blocking, event, threading.Event())
    async with listening(Blocking, polite) as plugin:
        slow = asyncio.ensure_future(plugin.evaluate(task("slow", "acme.blocking", config={"seconds": 30})))
        await until(Blocking.begun.is_set)
        assert (await plugin.evaluate(task("fast"))).verdict == result_pb2.VERDICT_PASSED
        assert not slow.done()
        Blocking.let_go.set()
        await slow
