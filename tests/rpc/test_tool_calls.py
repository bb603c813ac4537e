"""What looks like a tool call is read, or makes the checks of tools end in ERROR; it is never counted as none."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

import evald
from evald import Verdict
from evald.v1 import context_pb2
from evald_server import testing

Messages = list[dict[str, Any]]

QUESTION = {"role": "user", "content": "Tidy up."}
DONE = {"role": "assistant", "content": "Done."}
CALL = {"id": "1", "type": "function", "function": {"name": "refund", "arguments": "{}"}}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "1", "content": "ok"}
DEFINITION = {
    "name": "refund",
    "description": "Gives money back.",
    "parameters": {"type": "object", "properties": {"name": {"type": "string"}, "input": {"type": "string"}}},
}
SHAPES: list[Any] = [
    {"name": "refund", "arguments": "{}"},
    {"name": "refund", "args": {}},
    {"name": "refund", "input": {"amount": 3}},
    {"name": "refund", "kwargs": {}},
    {"name": "refund", "params": []},
    {"name": "refund", "parameters": {"type": "all"}},
    {"name": "refund", "input_parameters": None},
    {"name": "", "arguments": "{}"},
    {"toolName": "refund", "args": {}},
    {"tool_name": "refund", "tool_input": {}},
    {"tool": "refund", "input": "all"},
    {"function": "refund", "arguments": {}},
    {"function": {"name": "refund", "arguments": "{}"}},
    {"action": "refund", "action_input": "all"},
    {"type": "tool_call", "name": "refund"},
    {"toolCallId": "9", "result": "ok"},
]


def of(key: str, value: Any, role: str = "assistant") -> Messages:
    """A conversation with something under a key of a message that has a text, too."""
    said = {"role": role, "content": "Done.", key: value}
    return [QUESTION, said] if role == "assistant" else [QUESTION, said, DONE]


UNREAD: dict[str, tuple[Messages, str]] = {
    # messages, the path of what is not understood
    **{
        f"role {role}": (of("tool_calls", [CALL], role), "messages[1].tool_calls")
        for role in ("system", "tool")
    },
    "role user": (of("tool_calls", [CALL], "user"), "messages[1].tool_calls"),
    "role developer": (of("tool_calls", [CALL], "developer"), "messages[1].tool_calls"),
    "role function": (of("function_call", CALL["function"], "function"), "messages[1].tool_calls"),
    "an unknown role": (of("tool_calls", [CALL], "Assistant"), "messages[1].role"),
    "an unknown role's text": (
        [
            QUESTION,
            {"role": "tool-call", "content": [{"type": "text", "text": 'Calling: [{"name": "f"}]'}]},
            DONE,
        ],
        "messages[1].role",
    ),
    **{
        f"{key} with {json.dumps(shape)}": (of(key, [shape]), f"messages[1].{key}[0]")
        for key, shape in zip(
            ("tools_called", "actions", "steps", "toolInvocationList", "whatever") * 4, SHAPES, strict=False
        )
    },
    "an object": (of("pending", SHAPES[0]), "messages[1].pending"),
    "arguments by name": (of("calls", {"refund": {"amount": 3}}), "messages[1].calls.refund"),
    "a call by name": (of("plan", {"refund": {"arguments": {}}}), "messages[1].plan.refund"),
    "arguments like an empty schema": (
        of("invoked", {"name": "refund", "parameters": {"type": "object"}}),
        "messages[1].invoked",
    ),
    "calls written like definitions": (
        of("calls", [{"name": "refund", "description": "Give it back.", "parameters": {}}]),
        "messages[1].calls[0]",
    ),
    "a list of named parameters": (
        of("invocations", [{"name": "refund", "parameters": [{"name": "amount", "value": 3}]}]),
        "messages[1].invocations[0]",
    ),
    "markup after a block without an end": (
        of("content", "Done.\n```\nx\n<tool_call>refund\n<arg_key>a</arg_key>"),
        "messages[1].text",
    ),
    "JSON text": (of("raw", json.dumps(SHAPES[:1])), "messages[1].raw[0]"),
    "markup": (
        of("content", 'Done. <tool_call>\n{"name": "refund", "arguments": {}}\n</tool_call>'),
        "messages[1].text",
    ),
    "markup in a block": (
        of("content", [{"text": "Done. [TOOL_CALLS][]"}]),
        "messages[1].blocks.items[0].text",
    ),
    "two levels down": (of("trace", {"steps": [{"of": [SHAPES[1]]}]}), "messages[1].trace.steps[0].of[0]"),
    "beside a read call": (
        [QUESTION, {**CALLED, "calls": [{"name": "delete", "args": {}}]}, DONE],
        "messages[1].calls[0]",
    ),
    "oftener than it was read": (
        [QUESTION, {**CALLED, "calls": [{"name": "refund", "args": {}}] * 2}, DONE],
        "messages[1].calls[1]",
    ),
    "with other arguments than the read one": (
        [QUESTION, {**CALLED, "calls": [{"name": "refund", "args": {"all": True}}]}, DONE],
        "messages[1].calls[0]",
    ),
    "within a call": (
        [QUESTION, {"role": "assistant", "tool_calls": [{**CALL, "children": [SHAPES[1]]}]}, DONE],
        "messages[1].tool_calls[0].children[0]",
    ),
    "the message itself": (
        [QUESTION, {"role": "assistant", "tool": "refund", "input": {}}, DONE],
        "messages[1].input",
    ),
    "LangChain's own keys": (
        of("additional_kwargs", {"tool_calls": [CALL]}),
        "messages[1].additional_kwargs.tool_calls[0]",
    ),
    "LangChain's content blocks": (
        [
            {"type": "human", "content": "x"},
            {
                "type": "ai",
                "content": "Done.",
                "content_blocks": [{"type": "tool_call", "name": "f", "args": {}}],
            },
        ],
        "messages[1].content_blocks[0]",
    ),
    "Anthropic's message with another key": (
        [
            QUESTION,
            {"type": "message", "model": "m", **DONE, "content": [{"text": "Done."}], "extra": SHAPES},
        ],
        "messages[1].extra[0]",
    ),
    "a text block": (
        of("content", [{"type": "text", "text": "Done.", "functionCall": {"name": "f", "args": {}}}]),
        "messages[1].content[0].functionCall",
    ),
    "an unknown block": (
        of("content", [{"text": "Done."}, {"type": "act", "input": {}}]),
        "messages[1].content[1]",
    ),
    "a result without its call": ([QUESTION, RESULT, DONE], "messages[1].tool_call_id"),
    "a result before its call": ([QUESTION, RESULT, CALLED, DONE], "messages[1].tool_call_id"),
    "a result of another call": (
        [QUESTION, CALLED, {**RESULT, "tool_call_id": "2"}, DONE],
        "messages[2].tool_call_id",
    ),
    "a result of another tool": (
        [QUESTION, CALLED, {"role": "function", "name": "other", "content": "ok"}, DONE],
        "messages[2].tool_call_id",
    ),
    "Anthropic's result without its call": (
        [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "ok"}]}, DONE],
        "messages[0].tool_call_id",
    ),
}
READ: dict[str, tuple[Messages, int]] = {
    # messages, the number of calls
    "no call": ([QUESTION, DONE], 0),
    "metadata": (of("metadata", {"calls": SHAPES}), 0),
    "documents": (of("documents", SHAPES), 0),
    "definitions": (
        of("tools", [{"type": "function", "function": DEFINITION}, {"name": "f", "input_schema": {}}]),
        0,
    ),
    "functions": (of("functions", [DEFINITION]), 0),
    "definitions without parameters": (
        of(
            "tools",
            [
                {"type": "function", "function": {"name": "f", "parameters": {}}},
                {"name": "f", "parameters": {"type": "object"}},
            ],
        ),
        0,
    ),
    "definitions by name": (of("tools", {"refund": {"args": {"amount": {"type": "number"}}}}), 0),
    "quoted markup": (of("content", "Done.\n```\n<tool_call>{}</tool_call>\n```"), 0),
    "the choice of a tool": (of("tool_choice", {"type": "function", "function": {"name": "refund"}}), 0),
    "usage and settings": (of("usage", {"type": "tokens", "input": 3, "output": 4}), 0),
    "JSON as text": ([{**QUESTION, "content": json.dumps(SHAPES)}, DONE], 0),
    "a user's name": ([{**QUESTION, "name": "Alice"}, DONE], 0),
    "a legacy call": (of("function_call", CALL["function"]), 1),
    "another role's name": ([QUESTION, {"role": "ai", "content": "Done.", "tool_calls": [CALL]}], 1),
    "a call and its result": ([QUESTION, CALLED, RESULT, DONE], 1),
    "a result without an id": ([QUESTION, CALLED, {"role": "tool", "content": "ok"}, DONE], 1),
    "a call without an id": (
        [QUESTION, {"role": "assistant", "tool_calls": [{"tool": "refund", "input": {}}]}, RESULT, DONE],
        1,
    ),
    **{
        f"an id of the item and one of the call, {first} first": (
            [
                QUESTION,
                {"role": "assistant", "tool_calls": [{**ids, "name": "refund", "arguments": "{}"}]},
                RESULT,
                DONE,
            ],
            1,
        )
        for first, ids in {
            "the item's": {"id": "fc_1", "call_id": "1"},
            "the call's": {"call_id": "1", "id": "fc_1"},
        }.items()
    },
    "an id of the call alone": (
        [
            QUESTION,
            {"role": "assistant", "tool_calls": [{"call_id": "1", "name": "refund", "arguments": "{}"}]},
            RESULT,
            DONE,
        ],
        1,
    ),
    "a call written twice": ([QUESTION, {**CALLED, "additional_kwargs": {"tool_calls": [CALL]}}, DONE], 1),
    "data that a tool returned": (
        [
            QUESTION,
            {"role": "assistant", "content": [{"functionCall": {"name": "f", "args": {"steps": SHAPES}}}]},
            DONE,
        ],
        1,
    ),
}
NEVER = {"expectations": [{"name": "refund", "maxCalls": 0}]}
OF_TOOLS: list[dict[str, Any]] = [
    {"type": "tool-use", "config": NEVER},
    {"type": "tool-use", "config": {"expectations": [{"name": "refund"}]}, "negate": True},
    {"type": "tool-use", "config": NEVER | {"scope": "turn"}},
    {"type": "tool-call-budget", "config": {"maxCalls": 0}},
    {"type": "tool-call-count"},
    {"type": "trajectory", "config": {"expected": []}},
    {"type": "trajectory", "config": {"expected": [], "scope": "turn", "mode": "subset"}},
    {"type": "execution-limits", "config": {"maxToolCalls": 0}},
    {"type": "test.no-calls"},
]
OF_TEXT: list[dict[str, Any]] = [
    {"type": "contains", "config": {"text": "Done"}},
    {"type": "regex", "config": {"pattern": "secret", "mustMatch": False}},
    {"type": "response-length"},
]

no_calls = evald.define_evaluator(
    type="test.no-calls",
    kind=evald.ASSERTION,
    evaluate=lambda ctx: not ctx.tool_calls,
    description="The agent calls no tool.",
)


@pytest.fixture(scope="module")
def client() -> Iterator[evald.Client]:
    with testing.server(no_calls) as server, server.client() as connected:
        yield connected


def check_unread(evaluation: evald.Evaluation, path: str) -> None:
    """Checks of tools are ERROR with the path, and those of texts have passed."""
    assert evaluation.verdict is Verdict.ERROR
    for result in evaluation.results:
        if result.type in {spec["type"] for spec in OF_TEXT}:
            assert result.verdict is Verdict.PASSED, result
        else:
            assert result.verdict is Verdict.ERROR, result
            assert result.error
            assert result.error.code == "UNREADABLE_CONTENT"
            assert path in result.error.message
    assert evaluation.metrics.keys() == {"response-length"}


@pytest.mark.parametrize(("messages", "path"), UNREAD.values(), ids=UNREAD.keys())
def test_what_is_not_understood_is_no_absence_of_calls(
    messages: Messages, path: str, client: evald.Client
) -> None:
    specs = [*OF_TOOLS, *OF_TEXT]
    check_unread(client.evaluate(messages, specs), path)
    check_unread(client.evaluate(json.dumps(messages), specs), path)
    check_unread(client.evaluate(evald.Turn(messages[:-1], messages[-1]), specs), path)


@pytest.mark.parametrize(("messages", "calls"), READ.values(), ids=READ.keys())
def test_what_is_no_call_or_is_read_is_counted(messages: Messages, calls: int, client: evald.Client) -> None:
    evaluation = client.evaluate(messages, ["tool-call-count", *OF_TEXT])
    assert evaluation.passed
    assert evaluation.metrics["tool-call-count"] == calls


def test_calls_in_protobuf_under_another_role_are_not_understood(client: evald.Client) -> None:
    for role in ("user", "system", "tool", "developer", "model", ""):
        pb = context_pb2.EvaluatorContext()
        pb.messages.add(role="user", text="?")
        pb.messages.add(role=role, text="x").tool_calls.add(id="1").function.name = "refund"
        pb.messages.add(role="assistant", text="Done.")
        turn = evald.Turn()
        turn.to_proto().CopyFrom(pb)
        check_unread(client.evaluate(turn, [*OF_TOOLS, *OF_TEXT]), "messages[1].")


def test_a_call_without_a_name_is_not_understood(client: evald.Client) -> None:
    turn = evald.Turn([QUESTION, CALLED, DONE])
    turn.to_proto().messages[1].tool_calls[0].function.name = ""
    check_unread(client.evaluate(turn, [*OF_TOOLS, *OF_TEXT]), "messages[1].tool_calls[0].function.name")


def test_in_a_session_a_result_may_answer_an_earlier_turn_s_call(client: evald.Client) -> None:
    with client.session(["tool-call-count", *OF_TEXT]) as session:
        assert session.turn([QUESTION, {**CALLED, "content": "Done."}]).metrics["tool-call-count"] == 1
        assert session.turn([RESULT, QUESTION, DONE]).metrics["tool-call-count"] == 0
        assert session.turn([QUESTION, RESULT, DONE]).metrics["tool-call-count"] == 0
    with client.session([*OF_TOOLS, *OF_TEXT]) as session:
        session.turn([QUESTION, DONE])
        check_unread(session.turn([QUESTION, RESULT, DONE]), "tool_call_id")


def test_in_a_session_a_call_that_is_not_understood_stays_so(client: evald.Client) -> None:
    turn_only = {"type": "tool-call-budget", "config": {"maxCalls": 0}, "name": "turn"}
    with client.session([{"type": "tool-use", "config": NEVER}, turn_only]) as session:
        session.turn(of("steps", [SHAPES[0]]))
        later = session.turn([QUESTION, DONE])
    assert [result.verdict for result in later.results] == [Verdict.ERROR, Verdict.PASSED]


def test_every_turn_of_a_batch_is_looked_at(client: evald.Client) -> None:
    turns = [evald.Turn(messages) for messages, _ in UNREAD.values()]
    results = list(client.batch(turns, [*OF_TOOLS, *OF_TEXT]))
    assert len(results) == len(turns)
    for item in results:
        assert item.evaluation is not None
        check_unread(item.evaluation, "")
