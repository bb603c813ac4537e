"""Client of a server's services, for commands that list, change and run what it stores."""

import argparse
import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final

import grpc
from google.protobuf.message import Message

from evald import errors
from evald.connection import TypedErrors, channel_options, open_to
from evald.credentials import Access
from evald.fields import nearest
from evald.v1 import run_service_pb2
from evald_server.methods import CONNECTORS, EXPERIMENTS, PERSONAS, SCENARIOS, StandardMethods, method_for

from .exit_codes import unreachable, usage_error
from .server_connection import credentials_of, open_channel

# Deadline of a call. TestConnector waits for an agent, the other methods only for a disk.
_SECONDS: Final = 120.0
_PAGE: Final = 1000
# Time for which a watch tries to reach a lost server again: longer than a restart.
LOST_SECONDS: Final = 30.0
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 2.0


KINDS: Final = {kind.word: kind for kind in (PERSONAS, CONNECTORS, SCENARIOS, EXPERIMENTS)}
"""By word. A kind follows the kinds that it refers to."""

_ACTIVE: Final = (run_service_pb2.RUN_STATUS_QUEUED, run_service_pb2.RUN_STATUS_RUNNING)


@asynccontextmanager
async def open_server(args: argparse.Namespace) -> AsyncIterator["ServerClient"]:
    """Yield a client of `--server`, else of EVALD_SERVER, else of the server at the default address.

    For commands that need a lasting store: a server inside the command would lose its data at the end.
    Raises CommandError if no server answers.
    """
    address, access = open_to(args.server, **credentials_of(args))
    options = [*channel_options(-1), ("grpc.initial_reconnect_backoff_ms", 100)]
    async with open_channel(address, access, options) as channel:
        try:
            yield ServerClient(channel, address, access)
        except errors.Unavailable as problem:
            if not problem.hint:
                raise
            raise unreachable(problem) from None


class ServerClient:
    """A client of a server's services. Its methods raise the errors of `evald.errors`."""

    def __init__(self, channel: grpc.aio.Channel, address: str, access: Access) -> None:
        self.address = address
        self._channel = channel
        self._access = access
        self._typed_errors = TypedErrors(address)
        self._answered = False  # the server has responded at least once

    async def call(self, request: Message, seconds: float = _SECONDS) -> Any:
        """Call the method that takes a request of this type."""
        method = method_for(request)
        call: Any = self._channel.unary_unary(
            f"/{method.name}", method.request.SerializeToString, method.answer.FromString
        )
        with self._typed_errors:
            answer = await call(request, timeout=seconds, metadata=self._access.headers())
        self._answered = True
        return answer

    async def stream(self, request: Message) -> AsyncGenerator[Any]:
        """Yield the responses of the method that takes a request of this type. Without a deadline."""
        method = method_for(request)
        call: Any = self._channel.unary_stream(
            f"/{method.name}", method.request.SerializeToString, method.answer.FromString
        )
        with self._typed_errors:
            async for response in call(request, metadata=self._access.headers()):
                self._answered = True
                yield response

    async def pages(self, request: Any, seconds: float = _SECONDS) -> AsyncIterator[Any]:
        """Yield the pages of a listing."""
        while True:
            page = await self.call(request, seconds)
            yield page
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def _standard(self, kind: StandardMethods, verb: str, **fields: Any) -> Any:
        answer = await self.call(kind.request(verb, **fields))
        return getattr(answer, kind.word, None)

    async def create(self, kind: StandardMethods, resource: Any) -> Any:
        """Store a resource and return the stored version."""
        return await self._standard(kind, "Create", **{kind.word: resource})

    async def update(self, kind: StandardMethods, resource: Any, fields: list[str] | None = None) -> Any:
        """Replace fields of a stored resource, by default all, and return the stored version."""
        mask = {"update_mask": {"paths": fields}} if fields else {}
        return await self._standard(kind, "Update", **{kind.word: resource}, **mask)

    async def delete(self, kind: StandardMethods, resource_id: str) -> None:
        """Delete a resource."""
        await self._standard(kind, "Delete", **{f"{kind.word}_id": resource_id})

    async def by_id(self, kind: StandardMethods, resource_id: str) -> Any:
        """Return a resource, or None if there is none."""
        try:
            return await self._standard(kind, "Get", **{f"{kind.word}_id": resource_id})
        except errors.InvalidRequest as problem:
            if problem.code != "NOT_FOUND":
                raise
            return None

    async def every(self, kind: StandardMethods, name: str = "") -> AsyncIterator[Any]:
        """Yield all resources of a kind, or with `name` only the one with this name."""
        async for page in self.pages(kind.request("List", page_size=_PAGE, name=name)):
            for resource in getattr(page, kind.plural):
                yield resource

    async def lookup(self, kind: StandardMethods, name_or_id: str) -> Any:
        """Return the resource with this name, else the one with this id, else None."""
        async for resource in self.every(kind, name_or_id):
            return resource
        return await self.by_id(kind, name_or_id) if name_or_id else None

    async def find(self, kind: StandardMethods, name_or_id: str, hint: str = "") -> Any:
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
        answer = await self.call(run_service_pb2.GetRunRequest(run_id=run_id))
        found: run_service_pb2.Run = answer.run
        return found

    async def runs(
        self, wanted: dict[str, Any], limit: int | None = None
    ) -> AsyncIterator[run_service_pb2.Run]:
        """Yield the runs that match the filters. wanted: fields of ListRunsRequest."""
        size = _PAGE if limit is None else min(limit, _PAGE)
        request, found = run_service_pb2.ListRunsRequest(**wanted, page_size=size), 0
        async for page in self.pages(request):
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
                request = run_service_pb2.WatchRunRequest(run_id=run_id, after_sequence=after)
                async with aclosing(self.stream(request)) as events:
                    async for event in events:
                        after, pause, give_up = event.sequence, _FIRST_PAUSE, None
                        on_event(event)
                        if event.HasField("end"):
                            return await self.run(run_id)
                run = await self.run(run_id)
                if run.status not in _ACTIVE:
                    return run
                give_up = None
            except errors.Unavailable:
                if not self._answered or (give_up is not None and loop.time() >= give_up):
                    raise
                give_up = give_up or loop.time() + LOST_SECONDS
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
