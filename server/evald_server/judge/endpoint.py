"""An OpenAI-compatible endpoint: its client, its concurrency limit, and the features that its models support."""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing, suppress
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlsplit

from evald_server.config import JudgeSettings
from evald_server.redaction import Redactor
from evald_server.retries import RetryBackoff, parse_retry_after

from .budget import Price, price_of
from .chat_completion import (
    ChatCompletion,
    CutOff,
    NotACompletion,
    ReportedProblem,
    parse_completion,
    parse_problem,
)
from .endpoint_errors import AttemptFailed, EndpointErrors
from .prompt_request import PromptRequest
from .rate_limiting import AdaptiveLimiter
from .response_format import EndpointProblem, ModelCapabilities, ResponseFormat

if TYPE_CHECKING:
    from openai import AsyncOpenAI, Omit

_log = logging.getLogger("evald.judge")

OPENAI: Final = "https://api.openai.com/v1"

# Time to open a connection to the next machine. A live endpoint answers within a few round trips.
_CONNECT_SECONDS: Final = 5.0

# A verdict has a few KB; 100,000 tokens of reasoning add less than one MB. Decoding one MB of empty objects blocks all
# threads for a tenth of a second. The events of a stream are decoded one by one, and are longer than their text.
_MAX_BYTES: Final = 1 << 20
_MAX_STREAM_BYTES: Final = 4 << 20

# Longest answer that is parsed in the event loop: 50 ms at worst, for a stream of empty events.
_MAX_INLINE_BYTES: Final = 64 << 10

# The message of an error is at its beginning.
_MAX_ERROR_BYTES: Final = 64 << 10

# A streamed answer with long reasoning takes a few minutes.
_MAX_STREAM_SECONDS: Final = 600.0

# An unsupported feature is tried again after this time, because servers and models are updated.
_CAPABILITIES_SECONDS: Final = 3600.0

# The client passes on exceptions of its HTTP library. The library's name depends on the client's version.
_HTTP_LIBRARIES: Final = ("openai", "httpx", "httpx2", "httpcore", "httpcore2", "anyio")

_PROXIES: Final = ("https_proxy", "http_proxy", "all_proxy")
_PORTS: Final = {"http": 80, "https": 443}


class _Refused(Exception):
    """The endpoint answered with an error. content: the part of its body that was read."""

    def __init__(self, status: int, headers: Mapping[str, str], content: bytes) -> None:
        self.status, self.headers, self.content = status, headers, content
        super().__init__(status)


class _Compressed(Exception):
    """The answer is compressed, though the request forbids compression: its real size is unknown."""


async def _check_answer(response: Any) -> None:
    """Raise _Compressed for a compressed answer and _Refused for an error.

    The client would read the body of an error without a size limit. response: of the client's HTTP library, with its
    body not read yet.
    """
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        raise _Compressed(encoding)
    if response.is_success:
        return
    content = bytearray()
    async with aclosing(response.aiter_raw()) as chunks:
        async for chunk in chunks:
            content += chunk
            if len(content) >= _MAX_ERROR_BYTES:
                break
    raise _Refused(response.status_code, response.headers, bytes(content[:_MAX_ERROR_BYTES]))


class Endpoint:
    """Sends the requests of all models through one connection pool and one limiter.

    name: of the judge in the config. api_key: "" for none. cards: ids of calibration cards, by model.
    reachable: None before the first connection attempt. on_change: called whenever `reachable` changes.
    """

    def __init__(
        self,
        name: str,
        settings: JudgeSettings,
        redactor: Redactor,
        *,
        api_key: str = "",
        cards: Mapping[str, str] | None = None,
        backoff: RetryBackoff = RetryBackoff(),  # noqa: B008 - immutable
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.settings = settings
        self.base_url = settings.base_url or OPENAI
        self.api_key = api_key
        self.cards = cards or {}
        self.backoff = backoff
        self.redactor = redactor
        self.reachable: bool | None = None
        self.on_change: Callable[[], None] = lambda: None
        self.limiter = AdaptiveLimiter(settings.concurrency, clock=clock)
        self._prices = {model: Price(price.input, price.output) for model, price in settings.prices.items()}
        self._clock = clock
        self._connect_seconds = min(_CONNECT_SECONDS, settings.timeout)
        self._answer_seconds = self._connect_seconds + settings.timeout
        if settings.stream:
            self._answer_seconds = max(self._answer_seconds, _MAX_STREAM_SECONDS)
        self._capabilities: dict[str, tuple[ModelCapabilities, float]] = {}
        self._client: AsyncOpenAI | None = None
        self._client_task: asyncio.Task[AsyncOpenAI] | None = None

    def price(self, model: str) -> Price | None:
        """Return the model's price, if it is known."""
        return price_of(model, self._prices)

    def capabilities(self, model: str) -> ModelCapabilities:
        """Return the features that the model supports, as far as known."""
        known, learned_at = self._capabilities.get(model, (None, 0.0))
        if known is None or self._clock() - learned_at > _CAPABILITIES_SECONDS:
            return ModelCapabilities(ResponseFormat(self.settings.form))
        return known

    def adapt(
        self, model: str, used: ModelCapabilities, problem: EndpointProblem
    ) -> ModelCapabilities | None:
        """Return the capabilities to try after a problem with `used`; None when no others would help."""
        adapted = used.without(problem)
        if adapted is None:
            return None
        known = self.capabilities(model)
        if known != used:  # a concurrent request has learned it in the meantime
            return known
        self._capabilities[model] = (adapted, self._clock())
        return adapted

    def set_reachable(self, reachable: bool) -> None:
        """Record whether the endpoint could be reached; log and report changes."""
        if self.reachable == reachable:
            return
        if not reachable:
            _log.warning('judge "%s": its endpoint cannot be reached', self.name)
        elif self.reachable is False:
            _log.info('judge "%s": its endpoint can be reached again', self.name)
        self.reachable = reachable
        self.on_change()

    async def probe(self) -> None:
        """Open a connection, send nothing, and record whether the endpoint can be reached."""
        parts = urlsplit(self.base_url)
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                _, writer = await asyncio.open_connection(parts.hostname, parts.port or _PORTS[parts.scheme])
        except OSError:  # TimeoutError is one
            self.set_reachable(False)
            return
        self.set_reachable(True)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    async def send(
        self, body: dict[str, Any], request: PromptRequest, errors: EndpointErrors
    ) -> ChatCompletion:
        """Send one request. Raises AttemptFailed."""
        client = await self._get_client()
        seconds = self._answer_seconds
        try:
            async with asyncio.timeout(seconds) as timer:
                return await self._send(client, body, request, errors)
        except TimeoutError:
            if not timer.expired():
                raise
            text = f"no complete answer within {seconds:.3g} s"
            raise errors.failed("JUDGE_TIMEOUT", text, retryable=True) from None

    async def _send(
        self, client: "AsyncOpenAI", body: dict[str, Any], request: PromptRequest, errors: EndpointErrors
    ) -> ChatCompletion:
        if self.settings.stream:
            body = body | {"stream": True, "stream_options": {"include_usage": True}}
        receiving = False
        try:
            create = client.chat.completions.with_streaming_response.create
            # The client would convert every value in `messages` by its declared type, which takes a quarter of the
            # time of a call. It sends `extra_body` unchanged.
            async with create(
                model=body["model"], messages=(), extra_body=body, extra_headers=self._headers()
            ) as response:
                receiving = True
                self.set_reachable(True)
                content = bytearray()
                max_bytes = _MAX_STREAM_BYTES if self.settings.stream else _MAX_BYTES
                async for chunk in response.iter_bytes():
                    content += chunk
                    if len(content) > max_bytes:
                        raise errors.failed(
                            "JUDGE_UNAVAILABLE", f"the answer is longer than {max_bytes} bytes"
                        )
            media_type = response.headers.get("content-type", "")
            if len(content) <= _MAX_INLINE_BYTES:
                return parse_completion(bytes(content), media_type)
            return await asyncio.to_thread(parse_completion, bytes(content), media_type)
        except ReportedProblem as reported:
            raise errors.of_problem(reported.problem, request, free=reported.free) from None
        except NotACompletion as error:
            raise errors.failed(
                "JUDGE_UNAVAILABLE",
                f"got {error}, wanted a chat completion; the operator checks that base_url is "
                "the address of an OpenAI-compatible API, such as https://api.openai.com/v1",
            ) from None
        except CutOff as error:
            raise errors.failed(
                "JUDGE_TRUNCATED", f"the answer is incomplete: {error}", retryable=True
            ) from None
        except AttemptFailed:
            raise
        except Exception as error:
            # The client passes on exceptions of _check_answer as they are, or as the cause of its own error.
            cause = error if isinstance(error, _Refused | _Compressed) else error.__cause__
            if isinstance(cause, _Refused):
                self.set_reachable(True)
                problem = parse_problem(cause.status, cause.content)
                raise errors.of_problem(problem, request, parse_retry_after(cause.headers)) from None
            if isinstance(cause, _Compressed):
                raise errors.failed(
                    "JUDGE_UNAVAILABLE",
                    f'the answer is compressed ("{str(cause)[:40]}"), although the request says '
                    "Accept-Encoding: identity; the operator turns compression off at the endpoint "
                    "or its proxy",
                ) from None
            library = type(error).__module__.partition(".")[0]
            if not isinstance(error, OSError) and library not in _HTTP_LIBRARIES:
                raise
            raise self._connection_failed(error, errors, receiving=receiving) from None

    async def close(self) -> None:
        """Close all connections."""
        if self._client_task is not None:
            self._client_task.cancel()
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def _get_client(self) -> "AsyncOpenAI":
        if self._client is None:
            if self._client_task is None:
                # Importing the client takes 0.4 s, which would block the event loop.
                self._client_task = asyncio.create_task(asyncio.to_thread(self._create_client))
            try:
                # Shielded, because concurrent requests may wait for the same task.
                self._client = await asyncio.shield(self._client_task)
            except Exception:
                self._client_task = None
                raise
        return self._client

    def _headers(self) -> "dict[str, str | Omit]":
        """Return the headers that replace those which the client takes from its environment variables.

        These are for the address that OPENAI_BASE_URL names, and may be secrets.
        """
        from openai import Omit

        headers: dict[str, str | Omit] = {}
        if self.base_url not in (OPENAI, os.environ.get("OPENAI_BASE_URL")):
            lines = os.environ.get("OPENAI_CUSTOM_HEADERS", "").split("\n")
            names = (line.partition(":")[0].strip() for line in lines)
            headers = {
                name: Omit() for name in ("OpenAI-Organization", "OpenAI-Project", *filter(None, names))
            }
            headers["Authorization"] = f"Bearer {self.api_key}"
        if not self.api_key:
            headers["Authorization"] = Omit()
        return headers

    def _create_client(self) -> "AsyncOpenAI":
        import openai

        address = urlsplit(self.base_url)
        client = openai.AsyncOpenAI(
            api_key=self.api_key or "none",
            base_url=address._replace(query="").geturl(),
            default_query=dict(parse_qsl(address.query, keep_blank_values=True)),
            max_retries=0,
            timeout=openai.Timeout(self.settings.timeout, connect=self._connect_seconds, pool=None),
            # Prompts go only to the address that the operator has set. Cookies would tell the endpoint which requests
            # share a server, and an endpoint that sets ever more cookies would in the end refuse all requests.
            http_client=openai.DefaultAsyncHttpxClient(
                follow_redirects=False,
                event_hooks={"response": [_check_answer]},
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
            ),
            default_headers={"Accept-Encoding": "identity"},
        )
        # The client imports this at its first use, so access it in this thread.
        _ = client.chat.completions.with_streaming_response
        return client

    def _connection_failed(
        self, error: Exception, errors: EndpointErrors, *, receiving: bool
    ) -> AttemptFailed:
        cause = error.__cause__ or error
        kind = type(cause).__name__
        if kind in ("ConnectError", "ConnectTimeout", "ProxyError"):
            self.set_reachable(False)
            why = _connect_problem(cause, self._connect_seconds)
            text = f"the endpoint cannot be reached ({why})"
            return errors.failed("JUDGE_UNAVAILABLE", text, retryable=True, free=True)
        if "Timeout" in kind:
            text = f"the endpoint sent no data for {self.settings.timeout:.3g} s"
            return errors.failed("JUDGE_TIMEOUT", text, retryable=True)
        if receiving:
            text = "the answer is incomplete: the connection was closed"
            return errors.failed("JUDGE_TRUNCATED", text, retryable=True)
        text = f"the endpoint closed the connection without an answer ({kind})"
        return errors.failed("JUDGE_UNAVAILABLE", text, retryable=True)


def behind_proxy(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether requests may go through a proxy, so that a direct connection would prove nothing."""
    return any(environ.get(name) or environ.get(name.upper()) for name in _PROXIES)


def _connect_problem(error: BaseException, seconds: float) -> str:
    """Return why the connection failed, without the address."""
    reasons = {
        "ConnectionRefusedError": "connection refused",
        "gaierror": "its host name cannot be resolved",
        "SSLCertVerificationError": "its certificate is not valid",
        "SSLError": "TLS failed",
        "ProxyError": "the proxy refused the connection",
        "ConnectTimeout": f"no connection within {seconds:g} s",
    }
    cause: BaseException | None = error
    while cause is not None:
        if type(cause).__name__ in reasons:
            return reasons[type(cause).__name__]
        cause = cause.__cause__ or cause.__context__
    return "no connection"
