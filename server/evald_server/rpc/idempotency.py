"""Store responses by request_id, so that a retried call gets the same response without a second evaluation."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from evald.v1 import evaluation_service_pb2
from evald_server import wire_pb2
from evald_server.call_errors import CallError, invalid

KEEP_SECONDS: Final = 600.0
MAX_ID_LENGTH: Final = 128

# Measured size of the Python objects around a response.
_OVERHEAD_BYTES: Final = 400


class StoredResponse(NamedTuple):
    """A response. data: a serialised EvaluateUnaryResponse. specs: the plan as announced to the caller."""

    data: bytes
    specs: Sequence[bytes]


class _Stored(NamedTuple):
    digest: bytes
    response: StoredResponse
    expires: float
    size: int


class IdempotencyStore:
    """Keeps responses for ten minutes, and evicts the oldest beyond `max_bytes`. Keys are owner and request_id."""

    def __init__(self, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_bytes = max_bytes
        self._clock = clock
        self._bytes = 0
        self._stored: OrderedDict[tuple[str, str], _Stored] = OrderedDict()
        self._in_flight: dict[tuple[str, str], tuple[bytes, asyncio.Future[None]]] = {}

    async def once(
        self,
        request: wire_pb2.EvaluateRequest,
        call: Callable[[], Awaitable[StoredResponse]],
        owner: str = "",
    ) -> tuple[StoredResponse, bool]:
        """Return the response of a request and whether it is a replay. Calls `call` only without a stored response.

        While the same request is in flight, waits for its response. A failed call stores nothing, and the next call
        with its id runs. owner: name of the principal; each has its own ids.
        Raises CallError if the id was used for another request.
        """
        request_id = request.request_id
        check_length(request_id)
        # Parsed by the contract, whose maps are then written in one order; in the wire's twin specs stay as they came.
        parsed = evaluation_service_pb2.EvaluateRequest.FromString(request.SerializeToString())
        digest = blake2b(parsed.SerializeToString(deterministic=True), digest_size=16).digest()
        key = (owner, request_id)
        while in_flight := self._in_flight.get(key):
            if in_flight[0] != digest:
                raise reused()
            # asyncio.wait, not await: a cancelled caller must not cancel the future for the others.
            await asyncio.wait([in_flight[1]])
        self._expire()
        if stored := self._stored.get(key):
            if stored.digest != digest:
                raise reused()
            return stored.response, True
        done = asyncio.get_running_loop().create_future()
        self._in_flight[key] = digest, done
        try:
            response = await call()
            size = len(owner) + len(request_id) + len(response.data) + sum(map(len, response.specs))
            expires = self._clock() + KEEP_SECONDS
            self._stored[key] = _Stored(digest, response, expires, size + _OVERHEAD_BYTES)
            self._bytes += size + _OVERHEAD_BYTES
            self._expire()
        finally:
            del self._in_flight[key]
            done.set_result(None)
        return response, False

    def _expire(self) -> None:
        while self._stored:
            key, stored = next(iter(self._stored.items()))
            if stored.expires > self._clock() and self._bytes <= self._max_bytes:
                return
            del self._stored[key]
            self._bytes -= stored.size


def check_length(request_id: str) -> None:
    """Raise CallError for an id that is too long."""
    if len(request_id) > MAX_ID_LENGTH:
        raise invalid("request_id", f"got {len(request_id)} characters, wanted at most {MAX_ID_LENGTH}")


def reused() -> CallError:
    """Return the error of a request whose id was used for another one."""
    message = "was already used for another request; a new request needs a new id"
    return invalid("request_id", message, "REQUEST_ID_REUSED")
