"""One OpenAI-compatible endpoint: its client, its places, and what its models understand."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from .concurrency import Gate
from .faults import Failed, Faults
from .forms import Dialect, Form, Problem
from .prices import Price, price_of
from .question import Question
from .redaction import Redactor
from .reply import BrokeOff, NotACompletion, Reply, Reported, read_problem, read_reply
from .retries import Backoff, retry_after

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI

_log = logging.getLogger("evald.judge")

OPENAI: Final = "https://api.openai.com/v1"

# To the next machine; an endpoint that is there answers within a few round trips.
_CONNECT_SECONDS: Final = 5.0

# A verdict has a few KB; 100,000 tokens of reasoning beside it less than one.
_MOST_BYTES: Final = 4 << 20

# After this an endpoint is asked again for what it did not know: servers and models are updated.
_PROBE_SECONDS: Final = 3600.0


@dataclass(frozen=True)
class EndpointOptions:
    """An endpoint as its operator describes it.

    name: in the config. base_url: up to "/v1". model: asked when a use names none; None: every use must.
    models: the ones that may be asked; empty: any. api_key: "" for none.
    prices: by model, before the shipped ones. form: the surest that is tried.
    timeout_seconds: silence after which an attempt is given up; without streaming that is the whole answer.
    attempts: most requests for one answer, 1 or more. concurrency: most requests at a time.
    stream: have the answer sent as it is written.
    """

    name: str
    base_url: str = OPENAI
    model: str | None = None
    models: frozenset[str] = frozenset()
    api_key: str = field(default="", repr=False)
    prices: Mapping[str, Price] = field(default_factory=dict)
    form: Form = Form.SCHEMA
    timeout_seconds: float = 30.0
    attempts: int = 4
    concurrency: int = 64
    stream: bool = False
    backoff: Backoff = field(default_factory=Backoff)


class Endpoint:
    """Sends requests. One connection pool and one set of places, whatever models are asked.

    reachable: None while nobody has tried. changed: called whenever that turns into its opposite.
    """

    def __init__(
        self, options: EndpointOptions, redactor: Redactor, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.options = options
        self.redactor = redactor
        self.reachable: bool | None = None
        self.changed: Callable[[], None] = _nobody
        self.gate = Gate(options.concurrency, clock=clock)
        self._clock = clock
        self._connect_seconds = min(_CONNECT_SECONDS, options.timeout_seconds)
        self._dialects: dict[str, tuple[Dialect, float]] = {}
        self._client: AsyncOpenAI | None = None
        self._making: asyncio.Task[AsyncOpenAI] | None = None

    def price(self, model: str) -> Price | None:
        """What the model costs, as far as known."""
        return price_of(model, self.options.prices)

    def dialect(self, model: str) -> Dialect:
        """What the model understands, as far as known."""
        found = self._dialects.get(model)
        if found is None or self._clock() - found[1] > _PROBE_SECONDS:
            return Dialect(form=self.options.form)
        return found[0]

    def learn(self, model: str, used: Dialect, problem: Problem) -> Dialect | None:
        """What to use after this problem with a dialect; None when no other one would help."""
        other = used.without(problem)
        if other is None:
            return None
        known = self.dialect(model)
        if known == used:
            self._dialects[model] = (other, self._clock())
            return other
        # Somebody else has learned it meanwhile.
        return known

    def reached(self, up: bool) -> None:
        """Note whether the endpoint could be reached."""
        if self.reachable == up:
            return
        if not up:
            _log.warning('judge "%s": its endpoint cannot be reached', self.options.name)
        elif self.reachable is False:
            _log.info('judge "%s": its endpoint can be reached again', self.options.name)
        self.reachable = up
        self.changed()

    async def send(self, body: dict[str, Any], question: Question, faults: Faults) -> Reply:
        """One request. Raises Failed."""
        client = await self._connected()
        import openai

        if self.options.stream:
            body = body | {"stream": True, "stream_options": {"include_usage": True}}
        headers = None if self.options.api_key else {"Authorization": openai.Omit()}
        answering = False
        try:
            create = client.chat.completions.with_streaming_response.create
            # The client would convert every value of the body by its declared type, which takes a quarter of the time
            # of a call; what is extra, it sends as it is.
            async with create(
                model=body["model"], messages=(), extra_body=body, extra_headers=headers
            ) as response:
                answering = True
                self.reached(True)
                content = bytearray()
                async for piece in response.iter_bytes():
                    content += piece
                    if len(content) > _MOST_BYTES:
                        raise faults.too_large(_MOST_BYTES)
                return read_reply(bytes(content), response.headers.get("content-type", ""))
        except openai.APIStatusError as problem:
            self.reached(True)
            raise _refused(problem, question, faults) from None
        except Reported as reported:
            raise faults.status(reported.problem, question) from None
        except NotACompletion as problem:
            raise faults.foreign(str(problem)) from None
        except BrokeOff as problem:
            raise faults.broke_off(str(problem)) from None
        except Failed:
            raise
        except Exception as problem:
            # The client lets exceptions of its HTTP library through, whose name depends on the client's version.
            if not _of_network(problem):
                raise
            raise self._interrupted(problem, faults, answering=answering) from None

    async def close(self) -> None:
        """Close all connections."""
        if self._making is not None:
            self._making.cancel()
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def _connected(self) -> "AsyncOpenAI":
        if self._client is None:
            if self._making is None:
                # The client takes 0.4 s to import, which would hold up every other call of the event loop.
                self._making = asyncio.create_task(asyncio.to_thread(self._made))
            try:
                # Whoever stops waiting must not take it away from the others.
                self._client = await asyncio.shield(self._making)
            except Exception:
                self._making = None
                raise
        return self._client

    def _made(self) -> "AsyncOpenAI":
        import openai

        options = self.options
        client = openai.AsyncOpenAI(
            api_key=options.api_key or "none",
            base_url=options.base_url,
            max_retries=0,
            timeout=openai.Timeout(
                options.timeout_seconds,
                connect=self._connect_seconds,
                pool=None,
            ),
            # A question goes to the address that the operator has given, and nowhere else.
            http_client=openai.DefaultAsyncHttpxClient(follow_redirects=False),
        )
        # What the client loads when first used.
        _ = client.chat.completions.with_streaming_response
        return client

    def _interrupted(self, problem: Exception, faults: Faults, *, answering: bool) -> Failed:
        cause = problem.__cause__ or problem
        kind = type(cause).__name__
        if kind in ("ConnectError", "ConnectTimeout", "ProxyError"):
            self.reached(False)
            return faults.unreachable(_network_words(cause, self._connect_seconds))
        if "Timeout" in kind:
            return faults.silent(self.options.timeout_seconds)
        if answering:
            return faults.broke_off("the connection ended")
        return faults.reset(kind)


def _nobody() -> None:
    """Who is told of changes when nobody wants to be."""


def _refused(problem: "APIStatusError", question: Question, faults: Faults) -> Failed:
    response = problem.response
    return faults.status(
        read_problem(problem.status_code, response.content), question, retry_after(response.headers)
    )


def _of_network(problem: Exception) -> bool:
    library = type(problem).__module__.partition(".")[0]
    return isinstance(problem, OSError) or library in (
        "openai",
        "httpx",
        "httpx2",
        "httpcore",
        "httpcore2",
        "anyio",
    )


def _network_words(cause: BaseException, seconds: float) -> str:
    """Why there is no connection, without the address."""
    kinds = {
        "ConnectionRefusedError": "connection refused",
        "gaierror": "the name is not known",
        "SSLCertVerificationError": "its certificate is not valid",
        "SSLError": "TLS failed",
        "ProxyError": "the proxy does not let it through",
        "ConnectTimeout": f"no connection within {seconds:g} s",
    }
    at: BaseException | None = cause
    while at is not None:
        if type(at).__name__ in kinds:
            return kinds[type(at).__name__]
        at = at.__cause__ or at.__context__
    return "no connection"
