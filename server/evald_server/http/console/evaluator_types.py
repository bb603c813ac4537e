"""The server's evaluator types, cached until the catalogue changes."""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final
from weakref import WeakKeyDictionary

from starlette.requests import Request

from evald.catalog import EvaluatorType
from evald.v1 import catalog_service_pb2
from evald_server.http.calls import Calls
from evald_server.http.site import Site

# The catalogue's revision and its types, by server. Reading all types takes longer than the rest of a page.
_KNOWN: Final[WeakKeyDictionary[Calls, tuple[int, Mapping[str, EvaluatorType]]]] = WeakKeyDictionary()

_PAGE: Final = 1000


async def evaluator_types(site: Site, request: Request) -> Mapping[str, EvaluatorType]:
    """Return the evaluator types by name. Raises CallFailed."""
    wanted = catalog_service_pb2.ListEvaluatorTypesRequest(page_size=1)
    # Call this each time, because it also checks the caller's permission.
    revision = (await site.ask(request, wanted)).revision
    known = _KNOWN.get(site.calls)
    if known is None or known[0] != revision:
        found: dict[str, EvaluatorType] = {}
        wanted.page_size = _PAGE
        while True:
            answer = await site.ask(request, wanted)
            found |= {pb.type: EvaluatorType.from_pb(pb) for pb in answer.evaluator_types}
            wanted.page_token = answer.next_page_token
            if not wanted.page_token:
                break
        known = _KNOWN[site.calls] = (revision, found)
    return known[1]


@lru_cache(256)
def parsed(config_schema_json: str) -> Any:
    """Parse the schema of a type's config. The result is shared: do not change it."""
    return json.loads(config_schema_json or "{}")


def unit_of(known: EvaluatorType) -> str:
    """Return the unit of a type's metric, "" if it has none or if the config sets it."""
    schema = parsed(known.config_schema_json)
    chosen = isinstance(schema, dict) and "unit" in (schema.get("properties") or {})
    return known.metric.unit if known.metric is not None and not chosen else ""
