"""An answer that holds nothing to judge fails, whatever a judge would say of it."""

from typing import Any

import pytest

from evald.result import Verdict
from evald.turn import Turn

from .scripted import ScriptedModels, criteria, evaluate, judge, score

ASKED = {"role": "user", "content": "Where is my order?"}
CALL = {"id": "c1", "function": {"name": "find", "arguments": "{}"}}

HOLLOW = [
    "",
    " \n\t",
    ":",
    ".",
    ",",
    "...",
    "-----",
    "**\n**",
    "?!",
    "\u200b\u200b",
    "\ufffd",
    "_",
    "。",
    ":" * 10_000,
    "Solution",
    "Solution:",
    "**Solution**:",
    "# solution\n",
    "Thought process:",
    "Let's solve this problem step by step.",
    "Let\N{RIGHT SINGLE QUOTATION MARK}s think step by step:",
    "LET'S  SOLVE THIS PROBLEM\nSTEP-BY-STEP",
    "\N{FULLWIDTH LATIN CAPITAL LETTER S}olution",
    "解",
    "かいせつ",
    "Respuesta",
    "Final answer:",
    "Answer\N{FULLWIDTH COLON}",
    "The answer is:",
]


@pytest.mark.parametrize("text", HOLLOW, ids=lambda text: ascii(text)[:40])
def test_nobody_is_asked_about_an_answer_without_content(text: str) -> None:
    models = ScriptedModels(criteria(True))
    result = judge(models, {"successCriteria": "s"}, Turn([ASKED, {"role": "assistant", "content": text}]))
    assert (result.verdict, result.score, result.unproven) == (Verdict.FAILED, 0, True)
    assert result.reason.startswith("The answer is ")
    assert not models.default.questions


@pytest.mark.parametrize(
    "text",
    [
        "Answer",
        "42",
        "7",
        "A",
        "Ja.",
        "👍",
        "✅",
        "👍!",
        "✅ Solution",
        "是",
        "Solution: 42",
        "The answer is: Ghent",
        "Correct.",
        "c:",
        "№",
    ],
)
def test_a_short_answer_with_content_is_judged(text: str) -> None:
    models = ScriptedModels(criteria(True))
    turn = Turn([ASKED, {"role": "assistant", "content": text}])
    assert judge(models, {"successCriteria": "s"}, turn).verdict is Verdict.PASSED


def test_a_turn_of_tool_calls_needs_no_text_but_punctuation_is_none() -> None:
    models = ScriptedModels(score(0.9))
    for text, verdict in ((None, Verdict.PASSED), ("\n", Verdict.PASSED), (":", Verdict.FAILED)):
        turn = Turn([ASKED, {"role": "assistant", "content": text, "tool_calls": [CALL]}])
        assert judge(models, {"criteria": "c"}, turn).verdict is verdict


def test_what_is_expected_is_not_hollow() -> None:
    turn = Turn([ASKED, {"role": "assistant", "content": " : "}], expected=":")
    assert judge(ScriptedModels(score(0.9)), {"criteria": "c"}, turn).verdict is Verdict.PASSED
    turn = Turn([ASKED, {"role": "assistant", "content": " : "}], expected="::")
    assert judge(ScriptedModels(score(0.9)), {"criteria": "c"}, turn).unproven


@pytest.mark.parametrize("messages", [[ASKED], [], [{"role": "assistant", "content": "hi"}, ASKED]])
def test_a_turn_without_an_assistant_message_fails(messages: list[dict[str, Any]]) -> None:
    models = ScriptedModels(criteria(True))
    result = judge(models, {"successCriteria": "s"}, Turn(messages))
    assert (result.verdict, result.reason, result.unproven) == (
        Verdict.FAILED,
        "No assistant message found",
        True,
    )
    assert not models.default.questions


@pytest.mark.parametrize(
    ("config", "final", "pending"),
    [
        ({"successCriteria": "s"}, False, True),
        ({"successCriteria": "s"}, True, False),
        ({"failureCriteria": "f"}, False, False),
        ({"criteria": "c"}, False, False),
    ],
)
def test_a_hollow_turn_is_pending_where_a_later_one_may_succeed(
    config: dict[str, Any], final: bool, pending: bool
) -> None:
    turn = Turn([ASKED, {"role": "assistant", "content": "..."}], is_final=final)
    assert judge(ScriptedModels(criteria(True)), config, turn).pending is pending


@pytest.mark.parametrize("more", [{}, {"negate": True}], ids=str)
def test_negation_does_not_make_nothing_pass(more: dict[str, Any]) -> None:
    turn = Turn([ASKED, {"role": "assistant", "content": ":"}])
    spec = {"type": "llm-judge", "config": {"successCriteria": "s"}, **more}
    summary = evaluate(ScriptedModels(criteria(False)), spec, turn=turn)
    assert summary.results[0].verdict == int(Verdict.FAILED)
