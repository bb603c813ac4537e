"""The judge sees what was there, under the roles that it had, and nothing more than was asked for."""

import asyncio
import threading
from typing import Any

import pytest

from evald.chat import Message
from evald.context import EvaluatorContext
from evald.turn import Turn
from evald.v1 import context_pb2
from evald_server.judge.transcript import View, records

from .scripted import ScriptedModels, criteria, inside, judge, judge_later

CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "c1",
            "type": "function",
            "function": {"name": "find", "arguments": '{"id": 7, "deep": {"a": [1]}}'},
        }
    ],
}
CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "hello", "name": "Ann"},
    {"role": "assistant", "content": "hi"},
    {"role": "user", "content": "where is order 7?"},
    CALL,
    {"role": "tool", "tool_call_id": "c1", "content": '{"city": "Ghent"}'},
    {"role": "assistant", "content": "In Ghent."},
]
TURN = [
    {
        "part": "turn",
        "role": "assistant",
        "tool_calls": [{"id": "c1", "name": "find", "arguments": {"id": 7, "deep": {"a": [1]}}}],
    },
    {"part": "turn", "role": "tool", "tool_call_id": "c1", "tool": "find", "content": '{"city": "Ghent"}'},
    {"part": "turn", "role": "assistant", "content": "In Ghent."},
]
ASKED = {"part": "history", "role": "user", "content": "where is order 7?"}
HISTORY = [
    {"part": "history", "role": "user", "name": "Ann", "content": "hello"},
    {"part": "history", "role": "assistant", "content": "hi"},
    ASKED,
]
SYSTEM = {"part": "history", "role": "system", "content": "be brief"}
EXPECTED = {"part": "expected", "content": "Ghent"}


def shown(config: dict[str, Any], turn: Turn) -> list[dict[str, Any]]:
    models = ScriptedModels(criteria(True))
    judge(models, {"successCriteria": "s"} | config, turn)
    return inside(models.default.questions[0].user_message)


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({}, [*HISTORY, *TURN]),
        ({"includeHistory": False}, [ASKED, *TURN]),
        ({"includeSystem": True}, [SYSTEM, *HISTORY, *TURN]),
        ({"includeSystem": True, "includeHistory": False}, [ASKED, *TURN]),
        ({"includeExpected": True}, [*HISTORY, *TURN, EXPECTED]),
    ],
    ids=str,
)
def test_the_judge_sees_what_the_config_says(config: dict[str, Any], wanted: list[dict[str, Any]]) -> None:
    assert shown(config, Turn(CONVERSATION, expected="Ghent")) == wanted


def test_the_turn_is_told_from_the_history_also_where_the_caller_marks_it() -> None:
    turn = Turn(CONVERSATION, turn_messages=CONVERSATION[2:])
    assert [record["part"] for record in shown({}, turn)] == ["history"] + ["turn"] * 5


@pytest.mark.parametrize(
    ("messages", "history"), [(CONVERSATION[3:], [ASKED]), ([{"role": "assistant", "content": "hi"}], [])]
)
def test_without_history_the_last_question_is_shown_where_there_is_one(
    messages: list[dict[str, Any]], history: list[dict[str, Any]]
) -> None:
    turn = Turn([*messages, CALL, CONVERSATION[6]], turn_messages=[CALL, CONVERSATION[6]])
    found = shown({"includeHistory": False}, turn)
    assert [record for record in found if record["part"] == "history"][:1] == history
    assert found[-1] == TURN[-1]


def test_a_refusal_of_the_agent_is_shown() -> None:
    pb = context_pb2.EvaluatorContext()
    pb.messages.add(role="assistant", refusal="I cannot.")
    (record,) = records(EvaluatorContext(pb), View())
    assert record["refusal"] == "I cannot."


@pytest.mark.parametrize(
    "turn",
    [
        [("assistant", "c")],
        [("assistant", "x"), ("assistant", "b")],
        [("assistant", "a"), ("assistant", "b")],
    ],
)
def test_a_turn_that_is_not_the_conversations_tail_takes_nothing_away_from_it(
    turn: list[tuple[str, str]],
) -> None:
    pb = context_pb2.EvaluatorContext()
    pb.messages.add(role="user", text="a")
    pb.messages.add(role="assistant", text="b")
    for role, text in turn:
        pb.last_invocation.messages.add(role=role, text=text)
    models = ScriptedModels(criteria(True))

    asyncio.run(judge_later(models, {"successCriteria": "s"}, EvaluatorContext(pb)))
    contents = [record["content"] for record in inside(models.default.questions[0].user_message)]
    assert contents == ["a", "b", *(text for _, text in turn)]


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ("{}", {}),
        ("", ""),
        ("not json", "not json"),
        ('{"a": 1, "a": 1000}', '{"a": 1, "a": 1000}'),
        ('{"a": NaN}', '{"a": NaN}'),
        ('{"a": 1e999}', '{"a": 1e999}'),
        ('{"a": 12345678901234567890123}', {"a": 12345678901234567890123}),
        ("[" * 100_000, "[" * 100_000),
    ],
    ids=lambda value: str(value)[:20],
)
def test_arguments_are_data_only_where_that_loses_nothing(arguments: str, wanted: Any) -> None:
    pb = context_pb2.EvaluatorContext()
    call = pb.messages.add(role="assistant").tool_calls.add()
    call.function.name, call.function.arguments = "f", arguments
    (record,) = records(EvaluatorContext(pb), View())
    assert record == {"part": "turn", "role": "assistant", "tool_calls": [{"name": "f", "arguments": wanted}]}


def test_nothing_is_shown_as_null_and_an_empty_text_is_shown_as_one() -> None:
    turn = Turn(
        [
            {"role": "user", "content": None},
            {"role": "user", "content": ""},
            {"role": "assistant", "content": "x"},
        ]
    )
    assert shown({}, turn)[:2] == [
        {"part": "history", "role": "user"},
        {"part": "history", "role": "user", "content": ""},
    ]


def test_expected_data_and_messages_are_shown_as_such() -> None:
    expected = {"data": {"city": "Ghent"}, "messages": [CALL]}
    found = shown({"includeExpected": True, "includeHistory": False}, Turn(CONVERSATION, expected=expected))
    assert found[4:] == [
        {"part": "expected", "data": {"city": "Ghent"}},
        {**TURN[0], "part": "expected"},
    ]


@pytest.mark.parametrize("first", [0, 1], ids=["template first", "template last"])
def test_a_prompt_template_shares_no_data_with_other_judges_of_the_turn(first: int) -> None:
    pb = context_pb2.EvaluatorContext(is_final=True)
    pb.messages.add(role="user", text="Who?")
    pb.messages.add(role="assistant", text="Ann.")
    template = {"rubric": "r", "promptTemplate": "{rubric} {output}"}
    configs: list[dict[str, Any]] = [template, {"successCriteria": "s"}]
    ctx = EvaluatorContext(pb)
    models = ScriptedModels(criteria(True))
    for config in (configs[first], configs[1 - first]):
        asyncio.run(judge_later(models, config, ctx))
    found = [inside(one.user_message) for one in models.default.questions]
    answers = [lines for lines in found if lines == [{"part": "answer", "content": "Ann."}]]
    others = [lines for lines in found if lines not in answers]
    assert answers
    assert [[record["content"] for record in lines] for lines in others] == [["Who?", "Ann."]]


async def test_a_long_conversation_is_encoded_once_for_all_judges_and_not_in_the_event_loop() -> None:
    readers: list[int] = []

    class Long(EvaluatorContext):
        """Notes in which threads its messages are read."""

        __slots__ = ()

        @property
        def messages(self) -> list[Message]:
            readers.append(threading.get_ident())
            return super().messages

    pb = context_pb2.EvaluatorContext(is_final=True)
    for _ in range(100):
        pb.messages.add(role="user", text="And?")
        pb.messages.add(role="assistant", text="Then it ended.")
    ctx = Long(pb)
    models = ScriptedModels(criteria(True))
    configs = [{"successCriteria": f"criterion {number}"} for number in range(3)]
    results = await asyncio.gather(*(judge_later(models, config, ctx) for config in configs))
    assert all(result.passed for result in results)
    assert "Then it ended." in models.default.questions[0].user_message
    assert threading.get_ident() not in readers
    assert len(readers) == 2, "to count the characters, and to encode them"
