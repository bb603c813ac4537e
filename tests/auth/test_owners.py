"""What a principal has brought is its own, and plugins offer only what their keys say."""

from pathlib import Path
from typing import Any

import grpc
import pytest

from evald.plugin.v1 import registry_service_pb2 as registry_pb2
from evald.v1 import run_service_pb2, suite_service_pb2
from evald.v1.connector_service_pb2 import Connector, CreateConnectorRequest
from evald.v1.connector_service_pb2_grpc import ConnectorServiceStub
from evald.v1.context_pb2 import Scenario
from evald.v1.run_service_pb2_grpc import RunServiceStub
from evald.v1.scenario_service_pb2 import CreateScenarioRequest
from evald.v1.scenario_service_pb2_grpc import ScenarioServiceStub
from evald_server.auth.keys import revoke_key
from evald_server.auth.principal import Role
from evald_server.store.leases import LeaseStore

from ..remote.scripted import REGISTRY, listening, plugin_info
from ..rpc.live import Live, refusal, serving, until
from .keyring import bearer, guarded, make_key

LOOPBACK = ["127.0.0.1/32"]
DENIED = grpc.StatusCode.PERMISSION_DENIED


def _hello(instance_id: str, *types: str) -> bytes:
    hello = registry_pb2.WorkerHello(instance_id=instance_id, plugin=plugin_info(*types), initial_credit=1)
    return registry_pb2.AttachRequest(hello=hello).SerializeToString()


async def _call(live: Live, method: str, key: str, message: Any) -> bytes:
    return await live.raw(REGISTRY + method, message.SerializeToString(), metadata=bearer(key))


async def _connect(live: Live, key: str, instance_id: str, *types: str) -> Any:
    call: Any = live.channel.stream_stream(f"{REGISTRY}Attach")(metadata=bearer(key))
    await call.write(_hello(instance_id, *types))
    await call.read()
    return call


async def test_a_principal_s_instances_and_types_leave_room_for_those_of_others(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    greedy, other = (make_key(path, name, Role.PLUGIN, types=("*",)) for name in ("greedy", "other"))
    async with guarded(path, remote_max_instances=4) as live:
        calls = [await _connect(live, greedy, f"greedy-{number}", "a.word") for number in range(3)]
        with pytest.raises(grpc.aio.AioRpcError, match="of greedy"):
            await _connect(live, greedy, "greedy-3", "a.word")
        calls.append(await _connect(live, other, "other", "b.word"))
        for call in calls:
            call.cancel()
        await until(lambda: not live.app.remotes.instances.by_id)
        with pytest.raises(grpc.aio.AioRpcError, match="of greedy"):
            await _connect(live, greedy, "greedy", *(f"a.{number}" for number in range(4)))
        calls = [await _connect(live, greedy, "greedy", *(f"a.{number}" for number in range(3)))]
        calls.append(await _connect(live, other, "other", "b.word"))
        for call in calls:
            call.cancel()


async def test_a_plugin_offers_only_types_of_its_prefixes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "evald.audit")
    path = tmp_path / "keys.toml"
    key = make_key(path, "acme", Role.PLUGIN, types=("acme.*", "exact"))
    async with guarded(path, remote_allowed=LOOPBACK) as live:
        for types, wanted in (
            (("acme.word", "exact"), ""),
            (("other.word",), "hello.plugin.evaluator_types[0].type"),
            (("acme.word", "exactly"), "hello.plugin.evaluator_types[1].type"),
            (("acmes",), "hello.plugin.evaluator_types[0].type"),
        ):
            caplog.clear()
            if not wanted:
                (await _connect(live, key, "one", *types)).cancel()
                assert "connected principal=acme" in caplog.text
                assert "instance=one" in caplog.text
                continue
            refused = await refusal(_connect(live, key, "one", *types))
            assert (refused.code, refused.reason, refused.fields) == (DENIED, "TYPE_NOT_ALLOWED", [wanted])
            assert "acme.*, exact" in refused.message
            assert " connected principal=" not in caplog.text  # "disconnected" of the first one may come now
        async with listening("other.word") as plugin:
            request = registry_pb2.RegisterRequest(
                instance_id="two", plugin=plugin.info, target=plugin.address
            )
            assert (await refusal(_call(live, "Register", key, request))).reason == "TYPE_NOT_ALLOWED"


async def test_sessions_and_leases_are_nobody_elses(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    mine = make_key(path, "mine", Role.PLUGIN, types=("*",))
    also_mine = make_key(path, "mine", Role.PLUGIN, types=("*",))
    other = make_key(path, "other", Role.PLUGIN, types=("*",))
    admin = make_key(path, "root", Role.ADMIN)
    async with guarded(path, remote_allowed=LOOPBACK) as live, listening("acme.word") as plugin:
        session = await _connect(live, mine, "session", "acme.other")
        refused = await refusal(_connect(live, other, "session", "acme.other"))
        assert (refused.code, refused.reason) == (DENIED, "NOT_OWNER")
        assert not session.done()
        replaced = await _connect(live, also_mine, "session", "acme.other")
        assert await session.code() is grpc.StatusCode.ABORTED, "the same principal's new session replaces it"
        replaced.cancel()

        request = registry_pb2.RegisterRequest(instance_id="lease", plugin=plugin.info, target=plugin.address)
        lease_id = registry_pb2.RegisterResponse.FromString(
            await _call(live, "Register", mine, request)
        ).lease_id
        renewal = registry_pb2.RenewLeaseRequest(lease_id=lease_id)
        leaving = registry_pb2.DeregisterRequest(lease_id=lease_id)
        for method, message in (("Register", request), ("RenewLease", renewal), ("Deregister", leaving)):
            refused = await refusal(_call(live, method, other, message))
            assert (refused.code, refused.reason) == (DENIED, "NOT_OWNER"), method
        keep: Any = live.channel.stream_stream(f"{REGISTRY}KeepAlive")(metadata=bearer(other))
        await keep.write(registry_pb2.KeepAliveRequest(lease_id=lease_id).SerializeToString())
        assert (await refusal(keep.read())).reason == "NOT_OWNER"
        await _call(live, "RenewLease", also_mine, renewal)
        await _call(live, "Deregister", admin, leaving)
        await until(lambda: "lease" not in live.app.remotes.instances.by_id)


async def test_an_instance_is_named_by_its_own_plugin_and_by_admins_who_revoke_it(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    mine = make_key(path, "mine", Role.PLUGIN, types=("*",))
    other = make_key(path, "other", Role.PLUGIN, types=("*",))
    admin = make_key(path, "root", Role.ADMIN)
    settings: dict[str, Any] = {"remote_allowed": LOOPBACK, "data_dir": tmp_path / "data"}
    leaving = registry_pb2.DeregisterRequest(instance_id="lease")

    async def granted(live: Live) -> registry_pb2.RenewLeaseRequest:
        data = await _call(live, "Register", mine, request)
        return registry_pb2.RenewLeaseRequest(
            lease_id=registry_pb2.RegisterResponse.FromString(data).lease_id
        )

    async def state(live: Live, renewal: registry_pb2.RenewLeaseRequest) -> int:
        data = await _call(live, "RenewLease", mine, renewal)
        return registry_pb2.RenewLeaseResponse.FromString(data).state

    async with listening("acme.word") as plugin:
        request = registry_pb2.RegisterRequest(instance_id="lease", plugin=plugin.info, target=plugin.address)
        async with guarded(path, **settings) as live:
            renewal = await granted(live)
            refused = await refusal(_call(live, "Deregister", other, leaving))
            assert (refused.code, refused.reason, refused.fields) == (DENIED, "NOT_OWNER", ["instance_id"])
            await _call(live, "Deregister", mine, leaving)
            assert await state(live, renewal) == registry_pb2.LEASE_STATE_EXPIRED
            renewal = await granted(live)
            await _call(live, "Deregister", admin, leaving)
            assert await state(live, renewal) == registry_pb2.LEASE_STATE_REVOKED
            assert "lease" not in live.app.remotes.instances.by_id
            session = await _connect(live, mine, "session", "acme.other")
            for fields, code, reason in (
                ({"instance_id": "lease"}, "NOT_FOUND", "RESOURCE_NOT_FOUND"),
                ({"instance_id": "session"}, "INVALID_ARGUMENT", "INVALID_FIELD"),
                ({"instance_id": "lease", "lease_id": "x"}, "INVALID_ARGUMENT", "INVALID_FIELD"),
                ({}, "INVALID_ARGUMENT", "INVALID_FIELD"),
            ):
                asked = registry_pb2.DeregisterRequest(**fields)  # type: ignore[arg-type]
                refused = await refusal(_call(live, "Deregister", admin, asked))
                assert (refused.code.name, refused.reason, refused.fields) == (code, reason, ["instance_id"])
            assert not session.done()
            session.cancel()
        async with guarded(path, **settings) as live:
            assert await state(live, renewal) == registry_pb2.LEASE_STATE_REVOKED, "also after a restart"
            await granted(live)  # but whoever starts it anew is welcome


async def test_a_lease_belongs_to_its_principal_after_a_restart_too(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    mine = make_key(path, "mine", Role.PLUGIN, types=("acme.*",))
    also_mine = make_key(path, "mine", Role.PLUGIN, types=("acme.*",))
    other = make_key(path, "other", Role.PLUGIN, types=("*",))
    settings: dict[str, Any] = {"remote_allowed": LOOPBACK, "data_dir": tmp_path / "data"}
    async with listening("acme.word") as plugin:
        request = registry_pb2.RegisterRequest(instance_id="lease", plugin=plugin.info, target=plugin.address)
        async with guarded(path, **settings) as live:
            data = await _call(live, "Register", mine, request)
        lease_id = registry_pb2.RegisterResponse.FromString(data).lease_id
        renewal = registry_pb2.RenewLeaseRequest(lease_id=lease_id)
        async with guarded(path, **settings) as live:
            for method, message in (
                ("Register", request),
                ("RenewLease", renewal),
                ("Deregister", registry_pb2.DeregisterRequest(lease_id=lease_id)),
                ("Deregister", registry_pb2.DeregisterRequest(instance_id="lease")),
            ):
                assert (await refusal(_call(live, method, other, message))).reason == "NOT_OWNER", method
            await _call(live, "RenewLease", also_mine, renewal)
            assert "lease" in live.app.remotes.instances.by_id
        async with serving(**settings) as live:  # without keys everybody may do everything
            assert (await _state(live, renewal)) == registry_pb2.LEASE_STATE_ACTIVE


@pytest.mark.parametrize("withdrawn", ["key", "role", "type", "never a key"])
async def test_a_lease_is_not_restored_if_its_principal_may_not_offer_its_types_any_more(
    tmp_path: Path, withdrawn: str
) -> None:
    path = tmp_path / "keys.toml"
    mine = make_key(path, "mine", Role.PLUGIN, types=("acme.*",))
    settings: dict[str, Any] = {"remote_allowed": LOOPBACK, "data_dir": tmp_path / "data"}
    async with listening("acme.word") as plugin:
        request = registry_pb2.RegisterRequest(instance_id="lease", plugin=plugin.info, target=plugin.address)
        without_keys = withdrawn == "never a key"
        async with serving(**settings) if without_keys else guarded(path, **settings) as live:
            await _call(live, "Register", mine, request)
        if withdrawn == "key":
            revoke_key(path, mine[6:18])
        elif withdrawn == "role":
            path.write_text(path.read_text().replace('["plugin"]', '["caller"]'))
        elif withdrawn == "type":
            path.write_text(path.read_text().replace("acme.*", "others.*"))
        described = plugin.describes
        async with guarded(path, **settings) as live:
            assert "lease" not in live.app.remotes.instances.by_id
            assert await _is_forgotten(live)
        assert plugin.describes == described, "not even connected"


async def _state(live: Live, renewal: registry_pb2.RenewLeaseRequest) -> int:
    data = await live.channel.unary_unary(f"{REGISTRY}RenewLease")(renewal.SerializeToString())
    return registry_pb2.RenewLeaseResponse.FromString(data).state


async def _is_forgotten(live: Live) -> bool:
    return await LeaseStore(live.app.database).load() == []


@pytest.mark.parametrize("withdrawn", ["key", "role", "type"])
async def test_a_lease_ends_when_its_principal_may_no_longer_bring_what_it_offers(
    tmp_path: Path, withdrawn: str
) -> None:
    path = tmp_path / "keys.toml"
    mine = make_key(path, "mine", Role.PLUGIN, types=("acme.*",))
    async with guarded(path, remote_allowed=LOOPBACK) as live, listening("acme.word") as plugin:
        request = registry_pb2.RegisterRequest(instance_id="lease", plugin=plugin.info, target=plugin.address)
        request.ttl.seconds = 300
        await _call(live, "Register", mine, request)
        assert "lease" in live.app.remotes.instances.by_id
        if withdrawn == "key":
            revoke_key(path, mine[6:18])
        elif withdrawn == "role":
            path.write_text(path.read_text().replace('["plugin"]', '["caller"]'))
        else:
            path.write_text(path.read_text().replace("acme.*", "others.*"))
        await until(lambda: "lease" not in live.app.remotes.instances.by_id)
        await until(lambda: _is_forgotten(live))


async def test_only_who_may_write_connectors_sends_the_servers_secrets_with_a_suite(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    caller = make_key(path, "ci", Role.CALLER)
    both = make_key(path, "lead", Role.CALLER, Role.ADMIN)
    async with guarded(path, connector_secrets=["AGENT"]) as live:
        for key, header, wanted in (
            (caller, "Bearer ${AGENT}", "ROLE_MISSING"),
            (both, "Bearer ${AGENT}", ""),
            (caller, "acme", ""),
        ):
            opening = suite_service_pb2.SuiteOpen(suite="s", evaluators=[{"type": "is-json"}])
            opening.connector.type, opening.connector.base_url = "http", "http://127.0.0.1:9/"
            opening.connector.headers["Authorization" if "$" in header else "X-Tenant"] = header
            request = suite_service_pb2.RunSuiteRequest(open=opening)
            call: Any = live.channel.stream_stream("/evald.v1.SuiteService/RunSuite")
            stream = call(iter([request.SerializeToString()]), metadata=bearer(key))
            if wanted:
                assert (await refusal(_drained(stream))).reason == wanted
            else:
                assert await _drained(stream)


async def test_request_ids_of_runs_belong_to_their_principal(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    one, again = make_key(path, "one", Role.CALLER, Role.ADMIN), make_key(path, "one", Role.CALLER)
    two = make_key(path, "two", Role.CALLER)
    async with guarded(path) as live:
        scenarios, connectors = ScenarioServiceStub(live.channel), ConnectorServiceStub(live.channel)
        scenario = Scenario(name="s", evaluators=[{"type": "response-length"}])
        made = await scenarios.CreateScenario(CreateScenarioRequest(scenario=scenario), metadata=bearer(one))
        connector = Connector(name="c", type="replay")
        said = [{"role": role, "content": "hello"} for role in ("user", "assistant")]
        connector.config.update({"messages": said})
        reached = await connectors.CreateConnector(
            CreateConnectorRequest(connector=connector), metadata=bearer(one)
        )
        request = run_service_pb2.StartRunRequest(
            scenario_id=made.scenario.id, connector_id=reached.connector.id, request_id="same"
        )
        first, repeated, others = [
            (await RunServiceStub(live.channel).StartRun(request, metadata=bearer(key))).run.id
            for key in (one, again, two)
        ]
        assert first == repeated, "another key of the same principal"
        assert first != others


async def _drained(stream: Any) -> list[bytes]:
    return [data async for data in stream]
