"""What evaluators are called, by type."""

from functools import lru_cache

from evald.v1 import catalog_service_pb2
from evald_server.http.calls import HttpCaller
from evald_server.http.site import Site

_ALL = catalog_service_pb2.ListEvaluatorTypesRequest(page_size=1000).SerializeToString()


async def labels(site: Site, caller: HttpCaller) -> dict[str, str]:
    """Return the label of each evaluator type. Raises CallFailed."""
    return _labels(await site.calls.unary("evald.v1.CatalogService/ListEvaluatorTypes", _ALL, caller))


@lru_cache(maxsize=4)
def _labels(types: bytes) -> dict[str, str]:
    # Kept, because reading all their schemas takes longer than the rest of a page.
    found = catalog_service_pb2.ListEvaluatorTypesResponse.FromString(types)
    return {one.type: one.label for one in found.evaluator_types}
