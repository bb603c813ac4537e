"""What this server is and what it offers: status, projects, evaluator types, remotes, calibration cards."""

import asyncio
import logging
import platform
from collections.abc import Iterator
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
from evald_server.config import Settings
from evald_server.http.errors import failed
from evald_server.http.site import Site
from evald_server.rpc.errors import BadField, refusal

from .answers import answer, choice_of, list_answer, text_of, written
from .shapes import derived, type_to_json

_log = logging.getLogger("evald.http")

NAME: Final = "evald"
_VERSION: Final = version(NAME)  # reading it takes files
REGISTRATION: Final = derived(registry_service_pb2.Registration)

LIST: Final = "evald.v1.CatalogService/ListEvaluatorTypes"
DEREGISTER: Final = "evald.plugin.v1.RegistryService/Deregister"

# What stands in the data directory, beside the cards that settings name.
_CARDS: Final = "calibrations"


async def authorise(site: Site, request: Request) -> None:
    """Raise CallFailed for a caller who may not even list the catalogue."""
    asked = catalog_service_pb2.ListEvaluatorTypesRequest(page_size=1)
    await site.ask(request, asked)


async def status(site: Site, request: Request) -> Response:
    """Say that the server is there."""
    await authorise(site, request)
    now = datetime.now(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds")
    return answer(
        {
            "name": NAME,
            "version": _VERSION,
            "status": "ok",
            "timestamp": f"{now}Z",
            "node": f"Python {platform.python_version()}",
        }
    )


async def projects(site: Site, request: Request) -> Response:
    """List the one project."""
    await authorise(site, request)
    return answer([{"id": "default", "name": NAME}])


async def config(site: Site, request: Request) -> Response:
    """Show the settings of the one project."""
    await authorise(site, request)
    return answer({"version": 3, "name": NAME, "maxConcurrency": site.settings.max_runs})


async def list_types(site: Site, request: Request) -> Response:
    """List what can be evaluated."""
    asked = catalog_service_pb2.ListEvaluatorTypesRequest()
    return await list_answer(site, request, asked, "evaluator_types", type_to_json)


async def get_type(site: Site, request: Request) -> Response:
    """Show one evaluator type."""
    asked = catalog_service_pb2.GetEvaluatorTypeRequest(type=text_of(request, "type"))
    found = await site.ask(request, asked)
    return await written(found.evaluator_type, type_to_json)


async def list_remotes(site: Site, request: Request) -> Response:
    """List the instances of remote evaluators."""
    return await list_answer(
        site,
        request,
        registry_service_pb2.ListRegistrationsRequest(),
        "registrations",
        REGISTRATION.write,
    )


async def deregister(site: Site, request: Request) -> Response:
    """Remove an instance of remote evaluators that has registered."""
    asked = registry_service_pb2.DeregisterRequest(
        instance_id=text_of(request, "instanceId"), drain=choice_of(request, "drain", ("true", "false")) == 1
    )
    await site.ask(request, asked)
    return Response(status_code=204)


def stored_cards(settings: Settings) -> Iterator[CalibrationCard]:
    """Yield the calibration cards that settings name for judges, and those in the data directory, each once."""
    paths = [path for judge in settings.judges.values() for path in judge.cards.values()]
    if settings.data_dir is not None:
        paths += sorted((settings.data_dir / _CARDS).glob("*.json"))
    found: set[str] = set()
    for path in paths:
        card = _read_card(path)
        if card is not None and card.id not in found:
            found.add(card.id)
            yield card


def _read_card(path: Path) -> CalibrationCard | None:
    try:
        return CalibrationCard.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as problem:
        _log.warning("%s is no calibration card: %s", path, type(problem).__name__)
        return None


async def list_cards(site: Site, request: Request) -> Response:
    """List the calibration cards."""
    await authorise(site, request)
    return await asyncio.to_thread(lambda: answer([card.to_dict() for card in stored_cards(site.settings)]))


async def get_card(site: Site, request: Request) -> Response:
    """Show one calibration card."""
    await authorise(site, request)
    card_id = text_of(request, "id")
    for card in await asyncio.to_thread(list, stored_cards(site.settings)):
        if card.id == card_id:
            return answer(card.to_dict())
    problem = BadField("id", f'no calibration card has the id "{card_id[:100]}"')
    raise failed(refusal([problem], "RESOURCE_NOT_FOUND"))
