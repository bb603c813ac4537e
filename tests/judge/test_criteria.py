"""Success and failure criteria: which flags decide, and when."""

import pytest

from evald.result import Verdict
from evald.turn import Turn

from .scripted import TURN, Reply, ScriptedModels, criteria, judge

PASSED, FAILED, ERROR, SKIPPED = Verdict.PASSED, Verdict.FAILED, Verdict.ERROR, Verdict.SKIPPED

SUCCESS = {"successCriteria": "the order is found"}
FAILURE = {"failureCriteria": "the agent is rude"}
BOTH = SUCCESS | FAILURE

MESSAGES = [{"role": "user", "content": "Where is it?"}, {"role": "assistant", "content": "In Ghent."}]
FINAL = Turn(MESSAGES, number=2, is_final=True)
NOT_FINAL = Turn(MESSAGES, number=1)
UNCOUNTED = Turn(MESSAGES)


@pytest.mark.parametrize(
    ("config", "success", "failure", "verdict"),
    [
        (BOTH, True, False, PASSED),
        (BOTH, True, True, FAILED),
        (BOTH, False, False, FAILED),
        (BOTH, False, True, FAILED),
        (SUCCESS, True, False, PASSED),
        (SUCCESS, True, True, PASSED),
        (SUCCESS, False, False, FAILED),
        (FAILURE, False, False, PASSED),
        (FAILURE, True, True, FAILED),
    ],
)
@pytest.mark.parametrize("turn", [FINAL, UNCOUNTED], ids=["final", "uncounted"])
def test_a_final_turn_passes_with_success_met_and_failure_not_met(
    config: dict[str, str], success: bool, failure: bool, verdict: Verdict, turn: Turn
) -> None:
    result = judge(ScriptedModels(criteria(success, failure, 0.75)), config, turn)
    assert result.verdict is verdict
    assert result.score == (0.75 if verdict is PASSED else 0.25)
    assert result.metadata is not None
    assert result.metadata["successMet"] is success
    assert result.metadata["failureMet"] is failure
    assert result.metadata["confidence"] == 0.75


@pytest.mark.parametrize(
    ("mode", "success", "failure", "verdict", "pending"),
    [
        ("on_max_messages", True, False, PASSED, False),
        ("on_max_messages", True, True, PASSED, False),
        ("on_max_messages", False, True, FAILED, True),
        ("on_max_messages", False, False, FAILED, True),
        ("every_turn", True, True, FAILED, False),
        ("every_turn", False, True, FAILED, False),
        ("every_turn", False, False, FAILED, True),
    ],
)
def test_before_the_final_turn_a_failure_counts_in_every_turn_mode_only(
    mode: str, success: bool, failure: bool, verdict: Verdict, pending: bool
) -> None:
    config = BOTH | {"failureCriteriaMode": mode}
    result = judge(ScriptedModels(criteria(success, failure)), config, NOT_FINAL)
    assert (result.verdict, result.pending) == (verdict, pending)


def test_failure_criteria_alone_are_not_asked_about_before_they_count() -> None:
    models = ScriptedModels(criteria(False, True))
    assert judge(models, FAILURE, NOT_FINAL).verdict is SKIPPED
    assert not models.default.questions
    assert judge(models, FAILURE | {"failureCriteriaMode": "every_turn"}, NOT_FINAL).verdict is FAILED


def test_a_final_turn_is_never_pending() -> None:
    assert not judge(ScriptedModels(criteria(False)), BOTH, FINAL).pending


def test_checks_say_which_criterion_holds() -> None:
    result = judge(ScriptedModels(criteria(True, True)), BOTH)
    assert [(check.text, check.met) for check in result.checks] == [
        ("the order is found", True),
        ("Not: the agent is rude", False),
    ]


def test_the_reason_is_the_judges_reasoning_or_the_numbers() -> None:
    assert judge(ScriptedModels(criteria(True, why=" It says Ghent. ")), BOTH).reason == "It says Ghent."
    said = judge(ScriptedModels(criteria(True, confidence=0.7, why="")), BOTH).reason
    assert said == "Success criteria met, failure criteria not met (confidence 0.7)"


@pytest.mark.parametrize(
    "reply",
    [
        {"successMet": True, "failureMet": False, "confidence": 0.9},
        {"successMet": True, "failureMet": False, "reasoning": "x"},
        {"successMet": True, "confidence": 0.9, "reasoning": "x"},
        {"failureMet": False, "confidence": 0.9, "reasoning": "x"},
        {"successMet": "true", "failureMet": False, "confidence": 0.9, "reasoning": "x"},
        {"successMet": 1, "failureMet": False, "confidence": 0.9, "reasoning": "x"},
        {"successMet": True, "failureMet": None, "confidence": 0.9, "reasoning": "x"},
        {"successMet": True, "failureMet": False, "confidence": 1.01, "reasoning": "x"},
        {"successMet": True, "failureMet": False, "confidence": -0.1, "reasoning": "x"},
        {"successMet": True, "failureMet": False, "confidence": True, "reasoning": "x"},
        {"successMet": True, "failureMet": False, "confidence": "0.9", "reasoning": "x"},
        {"successMet": True, "failureMet": False, "confidence": 90, "reasoning": "x"},
        {"successMet": True, "failureMet": False, "confidence": 0.9, "reasoning": ["x"]},
        '{"successMet": true, "failureMet": false, "confidence": NaN, "reasoning": "x"}',
        '{"successMet": true, "failureMet": false, "confidence": 1e999, "reasoning": "x"}',
        "I think it went fine, confidence 0.9",
        "[]",
        "{}",
    ],
)
def test_an_answer_with_anything_missing_or_out_of_range_is_no_verdict(reply: Reply) -> None:
    models = ScriptedModels(reply)
    result = judge(models, BOTH)
    assert result.verdict is ERROR
    assert result.error is not None
    assert result.error.code == "JUDGE_UNPARSEABLE"
    assert result.score is None
    assert len(models.default.questions) == 2


def test_the_judge_sees_both_criteria_as_the_caller_wrote_them() -> None:
    models = ScriptedModels(criteria(True))
    judge(models, {"successCriteria": "{a} {0} %s", "failureCriteria": "{{b}}"}, TURN)
    material = models.default.questions[0].user_message
    assert "\n{a} {0} %s\n" in material
    assert "\n{{b}}\n" in material
