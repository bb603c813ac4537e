"""Store responses by request_id, so that a retried call gets the same response without a second evaluation."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple, TypeAlias

from evald.v1 import evaluation_service_pb2
from evald_server import wire_pb2
from evald_server.call_errors import CallError, invalid

KEEP_SECONDS: Final = 600.0
MAX_ID_LENGTH: Final = 128

# Measured size of the Python objects around a response.
_OVERHEAD_BYTES: Final = 400


_Key: TypeAlias = tuple[str, str]
"""Owner and request_id."""


class StoredResponse(NamedTuple):
    """A response. data: a serialised EvaluateUnaryResponse. specs: the plan as announced to the caller."""

    data: bytes
    specs: Sequence[bytes]


class _Stored(NamedTuple):
    digest: bytes
    response: StoredResponse
    expires: float


class _InFlight(NamedTuple):
    digest: bytes
    done: "asyncio.Future[None]"


class IdempotencyStore:
    """Keeps responses for ten minutes, and evicts the oldest beyond `max_bytes`."""

    def __init__(self, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_bytes = max_bytes
        self._clock = clock
        self._bytes = 0
        self._stored: OrderedDict[_Key, _Stored] = OrderedDict()
        self._in_flight: dict[_Key, _InFlight] = {}

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
        while known := self._find(key):
            if known.digest != digest:
                raise reused()
            if isinstance(known, _Stored):
                return known.response, True
            # asyncio.wait, not await: a cancelled caller must not cancel the future for the others.
            await asyncio.wait([known.done])
        self._in_flight[key] = _InFlight(digest, asyncio.get_running_loop().create_future())
        try:
            response = await call()
            self._stored[key] = _Stored(digest, response, self._clock() + KEEP_SECONDS)
            self._bytes += _size(key, response)
            self._expire()
        finally:
            self._in_flight.pop(key).done.set_result(None)
        return response, False

    def _find(self, key: _Key) -> _Stored | _InFlight | None:
        self._expire()
        return self._stored.get(key) or self._in_flight.get(key)

    def _expire(self) -> None:
        now = self._clock()
        while self._stored:
            key, stored = next(iter(self._stored.items()))
            if stored.expires > now and self._bytes <= self._max_bytes:
                return
            del self._stored[key]
            self._bytes -= _size(key, stored.response)


def check_length(request_id: str) -> None:
    """Raise CallError for an id that is too long."""
    if len(request_id) > MAX_ID_LENGTH:
        raise invalid("request_id", f"got {len(request_id)} characters, wanted at most {MAX_ID_LENGTH}")


def reused() -> CallError:
    """Return the error of a request whose id was used for another one."""
    message = "was already used for another request; a new request needs a new id"
    return invalid("request_id", message, "REQUEST_ID_REUSED")


def _size(key: _Key, response: StoredResponse) -> int:
    return sum(map(len, key)) + len(response.data) + sum(map(len, response.specs)) + _OVERHEAD_BYTES
