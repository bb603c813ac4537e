"""Options and other choices of a caller that the server does not know are refused, never guessed."""

from typing import Any

import grpc
import pytest

import evald
from evald.v1 import evaluation_service_pb2 as typed_pb2
from evald.v1 import message_pb2

from ..loop import run
from .live import CONTAINS, Refusal, Request, refusal, request, serving, spec

# Untyped, because enum fields take numbers that their types do not know.
pb2: Any = typed_pb2

ALL, MEAN = 1, 2


def options(**fields: Any) -> dict[str, Any]:
    """What a call with these options has in its fields."""
    return {"evaluators": [CONTAINS], "options": pb2.EvaluateOptions(**fields)}


def specified(**fields: Any) -> dict[str, Any]:
    """What a call with a spec of these fields has in its own."""
    untyped: Any = spec
    return {"evaluators": [untyped("contains", {"text": "hello"}, **fields)]}


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "unknown aggregation": (options(aggregation=3), "options.aggregation", "got 3"),
    "negative aggregation": (options(aggregation=-1), "options.aggregation", "got -1"),
    "threshold alone": (options(threshold=0.5), "options.threshold", "AGGREGATION_POLICY_WEIGHTED_MEAN"),
    "threshold 0 alone": (options(threshold=0), "options.threshold", "got 0 without"),
    "threshold with all must pass": (
        options(threshold=0.5, aggregation=ALL),
        "options.threshold",
        "got 0.5 without",
    ),
    "threshold above 1": (options(threshold=1.5, aggregation=MEAN), "options.threshold", "from 0 to 1"),
    "threshold NaN": (options(threshold=float("nan"), aggregation=MEAN), "options.threshold", "from 0 to 1"),
    "threshold 0 of a mean": (options(threshold=0, aggregation=MEAN), "options.threshold", "more than 0"),
    "negative threshold of a mean": (
        options(threshold=-1, aggregation=MEAN),
        "options.threshold",
        "from 0 to 1",
    ),
    "threshold 0 of one": (specified(threshold=0), "evaluators[0].threshold", "more than 0"),
    "negative threshold of one": (specified(threshold=-0.5), "evaluators[0].threshold", "more than 0"),
    "threshold NaN of one": (specified(threshold=float("nan")), "evaluators[0].threshold", "more than 0"),
    "unknown criteria policy": (options(criteria_policy=7), "options.criteria_policy", "got 7"),
    "negative concurrency": (options(max_concurrency=-1), "options.max_concurrency", "got -1"),
    "no time": (options(timeout={}), "options.timeout", "got 0ms, wanted more than 0"),
    "no time for one": (specified(timeout={"seconds": -1}), "evaluators[0].timeout", "more than 0"),
    "unknown enforcement": (specified(enforcement=3), "evaluators[0].enforcement", "3, which is not a value"),
    "unknown error policy": (
        specified(error_policy=3),
        "evaluators[0].error_policy",
        "3, which is not a value",
    ),
    "unknown turn policy": (
        specified(turn_policy=-2),
        "evaluators[0].turn_policy",
        "-2, which is not a value",
    ),
}


def calls(fields: dict[str, Any]) -> dict[str, Any]:
    """The request of each way to evaluate, with these fields."""
    plain = request()
    return {
        "unary": Request(context=plain.context, **fields),
        "stream": Request(context=plain.context, **fields),
        "session": pb2.EvaluateSessionRequest(open=pb2.SessionOpen(**fields)),
        "batch": pb2.EvaluateBatchRequest(
            open=pb2.BatchOpen(**fields), items=[pb2.BatchItem(context=plain.context)]
        ),
    }


@pytest.mark.parametrize("row", REFUSED)
def test_what_the_server_does_not_know_is_refused_with_its_place(row: str) -> None:
    fields, field, text = REFUSED[row]

    async def main() -> dict[str, Refusal]:
        asked = calls(fields)
        async with serving() as live:
            return {
                "unary": await refusal(live.unary(asked["unary"])),
                "stream": await refusal(live.stream(asked["stream"])),
                "session": await refusal(live.session([asked["session"]])),
                "batch": await refusal(live.batch([asked["batch"]])),
            }

    for refused in run(main()).values():
        assert (refused.code, refused.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
        assert refused.fields == [field]
        assert text in refused.message


async def test_a_threshold_belongs_to_the_weighted_mean() -> None:
    async with serving() as live:
        fields = options(threshold=0.01, aggregation=MEAN)
        answer = await live.unary(calls(fields)["unary"])
    assert answer.summary.success


async def test_a_threshold_of_0_is_accepted_beside_a_required_evaluator_with_a_warning() -> None:
    async with serving() as live:
        for text, passes in (("hello", True), ("absent", False)):
            untyped: Any = spec
            wanted = request(untyped("contains", {"text": text}, required=True), untyped("is-json", {}))
            wanted.options.aggregation, wanted.options.threshold = MEAN, 0.0
            answer = await live.unary(wanted)
            assert answer.summary.success is passes
            assert any("threshold is 0" in warning for warning in answer.summary.warnings)


async def test_a_weighted_mean_that_an_error_might_have_lifted_is_no_failure() -> None:
    untyped: Any = spec
    half = untyped("contains", {"substrings": ["hello", "absent"]}, threshold=0.5)
    breaks = untyped("tool-call-budget", {"maxCalls": 0, "scope": "conversation"}, weight=9)
    wanted: Any = request(half, breaks)
    wanted.options.aggregation = MEAN
    wanted.context.messages.insert(
        0, message_pb2.ChatMessage(role="robot", tool_calls=[message_pb2.ToolCall()])
    )
    async with serving() as live:
        summary: Any = (await live.unary(wanted)).summary
    assert [result.verdict for result in summary.results] == [evald.Verdict.PASSED, evald.Verdict.ERROR]
    assert (summary.verdict, summary.mean_score) == (evald.Verdict.ERROR, 0.5)


async def test_an_unknown_mode_of_failure_criteria_is_refused() -> None:
    wanted: Any = request(CONTAINS)
    wanted.context.scenario.failure_criteria = "It asks for a password"
    wanted.context.scenario.failure_criteria_mode = 9
    async with serving() as live:
        for call in (live.unary, live.stream):
            refused = await refusal(call(wanted))
            assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
            assert refused.fields == ["context.scenario.failure_criteria_mode"]
