"""The named resources in EvalStudio's shapes: scenarios, personas, connectors and evals."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import grpc
from starlette.requests import Request
from starlette.responses import Response

from evald.convert import resources
from evald.convert.json_shapes import message_to_json
from evald_server.http.calls import CallFailed
from evald_server.http.site import Site
from evald_server.methods import CONNECTORS, EXPERIMENTS, PERSONAS, SCENARIOS, StandardMethods

from .answers import answer, read, written
from .methods import AnswerPart, Body, answer_part, etag, expected_version, listing, unary
from .openapi import ApiRoute
from .shapes import (
    CONNECTOR_TEST,
    CONNECTOR_TYPE,
    FLAG,
    PROMPT,
    TEXT,
    eval_schema,
    list_of,
    patch_of,
    request_of,
)

# The keys of scenarios and of the connector in an expanded eval.
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
_CONNECTOR_KEYS: Final = ("id", "name", "type", "baseUrl")


def _new(kind: StandardMethods) -> Body:
    def read(data: Any) -> dict[str, Any]:
        resource = kind.shape.read(data)
        resource.ClearField("id")
        resources.check_masks(resource)
        return {kind.word: resource}

    return Body(request_of(kind.shape.schema()), read)


async def _update(kind: StandardMethods, site: Site, request: Request) -> Response:
    """Replace the fields of a resource that the body has, and keep the others."""
    resource, fields = await read(request, lambda data: (kind.shape.read(data), kind.shape.given(data)))
    resource.id = request.path_params["id"]
    if not fields:
        return await _written(kind, await _load(kind, site, request, resource.id))
    mask, expected = {"paths": fields}, expected_version(request)
    asked = kind.request("Update", **{kind.word: resource}, update_mask=mask, expected_update_time=expected)
    return await _written(kind, await site.ask(request, asked))


async def _written(kind: StandardMethods, found: Any) -> Response:
    stored = getattr(found, kind.word)
    return await written(stored, kind.shape.write, headers=etag(stored))


async def _load(kind: StandardMethods, site: Site, request: Request, resource_id: str) -> Any:
    return await site.ask(request, kind.request("Get", **{f"{kind.word}_id": resource_id}))


async def _get_eval(site: Site, request: Request) -> Response:
    """Get an eval, with `expand=true` also its scenarios and its connector."""
    found = (await _load(EXPERIMENTS, site, request, request.path_params["id"])).experiment
    data = EXPERIMENTS.shape.write(found)
    if request.query_params.get("expand") != "true":
        return answer(data, headers=etag(found))
    scenarios = [await _there(SCENARIOS, site, request, one) for one in found.scenario_ids]
    data["scenarios"] = [_part(one, _SCENARIO_KEYS) for one in scenarios if one is not None]
    connector = await _there(CONNECTORS, site, request, found.connector_id)
    if connector is not None:
        data["connector"] = _part(connector, _CONNECTOR_KEYS)
    return answer(data)


async def _there(
    kind: StandardMethods, site: Site, request: Request, resource_id: str
) -> dict[str, Any] | None:
    """Return a resource that an eval refers to; None if it has been deleted."""
    try:
        return kind.shape.write(getattr(await _load(kind, site, request, resource_id), kind.word))
    except CallFailed as problem:
        if problem.code is not grpc.StatusCode.NOT_FOUND:
            raise
        return None


def _part(data: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: data[key] for key in keys if key in data}


def _stored(path: str, name: str, kind: StandardMethods, get: ApiRoute | None = None) -> list[ApiRoute]:
    """Return the routes of one kind of resource. name: of one, with its article. get: replaces the route of Get."""
    one, part = f"{path}/{{id}}", answer_part(kind.word, kind.shape)
    return [
        listing(path, kind.method("List"), f"List {path.strip('/')}", answer_part(kind.plural, kind.shape)),
        unary(
            "POST",
            path,
            kind.method("Create"),
            f"Create {name}",
            part,
            body=_new(kind),
            status=201,
            refusals=(409,),
            versioned=True,
        ),
        get or unary("GET", one, kind.method("Get"), f"Get {name}", part, versioned=True),
        ApiRoute(
            "PUT",
            one,
            partial(_update, kind),
            kind.method("Update"),
            part.schema,
            patch_of(part.schema),
            refusals=(409,),
            versioned=True,
            summary=f"Update {name}: replace the fields in the body, and keep the others",
        ),
        unary("DELETE", one, kind.method("Delete"), f"Delete {name}", versioned=True),
    ]


_TYPES: Final = AnswerPart(
    "connector_types",
    list_of(CONNECTOR_TYPE),
    lambda found: [resources.connector_type_to_json(one) | {"builtin": True} for one in found],
)
_TEST: Final = AnswerPart("", CONNECTOR_TEST, resources.connector_test_to_json)
_PROMPT: Final = AnswerPart(
    "",
    PROMPT,
    lambda found: {
        "systemPrompt": found.system_prompt,
        "messages": [message_to_json(one) for one in found.messages],
    },
)


_EVAL: Final = ApiRoute(
    "GET",
    "/evals/{id}",
    _get_eval,
    EXPERIMENTS.method("Get"),
    eval_schema(),
    query={"expand": FLAG},
    versioned=True,
)


ROUTES: Final = (
    *_stored("/scenarios", "a scenario", SCENARIOS),
    unary(
        "GET",
        "/scenarios/{id}/prompt",
        "evald.v1.ScenarioService/GetScenarioPrompt",
        "Get the prompt of a scenario's simulated user",
        _PROMPT,
        query={"personaId": TEXT},
    ),
    *_stored("/personas", "a persona", PERSONAS),
    unary(
        "GET",
        "/connectors/types",
        "evald.v1.ConnectorService/ListConnectorTypes",
        "List connector types",
        _TYPES,
    ),
    *_stored("/connectors", "a connector", CONNECTORS),
    unary(
        "POST",
        "/connectors/{id}/test",
        "evald.v1.ConnectorService/TestConnector",
        "Test a connector: send one message to its agent",
        _TEST,
    ),
    *_stored("/evals", "an eval", EXPERIMENTS, _EVAL),
)
"""With and without a project in the path."""
