"""Answers by request_id, so that a retried call is answered again and not run again."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from hashlib import blake2b
from typing import Final, NamedTuple

from .errors import CallError, FieldViolation

KEEP_SECONDS: Final = 600.0
MAX_ID_LENGTH: Final = 128


class Answer(NamedTuple):
    """What was answered: a serialised EvaluateUnaryResponse, and the plan that ran."""

    response: bytes
    started: bytes


class _Kept(NamedTuple):
    digest: bytes
    answer: Answer
    expires: float


class _Running(NamedTuple):
    digest: bytes
    done: "asyncio.Future[None]"


class Answers:
    """Keeps answers for ten minutes, the newest `max_bytes` of them."""

    def __init__(self, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_bytes = max_bytes
        self._clock = clock
        self._bytes = 0
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._running: dict[str, _Running] = {}

    async def claim(self, request_id: str, request: bytes) -> Answer | None:
        """The answer given before, waiting for it while the same call still runs; or None, and then
        the caller must `keep` or `release`. Raises CallError when the id stood for another request."""
        if len(request_id) > MAX_ID_LENGTH:
            raise _refused(
                "INVALID_FIELD", f"{len(request_id)} characters; at most {MAX_ID_LENGTH} are allowed"
            )
        digest = blake2b(request, digest_size=16).digest()
        while True:
            self._expire()
            known = self._kept.get(request_id) or self._running.get(request_id)
            if known is None:
                self._running[request_id] = _Running(digest, asyncio.get_running_loop().create_future())
                return None
            if known.digest != digest:
                raise _refused(
                    "REQUEST_ID_REUSED", "was used for another request already; a new request needs a new id"
                )
            if isinstance(known, _Kept):
                return known.answer
            # Not awaited itself: one caller that goes away must not take the answer from the others.
            await asyncio.wait([known.done])

    def keep(self, request_id: str, answer: Answer) -> None:
        """The claimed call has been answered."""
        running = self._running[request_id]
        self._kept[request_id] = _Kept(running.digest, answer, self._clock() + KEEP_SECONDS)
        self._bytes += _size(request_id, answer)
        self._expire()

    def release(self, request_id: str) -> None:
        """The claimed call is over. Without an answer kept, the next one with this id runs."""
        self._running.pop(request_id).done.set_result(None)

    def _expire(self) -> None:
        now = self._clock()
        while self._kept:
            request_id, kept = next(iter(self._kept.items()))
            if kept.expires > now and self._bytes <= self._max_bytes:
                return
            del self._kept[request_id]
            self._bytes -= _size(request_id, kept.answer)


def _refused(reason: str, message: str) -> CallError:
    return CallError(reason, f"request_id: {message}", [FieldViolation("request_id", message)])


def _size(request_id: str, answer: Answer) -> int:
    # 400 bytes: what the Python objects around an answer take, measured.
    return len(request_id) + len(answer.response) + len(answer.started) + 400
