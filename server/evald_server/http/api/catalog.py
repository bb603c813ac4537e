"""Information about this server: status, projects, evaluator types, remotes, calibration cards."""

import asyncio
import logging
import platform
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from evald.plugin.v1 import registry_service_pb2
from evald.v1 import catalog_service_pb2
from evald_server.calibration.card import CalibrationCard
from evald_server.call_errors import BadField, refusal
from evald_server.config import Settings
from evald_server.http.errors import failed
from evald_server.http.site import Site

from .answers import answer
from .methods import AnswerPart, answer_part, listing, unary
from .openapi import ApiRoute
from .shapes import (
    EVALUATOR_TYPE,
    FLAG,
    PROJECT,
    PROJECT_CONFIG,
    STATUS,
    derived,
    list_of,
    type_to_json,
)

_log = logging.getLogger("evald.http")

NAME: Final = "evald"
PROJECT_ID: Final = "default"
LIST: Final = "evald.v1.CatalogService/ListEvaluatorTypes"
_VERSION: Final = version(NAME)  # read once, because it opens files

# The folder of cards in the data directory.
_CARDS: Final = "calibrations"


async def authorise(site: Site, request: Request) -> None:
    """Raise CallFailed for a caller who may not list the catalogue."""
    asked = catalog_service_pb2.ListEvaluatorTypesRequest(page_size=1)
    await site.ask(request, asked)


async def _status(_site: Site, _request: Request) -> Response:
    """Get the status of the server."""
    now = datetime.now(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds")
    node = f"Python {platform.python_version()}"
    said = {"name": NAME, "version": _VERSION, "status": "ok", "timestamp": f"{now}Z", "node": node}
    return answer(said)


async def _projects(_site: Site, _request: Request) -> Response:
    """List the projects: a server has exactly one."""
    return answer([{"id": PROJECT_ID, "name": NAME}])


async def _config(site: Site, _request: Request) -> Response:
    """Get the settings of the project."""
    return answer({"version": 3, "name": NAME, "maxConcurrency": site.settings.max_runs})


def stored_cards(settings: Settings) -> list[CalibrationCard]:
    """Return the calibration cards of the judges in the settings and those in the data directory, each once."""
    return each_once(cards_by_file(settings).values())


def each_once(cards: Iterable[CalibrationCard]) -> list[CalibrationCard]:
    """Return the first card of each id."""
    found: dict[str, CalibrationCard] = {}
    for card in cards:
        found.setdefault(card.id, card)
    return list(found.values())


def cards_by_file(settings: Settings) -> dict[Path, CalibrationCard]:
    """Read the files of cards: those of the judges in the settings, then those in the data directory."""
    paths = [path for judge in settings.judges.values() for path in judge.cards.values()]
    if settings.data_dir is not None:
        paths += sorted((settings.data_dir / _CARDS).glob("*.json"))
    cards = {path: _read_card(path) for path in paths}
    return {path: card for path, card in cards.items() if card is not None}


def _read_card(path: Path) -> CalibrationCard | None:
    """Return the calibration card in a file; None, and a warning in the log, if there is none."""
    try:
        return CalibrationCard.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as problem:
        _log.warning("%s is not a valid calibration card: %s", path, type(problem).__name__)
        return None


async def _list_cards(site: Site, _request: Request) -> Response:
    """List the calibration cards."""
    return await asyncio.to_thread(lambda: answer([card.to_dict() for card in stored_cards(site.settings)]))


async def _get_card(site: Site, request: Request) -> Response:
    """Get a calibration card."""
    card_id = request.path_params["id"]
    for card in await asyncio.to_thread(stored_cards, site.settings):
        if card.id == card_id:
            return answer(card.to_dict())
    problem = BadField(
        "id", f'no calibration card has the id "{card_id[:100]}"; /api/calibrations lists the existing ones'
    )
    raise failed(refusal([problem], "RESOURCE_NOT_FOUND"))


_CARD: Final = CalibrationCard.model_json_schema(
    mode="serialization", ref_template="#/components/schemas/{model}"
)

ROUTES: Final = (
    ApiRoute("GET", "/status", _status, response_schema=STATUS),
    ApiRoute("GET", "/projects", _projects, response_schema=list_of(PROJECT)),
    ApiRoute("GET", "/projects/{projectId}/config", _config, response_schema=PROJECT_CONFIG),
    listing(
        "/evaluator-types",
        LIST,
        "List evaluator types",
        AnswerPart("evaluator_types", EVALUATOR_TYPE, type_to_json),
    ),
    unary(
        "GET",
        "/evaluator-types/{type}",
        "evald.v1.CatalogService/GetEvaluatorType",
        "Get an evaluator type",
        AnswerPart("evaluator_type", EVALUATOR_TYPE, type_to_json),
    ),
    listing(
        "/remotes",
        "evald.plugin.v1.RegistryService/ListRegistrations",
        "List the instances of remote evaluators",
        answer_part("registrations", derived(registry_service_pb2.Registration)),
    ),
    unary(
        "DELETE",
        "/remotes/{instanceId}",
        "evald.plugin.v1.RegistryService/Deregister",
        "Deregister an instance of remote evaluators",
        query={"drain": FLAG},
    ),
    unary(
        "DELETE",
        "/remote-types/{type}",
        "evald.plugin.v1.RegistryService/ForgetType",
        "Forget a remote evaluator type that no instance offers",
        query={"version": {"type": "string"}},
        refusals=(409,),
    ),
    ApiRoute("GET", "/calibrations", _list_cards, response_schema=list_of(_CARD)),
    ApiRoute("GET", "/calibrations/{id}", _get_card, response_schema=_CARD),
)
