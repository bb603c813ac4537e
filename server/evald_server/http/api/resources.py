"""Scenarios, personas, connectors and evals: what is stored by name, in EvalStudio's shapes."""

import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final, NamedTuple

import grpc
from google.protobuf.timestamp_pb2 import Timestamp
from starlette.requests import Request
from starlette.responses import Response

from evald.convert import resources
from evald.convert.json_shapes import Shape, message_to_json
from evald.v1 import connector_service_pb2, scenario_service_pb2
from evald_server.http.calls import CallFailed
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
    """The standard methods of one kind of what is stored by name. kind: "Scenario". plural: "Scenarios"."""

    kind: str
    plural: str
    shape: Shape[Any]

    def method(self, verb: str) -> str:
        """Return the full name of a method."""
        return f"evald.v1.{self.kind}Service/{verb}{self.plural if verb == 'List' else self.kind}"

    async def list(self, site: Site, request: Request) -> Response:
        """List what is stored."""
        asked, page = self._messages("List")
        return await list_answer(
            site, request, self.method("List"), asked(), page, self.plural.lower(), self.shape.write
        )

    async def create(self, site: Site, request: Request) -> Response:
        """Store one."""

        def new(data: Any) -> Any:
            resource = self.shape.read(data)
            resource.ClearField("id")
            resources.check_masks(resource)
            return resource

        stored = await self._ask(site, request, "Create", {self._field: await read(request, new)})
        return await self._written(stored, 201)

    async def get(self, site: Site, request: Request) -> Response:
        """Show one."""
        return await self._written(await self.load(site, request, text_of(request, "id")))

    async def update(self, site: Site, request: Request) -> Response:
        """Change the keys that the body has."""

        def change(data: Any) -> tuple[Any, list[str]]:
            return self.shape.read(data), self.shape.given(data)

        resource, fields = await read(request, change)
        resource.id = text_of(request, "id")
        if not fields:
            return await self.get(site, request)
        asked = {self._field: resource, "update_mask": {"paths": fields}, **_expected(request)}
        return await self._written(await self._ask(site, request, "Update", asked))

    async def delete(self, site: Site, request: Request) -> Response:
        """Delete one."""
        asked = {f"{self._field}_id": text_of(request, "id"), **_expected(request)}
        await self._ask(site, request, "Delete", asked)
        return Response(status_code=204)

    async def load(self, site: Site, request: Request, resource_id: str) -> Any:
        """Return one."""
        return await self._ask(site, request, "Get", {f"{self._field}_id": resource_id})

    async def _written(self, stored: Any, status: int = 200) -> Response:
        return await written(stored, self.shape.write, status, etag(stored))

    @property
    def _field(self) -> str:
        return self.kind.lower()

    def _messages(self, verb: str) -> tuple[Any, Any]:
        module = import_module(f"evald.v1.{self._field}_service_pb2")
        name = self.method(verb).rpartition("/")[2]
        return getattr(module, f"{name}Request"), getattr(module, f"{name}Response")

    async def _ask(self, site: Site, request: Request, verb: str, fields: Mapping[str, Any]) -> Any:
        asked, answered = self._messages(verb)
        found = await site.calls.ask(
            self.method(verb), asked(**fields), answered, site.access.caller(request)
        )
        return getattr(found, self._field, None)


SCENARIOS: Final = ResourceRoutes("Scenario", "Scenarios", resources.SCENARIO)
PERSONAS: Final = ResourceRoutes("Persona", "Personas", resources.PERSONA)
CONNECTORS: Final = ResourceRoutes("Connector", "Connectors", resources.CONNECTOR)
EVALS: Final = ResourceRoutes("Experiment", "Experiments", resources.EXPERIMENT)


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
    found = await site.calls.ask(
        "evald.v1.ScenarioService/GetScenarioPrompt",
        asked,
        scenario_service_pb2.GetScenarioPromptResponse,
        site.access.caller(request),
    )
    messages = [message_to_json(message) for message in found.messages]
    return answer({"systemPrompt": found.system_prompt, "messages": messages})


async def connector_types(site: Site, request: Request) -> Response:
    """List the types of connectors."""
    found = await site.calls.ask(
        "evald.v1.ConnectorService/ListConnectorTypes",
        connector_service_pb2.ListConnectorTypesRequest(),
        connector_service_pb2.ListConnectorTypesResponse,
        site.access.caller(request),
    )
    types = [resources.connector_type_to_json(one) | {"builtin": True} for one in found.connector_types]
    return answer(types)


async def test_connector(site: Site, request: Request) -> Response:
    """Send one message to an agent, and say what came of it."""
    found = await site.calls.ask(
        "evald.v1.ConnectorService/TestConnector",
        connector_service_pb2.TestConnectorRequest(connector_id=text_of(request, "id")),
        connector_service_pb2.TestConnectorResponse,
        site.access.caller(request),
    )
    return answer(resources.connector_test_to_json(found))


async def get_eval(site: Site, request: Request) -> Response:
    """Show an eval, with `expand=true` its scenarios and its connector too."""
    found = await EVALS.load(site, request, text_of(request, "id"))
    if request.query_params.get("expand") != "true":
        return answer(EVALS.shape.write(found), headers=etag(found))
    data = EVALS.shape.write(found)
    scenarios = [await _there(SCENARIOS, site, request, one) for one in found.scenario_ids]
    data["scenarios"] = [_part(one, _SCENARIO_KEYS) for one in scenarios if one is not None]
    connector = await _there(CONNECTORS, site, request, found.connector_id)
    if connector is not None:
        data["connector"] = _part(connector, _CONNECTOR_KEYS)
    return answer(data)


async def _there(
    kind: ResourceRoutes, site: Site, request: Request, resource_id: str
) -> dict[str, Any] | None:
    """Return what an eval refers to; None if it was deleted since."""
    try:
        return kind.shape.write(await kind.load(site, request, resource_id))
    except CallFailed as problem:
        if problem.code is not grpc.StatusCode.NOT_FOUND:
            raise
        return None


def _part(data: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: data[key] for key in keys if key in data}
