"""Scenarios, personas, connectors and evals: what is stored by name, in EvalStudio's shapes."""

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import grpc
from google.protobuf.timestamp_pb2 import Timestamp
from starlette.requests import Request
from starlette.responses import Response

from evald.convert import resources
from evald.convert.json_shapes import message_to_json
from evald.v1 import connector_service_pb2, scenario_service_pb2
from evald_server.http import kinds
from evald_server.http.calls import CallFailed
from evald_server.http.kinds import StandardMethods
from evald_server.http.site import Site

from .answers import answer, list_answer, read, text_of, written, wrong

# What an eval shows of its scenarios and its connector.
_SCENARIO_KEYS: Final = (
    "id",
    "name",
    "instructions",
    "messages",
    "maxMessages",
    "successCriteria",
    "failureCriteria",
    "failureCriteriaMode",
)
_ETAG: Final = re.compile(r'"([^"]*)"')
_CONNECTOR_KEYS: Final = ("id", "name", "type", "baseUrl")


class ResourceRoutes(NamedTuple):
    """The routes of the standard methods of one kind of what is stored by name."""

    kind: StandardMethods

    async def list(self, site: Site, request: Request) -> Response:
        """List what is stored."""
        return await list_answer(
            site, request, self.kind.request("List"), self.kind.plural, self.kind.shape.write
        )

    async def create(self, site: Site, request: Request) -> Response:
        """Store one."""

        def new(data: Any) -> Any:
            resource = self.kind.shape.read(data)
            resource.ClearField("id")
            resources.check_masks(resource)
            return resource

        stored = await self._ask(site, request, "Create", {self.kind.word: await read(request, new)})
        return await self._written(stored, 201)

    async def get(self, site: Site, request: Request) -> Response:
        """Show one."""
        return await self._written(await self.load(site, request, text_of(request, "id")))

    async def update(self, site: Site, request: Request) -> Response:
        """Change the keys that the body has."""

        def change(data: Any) -> tuple[Any, list[str]]:
            return self.kind.shape.read(data), self.kind.shape.given(data)

        resource, fields = await read(request, change)
        resource.id = text_of(request, "id")
        if not fields:
            return await self.get(site, request)
        asked = {self.kind.word: resource, "update_mask": {"paths": fields}, **_expected(request)}
        return await self._written(await self._ask(site, request, "Update", asked))

    async def delete(self, site: Site, request: Request) -> Response:
        """Delete one."""
        asked = {f"{self.kind.word}_id": text_of(request, "id"), **_expected(request)}
        await self._ask(site, request, "Delete", asked)
        return Response(status_code=204)

    async def load(self, site: Site, request: Request, resource_id: str) -> Any:
        """Return one."""
        return await self._ask(site, request, "Get", {f"{self.kind.word}_id": resource_id})

    async def _written(self, stored: Any, status: int = 200) -> Response:
        return await written(stored, self.kind.shape.write, status, etag(stored))

    async def _ask(self, site: Site, request: Request, verb: str, fields: Mapping[str, Any]) -> Any:
        found = await site.ask(request, self.kind.request(verb, **fields))
        return getattr(found, self.kind.word, None)


EVALS: Final = ResourceRoutes(kinds.EXPERIMENTS)


def etag(stored: Any) -> dict[str, str]:
    """Return the header that names the version of what is stored: when it was last changed."""
    return {"ETag": f'"{stored.update_time.ToJsonString()}"'}


def _expected(request: Request) -> dict[str, Timestamp]:
    """Return the version that a request is meant for, as a field of its call. Raises CallFailed."""
    text = ", ".join(request.headers.getlist("if-match"))
    if text in ("", "*"):
        return {}
    expected = Timestamp()
    try:
        tag = _ETAG.fullmatch(text)
        expected.FromJsonString(tag[1] if tag else "")
    except ValueError:
        raise wrong("If-Match", text, "the ETag of one answer, with its quotes, or *") from None
    return {"expected_update_time": expected}


async def scenario_prompt(site: Site, request: Request) -> Response:
    """Show what the simulated user of a scenario is told."""
    asked = scenario_service_pb2.GetScenarioPromptRequest(
        scenario_id=text_of(request, "id"), persona_id=request.query_params.get("personaId", "")
    )
    found = await site.ask(request, asked)
    messages = [message_to_json(message) for message in found.messages]
    return answer({"systemPrompt": found.system_prompt, "messages": messages})


async def connector_types(site: Site, request: Request) -> Response:
    """List the types of connectors."""
    found = await site.ask(request, connector_service_pb2.ListConnectorTypesRequest())
    types = [resources.connector_type_to_json(one) | {"builtin": True} for one in found.connector_types]
    return answer(types)


async def test_connector(site: Site, request: Request) -> Response:
    """Send one message to an agent, and say what came of it."""
    found = await site.ask(
        request, connector_service_pb2.TestConnectorRequest(connector_id=text_of(request, "id"))
    )
    return answer(resources.connector_test_to_json(found))


async def get_eval(site: Site, request: Request) -> Response:
    """Show an eval, with `expand=true` its scenarios and its connector too."""
    found = await EVALS.load(site, request, text_of(request, "id"))
    if request.query_params.get("expand") != "true":
        return answer(EVALS.kind.shape.write(found), headers=etag(found))
    data = EVALS.kind.shape.write(found)
    scenarios = [await _there(kinds.SCENARIOS, site, request, one) for one in found.scenario_ids]
    data["scenarios"] = [_part(one, _SCENARIO_KEYS) for one in scenarios if one is not None]
    connector = await _there(kinds.CONNECTORS, site, request, found.connector_id)
    if connector is not None:
        data["connector"] = _part(connector, _CONNECTOR_KEYS)
    return answer(data)


async def _there(
    kind: StandardMethods, site: Site, request: Request, resource_id: str
) -> dict[str, Any] | None:
    """Return what an eval refers to; None if it was deleted since."""
    try:
        return kind.shape.write(await ResourceRoutes(kind).load(site, request, resource_id))
    except CallFailed as problem:
        if problem.code is not grpc.StatusCode.NOT_FOUND:
            raise
        return None


def _part(data: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: data[key] for key in keys if key in data}
