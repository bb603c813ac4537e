"""The turn that every object of `objects.py` must become."""

import json
from typing import Any

import evald

from .objects import ANSWER, ARGS, QUESTION, RESULT

CHECKS: list[dict[str, Any]] = [
    {"type": "contains", "config": {"text": "18 degrees"}},
    {"type": "tool-use", "config": {"expectations": [{"name": "get_weather", "args": ARGS}]}},
    {"type": "tool-call-count"},
    # The checks that passed as long as text and calls vanished.
    {"type": "contains", "name": "no-degrees", "config": {"text": "degrees"}, "negate": True},
    {
        "type": "tool-use",
        "name": "no-tool",
        "config": {"expectations": [{"name": "get_weather", "maxCalls": 0}]},
    },
]


def check_turn(turn: evald.Turn) -> None:
    """Check that text, call and result are present once, under their roles."""
    ctx = turn.context
    assert [message.role for message in ctx.messages if message.role != "system"] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert [message.role for message in ctx.turn_messages] == ["assistant", "tool", "assistant"]
    assert next(message.text for message in ctx.messages if message.role == "user") == QUESTION
    assert ctx.answer == ANSWER
    assert [(call.name, call.args) for call in ctx.turn_tool_calls] == [("get_weather", ARGS)]
    result = next(message for message in ctx.messages if message.role == "tool")
    assert RESULT in result.text
    assert not result.metadata.get("is_error")
    if ctx.turn_tool_calls[0].id:
        assert result.tool_call_id == ctx.turn_tool_calls[0].id
    reasoning = " ".join(str(message.metadata.get("reasoning", "")) for message in ctx.messages)
    assert ANSWER not in reasoning
    json.dumps([message.metadata for message in ctx.messages])


def check_evaluation(evaluation: evald.Evaluation) -> None:
    """Check that evaluators behind a channel saw them."""
    verdicts = {result.name: result.verdict.name for result in evaluation.results}
    assert verdicts == {
        "contains": "PASSED",
        "tool-use": "PASSED",
        "tool-call-count": "PASSED",
        "no-degrees": "FAILED",
        "no-tool": "FAILED",
    }
    assert evaluation.metrics == {"tool-call-count": 1}
