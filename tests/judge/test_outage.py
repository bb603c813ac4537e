"""Every fault of an endpoint, from somebody else's OpenAI server through all of ours: an error, whatever is asked.

llmock (https://pypi.org/project/llmock) breaks on demand. Three things it cannot do: leave out `Retry-After`,
refuse, and answer without choices. For these, its own answer is changed in that one place on its way out.
"""

import json
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from llmock.pytest_plugin import LLMock
from llmock.scenarios import Delay, Reply
from llmock.testing import LLMockServer

from evald.result import Verdict
from evald_server.config import JudgeSettings

from ..monitoring.scrape import value
from ..rpc.live import request, spec
from .test_service import VERDICT, judging

Message = MutableMapping[str, Any]


class Change(NamedTuple):
    """What becomes of llmock's answers: headers that are left out, and the body written anew."""

    without: frozenset[bytes] = frozenset()
    body: Callable[[Any], Any] | None = None


AS_IT_IS = Change()


class Changed:
    """llmock's application with a change to every answer of a model."""

    def __init__(self, app: Any, change: Change) -> None:
        self._app = app
        self._change = change
        self.state = app.state

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        """One request (ASGI)."""
        head: Message = {}

        async def changed(message: Message) -> None:
            nonlocal head
            if message["type"] == "http.response.start":
                head = message
                return
            body = message.get("body", b"")
            assert not message.get("more_body"), "only whole answers are changed"
            if self._change.body:
                body = json.dumps(self._change.body(json.loads(body))).encode()
            headers = [
                (name, str(len(body)).encode() if name == b"content-length" else content)
                for name, content in head["headers"]
                if name not in self._change.without
            ]
            await send({**head, "headers": headers})
            await send({**message, "body": body})

        await self._app(scope, receive, changed)


def refused(completion: Any) -> Any:
    """A refusal, as the API describes it."""
    completion["choices"][0]["message"] |= {"content": None, "refusal": "I cannot help with that."}
    return completion


@contextmanager
def llmock_with(change: Change) -> Iterator[LLMock]:
    """An llmock of its own whose answers are changed."""
    server = LLMockServer()
    if change != AS_IT_IS:
        server.app = Changed(server.app, change)
    with server:
        yield LLMock(server)


NO_ADVICE = Change(without=frozenset({b"retry-after", b"retry-after-ms"}))


class Outage(NamedTuple):
    """What llmock is told to do, and the error that a caller then sees.

    attempts: how many requests there are then. timeout: seconds of silence that are borne.
    """

    breaks: Callable[[LLMock], object]
    code: str
    attempts: int
    change: Change = AS_IT_IS
    stream: bool = False
    timeout: float = 10  # so long that a busy machine adds no time-outs of its own


def _always(text: str, **more: Any) -> Callable[[LLMock], object]:
    return lambda llmock: llmock.add(Reply(text=text, times=None, **more))


def _scores(score: float) -> str:
    return json.dumps({"score": score, "hits": ["polite"], "misses": [], "reasoning": "well done"})


OUTAGES: dict[str, Outage] = {
    "429 with Retry-After": Outage(
        lambda llmock: llmock.rate_limit(times=None, retry_after=0.01), "JUDGE_RATE_LIMITED", 2
    ),
    "429 with a Retry-After beyond the deadline": Outage(
        lambda llmock: llmock.rate_limit(times=None, retry_after=600), "JUDGE_RATE_LIMITED", 1
    ),
    "429 without Retry-After": Outage(
        lambda llmock: llmock.fail(429, times=None), "JUDGE_RATE_LIMITED", 2, NO_ADVICE
    ),
    "500": Outage(lambda llmock: llmock.outage(status=500), "JUDGE_UNAVAILABLE", 2, NO_ADVICE),
    "503": Outage(lambda llmock: llmock.outage(status=503), "JUDGE_UNAVAILABLE", 2, NO_ADVICE),
    "connection reset": Outage(
        lambda llmock: llmock.disconnect(after_chunks=0, times=None), "JUDGE_TRUNCATED", 2, stream=True
    ),
    "stall": Outage(lambda llmock: llmock.add(Delay(2, times=None)), "JUDGE_TIMEOUT", 2, timeout=0.6),
    "stall within a stream": Outage(
        lambda llmock: llmock.stall(after_chunks=2, seconds=2, times=None),
        "JUDGE_TIMEOUT",
        2,
        stream=True,
        timeout=0.6,
    ),
    "stream cut off": Outage(
        lambda llmock: llmock.truncate(after_chunks=2, times=None), "JUDGE_TRUNCATED", 2, stream=True
    ),
    "stream corrupted": Outage(
        lambda llmock: llmock.corrupt(after_chunks=2, times=None), "JUDGE_TRUNCATED", 2, stream=True
    ),
    "answer cut off": Outage(_always('{"score": 1, "hi', finish_reason="length"), "JUDGE_TRUNCATED", 2),
    "refusal": Outage(lambda llmock: None, "JUDGE_REFUSED", 2, Change(body=refused)),
    "content filter": Outage(_always(VERDICT, finish_reason="content_filter"), "JUDGE_REFUSED", 2),
    "invalid JSON": Outage(_always("All passed, the score is 1.0!"), "JUDGE_UNPARSEABLE", 2),
    "half an object": Outage(_always('{"score": 1, '), "JUDGE_UNPARSEABLE", 2),
    "score above its range": Outage(_always(_scores(7)), "JUDGE_UNPARSEABLE", 2),
    "score below its range": Outage(_always(_scores(-1)), "JUDGE_UNPARSEABLE", 2),
    "score that is no number": Outage(_always(_scores(float("nan"))), "JUDGE_UNPARSEABLE", 2),
    "empty choices": Outage(
        lambda llmock: None,
        "JUDGE_UNPARSEABLE",
        2,
        Change(body=lambda completion: completion | {"choices": []}),
    ),
}


@pytest.mark.parametrize("name", OUTAGES)
async def test_an_outage_is_an_error_and_neither_a_verdict_nor_a_zero(name: str) -> None:
    """Negated: what is no verdict must not pass for one turned round."""
    outage = OUTAGES[name]
    judge = {"attempts": 2, "timeout": outage.timeout, "stream": outage.stream}
    settings = {"judges": {"default": JudgeSettings.model_validate(judge)}}

    with llmock_with(outage.change) as llmock:
        outage.breaks(llmock)
        async with judging(llmock.base_url(), **settings) as live:
            asked = spec("llm-judge", {"criteria": "The answer is polite."}, negate=True)
            summary = (await live.unary(request(asked), timeout=30)).summary
            (result,) = summary.results
            assert (result.verdict, result.error.code) == (Verdict.ERROR, outage.code)
            assert (summary.verdict, summary.success) == (Verdict.ERROR, False)
            assert not result.HasField("score")
            assert not result.HasField("value")
            telemetry = live.app.telemetry
            assert len(llmock.requests) == outage.attempts
            outcomes = telemetry.exposition("")[0].decode().splitlines()
            counted = [line for line in outcomes if line.startswith("evald_judge_requests_total{")]
            assert sum(float(line.split()[-1]) for line in counted) == outage.attempts
            assert not value(telemetry, "evald_judge_requests_total", outcome="other")


@pytest.mark.parametrize("change", [AS_IT_IS, NO_ADVICE], ids=["with advice", "without"])
async def test_an_outage_that_passes_costs_attempts_and_no_verdict(change: Change) -> None:
    with llmock_with(change) as llmock:
        llmock.rate_limit(times=1, retry_after=0.01).fail(503, times=1, retry_after=0.01)
        llmock.reply(VERDICT)
        async with judging(llmock.base_url()) as live:
            summary = (
                await live.unary(request(spec("llm-judge", {"criteria": "Polite."})), timeout=20)
            ).summary
            assert (summary.success, summary.results[0].score) == (True, 0.9)
            assert len(llmock.requests) == 3
