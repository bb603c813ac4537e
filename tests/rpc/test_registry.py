"""RegistryService over a real channel: leases, refusals, lists and watches."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from evald.plugin.v1 import registry_service_pb2 as registry_pb2

from ..remote.scripted import (
    REGISTRY,
    WORD,
    deregister,
    evaluator_type,
    listening,
    plugin_info,
    register,
    registrations,
    renew,
    states,
    worker,
)
from .live import Live, refusal, request, serving, until

LOOPBACK = ["127.0.0.1/32"]
ACTIVE, EXPIRED, REVOKED = 1, 2, 3

Watch = registry_pb2.WatchRegistrationsResponse


@pytest.mark.parametrize("way", ["KeepAlive", "RenewLease"])
async def test_a_dead_lease_never_lives_again(way: str) -> None:
    async with serving(remote_allowed=LOOPBACK) as live, listening("acme.word") as plugin:
        stream: Any = live.channel.stream_stream(f"{REGISTRY}KeepAlive")()

        async def state(lease_id: str) -> tuple[int, bool]:
            if way == "RenewLease":
                renewed: Any = await renew(live, lease_id)
            else:
                await stream.write(registry_pb2.KeepAliveRequest(lease_id=lease_id).SerializeToString())
                renewed = registry_pb2.KeepAliveResponse.FromString(await stream.read())
                assert renewed.lease_id == lease_id
            assert renewed.server_id == live.app.remotes.server_id
            return renewed.state, renewed.HasField("ttl")

        assert await state("never-granted") == (EXPIRED, False)
        first = (await register(live, plugin)).lease_id
        assert await state(first) == (ACTIVE, True)
        # Registering again replaces the lease, also for the one who holds the old one.
        second = (await register(live, plugin)).lease_id
        assert second != first
        assert await state(first) == (EXPIRED, False)
        assert await state(second) == (ACTIVE, True)
        await deregister(live, second)
        assert await state(second) == (EXPIRED, False)
        await deregister(live, second)
        assert await states(live) == {}
        stream.cancel()


async def test_a_lease_that_runs_out_takes_the_instance_out_of_rotation() -> None:
    async with serving(remote_allowed=LOOPBACK) as live, listening("acme.word") as plugin:
        brief = await register(live, plugin, ttl=0.001)
        assert brief.ttl.seconds == 1, "no lease is shorter than that"
        granted = await register(live, plugin, ttl=2)
        for _ in range(8):
            await asyncio.sleep(0.3)
            assert (await renew(live, granted.lease_id)).state == ACTIVE
        assert (await live.unary(request(WORD))).summary.success
        await until(lambda: not live.app.remotes.instances.by_id)
        (result,) = (await live.unary(request(WORD))).summary.results
        assert result.error.code == "REMOTE_UNAVAILABLE"
        assert (await renew(live, granted.lease_id)).state == EXPIRED
        text = live.app.telemetry.exposition("")[0].decode()
        assert "evald_remote_lease_expirations_total 1.0" in text


@pytest.mark.parametrize(("wanted", "granted"), [(None, 30), (60, 60), (10_000, 300), (0.2, 1)])
async def test_the_server_grants_leases_within_its_bounds(wanted: float | None, granted: int) -> None:
    async with serving(remote_allowed=LOOPBACK) as live, listening("acme.word") as plugin:
        response = await register(live, plugin, ttl=wanted)
        assert response.ttl.ToMilliseconds() == granted * 1000
        assert response.renew_interval.ToMilliseconds() == round(granted * 1000 / 3)
        assert response.contract_version == "evald.plugin.v1"
        assert response.server_id == live.app.remotes.server_id


def _slow_schema() -> dict[str, Any]:
    return {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"items": {"$ref": "#/$defs/a"}}] * 2}}}


@pytest.mark.parametrize(
    ("fields", "code", "reason", "field"),
    [
        ({"instance_id": ""}, "INVALID_ARGUMENT", "INVALID_FIELD", "instance_id"),
        ({"instance_id": "x" * 129}, "INVALID_ARGUMENT", "INVALID_FIELD", "instance_id"),
        ({"instance_id": "a\nb"}, "INVALID_ARGUMENT", "INVALID_FIELD", "instance_id"),
        ({"instance_id": "\N{CYRILLIC SMALL LETTER A}"}, "INVALID_ARGUMENT", "INVALID_FIELD", "instance_id"),
        ({"instance_id": "static:a"}, "INVALID_ARGUMENT", "INVALID_FIELD", "instance_id"),
        ({"target": "http://127.0.0.1/"}, "INVALID_ARGUMENT", "INVALID_FIELD", "target"),
        ({"target": "10.0.0.7:50051"}, "PERMISSION_DENIED", "TARGET_NOT_ALLOWED", "target"),
        ({"ttl": -1.0}, "INVALID_ARGUMENT", "INVALID_FIELD", "ttl"),
        ({"tls_profile": "nope"}, "INVALID_ARGUMENT", "INVALID_FIELD", "tls_profile"),
        (
            {"plugin_info": plugin_info("acme.word", name="acme.bad")},
            "PERMISSION_DENIED",
            "PLUGIN_BLOCKED",
            "plugin.name",
        ),
        (
            {"plugin_info": plugin_info("acme.word", contract_versions=[])},
            "FAILED_PRECONDITION",
            "CONTRACT_VERSION_UNSUPPORTED",
            "plugin.contract_versions",
        ),
        (
            {"plugin_info": plugin_info("regex")},
            "ALREADY_EXISTS",
            "TYPE_TAKEN",
            "plugin.evaluator_types[0].type",
        ),
        (
            {"plugin_info": plugin_info("acme.ok", "latency")},  # an alias of a built-in
            "ALREADY_EXISTS",
            "TYPE_TAKEN",
            "plugin.evaluator_types[1].type",
        ),
        (
            {"plugin_info": plugin_info(evaluator_type("acme.taken", schema={"type": "object"}))},
            "ALREADY_EXISTS",
            "SCHEMA_DIFFERS",
            "plugin.evaluator_types[0]",
        ),
        (
            {"plugin_info": plugin_info(evaluator_type("acme.taken", kind=2))},
            "ALREADY_EXISTS",
            "SCHEMA_DIFFERS",
            "plugin.evaluator_types[0]",
        ),
        (
            {"plugin_info": plugin_info("acme.other")},
            "FAILED_PRECONDITION",
            "PLUGIN_DIFFERS",
            "target",
        ),
        (
            {"plugin_info": plugin_info("acme.word", "acme.word")},
            "INVALID_ARGUMENT",
            "INVALID_FIELD",
            "plugin.evaluator_types[1].type",
        ),
        (
            {"plugin_info": plugin_info("Acme Word")},
            "INVALID_ARGUMENT",
            "INVALID_FIELD",
            "plugin.evaluator_types[0].type",
        ),
        (
            {"plugin_info": plugin_info(evaluator_type("acme.word", version="a b"))},
            "INVALID_ARGUMENT",
            "INVALID_FIELD",
            "plugin.evaluator_types[0].version",
        ),
        (
            {"plugin_info": plugin_info(evaluator_type("acme.word", kind=0))},
            "INVALID_ARGUMENT",
            "INVALID_FIELD",
            "plugin.evaluator_types[0].kind",
        ),
        (
            {"plugin_info": plugin_info(evaluator_type("acme.word", label="\x1b[2J"))},
            "INVALID_ARGUMENT",
            "INVALID_FIELD",
            "plugin.evaluator_types[0].label",
        ),
        (
            {"plugin_info": plugin_info(evaluator_type("acme.word", schema=[]))},
            "INVALID_ARGUMENT",
            "INVALID_FIELD",
            "plugin.evaluator_types[0].config_schema_json",
        ),
        (
            {"plugin_info": plugin_info(evaluator_type("acme.word", schema={"type": "nope"}))},
            "INVALID_ARGUMENT",
            "INVALID_FIELD",
            "plugin.evaluator_types[0].config_schema_json",
        ),
        (
            {"plugin_info": plugin_info(evaluator_type("acme.word", schema=_slow_schema()))},
            "INVALID_ARGUMENT",
            "INVALID_FIELD",
            "plugin.evaluator_types[0].config_schema_json",
        ),
        (
            {
                "plugin_info": plugin_info(
                    evaluator_type("acme.word", schema={"$ref": "http://127.0.0.1:9/x.json"})
                )
            },
            "INVALID_ARGUMENT",
            "INVALID_FIELD",
            "plugin.evaluator_types[0].config_schema_json",
        ),
        (
            {"plugin_info": plugin_info(evaluator_type("acme.word", metric={"bucket_bounds": [2, 1]}))},
            "INVALID_ARGUMENT",
            "INVALID_FIELD",
            "plugin.evaluator_types[0].metric.bucket_bounds",
        ),
        (
            {"plugin_info": plugin_info("acme.word", max_concurrency=-1)},
            "INVALID_ARGUMENT",
            "INVALID_FIELD",
            "plugin.max_concurrency",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_registration_that_cannot_be_names_what_is_wrong_and_leaves_nothing(
    fields: dict[str, Any], code: str, reason: str, field: str
) -> None:
    async with (
        serving(remote_allowed=LOOPBACK, remote_blocked=["acme.bad"]) as live,
        listening("acme.word") as plugin,
        worker(live, "acme.taken"),
    ):
        before = live.app.registry.revision
        refused = await refusal(register(live, plugin, **fields))
        assert (refused.code.name, refused.reason, refused.fields) == (code, reason, [field])
        assert refused.info.metadata["field"] == field
        assert await states(live) == {"worker-1": "active"}
        if reason != "PLUGIN_DIFFERS":  # whose type was listed while it was confirmed
            assert live.app.registry.revision == before


async def test_nobody_registers_until_the_operator_allows_targets() -> None:
    async with serving() as live, listening("acme.word") as plugin:
        refused = await refusal(register(live, plugin))
        assert (refused.code, refused.reason) == (
            grpc.StatusCode.PERMISSION_DENIED,
            "TARGET_NOT_ALLOWED",
        )
        assert "remote_allowed" in refused.message
        assert not plugin.describes


async def test_a_schema_is_the_same_whatever_the_order_of_its_keys() -> None:
    schema = {"type": "object", "properties": {"a": {}, "b": {}}}
    other = evaluator_type("acme.word")
    other.config_schema_json = json.dumps({"properties": {"b": {}, "a": {}}, "type": "object"}, indent=1)
    async with (
        serving() as live,
        worker(live, evaluator_type("acme.word", schema=schema), instance_id="a"),
        worker(live, other, instance_id="b"),
    ):
        assert await states(live) == {"a": "active", "b": "active"}


async def test_a_type_without_instances_may_come_back_with_another_schema() -> None:
    async with serving() as live:
        async with worker(live, "acme.word"):
            assert (await live.unary(request(WORD))).summary.success
        await until(lambda: not live.app.remotes.instances.by_id)
        strict = evaluator_type("acme.word", schema={"type": "object", "maxProperties": 0})
        async with worker(live, strict):
            assert (await refusal(live.unary(request(WORD)))).fields == ["evaluators[0].config"]


async def test_an_instance_id_belongs_to_one_way_in() -> None:
    async with (
        serving(remote_allowed=LOOPBACK) as live,
        listening("acme.word") as plugin,
        worker(live, "acme.word", instance_id="same"),
    ):
        refused = await refusal(register(live, plugin, instance_id="same"))
        assert (refused.code, refused.reason) == (grpc.StatusCode.ALREADY_EXISTS, "INSTANCE_ID_TAKEN")


async def test_there_are_only_so_many_instances() -> None:
    async with (
        serving(remote_max_instances=2, remote_allowed=LOOPBACK) as live,
        worker(live, "acme.a", instance_id="a"),
        worker(live, "acme.b", instance_id="b"),
        listening("acme.c") as plugin,
    ):
        refused = await refusal(register(live, plugin))
        assert (refused.code, refused.reason) == (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "TOO_MANY_REMOTES",
        )
        assert refused.retry is not None


async def test_types_that_nobody_offers_any_more_make_room() -> None:
    async with serving(remote_max_instances=2) as live:
        for number in range(4):
            async with worker(live, f"acme.t{number}"):
                pass
            await until(lambda: not live.app.remotes.instances.by_id)
        remote = [one.type for one in (await live.types()).evaluator_types if one.origin == 2]
        assert remote == ["acme.t2", "acme.t3"]


@pytest.mark.parametrize("drain", [True, False], ids=["drain", "at-once"])
async def test_deregistering_lets_open_tasks_finish_or_fails_them_over(drain: bool) -> None:
    release = asyncio.Event()

    async def waits(_task: Any) -> Any:
        await release.wait()
        return registry_pb2.TaskCompleted(output={"verdict": 1, "score": 1}).output

    async with serving(remote_allowed=LOOPBACK) as live, listening("acme.word", behave=waits) as plugin:
        lease = await register(live, plugin)
        call = asyncio.create_task(live.unary(request(WORD)))
        await until(lambda: plugin.tasks)
        await deregister(live, lease.lease_id, drain=drain)
        if drain:
            assert await states(live) == {"listening-1": "draining"}
            release.set()
            assert (await call).summary.success
        else:
            assert (await call).summary.results[0].error.code == "REMOTE_UNAVAILABLE"
        await until(lambda: not live.app.remotes.instances.by_id)


async def test_a_list_has_pages_and_can_be_of_one_type() -> None:
    async with (
        serving() as live,
        worker(live, "acme.a", instance_id="1"),
        worker(live, "acme.a", "acme.b", instance_id="2"),
        worker(live, "acme.b", instance_id="3"),
    ):
        seen: list[str] = []
        token = ""
        while True:
            page = await registrations(live, page_size=2, page_token=token)
            seen += [one.instance_id for one in page.registrations]
            token = page.next_page_token
            if not token:
                break
        assert seen == ["1", "2", "3"]
        only = await registrations(live, type="acme.b")
        assert [one.instance_id for one in only.registrations] == ["2", "3"]
        one = only.registrations[0]
        assert (one.mode, one.state) == (1, 2)
        assert one.plugin.name == "acme.tests"
        assert one.target.startswith("ipv4:127.0.0.1")
        assert one.server_id == live.app.remotes.server_id
        assert one.register_time.seconds
        assert not one.HasField("expire_time")
        assert (await refusal(registrations(live, page_size=-1))).fields == ["page_size"]
        assert (await refusal(registrations(live, page_token="?"))).fields == ["page_token"]


async def test_a_listed_lease_says_when_it_ends_and_what_others_load_on_it() -> None:
    async with serving(remote_allowed=LOOPBACK) as live, listening("acme.word") as plugin:
        lease = await register(live, plugin, ttl=20)
        await renew(live, lease.lease_id, active_tasks=7)
        (one,) = (await registrations(live)).registrations
        assert 18 < one.expire_time.seconds - one.last_seen_time.seconds <= 21
        assert one.active_tasks == 7
        assert one.target == plugin.address


async def _events(live: Live, after: int = 0) -> AsyncIterator[Watch]:
    watching = registry_pb2.WatchRegistrationsRequest(after_revision=after)
    call = live.channel.unary_stream(f"{REGISTRY}WatchRegistrations")(watching.SerializeToString())
    try:
        while (data := await call.read()) is not grpc.aio.EOF:
            yield Watch.FromString(data)
    finally:
        call.cancel()


async def test_a_watch_tells_the_instances_and_then_their_changes() -> None:
    async with serving(remote_allowed=LOOPBACK, remote_health_seconds=0.1) as live:
        async with worker(live, "acme.a", instance_id="a"), listening("acme.word") as plugin:
            events = _events(live)
            assert (await anext(events)).upserted.instance_id == "a"
            assert (await anext(events)).HasField("snapshot_complete")
            await register(live, plugin)
            seen = [(await anext(events)).upserted.state for _ in range(2)]
            assert seen == [
                registry_pb2.Registration.STATE_PENDING,
                registry_pb2.Registration.STATE_ACTIVE,
            ]
            plugin.health = 2
            changed = (await anext(events)).upserted
            assert changed.state == registry_pb2.Registration.STATE_UNHEALTHY
            assert "is not SERVING" in changed.last_error
            plugin.health = 1
            assert (await anext(events)).upserted.state == registry_pb2.Registration.STATE_ACTIVE
            revision = live.app.remotes.instances.revision
        gone = await anext(events)
        while not gone.removed_instance_id:
            gone = await anext(events)
        assert gone.removed_instance_id == "a"
        later = await anext(_events(live, revision))
        assert later.revision == revision + 1
        refused = await refusal(anext(_events(live, 10_000)))
        assert (refused.code, refused.reason) == (grpc.StatusCode.OUT_OF_RANGE, "REVISION_GONE")
        assert (await refusal(anext(_events(live, -1)))).fields == ["after_revision"]
        await events.aclose()


async def test_garbage_is_refused_by_every_method() -> None:
    async with serving() as live:
        for method in ("Register", "RenewLease", "Deregister", "ListRegistrations"):
            refused = await refusal(live.raw(REGISTRY + method, b"\xff\xff"))
            assert refused.reason == "UNREADABLE_MESSAGE", method


async def test_health_and_reflection_know_the_service() -> None:
    from .test_lifecycle import health

    async with serving() as live:
        assert await health(live, "evald.plugin.v1.RegistryService") == 1


async def test_more_instances_of_a_type_leave_the_plans_as_they_are() -> None:
    async with serving() as live, worker(live, "acme.word", instance_id="first"):
        assert (await live.unary(request(WORD))).summary.success
        before = live.app.registry.plans_revision
        for number in range(5):
            async with worker(live, "acme.word", instance_id=f"w{number}"):
                assert len((await registrations(live)).registrations) == 2
            await until(lambda: len(live.app.remotes.instances.by_id) == 1)
        assert live.app.registry.plans_revision == before
        async with worker(live, "acme.new", instance_id="new"):
            assert live.app.registry.plans_revision > before
