"""A score from 0 to 1 with hits and misses."""

from typing import Any

import pytest

from evald.result import Verdict

from .scripted import Reply, ScriptedModels, judge, score

PASSED, FAILED, ERROR = Verdict.PASSED, Verdict.FAILED, Verdict.ERROR

CRITERIA = {"criteria": "names a city"}


@pytest.mark.parametrize(
    ("threshold", "number", "verdict"),
    [
        (None, 0.8, PASSED),
        (None, 0.79, FAILED),
        (0.5, 0.5, PASSED),
        (0.5, 0.49, FAILED),
        (0.01, 0, FAILED),
        (1, 1, PASSED),
        (1, 0.999, FAILED),
    ],
)
def test_it_passes_when_the_score_reaches_the_threshold(
    threshold: float | None, number: float, verdict: Verdict
) -> None:
    config: dict[str, Any] = CRITERIA if threshold is None else CRITERIA | {"threshold": threshold}
    result = judge(ScriptedModels(score(number)), config)
    assert (result.verdict, result.score, result.pending) == (verdict, number, False)


def test_hits_and_misses_are_checks_four_of_each_and_none_blank() -> None:
    reply = {"score": 0.9, "hits": ["", " a ", "b", "c", "d", "e"], "misses": ["x", "  "], "reasoning": ""}
    result = judge(ScriptedModels(reply), CRITERIA)
    assert [check.text for check in result.checks if check.met] == ["a", "b", "c", "d"]
    assert [check.text for check in result.checks if not check.met] == ["x"]
    assert result.reason == "Score 0.9 reaches the threshold 0.8"


def test_hits_misses_and_reasoning_may_be_left_out() -> None:
    result = judge(ScriptedModels({"score": 0.5}), CRITERIA)
    assert (result.verdict, result.score, list(result.checks)) == (FAILED, 0.5, [])
    assert result.reason == "Score 0.5 is below the threshold 0.8"


def test_assertions_are_read_as_checks() -> None:
    found = [{"text": f"t{number}", "passed": number % 2 == 0} for number in range(11)]
    result = judge(ScriptedModels({"score": 0.9, "assertions": found}), CRITERIA)
    assert [(check.text, check.met) for check in result.checks] == [(f"t{n}", n % 2 == 0) for n in range(8)]


@pytest.mark.parametrize(
    ("said", "number", "threshold", "verdict"),
    [
        (True, 0.72, None, PASSED),
        (False, 0.99, None, FAILED),
        (True, 0.6, 0.75, FAILED),
        (False, 0.9, 0.75, FAILED),
        (True, 0.75, 0.75, PASSED),
    ],
)
def test_a_verdict_of_the_judges_own_must_be_a_pass_and_so_must_the_score_where_a_threshold_is_set(
    said: bool, number: float, threshold: float | None, verdict: Verdict
) -> None:
    config: dict[str, Any] = CRITERIA if threshold is None else CRITERIA | {"threshold": threshold}
    result = judge(ScriptedModels({"pass": said, "score": number, "reason": "so"}), config)
    assert (result.verdict, result.score, result.reason) == (verdict, number, "so")


@pytest.mark.parametrize(
    "reply",
    [
        {"score": 1.5, "hits": [], "misses": [], "reasoning": ""},
        {"score": -0.1},
        {"score": True},
        {"score": "0.8"},
        {"score": None},
        {"score": 80},
        {"hits": ["all of it"]},
        {"score": 0.8, "hits": "all of it"},
        {"score": 0.8, "hits": [1]},
        {"score": 0.8, "reasoning": 5},
        {"score": 0.8, "pass": "yes"},
        {"score": 0.8, "assertions": [{"text": "x"}]},
        {"score": 0.8, "assertions": ["x"]},
        "0.8",
        "The score is 0.8.",
        '{"score": 0.8',
    ],
)
def test_what_is_no_score_is_no_verdict_and_no_number_is_taken_out_of_prose(reply: Reply) -> None:
    result = judge(ScriptedModels(reply), CRITERIA)
    assert result.error is not None
    assert (result.verdict, result.error.code, result.score) == (ERROR, "JUDGE_UNPARSEABLE", None)


def test_a_prompt_replaces_the_system_message_and_is_kept() -> None:
    models = ScriptedModels(score(0.9))
    result = judge(models, CRITERIA | {"prompt": "You grade {{things}} {strictly}."})
    assert models.default.questions[0].system_message == "You grade {{things}} {strictly}."
    assert result.raw_request is not None
    assert result.raw_request["messages"][0]["content"] == "You grade {{things}} {strictly}."
