"""CatalogService over a real channel."""

import asyncio
import hashlib
import json
from typing import Any

import grpc
import pytest
from jsonschema_rs import Draft202012Validator

from evald.v1 import catalog_service_pb2, evaluator_pb2
from evald_server.engine.registry import Origin

from ..engine.scripted import definition
from .live import CATALOG, Live, refusal, serving, until

Watch = catalog_service_pb2.WatchEvaluatorTypesResponse


async def get(live: Live, **fields: Any) -> evaluator_pb2.EvaluatorType:
    request = catalog_service_pb2.GetEvaluatorTypeRequest(**fields)
    data = await live.raw(CATALOG + "GetEvaluatorType", request.SerializeToString())
    return catalog_service_pb2.GetEvaluatorTypeResponse.FromString(data).evaluator_type


STATE_ACTIVE = evaluator_pb2.EvaluatorType.STATE_ACTIVE


async def test_every_type_is_described_with_a_valid_schema() -> None:
    async with serving() as live:
        types = (await live.types()).evaluator_types
        assert [one.type for one in types] == sorted(one.type for one in types)
        for one in types:
            schema = json.loads(one.config_schema_json)
            Draft202012Validator(schema)
            assert schema["type"] == "object"
            assert one.config_schema_sha256 == hashlib.sha256(one.config_schema_json.encode()).hexdigest()
            assert one.label
            assert one.description
            assert one.version
            assert one.origin == evaluator_pb2.EvaluatorType.ORIGIN_BUILT_IN
            # These need something that only the operator can give them.
            ready = one.type not in ("code", "llm-judge")
            assert (one.state == evaluator_pb2.EvaluatorType.STATE_ACTIVE) == ready
            assert one.HasField("metric") == (one.kind == evaluator_pb2.EVALUATOR_KIND_METRIC)
        # A combinator may hold a judge.
        varying = {"code", "llm-judge", "all-of", "any-of", "at-least", "formula"}
        assert {one.type for one in types if not one.deterministic} == varying


async def test_pages_add_up_to_the_whole_and_kinds_can_be_asked_for() -> None:
    async with serving() as live:
        whole = [one.type for one in (await live.types()).evaluator_types]
        pages: list[str] = []
        token = ""
        while True:
            page = await live.types(page_size=4, page_token=token)
            assert len(page.evaluator_types) <= 4
            pages += [one.type for one in page.evaluator_types]
            token = page.next_page_token
            if not token:
                break
        assert pages == whole
        metrics = (await live.types(kind=evaluator_pb2.EVALUATOR_KIND_METRIC)).evaluator_types
        assert {one.kind for one in metrics} == {evaluator_pb2.EVALUATOR_KIND_METRIC}


@pytest.mark.parametrize(
    ("fields", "field"),
    [({"page_token": "?"}, "page_token"), ({"page_size": -1}, "page_size"), ({"kind": 9}, "kind")],
)
async def test_a_bad_page_request_names_the_field(fields: dict[str, Any], field: str) -> None:
    async with serving() as live:
        assert (await refusal(live.types(**fields))).fields == [field]


async def test_a_type_is_found_by_name_by_alias_and_not_otherwise() -> None:
    async with serving() as live:
        assert (await get(live, type="latency-budget")).type == "latency-budget"
        assert (await get(live, type="latency")).type == "latency-budget"
        assert (await refusal(get(live, type="latenzy-budget"))).code is grpc.StatusCode.NOT_FOUND
        assert (await refusal(get(live, type="latency-budget", version="99"))).reason == "UNKNOWN_TYPE"
        assert (await refusal(get(live))).fields == ["type"]


async def test_a_watch_tells_the_catalogue_and_then_its_changes() -> None:
    async with serving() as live:
        known = {one.type for one in (await live.types()).evaluator_types}
        watchers = len(live.app.registry._watchers)
        request = catalog_service_pb2.WatchEvaluatorTypesRequest()
        stream = live.channel.unary_stream(CATALOG + "WatchEvaluatorTypes")(request.SerializeToString())
        events = (Watch.FromString(data) async for data in stream)
        snapshot = set()
        async for event in events:
            if event.HasField("snapshot_complete"):
                break
            snapshot.add(event.upserted.type)
        assert snapshot == known
        registry = live.app.registry
        registry.register(definition("acme.new", lambda _ctx: None), Origin.PLUGIN)
        registry.remove("acme.new")
        added, removed = await anext(events), await anext(events)
        assert added.upserted.type == removed.removed.type == "acme.new"
        assert removed.revision == added.revision + 1 == registry.revision
        assert len(registry._watchers) == watchers + 1
        stream.cancel()
        await until(lambda: len(registry._watchers) == watchers)


async def test_a_watch_from_a_revision_tells_only_what_came_after_it() -> None:
    async with serving() as live:
        revision = (await live.types()).revision
        live.app.registry.register(definition("acme.new", lambda _ctx: None), Origin.PLUGIN)
        request = catalog_service_pb2.WatchEvaluatorTypesRequest(after_revision=revision)
        stream = live.channel.unary_stream(CATALOG + "WatchEvaluatorTypes")(request.SerializeToString())
        first = Watch.FromString(await stream.read())
        assert first.upserted.type == "acme.new"
        stream.cancel()
        ahead = catalog_service_pb2.WatchEvaluatorTypesRequest(after_revision=revision + 100)
        refused = await refusal(
            live.channel.unary_stream(CATALOG + "WatchEvaluatorTypes")(ahead.SerializeToString()).read()
        )
        assert (refused.code, refused.reason) == (grpc.StatusCode.OUT_OF_RANGE, "REVISION_GONE")


async def test_a_watch_ends_when_the_server_stops() -> None:
    async with serving() as live:
        request = catalog_service_pb2.WatchEvaluatorTypesRequest()
        call = live.channel.unary_stream(CATALOG + "WatchEvaluatorTypes")(request.SerializeToString())
        await call.read()
        stopping = asyncio.create_task(live.app.stop(0.1))

        async def drain() -> None:
            while await call.read() is not grpc.aio.EOF:
                pass

        refused = await refusal(drain())
        assert (refused.code, refused.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
        await stopping
