"""Client of the services that store scenarios, personas, connectors, experiments and runs."""

import argparse
import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any, Final, NamedTuple

import grpc

from evald import errors
from evald.connection import TypedErrors, channel_options
from evald.convert import resources
from evald.convert.json_shapes import Shape
from evald.credentials import Access
from evald.fields import nearest
from evald.v1 import run_service_pb2, run_service_pb2_grpc

from .exit_codes import usage_error
from .server_connection import channel_to_server, pages

# Deadline of a call. TestConnector waits for an agent, the other methods only for a disk.
_SECONDS: Final = 120.0
_PAGE: Final = 1000
# Time for which a watch tries to reach a lost server again: longer than a restart.
LOST_SECONDS: Final = 30.0
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 2.0


class StoredKind(NamedTuple):
    """A kind of stored resource.

    word: for example "scenario". plural: the command, and the key in a file. stub: makes the service's stub for a
    channel. requests: the module with the service's messages.
    """

    word: str
    plural: str
    shape: Shape[Any]
    stub: Callable[[grpc.aio.Channel], Any]
    requests: ModuleType


def _kind(word: str, shape: Shape[Any]) -> StoredKind:
    stubs = import_module(f"evald.v1.{word}_service_pb2_grpc")
    stub = getattr(stubs, f"{word.capitalize()}ServiceStub")
    return StoredKind(word, f"{word}s", shape, stub, import_module(f"evald.v1.{word}_service_pb2"))


KINDS: Final = {
    word: _kind(word, shape)
    for word, shape in (
        ("persona", resources.PERSONA),
        ("connector", resources.CONNECTOR),
        ("scenario", resources.SCENARIO),
        ("experiment", resources.EXPERIMENT),
    )
}
"""By word. A kind follows the kinds that it refers to."""

_GOING_ON: Final = (run_service_pb2.RUN_STATUS_QUEUED, run_service_pb2.RUN_STATUS_RUNNING)


@asynccontextmanager
async def open_store(args: argparse.Namespace) -> AsyncIterator["StoreClient"]:
    """Yield a client of the server that `channel_to_server` connects to."""
    options = [*channel_options(-1), ("grpc.initial_reconnect_backoff_ms", 100)]
    async with channel_to_server(args, options) as (channel, address, access):
        yield StoreClient(channel, address, access)


class StoreClient:
    """A client of the stored resources and runs. Its methods raise the errors of `evald.errors`."""

    def __init__(self, channel: grpc.aio.Channel, address: str, access: Access) -> None:
        self._access = access
        self._typed_errors = TypedErrors(address)
        self._answered = False  # the server has responded at least once
        self._stubs = {word: kind.stub(channel) for word, kind in KINDS.items()}
        self._stubs["run"] = run_service_pb2_grpc.RunServiceStub(channel)

    async def call(self, word: str, method: str, request: Any) -> Any:
        """Call a method of a kind's service. word: the kind's word, or "run"."""
        with self._typed_errors:
            call = getattr(self._stubs[word], method)
            answer = await call(request, timeout=_SECONDS, metadata=self._access.headers())
        self._answered = True
        return answer

    async def _standard(self, kind: StoredKind, verb: str, **fields: Any) -> Any:
        method = f"{verb}{kind.word.capitalize()}"
        answer = await self.call(kind.word, method, getattr(kind.requests, f"{method}Request")(**fields))
        return getattr(answer, kind.word, None)

    async def create(self, kind: StoredKind, resource: Any) -> Any:
        """Store a resource and return the stored version."""
        return await self._standard(kind, "Create", **{kind.word: resource})

    async def update(self, kind: StoredKind, resource: Any, fields: list[str] | None = None) -> Any:
        """Replace fields of a stored resource, by default all, and return the stored version."""
        mask = {"update_mask": {"paths": fields}} if fields else {}
        return await self._standard(kind, "Update", **{kind.word: resource}, **mask)

    async def delete(self, kind: StoredKind, resource_id: str) -> None:
        """Delete a resource."""
        await self._standard(kind, "Delete", **{f"{kind.word}_id": resource_id})

    async def by_id(self, kind: StoredKind, resource_id: str) -> Any:
        """Return a resource, or None if there is none."""
        try:
            return await self._standard(kind, "Get", **{f"{kind.word}_id": resource_id})
        except errors.InvalidRequest as problem:
            if problem.code != "NOT_FOUND":
                raise
            return None

    async def every(self, kind: StoredKind, name: str = "") -> AsyncIterator[Any]:
        """Yield all resources of a kind, or with `name` only the one with this name."""
        method = f"List{kind.plural.capitalize()}"
        request = getattr(kind.requests, f"{method}Request")(page_size=_PAGE, name=name)
        async for page in pages(partial(self.call, kind.word, method), request):
            for resource in getattr(page, kind.plural):
                yield resource

    async def lookup(self, kind: StoredKind, name_or_id: str) -> Any:
        """Return the resource with this name, else the one with this id, else None."""
        async for resource in self.every(kind, name_or_id):
            return resource
        return await self.by_id(kind, name_or_id) if name_or_id else None

    async def find(self, kind: StoredKind, name_or_id: str, hint: str = "") -> Any:
        """Return the resource with this name or id.

        Raises CommandError if there is none. It suggests the nearest name, else it has `hint`.
        """
        found = await self.lookup(kind, name_or_id)
        if found is not None:
            return found
        names = [resource.name async for resource in self.every(kind)]
        near = nearest(name_or_id, names)
        listed = (
            f"evald {kind.plural} list shows all {len(names)}" if names else f"no {kind.plural} are stored"
        )
        raise usage_error(
            f'no {kind.word} has the name or id "{name_or_id}"',
            f'did you mean "{near}"?' if near else hint or listed,
        )

    async def run(self, run_id: str) -> run_service_pb2.Run:
        """Return a run with all its data."""
        answer = await self.call("run", "GetRun", run_service_pb2.GetRunRequest(run_id=run_id))
        found: run_service_pb2.Run = answer.run
        return found

    async def runs(
        self, wanted: dict[str, Any], limit: int | None = None
    ) -> AsyncIterator[run_service_pb2.Run]:
        """Yield the runs that match the filters. wanted: fields of ListRunsRequest."""
        size = _PAGE if limit is None else min(limit, _PAGE)
        request, found = run_service_pb2.ListRunsRequest(**wanted, page_size=size), 0
        async for page in pages(partial(self.call, "run", "ListRuns"), request):
            for run in page.runs:
                yield run
                found += 1
                if found == limit:
                    return

    async def watch(
        self, run_id: str, on_event: Callable[[run_service_pb2.WatchRunResponse], None]
    ) -> run_service_pb2.Run:
        """Call `on_event` once for each event of a run until the run has ended. Returns the run.

        A lost watch resumes after the last event. Raises Unavailable if the server stays lost for
        LOST_SECONDS, and at once if it has never responded.
        """
        loop = asyncio.get_running_loop()
        after, pause = 0, _FIRST_PAUSE
        give_up: float | None = None  # the loop's time at which to stop trying; None while connected
        while True:
            try:
                with self._typed_errors:
                    request = run_service_pb2.WatchRunRequest(run_id=run_id, after_sequence=after)
                    watching = self._stubs["run"].WatchRun(request, metadata=self._access.headers())
                    async for event in watching:
                        after, pause, give_up = event.sequence, _FIRST_PAUSE, None
                        self._answered = True
                        on_event(event)
                        if event.HasField("end"):
                            return await self.run(run_id)
                run = await self.run(run_id)
                if run.status not in _GOING_ON:
                    return run
                give_up = None
            except errors.Unavailable:
                if not self._answered or (give_up is not None and loop.time() >= give_up):
                    raise
                give_up = give_up or loop.time() + LOST_SECONDS
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
