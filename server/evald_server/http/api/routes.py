"""The routes below /api: EvalStudio's paths and shapes, extended. The one table of them makes the routes and the
OpenAPI document."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from evald.convert import json_shapes as shape
from evald.convert.runs import STATUSES, evaluation_schema, run_schema, turn_schema
from evald.errors import InvalidInput
from evald.fields import nearest
from evald.v1 import suite_service_pb2
from evald_server.calibration.card import CalibrationCard
from evald_server.http import kinds
from evald_server.http.errors import failed
from evald_server.http.kinds import StandardMethods
from evald_server.http.site import Site
from evald_server.http.streams import answer_to
from evald_server.rpc.errors import BadField, CallError, refusal

from . import catalog, evaluate, resources, runs, suites
from .answers import MOST, dumped, refused
from .openapi import ApiHandler, ApiRoute, document
from .shapes import (
    CONNECTOR_TEST,
    CONNECTOR_TYPE,
    CONVERSATION,
    EVALUATOR_TYPE,
    EVALUATORS,
    FLAG,
    INTEGER,
    OPTIONS,
    PROJECT,
    PROJECT_CONFIG,
    PROMPT,
    STATUS,
    TEXT,
    TIME,
    VERDICTS,
    VIOLATIONS,
    derived,
    eval_schema,
    line_of,
    list_of,
    patch_of,
    record,
    request_of,
)

PROJECT_ID: Final = "default"

_ID: Final = "/{id}"


def _stored(path: str, kind: StandardMethods, get: ApiHandler | None = None) -> list[ApiRoute]:
    """Return the routes of one kind of what is stored by name."""
    schema, handle = kind.shape.schema(), resources.ResourceRoutes(kind)
    body = request_of(schema)
    one = [
        ApiRoute(
            "POST", path, handle.create, kind.method("Create"), schema, body, status=201, refusals=(409,)
        ),
        ApiRoute(
            "GET",
            path + _ID,
            get or handle.get,
            kind.method("Get"),
            eval_schema() if get else schema,
            query=_EXPAND if get else {},
        ),
        ApiRoute(
            "PUT", path + _ID, handle.update, kind.method("Update"), schema, patch_of(schema), refusals=(409,)
        ),
        ApiRoute("DELETE", path + _ID, handle.delete, kind.method("Delete"), status=204),
    ]
    listed = ApiRoute("GET", path, handle.list, kind.method("List"), list_of(schema), query=_PAGE)
    return [listed, *(route._replace(versioned=True) for route in one)]


_PAGE: Final = {"limit": {"type": "integer", "minimum": 1, "maximum": MOST}, "cursor": TEXT}
_EXPAND: Final = {"expand": FLAG}
_VERDICT: Final = {"type": "string", "enum": list(VERDICTS)}
_RUN: Final = run_schema()
_RUNS: Final = {
    **dict.fromkeys(("evalId", "scenarioId", "personaId", "connectorId"), TEXT),
    "executionId": {"type": "integer", "minimum": 1, "maximum": 999_999_999},
    "status": {"type": "string", "examples": list(STATUSES)},
    "verdict": _VERDICT,
    "evaluator": TEXT,
    "since": TIME,
    "until": TIME,
    "messages": FLAG,
    **_PAGE,
}
_EVALUATION: Final = evaluation_schema()
_CARD: Final = CalibrationCard.model_json_schema(
    mode="serialization", ref_template="#/components/schemas/{model}"
)
_OPENING: Final = record(
    "BatchOpening",
    {"evaluators": EVALUATORS, "options": OPTIONS, "labels": shape.TEXT_MAP.schema, "brief": FLAG},
)


@cache
def _document() -> bytes:
    return dumped(document(ROUTES))


async def _openapi(site: Site, request: Request) -> Response:
    """Describe all routes."""
    await catalog.authorise(site, request)
    return Response(_document(), media_type="application/json")


_IN_PROJECT: Final = (
    *_stored("/scenarios", kinds.SCENARIOS),
    ApiRoute(
        "GET",
        "/scenarios/{id}/prompt",
        resources.scenario_prompt,
        "evald.v1.ScenarioService/GetScenarioPrompt",
        PROMPT,
        query={"personaId": TEXT},
    ),
    *_stored("/personas", kinds.PERSONAS),
    ApiRoute(
        "GET",
        "/connectors/types",
        resources.connector_types,
        "evald.v1.ConnectorService/ListConnectorTypes",
        list_of(CONNECTOR_TYPE),
    ),
    *_stored("/connectors", kinds.CONNECTORS),
    ApiRoute(
        "POST",
        "/connectors/{id}/test",
        resources.test_connector,
        "evald.v1.ConnectorService/TestConnector",
        CONNECTOR_TEST,
    ),
    *_stored("/evals", kinds.EXPERIMENTS, resources.get_eval),
    ApiRoute("GET", "/runs", runs.list_runs, f"{runs.SERVICE}/ListRuns", list_of(_RUN), query=_RUNS),
    ApiRoute(
        "POST",
        "/runs",
        runs.start_runs,
        f"{runs.SERVICE}/StartRuns",
        list_of(_RUN),
        record("RunsRequest", {"evalId": TEXT}, "evalId"),
        status=201,
        refusals=(404,),
    ),
    ApiRoute(
        "POST",
        "/runs/playground",
        runs.start_run,
        f"{runs.SERVICE}/StartRun",
        _RUN,
        record(
            "RunRequest",
            {"scenarioId": TEXT, "connectorId": TEXT, "personaId": TEXT},
            "scenarioId connectorId",
        ),
        status=201,
        refusals=(404,),
    ),
    ApiRoute("GET", "/runs/{id}", runs.get_run, f"{runs.SERVICE}/GetRun", _RUN),
    ApiRoute("DELETE", "/runs/{id}", runs.delete_run, f"{runs.SERVICE}/DeleteRun", status=204),
    ApiRoute("GET", "/runs/{id}/turns", runs.list_turns, f"{runs.SERVICE}/GetRun", list_of(turn_schema())),
    *(
        ApiRoute(
            "POST",
            f"/runs/{{id}}/{handle.__name__.removesuffix('_run')}",
            handle,
            f"{runs.SERVICE}/{handle.__name__.removesuffix('_run').capitalize()}Run",
            _RUN,
        )
        for handle in (runs.retry_run, runs.cancel_run, runs.resume_run)
    ),
    ApiRoute(
        "GET",
        "/runs/{id}/events",
        runs.watch_run,
        f"{runs.SERVICE}/WatchRun",
        query={"after": {"type": "integer", "minimum": 0}},
        lines=line_of("RunEvent", {"sequence": INTEGER, "event": TEXT}),
        events=True,
    ),
)

_WITHOUT: Final = {
    "models and their keys are settings of the server": (
        ("GET", "/workspace"),
        ("PUT", "/workspace"),
        ("GET", "/llm-providers/models"),
        ("GET", "/llm-providers/{providerType}/models"),
        ("PUT", "/projects/{projectId}/config"),
    ),
    "a server is one project": (("POST", "/projects"), ("DELETE", "/projects/{projectId}")),
}
_WITHOUT_IN_PROJECT: Final = {
    "evald draws no portraits and keeps no images": (
        ("POST", "/personas/{id}/generate-image"),
        ("POST", "/images"),
        ("GET", "/images/{id}"),
        ("DELETE", "/images/{id}"),
    ),
    "results are written by the server's own runs; evald import stores those of others": (
        ("PUT", "/runs/{id}"),
    ),
    "start a run, or test the connector": (("POST", "/runs/chat"), ("POST", "/connectors/{id}/invoke")),
}


def _absent(reason: str, method: str, path: str) -> ApiRoute:
    async def refuse(site: Site, request: Request) -> Response:
        """Say that evald does without this."""
        await catalog.authorise(site, request)
        raise failed(CallError("UNKNOWN_METHOD", f"evald has no such thing: {reason}"))

    return ApiRoute(method, path, refuse, status=501)


def _all_absent(table: Mapping[str, Sequence[tuple[str, str]]]) -> list[ApiRoute]:
    return [_absent(reason, *route) for reason, routes in table.items() for route in routes]


_EVERYWHERE: Final = (
    ApiRoute("GET", "/status", catalog.status, answers=STATUS),
    ApiRoute("GET", "/openapi.json", _openapi, answers={"type": "object"}),
    ApiRoute("GET", "/projects", catalog.projects, answers=list_of(PROJECT)),
    ApiRoute("GET", "/projects/{projectId}/config", catalog.config, answers=PROJECT_CONFIG),
    ApiRoute(
        "GET", "/evaluator-types", catalog.list_types, catalog.LIST, list_of(EVALUATOR_TYPE), query=_PAGE
    ),
    ApiRoute(
        "GET",
        "/evaluator-types/{type}",
        catalog.get_type,
        "evald.v1.CatalogService/GetEvaluatorType",
        EVALUATOR_TYPE,
    ),
    ApiRoute(
        "POST",
        "/evaluate",
        evaluate.evaluate,
        f"{evaluate.SERVICE}/EvaluateUnary",
        _EVALUATION,
        CONVERSATION,
        lines=line_of("EvaluationEvent", {"event": TEXT, "evaluationId": TEXT, "summary": _EVALUATION}),
    ),
    ApiRoute(
        "POST",
        "/evaluate-batch",
        evaluate.evaluate_batch,
        f"{evaluate.SERVICE}/EvaluateBatch",
        takes={"anyOf": [_OPENING, CONVERSATION]},
        takes_lines=True,
        lines=line_of("BatchEvent", {"event": TEXT, "id": TEXT, "evaluation": _EVALUATION}),
    ),
    ApiRoute(
        "POST",
        "/validate",
        evaluate.validate,
        f"{evaluate.SERVICE}/ValidateSpecs",
        VIOLATIONS,
        record("ValidateRequest", {"evaluators": EVALUATORS}, "evaluators"),
    ),
    ApiRoute(
        "GET",
        "/suite-runs",
        suites.list_suite_runs,
        f"{suites.SERVICE}/ListSuiteRuns",
        list_of(suites.SUITE_RUN.schema()),
        query={
            "suite": TEXT,
            "target": TEXT,
            "status": {"type": "string", "enum": ["running", "completed", "interrupted"]},
            "verdict": _VERDICT,
            **_PAGE,
        },
    ),
    ApiRoute(
        "POST",
        "/suite-runs",
        suites.run_suite,
        f"{suites.SERVICE}/RunSuite",
        takes={
            "anyOf": [
                request_of(derived(suite_service_pb2.SuiteOpen).schema()),
                request_of(derived(suite_service_pb2.SuiteCase).schema()),
            ]
        },
        takes_lines=True,
        refusals=(404, 409),
        lines=line_of(
            "SuiteEvent",
            {"event": TEXT, "suiteRun": suites.SUITE_RUN.schema(), "result": suites.CASE_RESULT.schema()},
        ),
    ),
    ApiRoute(
        "GET",
        "/suite-runs/compare",
        suites.compare,
        f"{suites.SERVICE}/CompareSuiteRuns",
        suites.COMPARISON.schema(),
        query={"base": TEXT, "new": TEXT, "maxDrop": {"type": "number", "minimum": 0, "maximum": 1}},
        refusals=(404,),
    ),
    ApiRoute(
        "GET",
        "/suite-runs/{id}",
        suites.get_suite_run,
        f"{suites.SERVICE}/GetSuiteRun",
        suites.SUITE_RUN.schema(),
    ),
    ApiRoute(
        "GET",
        "/suite-runs/{id}/cases",
        suites.list_cases,
        f"{suites.SERVICE}/ListCaseResults",
        list_of(suites.CASE_RESULT.schema()),
        query={"verdict": _VERDICT, "caseId": TEXT, "brief": FLAG, **_PAGE},
    ),
    ApiRoute(
        "GET",
        "/remotes",
        catalog.list_remotes,
        "evald.plugin.v1.RegistryService/ListRegistrations",
        list_of(catalog.REGISTRATION.schema()),
        query=_PAGE,
    ),
    ApiRoute(
        "DELETE",
        "/remotes/{instanceId}",
        catalog.deregister,
        catalog.DEREGISTER,
        query={"drain": FLAG},
        status=204,
    ),
    ApiRoute("GET", "/calibrations", catalog.list_cards, answers=list_of(_CARD)),
    ApiRoute("GET", "/calibrations/{id}", catalog.get_card, answers=_CARD),
    *_all_absent(_WITHOUT),
)

ROUTES: Final = (
    *_EVERYWHERE,
    *(
        route._replace(path=f"{base}{route.path}")
        for base in ("", "/projects/{projectId}")
        for route in (*_all_absent(_WITHOUT_IN_PROJECT), *_IN_PROJECT)
    ),
)
"""All routes, by their paths below /api."""


def routes(site: Site) -> list[BaseRoute]:
    """Return the routes below /api."""
    by_path: dict[str, dict[str, ApiRoute]] = {}
    for route in ROUTES:
        by_path.setdefault(route.path, {})[route.method] = route
    # What is spelled out goes before what stands for anything.
    paths = sorted(by_path, key=lambda path: [part.startswith("{") for part in path.split("/")])
    return [
        Route(
            f"/api{path}",
            _endpoint(site, by_path[path]),
            methods=["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"],
        )
        for path in paths
    ]


def _endpoint(site: Site, methods: Mapping[str, ApiRoute]) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        _check_project(request)
        method = "GET" if request.method == "HEAD" else request.method
        route = methods.get(method)
        if route is None:
            allowed = [*methods, *(("HEAD",) if "GET" in methods else ())]
            raise HTTPException(405, headers={"Allow": ", ".join(allowed)})
        await site.access.admit(site.calls, request, route.calls or catalog.LIST)
        await request.body()  # from here on it is seen when the caller hangs up
        _check_query(request, route)
        return answer_to(request, await route.handle(site, request))

    return endpoint


def _check_project(request: Request) -> None:
    project = request.path_params.get("projectId", PROJECT_ID)
    if project != PROJECT_ID:
        text = f'no project has the id "{project[:100]}"; this server is one project, "{PROJECT_ID}"'
        raise failed(refusal([BadField("projectId", text)], "RESOURCE_NOT_FOUND"))


def _check_query(request: Request, route: ApiRoute) -> None:
    """Raise CallFailed for a parameter that the route does not know: a filter that is passed over would lie."""
    for name in request.query_params:
        if name not in route.query:
            near = nearest(name, route.query)
            known = f"one of {', '.join(route.query)}" if route.query else "none"
            raise refused(InvalidInput(name[:100], "unknown parameter", f"{near!r}" if near else known))
