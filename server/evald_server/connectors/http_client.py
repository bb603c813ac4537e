"""Requests to one agent over HTTP: only to checked addresses, bounded in size and time, repeated where that is safe."""

import asyncio
import json
import ssl
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from pydantic import Field

from evald_server.redaction import Redactor
from evald_server.remote.dial_allowlist import Resolver
from evald_server.retries import RetryBackoff, parse_retry_after

from .answers import MAX_ANSWER_BYTES, bad_answer, excerpt, parse_body, run_sized
from .connector import ConnectorConfig, ConnectorFailure, FailureCode
from .headers import ResolvedHeaders
from .streams import EventLines
from .targets import HttpUrl

if TYPE_CHECKING:
    import httpx2

# To the next machine; an agent that is there accepts within a few round trips.
_CONNECT_SECONDS: Final = 5.0

# A turn is not held up longer for an agent that asks to be left alone.
_MAX_WAIT_SECONDS: Final = 30.0

_MAX_REQUEST_BYTES: Final = 32 << 20
_MAX_ERROR_BYTES: Final = 64 << 10

Repeat: TypeAlias = Literal["unsent", "refused", "safe"]
"""When a request is repeated: only if nothing was sent, also if the agent refused it as one too many, always."""


class HttpConfig(ConnectorConfig):
    """What the configs of all connectors over HTTP have."""

    timeout_seconds: float = Field(
        60.0, gt=0, le=3600, allow_inf_nan=False, description="Time for one whole answer."
    )
    max_attempts: int = Field(
        3, ge=1, le=10, description="Most requests for one answer; they are repeated only where that is safe."
    )


class HttpAnswer(NamedTuple):
    """What an agent answered.

    size: in bytes. seconds: until it was complete. first_seconds: until its first piece, in a stream.
    """

    data: Any
    size: int
    seconds: float
    first_seconds: float | None = None


class _AttemptFailure(Exception):
    """One attempt failed. unsent: no connection. refused: as one too many."""

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


class AgentHttp:
    """Sends requests to one agent, over connections of its own."""

    def __init__(self, url: HttpUrl, resolver: Resolver, config: HttpConfig) -> None:
        self._url = url
        self._resolver = resolver
        self._config = config
        self._backoff = RetryBackoff()
        self._opening = asyncio.Lock()
        self._transport: httpx2.AsyncHTTPTransport | None = None

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
        """Send JSON and return the answer's. key: of the request, for agents that repeat no work.

        new_stream: makes the reader of a streamed answer.
        Raises ConnectorFailure, and Refusal for an address that is not allowed.
        """
        content = json.dumps(body, ensure_ascii=False).encode()
        if len(content) > _MAX_REQUEST_BYTES:
            text = f"the request would have {len(content)} bytes, at most {_MAX_REQUEST_BYTES} are allowed"
            raise ConnectorFailure("CONNECTOR_CONFIG", f"{text}; shorten config or the conversation")
        sent = {
            **headers.values,
            "host": urlsplit(self._url.text).netloc,
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
                return await self._attempt(
                    method, self._url.text + path, content, sent, new_stream, headers.redactor
                )
            except _AttemptFailure as failed:
                delay = self._backoff.delay(attempt, failed.retry_after)
                last = attempt == self._config.max_attempts or delay > _MAX_WAIT_SECONDS
                if last or not failed.repeatable(repeat):
                    raise failed.failure from None
            await asyncio.sleep(delay)
        raise AssertionError("max_attempts is at least 1")

    async def close(self) -> None:
        """Close all connections."""
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.aclose()

    async def _attempt(
        self,
        method: str,
        url: str,
        content: bytes,
        headers: Mapping[str, str],
        new_stream: Callable[[Redactor], EventLines] | None,
        redactor: Redactor,
    ) -> HttpAnswer:
        async with self._opening:
            if self._transport is None:
                # The library takes 0.1 s to import, and certificates take 20 ms to load.
                self._transport = await asyncio.to_thread(_open_transport)
        import httpx2

        stream = new_stream(redactor) if new_stream is not None else None

        began = time.monotonic()
        connected = False
        try:
            async with asyncio.timeout(self._config.timeout_seconds):
                response = await self._connect(method, url, content, headers)
                connected = True
                try:
                    return await self._read(response, began, stream, redactor)
                finally:
                    await response.aclose()
        except TimeoutError:
            raise self._failed(
                "CONNECTOR_TIMEOUT",
                f"no complete answer within {self._config.timeout_seconds:g} s; config.timeoutSeconds allows more",
            ) from None
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as problem:
            why = _connect_problem(problem)
            raise self._failed(
                "CONNECTOR_UNAVAILABLE",
                f"it cannot be reached ({why}); is it running, and is base_url right?",
                unsent=True,
            ) from None
        except httpx2.HTTPError as problem:
            if connected:
                text = "the answer breaks off: the connection ended"
                raise self._failed("CONNECTOR_BAD_ANSWER", text) from None
            kind = type(problem).__name__
            text = f"the connection ended without an answer in HTTP ({kind})"
            raise self._failed("CONNECTOR_UNAVAILABLE", text) from None

    async def _connect(
        self, method: str, url: str, content: bytes, headers: Mapping[str, str]
    ) -> "httpx2.Response":
        """Send a request to the first checked address that accepts, and return the response's beginning."""
        import httpx2

        target = self._url.target
        try:
            addresses = await self._resolver.addresses(target)
        except OSError:
            text = "its name is not known; is base_url right?"
            raise self._failed("CONNECTOR_UNAVAILABLE", text, unsent=True) from None
        assert self._transport is not None
        request_url = httpx2.URL(url)
        for index, address in enumerate(addresses):
            request = httpx2.Request(
                method,
                # The address that was checked, so that the name is not resolved again.
                request_url.copy_with(host=str(address)),
                content=content,
                headers=dict(headers),
                extensions={
                    "timeout": {"connect": min(_CONNECT_SECONDS, self._config.timeout_seconds)},
                    "sni_hostname": target.host,
                },
            )
            try:
                return await self._transport.handle_async_request(request)
            except (httpx2.ConnectError, httpx2.ConnectTimeout):
                if index == len(addresses) - 1:
                    raise
        raise AssertionError("a target has at least one address")

    async def _read(
        self, response: "httpx2.Response", began: float, stream: EventLines | None, redactor: Redactor
    ) -> HttpAnswer:
        status = response.status_code
        if not 200 <= status < 300:
            raise self._refused(response, excerpt(await _read_some(response), redactor))
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise bad_answer("the answer is compressed, although the request allows no compression")
        chunks: list[bytes] = []
        size, first = 0, None
        async for chunk in response.aiter_raw():
            size += len(chunk)
            if size > MAX_ANSWER_BYTES:
                raise bad_answer(f"the answer is longer than {MAX_ANSWER_BYTES >> 20} MiB")
            if stream is None:
                chunks.append(chunk)
                continue
            stream.add(chunk)
            if first is None and stream.started:
                first = time.monotonic() - began
            if stream.done:
                break
        seconds = time.monotonic() - began
        if stream is not None:
            return HttpAnswer(await run_sized(size, stream.finish), size, seconds, first)
        content, media = b"".join(chunks), response.headers.get("content-type", "")
        data = await run_sized(size, parse_body, content, media, redactor)
        return HttpAnswer(data, size, seconds)

    def _refused(self, response: "httpx2.Response", said: str) -> _AttemptFailure:
        status = response.status_code
        retry_after = parse_retry_after(response.headers)
        if status < 400:
            text = (
                f"HTTP {status}: it redirects, which is not followed; base_url is the place it redirects to"
            )
            return self._failed("CONNECTOR_REFUSED", text, retryable=False)
        if status in (429, 503):
            refused = status == 429 or retry_after is not None
            code: FailureCode = "CONNECTOR_REFUSED" if status == 429 else "CONNECTOR_UNAVAILABLE"
            text = f"HTTP {status}: it takes no more requests now{said}"
            return self._failed(code, text, refused=refused, retry_after=retry_after)
        if status >= 500:
            return self._failed("CONNECTOR_UNAVAILABLE", f"HTTP {status}: it failed{said}")
        hint = {
            401: "; its headers must say who calls",
            403: "; its headers must say who may call",
            404: "; are base_url and config right?",
        }.get(status, "")
        text = f"HTTP {status}: it does not accept the request{hint}{said}"
        return self._failed("CONNECTOR_REFUSED", text, retryable=False)

    def _failed(
        self, code: FailureCode, text: str, *, retryable: bool = True, **flags: Any
    ) -> _AttemptFailure:
        failure = ConnectorFailure(code, f"the agent at {self._url.text}: {text}", retryable=retryable)
        return _AttemptFailure(failure, **flags)


async def _read_some(response: "httpx2.Response") -> bytes:
    found = bytearray()
    async for chunk in response.aiter_raw():
        found += chunk
        if len(found) >= _MAX_ERROR_BYTES:
            break
    return bytes(found[:_MAX_ERROR_BYTES])


@cache
def _tls_context() -> ssl.SSLContext:
    """Trust the system's certificates, and those of SSL_CERT_FILE and SSL_CERT_DIR."""
    return ssl.create_default_context()


def _open_transport() -> "httpx2.AsyncHTTPTransport":
    import httpx2

    # Servers keep an idle connection for 5 s or longer, and one that they close is a request that fails.
    limits = httpx2.Limits(keepalive_expiry=2.0)
    # Without proxies, which would resolve the name again.
    return httpx2.AsyncHTTPTransport(verify=_tls_context(), trust_env=False, retries=0, limits=limits)


def _connect_problem(error: BaseException) -> str:
    reasons = {
        "ConnectionRefusedError": "connection refused",
        "SSLCertVerificationError": "its certificate is not valid for this name",
        "SSLError": "TLS failed",
        "ConnectTimeout": f"no connection within {_CONNECT_SECONDS:g} s",
    }
    cause: BaseException | None = error
    while cause is not None:
        if type(cause).__name__ in reasons:
            return reasons[type(cause).__name__]
        cause = cause.__cause__ or cause.__context__
    return "no connection"
