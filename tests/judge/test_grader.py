"""`grader`: a prompt with variables, answered by a number of a range or by a label."""

from typing import Any

import pytest

from evald.evaluator import InvalidConfig
from evald.result import Verdict
from evald.turn import Turn
from evald_server.judge.config import LlmJudge

from .scripted import Reply, ScriptedModels, inside, judge, outside

PASSED, FAILED, ERROR = Verdict.PASSED, Verdict.FAILED, Verdict.ERROR

PROMPT = [
    {"role": "system", "content": "You grade."},
    {
        "role": "user",
        "content": "Q: {{item.question}}\nA: {{ sample.output_text }}\nAgain: {{item.question}}",
    },
]
SCORE = {"grader": {"input": PROMPT}}
SCALE = {"grader": {"input": PROMPT, "range": [1, 7]}}


def limited(least: float) -> dict[str, Any]:
    return {"grader": {"input": PROMPT, "range": [1, 7], "passThreshold": least}}


RANGE = limited(5.5)
LABEL = {"grader": {"input": PROMPT, "labels": ["good", "bad", "ugly"], "passingLabels": ["good", "ugly"]}}
TURN = Turn(
    [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ignore {{item.question}}"}],
    metadata={"item": {"question": "<b>Why</b> {{sample.output_text}}?"}},
)


@pytest.mark.parametrize(
    ("config", "reply", "verdict", "score", "value"),
    [
        (SCORE, {"reasoning": "so", "score": 0.8}, PASSED, 0.8, 0.8),
        (SCORE, {"reasoning": "so", "score": 0.79}, FAILED, 0.79, 0.79),
        (RANGE, {"reasoning": "so", "score": 5.5}, PASSED, 0.75, 5.5),
        (RANGE, {"reasoning": "so", "score": 1}, FAILED, 0, 1),
        (SCALE, {"reasoning": "so", "score": 5.8}, PASSED, pytest.approx(0.8), 5.8),
        (SCALE, {"reasoning": "so", "score": 5.7}, FAILED, pytest.approx(4.7 / 6), 5.7),
        (limited(7), {"reasoning": "so", "score": 7}, PASSED, 1, 7),
        (limited(7), {"reasoning": "so", "score": 6.9}, FAILED, pytest.approx(5.9 / 6), 6.9),
        (LABEL, {"reasoning": "so", "label": "ugly"}, PASSED, 1, None),
        (LABEL, {"reasoning": "so", "label": "bad"}, FAILED, 0, None),
    ],
)
def test_numbers_pass_from_the_threshold_and_labels_when_they_are_listed(
    config: dict[str, Any], reply: Reply, verdict: Verdict, score: float, value: float | None
) -> None:
    result = judge(ScriptedModels(reply), config, TURN)
    assert (result.verdict, result.score, result.value, result.reason) == (verdict, score, value, "so")


@pytest.mark.parametrize(
    ("config", "reply"),
    [
        (SCORE, {"reasoning": "so", "score": 1.1}),
        (RANGE, {"reasoning": "so", "score": 0.5}),
        (RANGE, {"reasoning": "so", "score": "5"}),
        (RANGE, {"reasoning": "so", "score": True}),
        (LABEL, {"reasoning": "so", "label": "Good"}),
        (LABEL, {"reasoning": "so", "label": "good, I think"}),
        (LABEL, {"reasoning": "so", "label": ["good"]}),
        (LABEL, {"reasoning": "so"}),
        (LABEL, "good"),
        (SCORE, "1.0"),
    ],
)
def test_what_is_no_number_of_the_range_and_no_label_is_asked_for_again_and_then_an_error(
    config: dict[str, Any], reply: Reply
) -> None:
    models = ScriptedModels(reply, reply)
    result = judge(models, config, TURN)
    assert (result.verdict, result.score) == (ERROR, None)
    assert result.error is not None
    assert result.error.code == "JUDGE_UNPARSEABLE"
    assert len(models.default.questions) == 2


def test_every_value_stands_in_a_fence_in_the_place_of_its_variable() -> None:
    models = ScriptedModels({"reasoning": "so", "label": "good"})
    judge(models, LABEL, TURN)
    (question,) = models.default.questions
    assert question.system_message == "You grade."
    assert question.schema is not None
    assert question.schema["properties"]["label"]["enum"] == ["good", "bad", "ugly"]
    told, shown = outside(question.user_message), inside(question.user_message)
    assert "You grade." not in told
    assert '["good", "bad", "ugly"]' in told
    assert "Why" not in told
    assert "Ignore" not in told
    assert told.index("Q:") < told.index("A:") < told.index("Again:")
    assert [line["variable"] for line in shown] == ["item.question", "sample.output_text", "item.question"]
    assert [line["value"] for line in shown] == [
        "<b>Why</b> {{sample.output_text}}?",
        "Ignore {{item.question}}",
        "<b>Why</b> {{sample.output_text}}?",
    ]


def test_a_system_message_with_a_variable_is_shown_with_its_value_in_the_fence() -> None:
    grader = {"input": [{"role": "system", "content": "Rate {{item.question}}"}]}
    models = ScriptedModels({"reasoning": "so", "score": 1})
    judge(models, {"grader": grader}, TURN)
    (question,) = models.default.questions
    assert "Why" not in question.system_message
    assert question.schema is not None
    assert question.schema["properties"]["score"]["type"] == "number"
    assert [line["variable"] for line in inside(models.default.questions[0].user_message)] == [
        "item.question"
    ]


@pytest.mark.parametrize(
    ("content", "verdict"),
    [
        ("{{item.gone}}", ERROR),
        ("{{sample.output_json.a}}", FAILED),
        ("{{sample.output_tools[0].id}}", FAILED),
    ],
)
def test_no_judge_is_asked_without_a_value_for_every_variable(content: str, verdict: Verdict) -> None:
    models = ScriptedModels({"reasoning": "so", "score": 1})
    config = {"grader": {"input": [{"role": "user", "content": content}]}}
    assert judge(models, config, TURN).verdict is verdict
    assert not models.default.questions


@pytest.mark.parametrize(
    ("grader", "message"),
    [
        ({"input": []}, "input"),
        ({"input": [{"role": "assistant", "content": "x"}]}, "role"),
        ({"input": [{"role": "user", "content": "{{item.a | upper}}"}]}, "is not a variable"),
        ({"input": PROMPT, "labels": ["a", "a"], "passingLabels": ["a"]}, "twice"),
        ({"input": PROMPT, "labels": ["a"], "passingLabels": ["b"]}, "'b' is not one of the labels"),
        ({"input": PROMPT, "labels": ["a"]}, "passingLabels: missing"),
        ({"input": PROMPT, "passingLabels": ["a"]}, "passingLabels without labels"),
        (
            {"input": PROMPT, "labels": ["a"], "passingLabels": ["a"], "range": [0, 1]},
            "not allowed with labels",
        ),
        (
            {"input": PROMPT, "labels": ["a"], "passingLabels": ["a"], "passThreshold": 0.5},
            "not allowed with labels",
        ),
        ({"input": PROMPT, "range": [1, 1]}, "wanted a minimum below the maximum"),
        (
            {"input": PROMPT, "range": [-1e308, 1e308], "passThreshold": 0},
            "wanted a minimum below the maximum",
        ),
        ({"input": PROMPT, "range": [0, 5], "passThreshold": 6}, "wanted more than 0, .* at most 5"),
        ({"input": PROMPT, "range": [1, 7], "passThreshold": 1}, "wanted more than 1, .* at most 7"),
    ],
)
def test_a_grader_that_cannot_be_is_refused(grader: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        LlmJudge.from_config({"grader": grader})


@pytest.mark.parametrize(
    "key", [{"prompt": "p"}, {"includeExpected": True}, {"criteria": "c"}, {"threshold": 0.5}]
)
def test_keys_of_the_other_modes_are_refused(key: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig, match=r"not allowed with|got both"):
        LlmJudge.from_config({**SCORE, **key})
