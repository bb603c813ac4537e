"""Every fault of an endpoint has a code and words of its own, and no fault is a verdict."""

import asyncio
import gzip
import json
import re
import socket
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from evald.errorcodes import CODES
from evald_server.judge import endpoint
from evald_server.judge.prompt_request import CallSpending

from ..attempts import attempts
from ..loop import expect_thread
from .asking import KEY, asking, fault, question, within
from .wire import Answer, answer, chunk, completion, events, wire

GOOD = answer(200, completion('{"score": 0.5, "reasoning": "so so"}'))

# Only silence has to be waited for. It counts from the connection on, which a busy machine takes its time to make.
SILENCE_SECONDS = 0.6

# 64 MiB of zeros; compressed as one piece they would take every process that collects tests 0.4 s.
BOMB = gzip.compress(bytes(1 << 20)) * 64

# Where the status alone says too little, an excerpt of what servers were seen to send.
FINAL: dict[str, tuple[Answer, str, str]] = {
    "401": (
        answer(401, {"error": {"message": "Incorrect API key provided", "code": "invalid_api_key"}}),
        "JUDGE_UNAVAILABLE",
        "does not accept the API key",
    ),
    "403": (answer(403, {"error": {"message": "Project has no access"}}), "JUDGE_UNAVAILABLE", "forbids"),
    "404": (
        answer(404, {"error": {"message": "no such model", "code": "model_not_found"}}),
        "JUDGE_UNAVAILABLE",
        'does not know model "gpt-4o-mini"',
    ),
    "404 without a word": (
        answer(404, "not found", content_type="text/plain"),
        "JUDGE_UNAVAILABLE",
        "base_url",
    ),
    "400": (answer(400, {"error": {"message": "top_p is bad"}}), "JUDGE_UNAVAILABLE", "refuses the request"),
    "400 as a list of pydantic's": (
        answer(422, {"detail": [{"loc": ["body", "n"], "msg": "Input should be valid", "input": "secret"}]}),
        "JUDGE_UNAVAILABLE",
        "body.n: Input should be valid",
    ),
    "400 as a list of something else": (
        answer(422, {"detail": [{"loc": 5, "msg": "no list of places"}, {"loc": None}, 7]}),
        "JUDGE_UNAVAILABLE",
        "no list of places",
    ),
    "redirect": (answer(307, b"", location="http://127.0.0.1:9/v1"), "JUDGE_UNAVAILABLE", "redirects"),
    "empty account": (
        answer(429, {"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}}),
        "JUDGE_RATE_LIMITED",
        "no quota left",
    ),
    "too long": (
        answer(
            400, {"error": {"message": "maximum context length is 8192", "code": "context_length_exceeded"}}
        ),
        "INPUT_TOO_LARGE",
        "longer than model",
    ),
    "too long by its code alone": (
        answer(400, {"error": {"message": "too long", "code": "string_above_max_length"}}),
        "INPUT_TOO_LARGE",
        "longer than model",
    ),
    "too long by its words alone": (
        answer(400, {"error": {"message": "Prompt is too long"}}),
        "INPUT_TOO_LARGE",
        "longer than model",
    ),
    "filtered question": (
        answer(400, {"error": {"message": "policy", "code": "content_filter"}}),
        "JUDGE_REFUSED",
        "filter",
    ),
    "refusal": (
        answer(200, completion(None, refusal="I'm sorry, I can't assist with that.")),
        "JUDGE_REFUSED",
        "refused to judge",
    ),
    "refusal as a part of the content": (
        answer(200, completion([{"type": "refusal", "refusal": "No."}])),
        "JUDGE_REFUSED",
        "refused to judge",
    ),
    "refusal beside a verdict": (
        answer(
            200,
            completion([{"type": "text", "text": '{"score": 1}'}, {"type": "refusal", "refusal": ""}]),
        ),
        "JUDGE_REFUSED",
        "refused to judge",
    ),
    "filtered answer": (answer(200, completion("", "content_filter")), "JUDGE_REFUSED", "filter"),
    "length": (answer(200, completion('{"score": 0.', "length")), "JUDGE_TRUNCATED", "limit of 1024 tokens"),
    "no JSON": (answer(200, completion("A fine answer!")), "JUDGE_UNPARSEABLE", "not the JSON object"),
    "JSON of another kind": (answer(200, completion("[1]")), "JUDGE_UNPARSEABLE", "not an object"),
    "NaN": (answer(200, completion('{"score": NaN}')), "JUDGE_UNPARSEABLE", "NaN"),
    "no choices": (answer(200, completion() | {"choices": []}), "JUDGE_UNPARSEABLE", "no choices"),
    "null content": (answer(200, completion(None)), "JUDGE_UNPARSEABLE", "no content"),
    "empty content": (answer(200, completion(" ")), "JUDGE_UNPARSEABLE", "empty"),
    "tool call": (
        answer(200, completion(None, "tool_calls", tool_calls=[{"id": "1"}])),
        "JUDGE_UNPARSEABLE",
        "called a tool",
    ),
    "broken form": (
        answer(400, {"error": {"message": "Failed to validate JSON", "code": "json_validate_failed"}}),
        "JUDGE_UNPARSEABLE",
        "does not have the requested format",
    ),
    "HTML": (
        answer(200, "<!DOCTYPE html><p>Sign in</p>", content_type="text/html"),
        "JUDGE_UNAVAILABLE",
        "text/html that is not JSON",
    ),
    "an error beside an answer": (
        answer(
            200, completion('{"score": 1, "reasoning": ""}') | {"error": {"code": 400, "message": "Stopped."}}
        ),
        "JUDGE_UNAVAILABLE",
        "refuses the request (HTTP 400)",
    ),
    "another protocol": (
        answer(200, {"object": "response", "output": []}),
        "JUDGE_UNAVAILABLE",
        'an object "response" without choices',
    ),
    "JSON that is no object": (answer(200, [1]), "JUDGE_UNAVAILABLE", "JSON that is not an object"),
    "an error without end": (
        answer(401, b"x" * (1 << 20), length=1 << 40, end="hang"),
        "JUDGE_UNAVAILABLE",
        "does not accept the API key",
    ),
    "compressed": (
        answer(200, BOMB, content_encoding="gzip"),
        "JUDGE_UNAVAILABLE",
        'the answer is compressed ("gzip"), although',
    ),
    "a compressed error": (
        answer(400, BOMB, content_encoding="gzip"),
        "JUDGE_UNAVAILABLE",
        'the answer is compressed ("gzip"), although',
    ),
    "too large": (answer(200, completion("x" * (1 << 20))), "JUDGE_UNAVAILABLE", "longer than 1048576 bytes"),
    "many choices": (
        answer(200, {"choices": [{"message": {"content": "fine"}, "finish_reason": "stop"}] * 101}),
        "JUDGE_UNAVAILABLE",
        "101 choices",
    ),
}

# Faults that may pass: each is asked again, and what comes then counts.
PASSING: dict[str, tuple[Answer, str, str]] = {
    "429": (answer(429, {"error": {"message": "slow down"}}), "JUDGE_RATE_LIMITED", "rate limit is exceeded"),
    "429 with Retry-After in seconds": (answer(429, b"", retry_after="0"), "JUDGE_RATE_LIMITED", "HTTP 429"),
    "429 with a nonsensical Retry-After": (
        answer(429, b"", retry_after="soon"),
        "JUDGE_RATE_LIMITED",
        "HTTP 429",
    ),
    "429 in an answer with status 200": (
        answer(200, {"error": {"message": "Provider returned error", "code": 429}}),
        "JUDGE_RATE_LIMITED",
        "rate limit is exceeded",
    ),
    "an error whose code is a word, in an answer with status 200": (
        answer(200, {"error": {"message": "Provider returned error", "code": "server_error"}}),
        "JUDGE_UNAVAILABLE",
        "HTTP 500",
    ),
    "500": (answer(500, "Internal Server Error"), "JUDGE_UNAVAILABLE", "HTTP 500"),
    "503": (answer(503, b"", content_type=None), "JUDGE_UNAVAILABLE", "HTTP 503"),
    "408": (answer(408, b""), "JUDGE_UNAVAILABLE", "HTTP 408"),
    "closed without a word": (Answer(b"", "close"), "JUDGE_UNAVAILABLE", "closed the connection"),
    "reset": (Answer(b"", "reset"), "JUDGE_UNAVAILABLE", "closed the connection"),
    "half of the head": (Answer(b"HTTP/1.1 200 OK\r\ncont", "close"), "JUDGE_UNAVAILABLE", "closed"),
    "no HTTP": (Answer(b"SSH-2.0-OpenSSH\r\n\r\n", "close"), "JUDGE_UNAVAILABLE", "closed the connection"),
    "cut-off body": (
        answer(200, '{"choices": [{"mess', length=1000, end="close"),
        "JUDGE_TRUNCATED",
        "is incomplete",
    ),
    "reset in the body": (
        answer(200, '{"choices": [{"mess', length=1000, end="reset"),
        "JUDGE_TRUNCATED",
        "is incomplete",
    ),
    "cut-off JSON": (answer(200, '{"choices": [{"mess'), "JUDGE_TRUNCATED", "ends after 19 bytes"),
    "silence": (Answer(b"", "hang"), "JUDGE_TIMEOUT", f"no data for {SILENCE_SECONDS} s"),
    "silence in the body": (
        answer(200, '{"choices": ', length=1000, end="hang"),
        "JUDGE_TIMEOUT",
        f"no data for {SILENCE_SECONDS} s",
    ),
}


def _seconds(name: str) -> float:
    return SILENCE_SECONDS if name.startswith("silence") else 10.0


@pytest.mark.parametrize("name", FINAL)
async def test_a_fault_that_will_not_pass_is_told_at_once(name: str) -> None:
    given, code, words = FINAL[name]

    async with wire(given, GOOD) as server, asking(server.base_url) as judge:
        spending = CallSpending()
        problem = await fault(judge.model().ask(question(), spending))
        assert (problem.code, len(server.requests), spending.attempts) == (code, 1, 1)
        assert words in str(problem)
        assert problem.code in CODES
        assert "ok" not in judge.counted.outcomes


@pytest.mark.parametrize("name", PASSING)
async def test_a_fault_that_may_pass_is_asked_again(name: str) -> None:
    given, _, _ = PASSING[name]

    async with (
        wire(given, GOOD) as server,
        asking(server.base_url, timeout=_seconds(name)) as judge,
    ):
        spending = CallSpending()
        with within(10):
            found = await judge.model().ask(question(), spending)
        assert found.data == {"score": 0.5, "reasoning": "so so"}
        assert (len(server.requests), spending.attempts) == (2, 2)
        assert judge.counted.outcomes[-1] == "ok"


@pytest.mark.parametrize("name", PASSING)
async def test_a_fault_that_does_not_pass_is_told_in_the_end(name: str) -> None:
    given, code, words = PASSING[name]

    async with (
        wire(given) as server,
        asking(server.base_url, timeout=_seconds(name), attempts=2) as judge,
    ):
        spending = CallSpending()
        problem = await fault(judge.model().ask(question(), spending))
        assert (problem.code, len(server.requests), spending.attempts) == (code, 2, 2)
        assert words in str(problem)
        assert "gave up after 2 attempts" in str(problem)


async def test_whether_asking_anew_may_help_is_said_with_what_the_model_said() -> None:
    async with (
        wire(answer(200, completion("A fine answer!"))) as server,
        asking(server.base_url) as judge,
    ):
        problem = await fault(judge.model().ask(question(), CallSpending()))
        assert (problem.unusable, problem.text) == (True, "A fine answer!")
    async with wire(answer(401, b"")) as server, asking(server.base_url) as judge:
        assert not (await fault(judge.model().ask(question(), CallSpending()))).unusable


async def test_a_long_answer_holds_up_nobody_while_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    held_up = expect_thread(monkeypatch, endpoint, "parse_completion")
    text = json.dumps({"score": 0.5, "reasoning": "so so" * 20_000})
    async with wire(answer(200, completion(text))) as server, asking(server.base_url) as judge:
        assert (await judge.model().ask(question(), CallSpending())).text == text
    assert held_up == [False]


async def test_cookies_are_not_kept() -> None:
    cookie = answer(200, completion('{"score": 0.5, "reasoning": "so so"}'), set_cookie="route=7; Path=/")
    async with wire(cookie) as server, asking(server.base_url) as judge:
        for _ in range(2):
            await judge.model().ask(question(), CallSpending())
        assert [head for head, _ in server.requests if "cookie" in head.lower()] == []
        assert len(server.requests) == 2


async def test_an_endpoint_that_is_not_there_is_told_as_such() -> None:
    async with wire(GOOD) as server:
        gone = server.base_url
    async with asking(gone, attempts=2) as judge:
        problem = await fault(judge.model().ask(question(), CallSpending()))
        assert problem.code == "JUDGE_UNAVAILABLE"
        assert "cannot be reached (connection refused)" in str(problem)
        assert gone.split("/")[2] not in str(problem), "callers need not know the address"
        assert not judge.models.available


async def test_an_answer_that_comes_drop_by_drop_is_given_up() -> None:
    async with (
        wire(answer(200, "{", length=1 << 30, end="drip")) as server,
        asking(server.base_url, attempts=1, timeout=1.5) as judge,
        asyncio.timeout(30),
    ):
        problem = await fault(judge.model().ask(question(), CallSpending()))
    assert problem.code == "JUDGE_TIMEOUT"


async def test_an_endpoint_that_takes_no_connections_is_told_with_how_long_was_waited() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        address = full.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        for client in waiting:
            client.setblocking(False)
            client.connect_ex(address)
        async with asking(f"http://127.0.0.1:{address[1]}/v1", attempts=1, timeout=0.25) as judge:
            problem = await fault(judge.model().ask(question(), CallSpending()))
        assert problem.code == "JUDGE_UNAVAILABLE"
        assert "cannot be reached (no connection within 0.25 s)" in str(problem)
        for client in waiting:
            client.close()


async def test_a_pause_that_is_longer_than_the_time_left_is_not_begun() -> None:
    async with wire(answer(429, b"", retry_after="30")) as server, asking(server.base_url) as judge:
        began = time.monotonic()
        with within(20):
            problem = await fault(judge.model().ask(question(), CallSpending()))
        assert time.monotonic() - began < 10
        assert (problem.code, len(server.requests)) == ("JUDGE_RATE_LIMITED", 1)
        assert "asks to wait for 30 s" in str(problem)
        with within(5):
            problem = await fault(judge.model().ask(question(), CallSpending()))
        assert (problem.code, len(server.requests)) == ("JUDGE_RATE_LIMITED", 1)


@pytest.mark.parametrize(
    "headers",
    [{"retry_after": "0.3"}, {"retry_after_ms": "300"}],
    ids=["seconds", "milliseconds"],
)
async def test_nothing_is_sent_before_the_time_that_the_endpoint_asked_for(headers: dict[str, str]) -> None:
    async with wire(answer(429, b"", **headers), GOOD) as server, asking(server.base_url) as judge:
        await judge.model().ask(question(), CallSpending())  # imports the client
        server.answers[:] = [answer(429, b"", **headers), GOOD]
        began = time.monotonic()
        await judge.model().ask(question(), CallSpending())
        assert time.monotonic() - began >= 0.3


async def test_a_date_to_wait_for_is_waited_for() -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    async with wire(answer(503, b"", retry_after=date)) as server, asking(server.base_url) as judge:
        with within(3):
            problem = await fault(judge.model().ask(question(), CallSpending()))
        assert problem.code == "JUDGE_UNAVAILABLE"
        assert "asks to wait for 3.6e+03 s" in str(problem)
        assert len(server.requests) == 1


@pytest.mark.alone
async def test_silence_ends_with_the_time_of_the_evaluation_and_before_it() -> None:
    for attempt in attempts(0.5):
        async with (
            wire(Answer(b"", "hang")) as server,
            asking(server.base_url, timeout=30) as judge,
        ):
            spending = CallSpending()
            with within(0.5), attempt:
                problem = await fault(judge.model().ask(question(), spending))
            assert problem.code == "JUDGE_TIMEOUT"
            assert re.search(r"no answer within 0\.\d+ s", str(problem))
            assert (spending.attempts, judge.counted.outcomes) == (1, ["cancelled"])


async def test_after_a_fault_the_end_of_time_is_told_as_that_fault() -> None:
    async with (
        wire(answer(500, b""), Answer(b"", "hang")) as server,
        asking(server.base_url, timeout=30) as judge,
    ):
        # Enough for a busy machine to get the first answer.
        with within(3):
            problem = await fault(judge.model().ask(question(), CallSpending()))
        assert problem.code == "JUDGE_UNAVAILABLE"
        assert "no time was left" in str(problem)


async def test_cancelling_leaves_no_request_behind() -> None:
    async with wire(Answer(b"", "hang")) as server, asking(server.base_url, concurrency=1) as judge:
        asked = asyncio.create_task(judge.model().ask(question(), CallSpending()))
        await server.arrived.wait()
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert judge.endpoint.limiter.inflight == 0
        server.answers[:] = [GOOD]
        assert (await judge.model().ask(question(), CallSpending())).data


async def test_who_waits_for_a_place_is_told_so_when_time_is_over() -> None:
    async with wire(Answer(b"", "hang")) as server, asking(server.base_url, concurrency=1) as judge:
        first = asyncio.create_task(judge.model().ask(question(), CallSpending()))
        await server.arrived.wait()
        with within(0.2):
            problem = await fault(judge.model().ask(question(), CallSpending()))
        assert (problem.code, len(server.requests)) == ("JUDGE_TIMEOUT", 1)
        assert "no free slot among its 1 concurrent requests" in str(problem)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)


STREAMS: dict[str, tuple[str, str]] = {
    "no finish": (events(chunk('{"score": 1'), done=False), "JUDGE_TRUNCATED"),
    "half an event": (events(chunk('{"score": 1'), done=False) + 'data: {"cho', "JUDGE_TRUNCATED"),
    "malformed": (events('{"choices": [{"del'), "JUDGE_TRUNCATED"),
    "nothing": ("", "JUDGE_TRUNCATED"),
    "error": (events({"error": {"message": "overloaded", "code": 503}}), "JUDGE_UNAVAILABLE"),
    "refusal": (
        events(chunk(refusal="I will "), chunk(refusal="not."), chunk(finish="stop")),
        "JUDGE_REFUSED",
    ),
    "length": (events(chunk('{"score"'), chunk(finish="length")), "JUDGE_TRUNCATED"),
    "tool call": (events(chunk(tool_calls=[{"id": "1"}]), chunk(finish="tool_calls")), "JUDGE_UNPARSEABLE"),
    "no content": (events(chunk(finish="stop")), "JUDGE_UNPARSEABLE"),
    "another protocol": (events({"type": "response.created"}), "JUDGE_UNAVAILABLE"),
    "no objects": (events([chunk(finish="stop")]), "JUDGE_UNAVAILABLE"),
    "a choice that is no object": (events({"choices": ["stop"]}), "JUDGE_UNAVAILABLE"),
}


@pytest.mark.parametrize("name", STREAMS)
async def test_a_stream_with_a_fault_is_no_answer(name: str) -> None:
    body, code = STREAMS[name]

    given = answer(200, body, content_type="text/event-stream")
    async with wire(given) as server, asking(server.base_url, stream=True, attempts=2) as judge:
        assert (await fault(judge.model().ask(question(), CallSpending()))).code == code
        assert server.bodies[0]["stream"] is True


@pytest.mark.parametrize("stream", [True, False], ids=["asked for", "not asked for"])
async def test_a_stream_is_put_together(stream: bool) -> None:
    pieces: list[Any] = [chunk(role="assistant"), chunk('{"score": 0'), chunk('.5, "reasoning": "so so"}')]
    usage = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}}

    body = ": a comment\n\n" + events(*pieces, usage, chunk(finish="stop"))
    given = answer(200, body, content_type="text/event-stream; charset=utf-8")
    async with wire(given) as server, asking(server.base_url, stream=stream) as judge:
        spending = CallSpending()
        found = await judge.model().ask(question(), spending)
        assert (found.data, found.model) == ({"score": 0.5, "reasoning": "so so"}, "judge-1")
        assert spending.usage
        assert spending.usage.total == 10


@pytest.mark.parametrize("name", [*FINAL, *PASSING])
async def test_no_fault_shows_the_key_or_the_question(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """The endpoint repeats both in every answer that it can."""
    given = (FINAL | PASSING)[name][0]
    asked = question()
    echo = f"{KEY} You judge. {asked.user_message}"
    head, _, body = given.data.partition(b"\r\n\r\n")
    if body.startswith(b'{"error": {"message": "'):
        echoed = body.replace(b'"message": "', f'"message": "{echo} '.encode())
        head = head.replace(
            f"content-length: {len(body)}".encode(), f"content-length: {len(echoed)}".encode()
        )
        given = Answer(head + b"\r\n\r\n" + echoed, given.end)

    async with (
        wire(given) as server,
        asking(server.base_url, timeout=_seconds(name), attempts=2) as judge,
    ):
        with caplog.at_level("DEBUG"):
            problem = await fault(judge.model().ask(asked, CallSpending()))
        assert f"authorization: bearer {KEY}" in server.requests[0][0].lower()
        for text in (str(problem), repr(problem), repr(judge.endpoint)):
            assert KEY not in text
            assert asked.user_message not in text
        assert KEY not in caplog.text


async def test_what_was_asked_is_told_without_the_key() -> None:
    async with wire(GOOD) as server, asking(server.base_url) as judge:
        found = await judge.model().ask(question()._replace(user_message=f"My key is {KEY}."), CallSpending())
        assert KEY not in json.dumps(found.request)
        assert found.request["messages"][1]["content"] == "My key is [redacted]."
        assert server.bodies[0]["messages"][1]["content"] == f"My key is {KEY}.", "it is judged as it is"


async def test_without_a_key_none_is_sent() -> None:
    async with wire(GOOD) as server, asking(server.base_url, api_key="") as judge:
        await judge.model().ask(question(), CallSpending())
        assert "authorization" not in server.requests[0][0].lower()


@pytest.mark.parametrize("key", [KEY, ""])
@pytest.mark.parametrize("here", [False, True])
async def test_headers_for_another_address_are_not_sent(
    key: str, here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client reads variables of OpenAI's account, whatever the address is."""
    async with wire(GOOD) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url if here else "https://gateway.example/v1")
        monkeypatch.setenv("OPENAI_ORG_ID", "org-secret")
        monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-secret")
        others = "" if here else "\nauthorization: Bearer other-secret"
        monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", f"X-Gateway-Token: gw-secret{others}")
        async with asking(server.base_url, api_key=key) as judge:
            await judge.model().ask(question(), CallSpending())
        head = server.requests[0][0].lower()
        for sent in ("org-secret", "proj-secret", "gw-secret"):
            assert (sent in head) == here
        assert "other-secret" not in head
        assert (f"authorization: bearer {KEY}" in head) == (key == KEY)
