"""A result says what was asked, who answered, and what it cost."""

from typing import Any

import pytest

from evald.result import Verdict
from evald.turn import Turn

from .scripted import TURN, ScriptedModels, criteria, evaluate, fault, judge, score

LONG = "x" * 2_000_001
CONFIG = {"criteria": "names a city"}


def test_the_metadata_name_judge_and_model_as_it_answered() -> None:
    result = judge(ScriptedModels(score(0.9)), CONFIG)
    assert result.metadata is not None
    assert result.metadata["judge"] == {"endpoint": "default", "model": "scripted-2026", "attempts": 1}


def test_the_first_question_is_kept_as_it_was_sent() -> None:
    models = ScriptedModels(fault("JUDGE_REFUSED", unusable=True), score(0.9))
    result = judge(models, CONFIG)
    assert result.raw_request is not None
    assert result.raw_request["messages"][1]["content"] == models.default.questions[1].user_message
    assert result.raw_request["model"] == "scripted"


def test_the_question_is_kept_also_when_no_answer_came() -> None:
    result = judge(ScriptedModels(fault("JUDGE_UNAVAILABLE")), CONFIG)
    assert result.raw_request is not None
    assert [message["role"] for message in result.raw_request["messages"]] == ["system", "user"]
    assert not result.cached


def test_a_long_conversation_is_cut_in_the_request_that_is_kept_but_not_in_the_one_that_is_sent() -> None:
    models = ScriptedModels(score(0.9))
    result = judge(models, CONFIG, Turn([{"role": "assistant", "content": "x" * 1_000_000}]))
    assert result.raw_request is not None
    assert len(result.raw_request["messages"][1]["content"]) < 70_000
    assert len(models.default.questions[0].user_message) > 1_000_000


@pytest.mark.parametrize("message", [{"content": LONG}, {"tool_calls": [{"name": "f", "args": {"a": LONG}}]}])
def test_a_conversation_longer_than_any_model_reads_is_an_error_and_costs_nothing(
    message: dict[str, Any],
) -> None:
    models = ScriptedModels(score(0.9))
    turn = Turn([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", **message}])
    result = judge(models, CONFIG, turn)
    assert result.error is not None
    assert result.error.code == "INPUT_TOO_LARGE"
    assert not models.default.questions


def test_spending_is_in_the_result_and_in_the_summary() -> None:
    spec = {"type": "llm-judge", "config": {"successCriteria": "s"}}
    summary = evaluate(ScriptedModels(criteria(True)), spec, spec)
    assert [result.token_usage.input_tokens for result in summary.results] == [10, 10]
    assert (summary.token_usage.input_tokens, summary.token_usage.output_tokens) == (20, 10)
    assert summary.cost.amount == pytest.approx(0.002)


@pytest.mark.parametrize(
    ("cached", "wanted"), [((True,), True), ((False,), False), ((True, False), False), ((True, True), True)]
)
def test_a_result_is_cached_when_all_its_answers_are(cached: tuple[bool, ...], wanted: bool) -> None:
    names = [f"j{number}" for number in range(len(cached))]
    models = ScriptedModels(**{name: [score(0.9)] for name in names})
    for name, one in zip(names, cached, strict=True):
        models.by_name[name].cached = one
    assert judge(models, CONFIG | {"judges": names}).cached is wanted


@pytest.mark.parametrize(
    ("config", "turn", "verdict"),
    [
        (CONFIG | {"onlyFinal": True}, Turn([{"role": "assistant", "content": "x"}]), Verdict.SKIPPED),
        (CONFIG | {"includeExpected": True}, TURN, Verdict.FAILED),
        (CONFIG | {"includeExpected": True, "onMissing": "error"}, TURN, Verdict.ERROR),
        (CONFIG | {"includeExpected": True, "onMissing": "skip"}, TURN, Verdict.SKIPPED),
    ],
)
def test_what_needs_no_model_asks_none(config: dict[str, Any], turn: Turn, verdict: Verdict) -> None:
    models = ScriptedModels(score(1))
    assert judge(models, config, turn).verdict is verdict
    assert not models.default.questions


@pytest.mark.parametrize(
    ("config", "turn"),
    [
        ({"onlyFinal": True}, TURN),
        *(
            ({"includeExpected": True}, Turn([{"role": "assistant", "content": "x"}], expected=expected))
            for expected in (
                "y",
                {"data": {"city": "Ghent"}},
                {"messages": [{"role": "assistant", "content": "y"}]},
            )
        ),
    ],
)
def test_a_turn_that_has_what_the_config_wants_is_judged(config: dict[str, Any], turn: Turn) -> None:
    models = ScriptedModels(score(0.1))
    assert judge(models, CONFIG | config, turn).score == 0.1
    assert len(models.default.questions) == 1


def test_long_and_broken_texts_of_a_judge_fit_into_a_result() -> None:
    reply = '{"score": 0.9, "hits": ["' + "h" * 9000 + '"], "reasoning": "' + "r" * 9000 + ' \\ud800"}'
    spec = {"type": "llm-judge", "config": CONFIG}
    (result,) = evaluate(ScriptedModels(reply), spec).results
    assert len(result.reason) == len(result.checks[0].text) == 4000
    assert result.reason.endswith("…")
