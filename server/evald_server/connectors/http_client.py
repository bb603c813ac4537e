"""Requests to one agent over HTTP: checked addresses, limits of size and time, and retries where these are safe."""

import asyncio
import json
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, partial
from typing import Any, Final, Literal, NamedTuple, TypeAlias
from urllib.parse import quote, urlsplit

from pydantic import Field

from evald_server.loop import in_thread_if_large
from evald_server.redaction import Redactor
from evald_server.remote.dial_allowlist import Resolver
from evald_server.retries import RetryBackoff, parse_retry_after

from .answers import MAX_ANSWER_BYTES, bad_answer, excerpt, parse_body
from .connector import AnswerSeconds, ConnectorConfig, ConnectorFailure, FailureCode, YieldToCalls
from .headers import ResolvedHeaders
from .http_connection import BROKEN, HttpConnection
from .streams import EventLines
from .targets import HttpUrl

# Timeout of a connection attempt to one address. A reachable agent accepts within a few round trips.
_CONNECT_SECONDS: Final = 5.0

# Maximum wait for an agent's `Retry-After`; longer ones end the retries.
_MAX_WAIT_SECONDS: Final = 30.0

_MAX_REQUEST_BYTES: Final = 32 << 20
_MAX_ERROR_BYTES: Final = 64 << 10

# Bytes of a stream that are parsed before other tasks may run: they can have an event every two bytes.
_EVENT_BYTES: Final = 256

# Characters that stay unchanged in a path and a query; others become %XX. "%" stays: the config is already encoded.
_OF_PATHS: Final = "%/?:@!$&'()*+,;=[]"

Repeat: TypeAlias = Literal["unsent", "refused", "safe"]
"""When a request may be repeated. unsent: only if nothing was sent. refused: also if no answer has begun; a model then at
most answers twice. safe: after every retryable failure."""


class HttpConfig(ConnectorConfig):
    """Base class of the configs of connectors over HTTP."""

    timeout_seconds: AnswerSeconds = 60.0
    max_attempts: int = Field(
        3,
        ge=1,
        le=10,
        description="Maximum requests for one answer; a request is repeated only if that is safe.",
    )


class HttpAnswer(NamedTuple):
    """The answer of an agent.

    size: bytes. seconds: time until it was complete. first_seconds: time until the first piece of a stream.
    """

    data: Any
    size: int
    seconds: float
    first_seconds: float | None = None


class _AttemptFailure(Exception):
    """One attempt failed. unsent: no connection. refused: rate limit, overload, a proxy's error, or a connection that was
    cut before the first byte of the answer. retry_after: seconds."""

    def __init__(
        self,
        failure: ConnectorFailure,
        *,
        unsent: bool = False,
        refused: bool = False,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.unsent = unsent
        self.refused = refused
        self.retry_after = retry_after

    def repeatable(self, repeat: Repeat) -> bool:
        """Return whether the request may be sent again."""
        if self.unsent or repeat == "unsent":
            return self.unsent
        return self.refused or (repeat == "safe" and self.failure.retryable)


class _Unreachable(Exception):
    """No address of the agent accepts a connection. The message says why."""


class AgentHttp:
    """An HTTP client for one agent, with its own connections."""

    def __init__(
        self, url: HttpUrl, resolver: Resolver, config: HttpConfig, yield_to_calls: YieldToCalls
    ) -> None:
        """yield_to_calls: see ConnectorOptions."""
        self._url = url
        self._resolver = resolver
        self._config = config
        self._yield_to_calls = yield_to_calls
        self._backoff = RetryBackoff()
        parts = urlsplit(url.text)
        self._host = parts.netloc
        self._has_tls = parts.scheme == "https"
        self._idle: list[HttpConnection] = []

    async def send(
        self,
        method: str,
        path: str,
        body: Any,
        headers: ResolvedHeaders,
        *,
        key: str,
        repeat: Repeat = "unsent",
        new_stream: Callable[[Redactor], EventLines] | None = None,
    ) -> HttpAnswer:
        """Send JSON and return the answer with its parsed JSON. key: the Idempotency-Key, so that agents need not repeat
        work.

        new_stream: creates the parser of a streamed answer.
        Raises ConnectorFailure, and Refusal for an address that is not allowed.
        """
        content = json.dumps(body, ensure_ascii=False).encode()
        if len(content) > _MAX_REQUEST_BYTES:
            text = f"got a request of {len(content)} bytes, wanted at most {_MAX_REQUEST_BYTES}"
            raise ConnectorFailure("CONNECTOR_CONFIG", f"{text}; shorten config or the conversation")
        sent = {
            **headers.values,
            "host": self._host,
            "content-type": "application/json",
            "user-agent": "evald",
            "accept-encoding": "identity",
        }
        if key:
            sent["idempotency-key"] = key
        sent.setdefault(
            "accept", "application/json" if new_stream is None else "text/event-stream, application/x-ndjson"
        )
        for attempt in range(1, self._config.max_attempts + 1):
            try:
                return await self._attempt(method, path, content, sent, new_stream, headers.redactor)
            except _AttemptFailure as failed:
                delay = self._backoff.delay(attempt, failed.retry_after)
                last = attempt == self._config.max_attempts or delay > _MAX_WAIT_SECONDS
                if last or not failed.repeatable(repeat):
                    failure = failed.failure
                    if attempt > 1:
                        failure.message += f"; gave up after {attempt} requests"
                    raise failure from None
            await asyncio.sleep(delay)
        raise AssertionError("max_attempts is at least 1")

    async def close(self) -> None:
        """Close all connections."""
        while self._idle:
            self._idle.pop().close()

    async def _attempt(
        self,
        method: str,
        path: str,
        content: bytes,
        headers: Mapping[str, str],
        new_stream: Callable[[Redactor], EventLines] | None,
        redactor: Redactor,
    ) -> HttpAnswer:
        stream = new_stream(redactor) if new_stream is not None else None
        target = f"{self._url.path}{path}" or "/"
        if self._url.query:
            target += f"{'&' if '?' in target else '?'}{self._url.query}"
        target = quote(target, safe=_OF_PATHS)
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._config.timeout_seconds):
                connection = await self._connect()
                try:
                    status, fields = await connection.send(method, target, headers, content)
                    if not 200 <= status < 300:
                        said = excerpt(await _read_some(connection), redactor)
                        raise self._refused(status, fields, said)
                    answer = await self._read(connection, fields, began, stream, redactor)
                finally:
                    if connection.finish():
                        self._idle.append(connection)
        except TimeoutError:
            raise self._failed(
                "CONNECTOR_TIMEOUT",
                f"no complete answer within {self._config.timeout_seconds:g} s; "
                "config.timeoutSeconds allows more",
            ) from None
        except _Unreachable as problem:
            raise self._failed(
                "CONNECTOR_UNAVAILABLE",
                f"it cannot be reached ({problem}); is it running, and is base_url right?",
                unsent=True,
            ) from None
        except BROKEN as problem:
            kind = type(problem).__name__
            text = f"the connection was closed without an HTTP answer ({kind})"
            raise self._failed("CONNECTOR_UNAVAILABLE", text, refused=True) from None
        await self._yield_to_calls()
        return answer._replace(data=await in_thread_if_large(answer.size, answer.data))

    async def _connect(self) -> HttpConnection:
        """Return a connection to a checked address, idle or new. Raises _Unreachable."""
        target = self._url.target
        try:
            addresses = [str(address) for address in await self._resolver.addresses(target)]
        except OSError:
            text = "its host name cannot be resolved; is base_url right?"
            raise self._failed("CONNECTOR_UNAVAILABLE", text, unsent=True) from None
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable and connection.address in addresses:
                return connection
            connection.close()
        # In a thread, because loading the certificates takes 20 ms.
        tls = await asyncio.to_thread(_tls_context) if self._has_tls else None
        problem = ""
        for address in addresses:
            try:
                # Use the checked address, so that the name is not resolved again.
                async with asyncio.timeout(_CONNECT_SECONDS):
                    return await HttpConnection.open(
                        address, target.port, tls, target.host, self._yield_to_calls
                    )
            except OSError as error:
                problem = _connect_problem(error)
        raise _Unreachable(problem)

    async def _read(
        self,
        connection: HttpConnection,
        headers: Mapping[str, str],
        began: float,
        stream: EventLines | None,
        redactor: Redactor,
    ) -> HttpAnswer:
        """Return the answer. Its `data` is a function that parses and returns the data."""
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise bad_answer("the answer is compressed, although the request allows no compression")
        content = bytearray()
        size, first = 0, None
        while True:
            try:
                chunk = await connection.piece()
            except BROKEN:
                text = "the answer is incomplete: the connection was closed"
                raise self._failed("CONNECTOR_BAD_ANSWER", text, refused=not size) from None
            if not chunk:
                break
            size += len(chunk)
            if size > MAX_ANSWER_BYTES:
                raise bad_answer(f"the answer is longer than {MAX_ANSWER_BYTES >> 20} MiB")
            if stream is None:
                content += chunk
                continue
            for start in range(0, len(chunk), _EVENT_BYTES):
                stream.add(chunk[start : start + _EVENT_BYTES])
                await connection.pause()
            if first is None and stream.started:
                first = time.monotonic() - began
            if stream.done:
                break
        seconds = time.monotonic() - began
        if stream is not None:
            return HttpAnswer(stream.finish, size, seconds, first)
        media = headers.get("content-type", "")
        return HttpAnswer(partial(parse_body, bytes(content), media, redactor), size, seconds)

    def _refused(self, status: int, headers: Mapping[str, str], said: str) -> _AttemptFailure:
        retry_after = parse_retry_after(headers)
        if status < 400:
            text = (
                f"HTTP {status}: it redirects, and redirects are not followed; set base_url to "
                "the address that it redirects to"
            )
            return self._failed("CONNECTOR_REFUSED", text, retryable=False)
        if status in (429, 503):
            code: FailureCode = "CONNECTOR_REFUSED" if status == 429 else "CONNECTOR_UNAVAILABLE"
            text = f"HTTP {status}: it accepts no more requests now{said}"
            return self._failed(code, text, refused=True, retry_after=retry_after)
        if status >= 500:
            refused = status in (502, 504)  # by a proxy
            text = f"HTTP {status}: it failed{said}"
            return self._failed("CONNECTOR_UNAVAILABLE", text, refused=refused, retry_after=retry_after)
        hint = {
            401: "; check the credentials in headers",
            403: "; check the permissions of the credentials in headers",
            404: "; are base_url and config right?",
        }.get(status, "")
        text = f"HTTP {status}: it does not accept the request{hint}{said}"
        return self._failed("CONNECTOR_REFUSED", text, retryable=False)

    def _failed(
        self, code: FailureCode, text: str, *, retryable: bool = True, **flags: Any
    ) -> _AttemptFailure:
        failure = ConnectorFailure(code, f"the agent at {self._url.text}: {text}", retryable=retryable)
        return _AttemptFailure(failure, **flags)


async def _read_some(connection: HttpConnection) -> bytes:
    found = bytearray()
    with suppress(*BROKEN):  # the status is enough for the error
        while chunk := await connection.piece():
            found += chunk
            if len(found) >= _MAX_ERROR_BYTES:
                break
    return bytes(found[:_MAX_ERROR_BYTES])


@cache
def _tls_context() -> ssl.SSLContext:
    """Return a context that trusts the system's certificates, and those of SSL_CERT_FILE and SSL_CERT_DIR."""
    return ssl.create_default_context()


def _connect_problem(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not valid: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return "TLS failed"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, TimeoutError):
        return f"no connection within {_CONNECT_SECONDS:g} s"
    return "no connection"
