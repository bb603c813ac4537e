"""Against somebody else's OpenAI server, which breaks on demand: https://pypi.org/project/llmock."""

import json
from typing import Any

import pytest
from llmock.pytest_plugin import LLMock
from llmock.scenarios import Delay, Fail, Reply

from evald_server.judge.prompt_request import CallSpending
from evald_server.judge.response_format import ResponseFormat

from ..loop import run
from .asking import asking, fault, question, within

NO_SCHEMA = "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model."
NO_OBJECT = "Invalid parameter: 'response_format' of type 'json_object' is not supported with this model."
NO_LIMIT = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
NO_TEMPERATURE = (
    "Unsupported value: 'temperature' does not support 0.0 with this model. Only the default (1) value."
)

VERDICT = '{"score": 1, "reasoning": "well done"}'


def bodies(llmock: LLMock) -> list[dict[str, Any]]:
    """What was asked."""
    return [record.body for record in llmock.requests if record.body is not None]


def test_a_schema_is_answered_with_what_matches_it(llmock: LLMock) -> None:
    async def main() -> None:
        async with asking(llmock.base_url()) as judge:
            spending = CallSpending()
            found = await judge.model().ask(question(), spending)
            assert found.data
            assert found.data.keys() == {"score", "reasoning"}
            assert (spending.attempts, spending.usage is not None, found.cached) == (1, True, False)
            assert spending.cost_usd
            assert judge.counted.outcomes == ["ok"]

    run(main())
    (body,) = bodies(llmock)
    assert body["response_format"]["type"] == "json_schema"
    assert body["response_format"]["json_schema"]["strict"] is True
    assert (body["temperature"], body["max_tokens"]) == (0.0, 1024)


def test_an_endpoint_without_schemas_is_asked_for_an_object_and_then_for_text(llmock: LLMock) -> None:
    llmock.fail(400, message=NO_SCHEMA).fail(400, message=NO_OBJECT)
    llmock.reply(f"Here is my verdict:\n```json\n{VERDICT}\n```\n")
    llmock.reply(f"```json\n{VERDICT}\n```")

    async def main() -> None:
        async with asking(llmock.base_url()) as judge:
            spending = CallSpending()
            found = await judge.model().ask(question(), spending)
            assert found.data == json.loads(VERDICT)
            assert (spending.attempts, judge.counted.outcomes) == (3, ["adapted", "adapted", "ok"])
            again = CallSpending()
            assert (await judge.model().ask(question(), again)).data == json.loads(VERDICT)
            assert again.attempts == 1, "what the endpoint does not know is remembered"

    run(main())
    asked = [body.get("response_format", {}).get("type") for body in bodies(llmock)]
    assert asked == ["json_schema", "json_object", None, None]
    assert all("JSON Schema" in body["messages"][0]["content"] for body in bodies(llmock)[1:])
    llmock.assert_resilient()


def test_what_reasoning_models_do_not_know_is_left_out(llmock: LLMock) -> None:
    llmock.fail(400, message=NO_LIMIT, code="unsupported_parameter")
    llmock.fail(400, message=NO_TEMPERATURE, code="unsupported_value")

    async def main() -> None:
        async with asking(llmock.base_url()) as judge:
            found = await judge.model().ask(question(), CallSpending())
            assert found.data
            assert "temperature" not in found.request, "the request is told as it was sent"

    run(main())
    last = bodies(llmock)[-1]
    assert (last["max_completion_tokens"], "max_tokens" in last, "temperature" in last) == (
        1024,
        False,
        False,
    )


@pytest.mark.parametrize("form", ResponseFormat)
async def test_one_fence_is_read_whatever_was_asked_for_and_two_never(
    llmock: LLMock, form: ResponseFormat
) -> None:
    llmock.reply(f"So:\n```json\n{VERDICT}\n```")
    llmock.reply(f"It wrote\n```json\n{VERDICT}\n```\nbut\n```json\n{VERDICT}\n```")

    async with asking(llmock.base_url(), form=form.value) as judge:
        assert (await judge.model().ask(question(), CallSpending())).data == json.loads(VERDICT)
        problem = await fault(judge.model().ask(question(), CallSpending()))
        assert (problem.code, problem.unusable) == ("JUDGE_UNPARSEABLE", True)


def test_a_rate_limit_is_waited_out_as_long_as_asked(llmock: LLMock) -> None:
    llmock.rate_limit(times=2, retry_after=0.05)

    async def main() -> None:
        async with asking(llmock.base_url()) as judge:
            spending = CallSpending()
            with within(20):
                assert (await judge.model().ask(question(), spending)).data
            assert (spending.attempts, judge.endpoint.limiter.limit) == (3, 2)
            assert judge.counted.outcomes == ["rate_limited", "rate_limited", "ok"]

    run(main())
    llmock.assert_resilient(strict=True)


def test_a_rate_limit_that_lasts_is_told(llmock: LLMock) -> None:
    llmock.rate_limit(times=None, retry_after=60)

    async def main() -> None:
        async with asking(llmock.base_url()) as judge:
            with within(2):
                problem = await fault(judge.model().ask(question(), CallSpending()))
            assert problem.code == "JUDGE_RATE_LIMITED"

    run(main())
    assert len(llmock.requests) == 1
    llmock.assert_resilient()


def test_a_real_quota_is_kept(llmock: LLMock) -> None:
    llmock.limits(rpm=3)

    async def main() -> None:
        async with asking(llmock.base_url()) as judge:
            for _ in range(3):
                await judge.model().ask(question(), CallSpending())
            with within(3):
                problem = await fault(judge.model().ask(question(), CallSpending()))
            assert problem.code == "JUDGE_RATE_LIMITED"

    run(main())
    llmock.assert_resilient()


@pytest.mark.parametrize("status", [500, 503])
def test_an_outage_is_told_after_a_few_attempts(llmock: LLMock, status: int) -> None:
    llmock.outage(status=status)

    async def main() -> None:
        async with asking(llmock.base_url(), attempts=2) as judge:
            spending = CallSpending()
            problem = await fault(judge.model().ask(question(), spending))
            assert (problem.code, spending.attempts) == ("JUDGE_UNAVAILABLE", 2)
            assert spending.usage is None

    run(main())
    llmock.assert_resilient()


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_what_will_not_change_is_not_asked_again(llmock: LLMock, status: int) -> None:
    llmock.fail(status, times=None)

    async def main() -> None:
        async with asking(llmock.base_url()) as judge:
            assert (await fault(judge.model().ask(question(), CallSpending()))).code == "JUDGE_UNAVAILABLE"

    run(main())
    assert len(llmock.requests) == 1
    llmock.assert_resilient(strict=True)


async def test_a_question_that_is_too_long_is_told(llmock: LLMock) -> None:
    llmock.limits(context_window=1)

    async with asking(llmock.base_url()) as judge:
        assert (await fault(judge.model().ask(question(), CallSpending()))).code == "INPUT_TOO_LARGE"


async def test_a_slow_answer_is_given_up_and_asked_for_again(llmock: LLMock) -> None:
    llmock.add(Delay(4.0))

    async with asking(llmock.base_url(), timeout=2.0) as judge:
        with within(20):
            assert (await judge.model().ask(question(), CallSpending())).data
        assert judge.counted.outcomes == ["timeout", "ok"]


async def test_a_slow_answer_does_not_outlast_the_evaluation(llmock: LLMock) -> None:
    llmock.add(Delay(5.0, times=None))

    async with asking(llmock.base_url()) as judge:
        with within(0.4):
            assert (await fault(judge.model().ask(question(), CallSpending()))).code == "JUDGE_TIMEOUT"


REPLIES: dict[str, tuple[Reply, str]] = {
    "prose": (Reply(text="9 out of 10!"), "JUDGE_UNPARSEABLE"),
    "a number": (Reply(text="0.9"), "JUDGE_UNPARSEABLE"),
    "nothing": (Reply(text=""), "JUDGE_UNPARSEABLE"),
    "cut off": (Reply(text='{"score": 1, "rea', finish_reason="length"), "JUDGE_TRUNCATED"),
    "whole but cut off": (Reply(text=VERDICT, finish_reason="length"), "JUDGE_TRUNCATED"),
    "filtered": (Reply(text=VERDICT, finish_reason="content_filter"), "JUDGE_REFUSED"),
}


@pytest.mark.parametrize("name", REPLIES)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_an_answer_without_a_verdict_is_an_error(llmock: LLMock, name: str, stream: bool) -> None:
    reply, code = REPLIES[name]
    llmock.add(reply)

    async with asking(llmock.base_url(), stream=stream) as judge:
        spending = CallSpending()
        assert (await fault(judge.model().ask(question(), spending))).code == code
        assert spending.usage is not None, "an answer that cannot be used is paid for as well"


@pytest.mark.parametrize("kind", ["disconnect", "truncate", "corrupt"])
async def test_a_broken_stream_is_asked_for_again_and_then_told(llmock: LLMock, kind: str) -> None:
    async with asking(llmock.base_url(), stream=True, attempts=2) as judge:
        getattr(llmock, kind)(after_chunks=2, times=1)
        assert (await judge.model().ask(question(), CallSpending())).data
        llmock.assert_resilient()
        getattr(llmock, kind)(after_chunks=2, times=None)
        problem = await fault(judge.model().ask(question(), CallSpending()))
        assert (problem.code, judge.counted.outcomes[-1]) == ("JUDGE_TRUNCATED", "truncated")


def test_a_stream_that_stalls_is_given_up(llmock: LLMock) -> None:
    llmock.stall(after_chunks=2, seconds=4.0)

    async def main() -> None:
        async with asking(llmock.base_url(), stream=True, timeout=2.0) as judge:
            assert (await judge.model().ask(question(), CallSpending())).data
            assert judge.counted.outcomes == ["timeout", "ok"]

    run(main())
    llmock.assert_resilient()


def test_after_an_hour_the_surest_form_is_tried_again(llmock: LLMock) -> None:
    now = 0.0

    async def main() -> None:
        nonlocal now
        async with asking(llmock.base_url()) as judge:
            judge.endpoint._clock = lambda: now
            llmock.add(Fail(400, message=NO_SCHEMA))
            for now in (0.0, 3599.0, 3601.0):  # noqa: B007 - the clock reads it
                await judge.model().ask(question(), CallSpending())

    run(main())
    asked = [body["response_format"]["type"] for body in bodies(llmock)]
    assert asked == ["json_schema", "json_object", "json_object", "json_schema"]
