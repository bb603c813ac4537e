"""A script is given the turn under evald's names and under AgentV's, and nothing that nobody reported."""

import asyncio
import json
import threading
from typing import Any

from evald.chat import Message
from evald.context import EvaluatorContext
from evald.result import Result, Verdict
from evald.testing import context
from evald.turn import Turn
from evald.v1 import context_pb2
from evald_server.config import Settings
from evald_server.scripts.stdin import payload_of, written

from ..isolation import ISOLATION
from ..loop import run
from .programs import PASSES, Folder, judge

CALL = {"id": "c1", "type": "function", "function": {"name": "book", "arguments": '{"seat": 3}'}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Book it."},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "done"},
    {"role": "assistant", "content": "Booked: grün 😀"},
]


def given(ctx: EvaluatorContext, **config: Any) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(written(payload_of(ctx, config)))
    return data


def full() -> dict[str, Any]:
    turn = Turn(
        MESSAGES,
        latency_ms=1200,
        usage={"input": 10, "output": 5},
        cost_usd=0.5,
        expected={"text": "Booked", "messages": [{"role": "assistant", "content": "Booked"}]},
        scenario={"name": "booking", "successCriteria": "A seat is booked"},
        metadata={"case": 7},
        number=2,
        is_final=True,
    )
    return given(context(turn), word="x")


def test_evald_s_own_keys_tell_the_turn() -> None:
    data = full()
    shown = [*MESSAGES]
    shown[2] = {**MESSAGES[2], "tool_calls": [{**CALL, "tool": "book", "input": {"seat": 3}}]}
    assert data["messages"] == shown
    assert data["turn_messages"] == shown[2:]
    assert data["answer"] == MESSAGES[-1]["content"]
    assert data["tool_calls"] == shown[2]["tool_calls"]
    assert (data["version"], data["turn"], data["is_final"], data["config"]) == (1, 2, True, {"word": "x"})
    assert data["latency_ms"] == 1200
    assert data["token_usage"] == {"input": 10, "output": 5, "total": 15}
    assert (data["cost_usd"], data["metadata"]) == (0.5, {"case": 7})
    assert data["expected"] == {"text": "Booked", "messages": [{"role": "assistant", "content": "Booked"}]}
    assert data["scenario"]["success_criteria"] == "A seat is booked"


def test_agentv_s_keys_tell_the_same() -> None:
    data = full()
    for names, wanted in (
        (("output", "candidate_answer"), data["answer"]),
        (("question", "task"), "Book it."),
        (("criteria", "expected_outcome", "outcome"), "A seat is booked"),
        (("reference_answer",), "Booked"),
        (("input", "input_messages"), data["messages"][:2]),
        (("output_messages",), data["turn_messages"]),
        (("expected_messages", "expected_output"), [{"role": "assistant", "content": "Booked"}]),
        (("input_files", "guideline_files"), []),
        (("duration_ms",), 1200),
        (("system_message",), "Be kind."),
    ):
        for name in names:
            assert data[name] == wanted, name
    assert data["trace_summary"]["tool_calls_by_name"] == {"book": 1}


def test_what_nobody_reported_is_null_and_never_0() -> None:
    data = given(context([{"role": "assistant", "content": "hi"}]))
    for name in ("latency_ms", "token_usage", "cost_usd", "model", "scenario", "persona", "reference_answer"):
        assert data[name] is None, name
    assert data["expected"] == {}
    assert data["question"] is None
    assert data["messages"] == data["turn_messages"] == [{"role": "assistant", "content": "hi"}]
    assert data["input_messages"] == []


def test_a_turn_without_an_answer_has_none() -> None:
    assert given(context([{"role": "user", "content": "hi"}]))["answer"] is None


def test_arguments_that_are_no_json_stay_as_they_are() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "book", "arguments": "{broken"}}
    [seen] = given(context([{"role": "assistant", "content": None, "tool_calls": [call]}]))["tool_calls"]
    assert seen["function"]["arguments"] == "{broken"
    assert seen["input"] is None


def test_the_payload_is_ascii_so_that_no_locale_breaks_it() -> None:
    data = written(payload_of(context([{"role": "assistant", "content": "grün"}]), {}))
    assert data.isascii()


def test_the_event_loop_goes_on_while_a_long_conversation_is_written(folder: Folder) -> None:
    goes_on = threading.Event()

    class Long(EvaluatorContext):
        """Its messages take until the event loop has had a turn."""

        __slots__ = ()

        @property
        def messages(self) -> list[Message]:
            assert goes_on.wait(30)
            return super().messages

    path = folder.shell(PASSES)

    async def check() -> Result:
        asyncio.get_running_loop().call_later(0.01, goes_on.set)
        ctx = Long(context_pb2.EvaluatorContext())
        return await judge(Settings(code_isolation=ISOLATION, code_allow=[path]), {"command": [path]}, ctx)

    assert run(check()).verdict is Verdict.PASSED
