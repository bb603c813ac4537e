"""CatalogService: lists, gets and watches evaluator types."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from evald.convert.evaluator_type import type_to_pb
from evald.v1 import catalog_service_pb2 as pb
from evald.v1.evaluator_pb2 import EvaluatorType
from evald_server.call_errors import CallError, invalid
from evald_server.engine.registry import Change, Entry, Registry, UnknownType

from .changes import send_changes
from .pages import page_size, page_token, read_token
from .server import Methods, RpcStream

NAME: Final = "evald.v1.CatalogService"


def describe(entry: Entry) -> EvaluatorType:
    """Convert a type to its message."""
    definition = entry.definition
    described = type_to_pb(definition)
    described.aliases[:] = sorted(definition.aliases)
    described.auto = entry.auto_config is not None
    described.config_schema_sha256 = hashlib.sha256(described.config_schema_json.encode()).hexdigest()
    described.origin, described.state = int(entry.origin), int(entry.state)  # type: ignore[assignment]
    described.instance_count = entry.instance_count
    return described


class CatalogService:
    """Handlers of CatalogService."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def methods(self) -> Methods:
        """Return the handlers by method."""
        return {
            "ListEvaluatorTypes": self.list_types,
            "GetEvaluatorType": self.get_type,
            "WatchEvaluatorTypes": self.watch,
        }

    async def list_types(self, request: pb.ListEvaluatorTypesRequest) -> pb.ListEvaluatorTypesResponse:
        """List a page of types, ordered by name and version."""
        size = page_size(request.page_size)
        if request.kind not in (0, 1, 2):
            raise invalid("kind", f"got {request.kind}, wanted an EvaluatorKind this server knows")
        name, _, version = read_token(request.page_token).partition(" ")
        entries = [
            entry
            for entry in self._registry.types()
            if _place(entry) > (name, version) and request.kind in (0, int(entry.definition.kind))
        ]
        response = pb.ListEvaluatorTypesResponse(revision=self._registry.revision)
        response.evaluator_types.extend(describe(entry) for entry in entries[:size])
        if len(entries) > size:
            response.next_page_token = page_token(" ".join(_place(entries[size - 1])))
        return response

    async def get_type(self, request: pb.GetEvaluatorTypeRequest) -> pb.GetEvaluatorTypeResponse:
        """Get one type by name or alias."""
        if not request.type:
            raise invalid("type", "missing; wanted the name of an evaluator type")
        try:
            entry = self._registry.find(request.type, request.version).entry
        except UnknownType as problem:
            raise CallError("UNKNOWN_TYPE", str(problem), type=request.type) from None
        return pb.GetEvaluatorTypeResponse(evaluator_type=describe(entry))

    async def watch(self, request: pb.WatchEvaluatorTypesRequest, stream: RpcStream) -> None:
        """Send all types, then their changes, until the caller disconnects."""
        log, response = self._registry, pb.WatchEvaluatorTypesResponse

        def snapshot() -> Iterator[Mapping[str, Any]]:
            for entry in log.types():
                yield {"upserted": describe(entry)}

        await send_changes(stream, log, request.after_revision, response, snapshot(), _fields)


def _fields(change: Change) -> Mapping[str, Any]:
    if change.entry is not None:
        return {"upserted": describe(change.entry)}
    return {"removed": pb.EvaluatorTypeRef(type=change.type, version=change.version)}


def _place(entry: Entry) -> tuple[str, str]:
    return entry.definition.type, entry.definition.version
