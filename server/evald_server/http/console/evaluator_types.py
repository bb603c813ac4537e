"""The evaluator types that a server has, kept for as long as they are the same."""

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

# By server: the catalogue's revision, and the types at it. Reading all of them takes longer than the rest of a page.
_KNOWN: Final[WeakKeyDictionary[Calls, tuple[int, Mapping[str, EvaluatorType]]]] = WeakKeyDictionary()

_PAGE: Final = 1000


async def evaluator_types(site: Site, request: Request) -> Mapping[str, EvaluatorType]:
    """Return the evaluator types by name. Raises CallFailed."""
    wanted = catalog_service_pb2.ListEvaluatorTypesRequest(page_size=1)
    # Asked each time, because it also says whether the caller may see them.
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
    """Return the schema of a type's config as data. It is shared: not to be changed."""
    return json.loads(config_schema_json or "{}")


def unit_of(known: EvaluatorType) -> str:
    """Return the unit of what a type measures, "" if it has none or if its config chooses one."""
    schema = parsed(known.config_schema_json)
    chosen = isinstance(schema, dict) and "unit" in (schema.get("properties") or {})
    return known.metric.unit if known.metric is not None and not chosen else ""
