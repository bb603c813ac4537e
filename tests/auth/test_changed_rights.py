"""Streams whose key has other roles or types than when they were opened: they end when these do not suffice."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pool

from evald.evaluator import define_evaluator
from evald.plugin.v1 import registry_service_pb2 as registry_pb2
from evald.result import Kind
from evald.v1 import evaluation_service_pb2 as evaluation_pb2
from evald.v1 import run_service_pb2 as runs_pb2
from evald.v1 import suite_service_pb2
from evald.v1.connector_service_pb2 import Connector, CreateConnectorRequest, CreateConnectorResponse
from evald.v1.context_pb2 import Scenario
from evald.v1.scenario_service_pb2 import CreateScenarioRequest, CreateScenarioResponse
from evald_server.auth.keys import add_key, read_keys, revoke_key
from evald_server.auth.principal import Role
from evald_server.auth.roles import METHODS, OPEN

from ..http.exchange import connected, head
from ..remote.scripted import REGISTRY, listening, plugin_info
from ..rpc.live import EVALUATION, Live, refusal, request, spec, until
from .issuer import Issuer
from .keyring import bearer, guarded, make_key
from .methods import EVERY_METHOD, NOT_SERVED, REFLECTION_V1

DENIED = grpc.StatusCode.PERMISSION_DENIED
SETTINGS = {"connector_secrets": ["AGENT"], "remote_allowed": ["127.0.0.1/32"]}

SESSION, WATCH_TYPES = f"{EVALUATION}EvaluateSession", "/evald.v1.CatalogService/WatchEvaluatorTypes"
CONNECT, KEEP_ALIVE = (f"/evald.plugin.v1.RegistryService/{name}" for name in ("Attach", "KeepAlive"))
RUN_SUITE = "/evald.v1.SuiteService/RunSuite"
EVALUATE, BATCH = f"{EVALUATION}Evaluate", f"{EVALUATION}EvaluateBatch"
WATCH_RUN, WATCH_REMOTES = "/evald.v1.RunService/WatchRun", f"{REGISTRY}WatchRegistrations"

# Of these no answer comes before they end.
SILENT = {RUN_SUITE, BATCH, REFLECTION_V1}

# method, roles and types of its key, what they become, and why the stream then ends.
CHANGED: dict[str, tuple[str, str, str, str, str, str]] = {
    "a role lost": (SESSION, "caller", "", "viewer", "", "ROLE_MISSING"),
    "another role lost": (SESSION, "caller viewer", "", "caller", "", ""),
    "a watch's role lost": (WATCH_TYPES, "viewer", "", "plugin", "", "ROLE_MISSING"),
    "one of a watch's roles lost": (WATCH_TYPES, "viewer admin", "", "admin", "", ""),
    "a worker's types lost": (CONNECT, "plugin", "acme.*", "plugin", "other.*", "TYPE_NOT_ALLOWED"),
    "other types lost": (CONNECT, "plugin", "acme.* x.*", "plugin", "acme.pii", ""),
    "a worker's role lost": (CONNECT, "plugin", "acme.*", "caller", "acme.*", "ROLE_MISSING"),
    "a role lost during renewals": (KEEP_ALIVE, "plugin", "acme.*", "caller", "acme.*", "ROLE_MISSING"),
    "admin lost, secrets named": (RUN_SUITE, "caller admin", "", "caller", "", "ROLE_MISSING"),
    "a role lost, secrets named": (RUN_SUITE, "caller admin viewer", "", "caller admin", "", ""),
    "a role lost during an evaluation": (EVALUATE, "caller", "", "viewer", "", "ROLE_MISSING"),
    "a role lost during a batch": (BATCH, "caller", "", "viewer", "", "ROLE_MISSING"),
    "a role lost during a run's watch": (WATCH_RUN, "viewer", "", "plugin", "", "ROLE_MISSING"),
    "a role lost during a watch of remotes": (WATCH_REMOTES, "viewer", "", "caller", "", "ROLE_MISSING"),
    "all but ingest lost": (REFLECTION_V1, "viewer", "", "ingest", "", "ROLE_MISSING"),
}


def test_the_table_has_every_stream() -> None:
    pool = descriptor_pool.Default()
    names = [
        pool.FindMethodByName(name[1:].replace("/", ".")) for name in EVERY_METHOD if name not in NOT_SERVED
    ]
    streams = {
        f"/{method.containing_service.full_name}/{method.name}"
        for method in names
        if method.client_streaming or method.server_streaming
    }
    closed = {method for method in streams if METHODS[method] is not OPEN}
    assert closed - {REFLECTION_V1.replace("v1", "v1alpha")} == {row[0] for row in CHANGED.values()} - {
        REFLECTION_V1
    }


@pytest.mark.parametrize("case", CHANGED)
async def test_a_stream_ends_when_its_key_may_no_longer_do_what_it_does_and_else_goes_on(
    case: str, tmp_path: Path
) -> None:
    method, roles, types, new_roles, new_types, reason = CHANGED[case]
    path = tmp_path / "keys.toml"
    key = make_key(path, "a", *map(Role, roles.split()), types=tuple(types.split()))
    witness, everything = make_key(path, "b", Role.CALLER), make_key(path, "c", *Role)
    async with listening("acme.pii") as plugin, guarded(path, evaluators=[_waiting()], **SETTINGS) as live:
        call: Any = live.channel.stream_stream(method)(metadata=bearer(key))
        await call.wait_for_connection()
        opener = everything if method == WATCH_RUN else key
        for message in await _opening(live, method, opener, plugin.address):
            await call.write(message)
            if method not in SILENT:
                await call.read()
        seen: Any = live.channel.stream_stream(SESSION)(metadata=bearer(witness))
        await seen.wait_for_connection()
        await until(lambda: len(live.app._gate._streams) == 2)
        _change_keys(path, {key[6:18]: (new_roles, new_types), witness[6:18]: ("viewer", "")})
        # Both are judged at a time.
        assert (await refusal(_to_the_end(seen))).reason == "ROLE_MISSING"
        if reason:
            ended = await refusal(_to_the_end(call))
            assert (ended.code, ended.reason) == (DENIED, reason)
        else:
            assert not call.done()
            call.cancel()


async def test_a_stream_ends_when_its_key_is_given_to_another_principal(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    key = make_key(path, "a", Role.CALLER)
    async with guarded(path) as live:
        call: Any = live.channel.stream_stream(SESSION)(metadata=bearer(key))
        await call.wait_for_connection()
        await until(lambda: live.app._gate._streams)
        add_key(path, read_keys(path)[key[6:18]].model_copy(update={"principal": "b"}))
        assert (await refusal(_to_the_end(call))).reason == "CREDENTIALS_INVALID"


async def test_what_a_stream_may_do_is_what_its_key_may_now(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    worker = make_key(path, "worker", Role.PLUGIN, types=("acme.*",))
    lead = make_key(path, "lead", Role.CALLER, Role.ADMIN)
    witness = make_key(path, "b", Role.CALLER)
    async with guarded(path, **SETTINGS) as live:
        calls: list[Any] = []
        for method, key in ((CONNECT, worker), (RUN_SUITE, lead), (SESSION, witness)):
            calls.append(live.channel.stream_stream(method)(metadata=bearer(key)))
            await calls[-1].wait_for_connection()
        await until(lambda: len(live.app._gate._streams) == 3)
        changed = {worker: ("plugin", "other.*"), lead: ("caller", ""), witness: ("viewer", "")}
        _change_keys(path, {key[6:18]: rights for key, rights in changed.items()})
        assert (await refusal(_to_the_end(calls[2]))).reason == "ROLE_MISSING"
        for call, method, reason in (
            (calls[0], CONNECT, "TYPE_NOT_ALLOWED"),
            (calls[1], RUN_SUITE, "ROLE_MISSING"),
        ):
            for message in await _opening(live, method):
                await call.write(message)
            assert (await refusal(_to_the_end(call))).reason == reason


async def test_a_stream_of_the_web_port_ends_when_its_key_loses_its_role(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    key = make_key(path, "a", Role.VIEWER)
    headers = {
        "host": "localhost",
        "content-type": "application/json",
        "accept": "text/event-stream",
        "authorization": f"Bearer {key}",
        "content-length": "2",
    }
    async with (
        guarded(path, web="127.0.0.1:0") as live,
        connected(live.app.web_address or "") as (reader, writer),
    ):
        writer.write(head("POST", WATCH_TYPES, headers) + b"{}")
        assert await reader.readuntil(b"data: ")
        _change_keys(path, {key[6:18]: ("plugin", "")})
        async with asyncio.timeout(30):
            assert await reader.readuntil(b"event: error\ndata: ")
            assert b"ROLE_MISSING" in await reader.readline()


async def test_files_of_credentials_are_read_while_all_threads_of_asyncio_are_busy(tmp_path: Path) -> None:
    issuer = Issuer(tmp_path / "jwks.json")
    issuer.add("one")
    issuer.add("two")
    issuer.publish()
    path = tmp_path / "keys.toml"
    key = make_key(path, "a", Role.CALLER)
    async with guarded(path, **issuer.settings) as live:
        calls: list[Any] = []
        for token in (key, issuer.token("one")):
            calls.append(live.channel.stream_stream(SESSION)(metadata=bearer(token)))
            await calls[-1].wait_for_connection()
        await until(lambda: len(live.app._gate._streams) == 2)
        freed = threading.Event()
        busy = [asyncio.create_task(asyncio.to_thread(freed.wait)) for _ in range(100)]
        try:
            revoke_key(path, key[6:18])
            issuer.publish("two")
            for call in calls:
                assert (await refusal(_to_the_end(call))).reason == "CREDENTIALS_INVALID"
        finally:
            freed.set()
            await asyncio.gather(*busy)


async def _opening(live: Live, method: str, key: str = "", target: str = "") -> list[bytes]:
    """Return the messages after which a stream does what it is for."""
    if method in (WATCH_TYPES, WATCH_REMOTES):
        return [b""]
    if method == EVALUATE:
        return [request(spec("waiting")).SerializeToString()]
    if method == BATCH:
        item = {"item_id": "a", "context": request().context, "evaluators": [spec("waiting")]}
        return [evaluation_pb2.EvaluateBatchRequest(open={}, items=[item]).SerializeToString()]
    if method == WATCH_RUN:
        return [runs_pb2.WatchRunRequest(run_id=await _started_run(live, key)).SerializeToString()]
    if method == CONNECT:
        hello = registry_pb2.WorkerHello(instance_id="w-1", plugin=plugin_info("acme.pii"), initial_credit=1)
        return [registry_pb2.AttachRequest(hello=hello).SerializeToString()]
    if method == KEEP_ALIVE:
        register = registry_pb2.RegisterRequest(
            instance_id="r-1", plugin=plugin_info("acme.pii"), target=target
        )
        data = await live.raw(f"{REGISTRY}Register", register.SerializeToString(), metadata=bearer(key))
        lease_id = registry_pb2.RegisterResponse.FromString(data).lease_id
        return [registry_pb2.KeepAliveRequest(lease_id=lease_id).SerializeToString()]
    if method == RUN_SUITE:
        opening = suite_service_pb2.SuiteOpen(suite="s", evaluators=[{"type": "is-json"}])
        opening.connector.type, opening.connector.base_url = "http", "http://127.0.0.1:9/"
        opening.connector.headers["Authorization"] = "Bearer ${AGENT}"
        return [suite_service_pb2.RunSuiteRequest(open=opening).SerializeToString()]
    return []


async def _started_run(live: Live, key: str) -> str:
    """Start a run that does not end, and return its id."""

    async def call(name: str, message: Any) -> bytes:
        return await live.raw(f"/evald.v1.{name}", message.SerializeToString(), metadata=bearer(key))

    scenario = Scenario(name="s", evaluators=[spec("waiting")])
    connector = Connector(name="c", type="replay")
    said = [{"role": role, "content": "hello"} for role in ("user", "assistant")]
    connector.config.update({"messages": said})
    made = await call("ScenarioService/CreateScenario", CreateScenarioRequest(scenario=scenario))
    reached = await call("ConnectorService/CreateConnector", CreateConnectorRequest(connector=connector))
    started = await call(
        "RunService/StartRun",
        runs_pb2.StartRunRequest(
            scenario_id=CreateScenarioResponse.FromString(made).scenario.id,
            connector_id=CreateConnectorResponse.FromString(reached).connector.id,
        ),
    )
    return runs_pb2.StartRunResponse.FromString(started).run.id


def _waiting() -> Any:
    async def wait(_ctx: Any) -> bool:
        await asyncio.Event().wait()
        return True

    return define_evaluator(type="waiting", kind=Kind.ASSERTION, evaluate=wait)


def _change_keys(path: Path, rights: dict[str, tuple[str, str]]) -> None:
    """Give keys other roles and types, at once."""
    keys = read_keys(path)
    for key_id, (roles, types) in rights.items():
        rights = {"roles": tuple(map(Role, roles.split())), "types": tuple(types.split())}
        changed = keys[key_id].model_copy(update=rights)
        keys[key_id] = changed
    new = path.with_suffix(".new")
    for key in keys.values():
        add_key(new, key)
    new.replace(path)


async def _to_the_end(call: Any) -> None:
    async with asyncio.timeout(60):
        while await call.read() is not grpc.aio.EOF:
            pass
