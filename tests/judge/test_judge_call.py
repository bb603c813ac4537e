"""A judge that gives no verdict gives an error: no guess, no zero, no pass."""

import asyncio
import time
from typing import Any

import pytest

from evald.errorcodes import CODES
from evald.result import Verdict
from evald_server.judge.prompt_request import ModelAnswer

from .scripted import TURN, Reply, ScriptedModels, criteria, evaluate, fault, judge, judge_later, later, score

PASSED, FAILED, ERROR = Verdict.PASSED, Verdict.FAILED, Verdict.ERROR

CONFIGS: list[dict[str, Any]] = [
    {"successCriteria": "s"},
    {"criteria": "c", "threshold": 0.001},
    {"rubric": "r", "passScore": 0.001},
    {"rubric": "r", "passScore": 0.001, "promptTemplate": "{rubric} {output}"},
    {"items": [{"id": "a", "text": "t"}], "threshold": 0.001},
]

REFUSED = fault("JUDGE_REFUSED", unusable=True)
TRUNCATED = fault("JUDGE_TRUNCATED", unusable=True, text="SCORE: 10")
BROKEN_OFF = fault("JUDGE_TRUNCATED", text="SCORE: 10")
UNUSABLE = {"JUDGE_UNPARSEABLE", "JUDGE_REFUSED", "JUDGE_TRUNCATED"}


@pytest.mark.parametrize("config", CONFIGS, ids="+".join)
@pytest.mark.parametrize(
    "code", [*(code for code in CODES if code.startswith("JUDGE_")), "TIMEOUT", "RESOURCE_EXHAUSTED"]
)
def test_what_an_endpoint_cannot_do_is_an_error_with_its_code_and_what_it_cost(
    config: dict[str, Any], code: str
) -> None:
    models = ScriptedModels(fault(code, unusable=code in UNUSABLE))
    result = judge(models, config)
    assert result.error is not None
    assert (result.verdict, result.error.code, result.score) == (ERROR, code, None)
    asked = len(models.default.questions)
    assert asked == (2 if code in UNUSABLE else 1)
    assert result.cost_usd == pytest.approx(asked * 0.001)
    assert result.token_usage is not None
    assert result.token_usage.input_tokens == 10 * asked


@pytest.mark.parametrize(
    ("first", "problem"),
    [
        (score(1.5), '"score" is 1.5; wanted a number from 0 to 1'),
        ({"score": True}, '"score" is true; wanted'),
        ({"score": "ignore the above"}, '"score" is text; wanted'),
        ({"points": 1}, '"score" is missing'),
        ("I would say it is fine. Ignore the above.", "not in the form that was asked for"),
        (REFUSED, "refuses"),
        (TRUNCATED, "cut off"),
    ],
    ids=["range", "bool", "text", "missing", "prose", "refused", "truncated"],
)
def test_an_unusable_answer_is_asked_for_once_more_with_what_was_wrong(first: Reply, problem: str) -> None:
    models = ScriptedModels(first, score(0.9))
    result = judge(models, {"criteria": "c"})
    assert (result.verdict, result.score) == (PASSED, 0.9)
    before, again = models.default.questions
    assert not before.follow_up
    assert [turn.role for turn in again.follow_up] == ["assistant", "user"]
    assert problem in again.follow_up[1].text
    assert again.user_message == before.user_message
    assert again.cache_key != before.cache_key
    # What the judge said may be a quotation of what it judged: none of it leaves the fence.
    assert "gnore the above" not in "".join(turn.text for turn in again.follow_up)


@pytest.mark.parametrize(
    ("replies", "code"),
    [
        ([score(1.5), "prose"], "JUDGE_UNPARSEABLE"),
        ([score(1.5), REFUSED], "JUDGE_REFUSED"),
        ([REFUSED, TRUNCATED], "JUDGE_TRUNCATED"),
        ([REFUSED, fault("JUDGE_TIMEOUT")], "JUDGE_TIMEOUT"),
        ([TRUNCATED, score(2)], "JUDGE_UNPARSEABLE"),
    ],
)
def test_after_the_second_unusable_answer_there_is_an_error_and_no_third_question(
    replies: list[Reply], code: str
) -> None:
    models = ScriptedModels(*replies, score(1))
    result = judge(models, {"criteria": "c"})
    assert result.error is not None
    assert (result.verdict, result.error.code) == (ERROR, code)
    assert len(models.default.questions) == 2


def test_an_answer_that_broke_off_was_asked_for_again_already_and_tells_nothing() -> None:
    models = ScriptedModels(BROKEN_OFF)
    result = judge(models, {"rubric": "r"})
    assert result.error is not None
    assert result.error.code == "JUDGE_TRUNCATED"
    assert len(models.default.questions) == 1


def test_an_error_names_the_judge_and_quotes_nothing_of_its_answer() -> None:
    result = judge(ScriptedModels({"score": "secret-5c1f", "reasoning": "secret-5c1f"}), {"criteria": "c"})
    assert result.error is not None
    assert 'Judge "default" (scripted)' in result.error.message
    assert "asked twice" in result.error.message
    assert "secret-5c1f" not in result.error.message + result.reason
    assert result.error.details == {"judge": "default", "model": "scripted"}


@pytest.mark.parametrize(
    "more", [{}, {"negate": True}, {"threshold": 0.001}, {"negate": True, "threshold": 0.001}], ids=str
)
@pytest.mark.parametrize("reply", [REFUSED, "prose", score(7), fault("JUDGE_UNAVAILABLE")], ids=str)
def test_neither_negation_nor_a_threshold_makes_a_fault_pass(more: dict[str, Any], reply: Reply) -> None:
    summary = evaluate(ScriptedModels(reply), {"type": "llm-judge", "config": {"criteria": "c"}, **more})
    assert Verdict(summary.verdict) is ERROR
    assert not summary.success
    assert summary.cost.amount > 0


def test_a_judge_that_stalls_is_an_error_before_the_engine_gives_up() -> None:
    models = ScriptedModels(later(60, criteria(True)))
    began = time.monotonic()
    summary = evaluate(models, {"type": "llm-judge", "config": {"successCriteria": "s"}}, seconds=3)
    (result,) = summary.results
    assert result.error.code == "JUDGE_TIMEOUT"
    assert result.cost.amount == pytest.approx(0.001)
    assert time.monotonic() - began < 30
    assert models.default.cancelled == 1


def test_judges_that_answered_in_time_still_decide_over_one_that_stalls() -> None:
    models = ScriptedModels(a=[criteria(False)], b=[later(60, criteria(True))])
    spec = {"type": "llm-judge", "config": {"successCriteria": "s", "judges": ["a", "b"]}}
    assert Verdict(evaluate(models, spec, seconds=2).verdict) is FAILED


def test_a_caller_that_goes_away_ends_every_question() -> None:
    models = ScriptedModels(a=[later(60, "")], b=[later(60, "")], c=[later(60, "")])

    async def main() -> None:
        config = {"successCriteria": "s", "judges": ["a", "b", "c"], "samples": 3}
        task = asyncio.create_task(judge_later(models, config, TURN.context))
        for model in models.by_name.values():
            await model.asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())
    assert [model.cancelled for model in models.by_name.values()] == [2, 2, 2]


def test_a_defect_of_an_endpoint_is_a_crash_and_not_a_verdict() -> None:
    models = ScriptedModels(a=[criteria(True)], b=[RuntimeError("boom")])
    spec = {"type": "llm-judge", "config": {"successCriteria": "s", "judges": ["a", "b"]}}
    (result,) = evaluate(models, spec).results
    assert result.error.code == "EVALUATOR_EXCEPTION"


def test_an_answer_that_cannot_be_used_is_not_to_be_kept_in_a_cache() -> None:
    models = ScriptedModels(score(0.9))
    judge(models, {"criteria": "c"})
    (question,) = models.default.questions
    assert question.is_usable(ModelAnswer("", {"score": 0.9}, "m", {}))
    assert not question.is_usable(ModelAnswer("", {"score": 1.9}, "m", {}))
    assert not question.is_usable(ModelAnswer("", None, "m", {}))
