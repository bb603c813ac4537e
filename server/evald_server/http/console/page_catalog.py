"""Pages of the catalogue: evaluator types, instances of remote evaluators, and judges."""

import asyncio
import json
from typing import Final, NamedTuple

from google.protobuf.timestamp_pb2 import Timestamp
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from evald.catalog import EvaluatorType
from evald.plugin.v1 import registry_service_pb2
from evald.v1 import catalog_service_pb2
from evald_server.http.api.catalog import authorise, cards_by_file, each_once
from evald_server.http.site import Site

from .evaluator_types import evaluator_types
from .failures import ignore_not_found
from .forms import fields_of
from .page_edit import read_posted
from .rendering import listed, render

_PAGE: Final = 50
_STATES: Final = {1: "pending", 2: "active", 3: "draining", 4: "unhealthy", 5: "lost"}
_ORIGINS: Final = {"built_in": "in the server", "remote": "remotely", "plugin": "in the server, a plugin"}
_MODES: Final = {1: "session", 2: "registration", 3: "config"}


async def evaluators(site: Site, request: Request) -> Response:
    """Show all evaluator types."""
    types = await evaluator_types(site, request)
    return await render(site, request, "evaluators.html", types=types.values(), origins=_ORIGINS)


async def evaluator(site: Site, request: Request) -> Response:
    """Show one evaluator type, with its config as a form."""
    answer = await site.ask(
        request, catalog_service_pb2.GetEvaluatorTypeRequest(type=request.path_params["type"])
    )
    one = EvaluatorType.from_pb(answer.evaluator_type)
    schema = json.dumps(one.config_schema, ensure_ascii=False, indent=2)
    return await render(
        site, request, "evaluator.html", one=one, config=fields_of(one.config_schema, {}), schema=schema
    )


async def remotes(site: Site, request: Request) -> Response:
    """Show a page of the instances of remote evaluators."""
    wanted = registry_service_pb2.ListRegistrationsRequest(
        page_size=_PAGE, page_token=request.query_params.get("page", "")
    )
    answer = await site.ask(request, wanted)
    now = Timestamp()
    now.GetCurrentTime()
    return await render(
        site,
        request,
        "remotes.html",
        found=[*answer.registrations, *answer.lost],
        states=_STATES,
        modes=_MODES,
        now=now,
        **listed(request, answer.next_page_token),
    )


async def deregister(site: Site, request: Request) -> Response:
    """Remove an instance; its open tasks may finish."""
    instance_id = (await read_posted(request)).get("instance", "")
    with ignore_not_found():
        await site.ask(request, registry_service_pb2.DeregisterRequest(instance_id=instance_id, drain=True))
    return RedirectResponse("/console/remotes", 303)


class ConfiguredJudge(NamedTuple):
    """A judge of the settings with one model. model: "" for any. card: the id of its calibration card, "" for none."""

    name: str
    model: str
    card: str


async def judge(site: Site, request: Request) -> Response:
    """Show the configured judges and the calibration cards."""
    await authorise(site, request)
    cards = await asyncio.to_thread(cards_by_file, site.settings)
    found = []
    for name, one in site.settings.judges.items():
        for model in dict.fromkeys([*([one.model] if one.model else []), *one.models]) or [""]:
            card = cards.get(one.cards[model]) if model in one.cards else None
            found.append(ConfiguredJudge(name, model, "" if card is None else card.id))
    if site.settings.judge_model:
        found.insert(0, ConfiguredJudge("default", site.settings.judge_model, ""))
    return await render(site, request, "judge.html", judges=found, cards=each_once(cards.values()))
