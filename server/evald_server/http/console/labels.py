"""What evaluators are called, by type."""

from typing import Final
from weakref import WeakKeyDictionary

from evald.v1 import catalog_service_pb2
from evald_server.http.calls import Calls, HttpCaller
from evald_server.http.site import Site

# By server: the catalogue's revision, and the labels at it. Reading all schemas takes longer than the rest of a page.
_KNOWN: Final[WeakKeyDictionary[Calls, tuple[int, dict[str, str]]]] = WeakKeyDictionary()


async def labels(site: Site, caller: HttpCaller) -> dict[str, str]:
    """Return the label of each evaluator type. Raises CallFailed."""

    async def types(size: int) -> catalog_service_pb2.ListEvaluatorTypesResponse:
        return await site.calls.ask(
            "evald.v1.CatalogService/ListEvaluatorTypes",
            catalog_service_pb2.ListEvaluatorTypesRequest(page_size=size),
            catalog_service_pb2.ListEvaluatorTypesResponse,
            caller,
        )

    revision = (await types(1)).revision
    known = _KNOWN.get(site.calls)
    if known is None or known[0] != revision:
        found = await types(1000)
        known = _KNOWN[site.calls] = (
            found.revision,
            {one.type: one.label for one in found.evaluator_types},
        )
    return known[1]
