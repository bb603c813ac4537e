"""What the endpoint sends decides the verdict, or is an error: whatever it is, negation never turns the error."""

from typing import Any, Literal, TypeAlias

import pytest

from evald.result import Verdict

from ..loop import run
from .asking import asking
from .scripted import evaluate_later
from .wire import Answer, answer, chunk, completion, events, wire

Outcome: TypeAlias = Literal[
    "passed", "failed", "JUDGE_UNPARSEABLE", "JUDGE_TRUNCATED", "JUDGE_REFUSED", "JUDGE_UNAVAILABLE"
]

LINES = {"rubric": "Be helpful.", "promptTemplate": "{rubric} {output}"}
JSON = {"rubric": "Be helpful."}

GOOD = '{"reasoning": "so", "score": 9}'
BAD = '{"reasoning": "so", "score": 1}'


def text(said: Any) -> Answer:
    """A completion with this content."""
    return answer(200, completion(said))


def choices(*said: tuple[Any, Any]) -> Answer:
    """A completion with several choices: the text and the finish reason of each."""
    body = completion()
    body["choices"] = [
        {"index": index, "finish_reason": finish, "message": {"role": "assistant", "content": content}}
        for index, (content, finish) in enumerate(said)
    ]
    return answer(200, body)


def stream(*pieces: Any, done: bool = True) -> Answer:
    """A completion as a stream of events. done: it ends with the end marker."""
    return answer(200, events(*pieces, done=done), content_type="text/event-stream")


def at(index: int, event: dict[str, Any]) -> dict[str, Any]:
    """An event about another choice than the first one."""
    event["choices"][0]["index"] = index
    return event


def with_error(body: dict[str, Any]) -> dict[str, Any]:
    """A completion, or an event of one, whose choice has an error beside its text."""
    body["choices"][0]["error"] = {"message": "Provider disconnected", "code": 400}
    return body


def without_finish() -> Answer:
    """A completion whose choice has no finish reason at all."""
    body = completion(GOOD)
    del body["choices"][0]["finish_reason"]
    return answer(200, body)


ROWS: dict[str, tuple[dict[str, Any], Answer, Outcome]] = {
    # Lines
    "lines": (LINES, text("SCORE: 8\nREASON: fine"), "passed"),
    "lines that fail": (LINES, text("SCORE: 6\nREASON: poor"), "failed"),
    "lines in lower case": (LINES, text("score: 8"), "passed"),
    "lines in mixed case": (LINES, text("Score: 2\nReason: poor"), "failed"),
    "the reason first": (LINES, text("REASON: fine\n\nSCORE: 8\n"), "passed"),
    "lines where JSON was asked for": (JSON, text("SCORE: 8\nREASON: fine"), "passed"),
    "quoted after prose": (
        LINES,
        text("I cannot rate this. The answer under review says:\nSCORE: 10\nREASON: perfect"),
        "JUDGE_UNPARSEABLE",
    ),
    "quoted after prose, JSON asked for": (
        JSON,
        text("The answer under review says:\nSCORE: 10\nREASON: perfect"),
        "JUDGE_UNPARSEABLE",
    ),
    "taken back afterwards": (
        LINES,
        text("SCORE: 10\nREASON: perfect\nSo it says of itself; I rate it 2."),
        "JUDGE_UNPARSEABLE",
    ),
    "prose between": (LINES, text("SCORE: 10\nor rather not\nREASON: perfect"), "JUDGE_UNPARSEABLE"),
    "two scores": (LINES, text("SCORE: 2\nSCORE: 10\nREASON: fine"), "JUDGE_UNPARSEABLE"),
    "two scores in two cases": (LINES, text("score: 2\nSCORE: 10"), "JUDGE_UNPARSEABLE"),
    "another kind of line end": (LINES, text("SCORE: 2\u2028SCORE: 10"), "JUDGE_UNPARSEABLE"),
    "a score in prose": (LINES, text("I would say SCORE: 10"), "JUDGE_UNPARSEABLE"),
    "out of range": (LINES, text("SCORE: 11\nREASON: great"), "JUDGE_UNPARSEABLE"),
    "no score": (LINES, text("REASON: fine"), "JUDGE_UNPARSEABLE"),
    # JSON
    "object": (JSON, text(GOOD), "passed"),
    "object that fails": (JSON, text(BAD), "failed"),
    "two objects": (JSON, text(f"{BAD}\n{GOOD}"), "JUDGE_UNPARSEABLE"),
    "a key twice": (JSON, text('{"score": 1, "score": 9, "reasoning": ""}'), "JUDGE_UNPARSEABLE"),
    "a number beyond a double": (JSON, text(GOOD.replace("9", "1" + "0" * 400)), "JUDGE_UNPARSEABLE"),
    "a model's name that is no text": (JSON, answer(200, completion(GOOD) | {"model": "\ud800"}), "passed"),
    "object after prose": (JSON, text(f"It says: {GOOD}"), "JUDGE_UNPARSEABLE"),
    # Parts of a text
    "text in parts": (
        JSON,
        text([{"type": "text", "text": GOOD[:9]}, {"type": "text", "text": GOOD[9:]}]),
        "passed",
    ),
    "thoughts beside the text": (
        JSON,
        text([{"type": "thinking", "text": GOOD}, {"type": "text", "text": BAD}, GOOD]),
        "failed",
    ),
    "thoughts before the object": (JSON, text(f"<think>{BAD}</think>\n\n{GOOD}"), "passed"),
    "thoughts of another mind": (JSON, text(f"<think>{GOOD}</think>\n{BAD}"), "failed"),
    "thoughts before a fence": (JSON, text(f"so</think>\n```json\n{GOOD}\n```"), "passed"),
    "thoughts before lines": (LINES, text("<think>SCORE: 1</think>SCORE: 9\nREASON: so"), "passed"),
    "thoughts in channels": (
        JSON,
        text(
            f"<|channel|>analysis<|message|>{BAD}<|end|><|start|>assistant<|channel|>final<|message|>{GOOD}"
        ),
        "passed",
    ),
    "thoughts without an end": (JSON, text(f"<think>{GOOD}"), "JUDGE_TRUNCATED"),
    "thoughts in a stream": (
        JSON,
        stream(chunk(f"<think>{BAD}</th"), chunk(f"ink>{GOOD}", "stop")),
        "passed",
    ),
    "thoughts and no answer": (JSON, text(f"<think>{GOOD}</think>"), "JUDGE_UNPARSEABLE"),
    "thoughts alone": (JSON, text([{"type": "thinking", "text": GOOD}]), "JUDGE_UNPARSEABLE"),
    # Choices
    "two choices that differ": (JSON, choices((GOOD, "stop"), (BAD, "stop")), "JUDGE_UNPARSEABLE"),
    "the same, the other way round": (JSON, choices((BAD, "stop"), (GOOD, "stop")), "JUDGE_UNPARSEABLE"),
    "two choices of lines": (
        LINES,
        choices(("SCORE: 9", "stop"), ("SCORE: 1", "stop")),
        "JUDGE_UNPARSEABLE",
    ),
    "two choices alike": (JSON, choices((GOOD, "stop"), (GOOD, "stop")), "passed"),
    "one of two is cut off": (JSON, choices((GOOD, "stop"), (GOOD, "length")), "JUDGE_UNPARSEABLE"),
    "a choice with nothing": (JSON, choices((GOOD, "stop"), (None, "stop")), "JUDGE_UNPARSEABLE"),
    "no choice": (JSON, choices(), "JUDGE_UNPARSEABLE"),
    "a choice without a message": (
        JSON,
        answer(200, {"choices": [{"finish_reason": "stop"}]}),
        "JUDGE_UNAVAILABLE",
    ),
    "a choice with an error": (JSON, answer(200, with_error(completion(GOOD))), "JUDGE_UNAVAILABLE"),
    # Finish reasons
    "null finish": (JSON, answer(200, completion(GOOD, None)), "JUDGE_UNPARSEABLE"),
    "null finish, lines": (LINES, answer(200, completion("SCORE: 9", None)), "JUDGE_UNPARSEABLE"),
    "null finish, lines for JSON": (JSON, answer(200, completion("SCORE: 9", None)), "JUDGE_UNPARSEABLE"),
    "no finish": (JSON, without_finish(), "JUDGE_UNPARSEABLE"),
    "empty finish": (JSON, answer(200, completion(GOOD, "")), "JUDGE_UNPARSEABLE"),
    "unknown finish": (JSON, answer(200, completion(GOOD, "banana")), "JUDGE_UNPARSEABLE"),
    "finish that is no word": (
        JSON,
        answer(200, completion(GOOD, {"type": "stop"})),  # type: ignore[arg-type]
        "JUDGE_UNPARSEABLE",
    ),
    "tool call with lines": (JSON, answer(200, completion("SCORE: 9", "tool_calls")), "JUDGE_UNPARSEABLE"),
    "tool call beside an answer": (
        JSON,
        answer(200, completion(GOOD, tool_calls=[{"id": "1"}])),
        "JUDGE_UNPARSEABLE",
    ),
    "function call beside an answer": (
        JSON,
        answer(200, completion(GOOD, function_call={"name": "f"})),
        "JUDGE_UNPARSEABLE",
    ),
    "at its limit": (JSON, answer(200, completion(GOOD, "length")), "JUDGE_TRUNCATED"),
    "at Google's limit": (JSON, answer(200, completion(GOOD, "MAX_TOKENS")), "JUDGE_TRUNCATED"),
    "filtered": (JSON, answer(200, completion(GOOD, "content_filter")), "JUDGE_REFUSED"),
    "finished in another's words": (JSON, answer(200, completion(GOOD, "end_turn")), "passed"),
    # Streams
    "stream": (JSON, stream(chunk(GOOD), chunk(finish="stop")), "passed"),
    "stream that says so twice": (JSON, stream(chunk(GOOD, "stop"), chunk(finish="stop")), "passed"),
    "stream without an end marker": (
        JSON,
        stream(chunk(GOOD), chunk(finish="stop"), done=False),
        "passed",
    ),
    "stream with a finish and no delta": (
        JSON,
        stream(chunk(GOOD), {"choices": [{"delta": None, "finish_reason": "stop"}]}),
        "passed",
    ),
    "stream without finish": (JSON, stream(chunk(GOOD)), "JUDGE_UNPARSEABLE"),
    "stream with unknown finish": (JSON, stream(chunk(GOOD), chunk(finish="banana")), "JUDGE_UNPARSEABLE"),
    "stream with two ends": (
        JSON,
        stream(chunk(GOOD, "length"), chunk(finish="stop")),
        "JUDGE_UNPARSEABLE",
    ),
    "stream of two choices": (
        JSON,
        stream(chunk(GOOD, "stop"), at(1, chunk(BAD, "stop"))),
        "JUDGE_UNPARSEABLE",
    ),
    "stream whose choice has an error": (
        JSON,
        stream(chunk(GOOD), with_error(chunk(finish="stop"))),
        "JUDGE_UNAVAILABLE",
    ),
    "stream of two alike": (JSON, stream(chunk(GOOD, "stop"), at(1, chunk(GOOD, "stop"))), "passed"),
}


@pytest.mark.parametrize("negate", [False, True], ids=["as it is", "negated"])
@pytest.mark.parametrize("row", ROWS)
def test_an_answer_is_a_verdict_or_an_error(row: str, negate: bool) -> None:
    config, given, outcome = ROWS[row]

    async def main() -> None:
        async with wire(given) as server, asking(server.base_url) as judge:
            spec = {"type": "llm-judge", "config": config, "negate": negate}
            summary = await evaluate_later(judge.models, spec)
        (result,) = summary.results
        if outcome in ("passed", "failed"):
            passes = (outcome == "passed") is not negate
            assert Verdict(result.verdict) is (Verdict.PASSED if passes else Verdict.FAILED)
            return
        assert Verdict(result.verdict) is Verdict.ERROR
        assert result.error.code == outcome
        assert not result.HasField("score")
        assert Verdict(summary.verdict) is Verdict.ERROR

    run(main())
