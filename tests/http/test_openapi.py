"""The OpenAPI document is valid, has every route and no other, and tells the truth about them."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from starlette.routing import Route

from evald_server.http.api.openapi import document
from evald_server.http.api.routes import ROUTES, routes
from evald_server.testing import server

from .api import CHAT, REGEX, REPLAY

DOCUMENT = json.loads(json.dumps(document(ROUTES)))
OPERATIONS = [
    (method.upper(), path) for path, methods in sorted(DOCUMENT["paths"].items()) for method in methods
]


def test_the_document_is_openapi_3_1() -> None:
    from openapi_spec_validator import OpenAPIV31SpecValidator  # takes half a second to import

    OpenAPIV31SpecValidator(DOCUMENT).validate()
    ids = [one["operationId"] for methods in DOCUMENT["paths"].values() for one in methods.values()]
    assert len(ids) == len(set(ids))


def test_the_document_names_every_route_and_no_other(address: str) -> None:
    with httpx.Client(base_url=address, timeout=30) as client:
        assert client.get("/api/openapi.json").json() == DOCUMENT
        for path, methods in DOCUMENT["paths"].items():
            concrete = path.replace("{projectId}", "default").replace("{", "").replace("}", "")
            allowed = client.patch(concrete)
            assert allowed.status_code == 405, path
            taken = {*map(str.upper, methods), *(["HEAD"] if "get" in methods else [])}
            assert set(allowed.headers["allow"].split(", ")) == taken, path
    served = {route.path for route in routes(None) if isinstance(route, Route)}  # type: ignore[arg-type]
    assert served == DOCUMENT["paths"].keys()


@pytest.fixture(scope="module", name="address")
def _address() -> Iterator[str]:
    """A server that has one of everything."""
    with server(web="127.0.0.1:0", connector_allowed=[]) as served:
        address = f"http://{served.web_address}"
        with httpx.Client(base_url=address, timeout=30) as client:
            scenario = {"name": "Booking", "evaluators": [REGEX], "maxMessages": 4}
            made = {
                "scenarioId": client.post("/api/scenarios", json=scenario).json()["id"],
                "personaId": client.post("/api/personas", json={"name": "Maria"}).json()["id"],
                "connectorId": client.post(
                    "/api/connectors", json={"name": "r", "type": "replay", "config": REPLAY}
                ).json()["id"],
            }
            evaluated = {"name": "E", "scenarioIds": [made["scenarioId"]], "connectorId": made["connectorId"]}
            made["evalId"] = client.post("/api/evals", json=evaluated).json()["id"]
            (run,) = client.post("/api/runs", json={"evalId": made["evalId"]}).json()
            client.get(f"/api/runs/{run['id']}/events")
            opening = {"suite": "s", "evaluators": [REGEX]}
            case = {
                "caseId": "a",
                "turns": [{"input": CHAT[:1]}],
                "recordedTrials": [{"answers": [{"messages": CHAT[1:]}]}],
            }
            suite = client.post(
                "/api/suite-runs",
                content=f"{json.dumps(opening)}\n{json.dumps(case)}",
                headers={"content-type": "application/x-ndjson"},
            )
            made["suiteRunId"] = json.loads(suite.text.splitlines()[-1])["suiteRun"]["id"]
            IDS.update(made, runId=run["id"])
        yield address


IDS: dict[str, str] = {}
_KINDS = {"scenarios": "scenarioId", "personas": "personaId", "connectors": "connectorId", "evals": "evalId"}
_KINDS |= {"runs": "runId", "suite-runs": "suiteRunId"}


def _there(path: str) -> dict[str, str]:
    """Parameters of a path with which it leads to something."""
    kind = next((part for part in path.split("/") if part in _KINDS), "")
    found = {"projectId": "default"} if "{projectId}" in path else {}
    found |= {"type": "regex"} if "{type}" in path else {}
    return found | ({"id": IDS[_KINDS[kind]]} if "{id}" in path and kind else {})


@pytest.fixture(scope="module", name="schema")
def _schema() -> Any:
    import schemathesis  # takes a second, which those who only collect tests need not wait

    @schemathesis.serializer("application/x-ndjson")
    def lines(_context: Any, value: Any) -> bytes:
        """A line twice: once as what opens the stream, and once as what follows."""
        return b"\n".join([json.dumps(value).encode()] * 2)

    return schemathesis.openapi.from_dict(DOCUMENT)


@pytest.mark.thorough
@pytest.mark.parametrize(("method", "path"), OPERATIONS, ids=map(" ".join, OPERATIONS))
def test_no_request_gets_a_status_or_a_body_that_is_not_listed(
    method: str, path: str, address: str, schema: Any
) -> None:
    operation = schema[path][method]
    # The routes in a project are those outside of it.
    examples = 2 if path.startswith("/api/projects/{projectId}/") else 7

    @settings(
        max_examples=examples,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        derandomize=True,
        database=None,
    )
    @given(case=operation.as_strategy())
    def send(case: Any) -> None:
        for there in (False, True):
            if there:
                case.path_parameters = {**(case.path_parameters or {}), **_there(path)}
            if case.method != "DELETE" or not there:
                _check(case, address)

    send()


def _check(case: Any, address: str) -> None:
    from schemathesis import checks as known

    response = case.call(base_url=address)
    # 501 is the answer of what evald does without, and is listed there alone.
    checks = [
        known.status_code_conformance,
        known.content_type_conformance,
        known.response_schema_conformance,
    ]
    if response.status_code != 501:
        checks.append(known.not_a_server_error)
    case.validate_response(response, checks=checks)
