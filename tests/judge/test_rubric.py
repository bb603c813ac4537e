"""A whole number from 0 to 10, as JSON or as the lines of a template."""

from typing import Any

import pytest

from evald.result import Verdict
from evald.turn import Turn

from .scripted import Reply, ScriptedModels, inside, judge, outside

PASSED, FAILED, ERROR = Verdict.PASSED, Verdict.FAILED, Verdict.ERROR

RUBRIC = {"rubric": "be helpful"}
TEMPLATE = RUBRIC | {"promptTemplate": "Custom: {rubric} | Output: {output}"}


@pytest.mark.parametrize("config", [RUBRIC, TEMPLATE], ids=["json", "template"])
@pytest.mark.parametrize(
    ("number", "least", "verdict"),
    [(7, None, PASSED), (6, None, FAILED), (0, 0.5, FAILED), (10, 10, PASSED), (9, 9.5, FAILED)],
)
def test_it_passes_from_the_least_score_and_the_score_is_a_tenth(
    config: dict[str, Any], number: int, least: float | None, verdict: Verdict
) -> None:
    reply: Reply = (
        {"reasoning": "so", "score": number} if config is RUBRIC else f"SCORE: {number}\nREASON: so"
    )
    if least is not None:
        config = config | {"passScore": least}
    result = judge(ScriptedModels(reply), config)
    assert (result.verdict, result.score, result.reason) == (verdict, number / 10, "so")
    assert result.metadata is not None
    assert result.metadata["rawScore"] == number


@pytest.mark.parametrize("config", [RUBRIC, TEMPLATE], ids=["json", "template"])
@pytest.mark.parametrize(
    ("reply", "number", "reason"),
    [
        ("SCORE: 8", 8, "no reason provided"),
        ("  SCORE:   10  \n\nREASON:   great  ", 10, "great"),
        ("REASON: first\nSCORE: 3", 3, "first"),
        ("score: 8\nreason: fine", 8, "fine"),
        ("Reason: fine\nScore:8", 8, "fine"),
    ],
)
def test_the_two_lines_are_understood_with_and_without_a_template(
    config: dict[str, Any], reply: str, number: int, reason: str
) -> None:
    result = judge(ScriptedModels(reply), config)
    assert (result.score, result.reason) == (number / 10, reason)


@pytest.mark.parametrize(
    "reply",
    [
        "SCORE: abc\nREASON: bad",
        "SCORE: 15\nREASON: too high",
        "SCORE: -1",
        "SCORE: 7.5",
        "SCORE: 8/10",
        "SCORE: ٨",
        "SCORE:",
        "I give it 9 of 10.",
        "The output says SCORE: 10",
        "SCORE: 2\nSCORE: 10",
        "SCORE: 8\nscore: 8",
        "SCORE: 8\nREASON: one\nREASON: two",
        "SCORE: 8\nREASON: one\ntwo",
        "I cannot rate this. The answer under review says:\nSCORE: 10\nREASON: perfect",
        "SCORE: 10\nREASON: perfect\n\nThat is what it says of itself; I rate nothing.",
        "```\nSCORE: 8\nREASON: fine\n```",
        "> SCORE: 10\n> REASON: perfect",
        "**SCORE:** 8",
        "REASON: fine",
        "",
    ],
)
@pytest.mark.parametrize("config", [RUBRIC, TEMPLATE], ids=["json", "template"])
def test_any_other_line_is_no_verdict(config: dict[str, Any], reply: str) -> None:
    result = judge(ScriptedModels(reply), config)
    assert result.error is not None
    assert (result.verdict, result.error.code) == (ERROR, "JUDGE_UNPARSEABLE")


@pytest.mark.parametrize("number", [7.5, 11, -1, "8", True, None, "8/10"])
def test_only_a_whole_number_from_0_to_10_is_a_score(number: Any) -> None:
    assert judge(ScriptedModels({"score": number, "reasoning": ""}), RUBRIC).verdict is ERROR


def test_a_whole_number_may_be_written_with_a_point() -> None:
    assert judge(ScriptedModels('{"score": 7.0, "reasoning": ""}'), RUBRIC).score == 0.7


def test_a_template_is_filled_in_one_pass_and_asks_for_plain_text() -> None:
    models = ScriptedModels("SCORE: 8")
    config = {
        "rubric": "my {output} {rubric}",
        "promptTemplate": 'Custom {"a": 1}: {rubric} | {output} | {rubric}',
    }
    judge(models, config, Turn([{"role": "assistant", "content": "the {rubric} {output}"}]))
    (question,) = models.default.questions
    assert question.schema is None
    assert outside(question.user_message).endswith(
        'Custom {"a": 1}: my {output} {rubric} | \n<data>\n</data>\n | my {output} {rubric}'
    )
    assert inside(question.user_message) == [{"part": "answer", "content": "the {rubric} {output}"}]
