"""The judge is asked through a real server; criteria of cases take the place of its own."""

from typing import Any

import pytest

import evald
from evald.result import Result, TokenUsage
from evald_server.calibration.queries import Query, QueryAnswer
from evald_server.calibration.server_judge import (
    GENERAL_CRITERIA,
    server_judge,
    with_criteria,
    with_default_criteria,
)
from evald_server.judge.config import LlmJudge
from evald_server.testing import async_server

from ..loop import run
from .scripted import case


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        pytest.param({}, {"successCriteria": "new"}, id="nothing"),
        pytest.param(
            {"successCriteria": "old", "model": "m"}, {"successCriteria": "new", "model": "m"}, id="criteria"
        ),
        pytest.param(
            {"success_criteria": "old", "failure_criteria": "bad", "failureCriteriaMode": "every_turn"},
            {"successCriteria": "new"},
            id="criteria in snake case",
        ),
        pytest.param(
            {"criteria": "old", "threshold": 0.5}, {"criteria": "new", "threshold": 0.5}, id="score"
        ),
        pytest.param({"rubric": "old", "passScore": 9}, {"rubric": "new", "passScore": 9}, id="rubric"),
        pytest.param(
            {"items": [{"id": "x", "text": "old"}, {"id": "y", "text": "old"}], "samples": 3},
            {"items": [{"id": "criteria", "text": "new", "required": True}], "samples": 3},
            id="items",
        ),
    ],
)
@pytest.mark.parametrize("name", ["llm-judge", "llm_judge", "llm-rubric", "quality"])
def test_criteria_go_where_the_config_keeps_its_own(
    name: str, config: dict[str, Any], wanted: dict[str, Any]
) -> None:
    spec = {"type": name, "config": config, "threshold": 0.5}
    found = with_criteria(spec, "new")
    assert found == {"type": name, "config": wanted, "threshold": 0.5}
    assert LlmJudge.from_config(found["config"])
    assert with_criteria(spec, "") == spec


def test_a_pair_is_judged_by_its_own_criteria_else_by_general_ones() -> None:
    own, general = (
        case("p", "a", criteria="The shorter one.").judge_criteria(),
        case("p", "a").judge_criteria(),
    )
    assert "The shorter one." in own
    assert "does it correctly" in general
    assert "does it correctly" not in own
    assert own.startswith("The assistant's message holds two answers")
    assert case("one", criteria="Polite.").judge_criteria() == "Polite."


def test_other_evaluators_keep_their_config() -> None:
    spec = {"type": "acme.judge", "config": {"criteria": "mine"}}
    assert with_criteria(spec, "new") == with_default_criteria(spec) == spec


def test_a_judge_without_a_question_gets_the_general_one() -> None:
    assert with_default_criteria({"type": "llm-judge", "config": {"model": "m"}})["config"] == {
        "model": "m",
        "successCriteria": GENERAL_CRITERIA,
    }
    for config in ({"rubric": "r"}, {"failureCriteria": "f"}, {"items": []}, {"criteria": "c"}):
        assert with_default_criteria({"type": "quality", "config": config})["config"] == config


class Scripted(evald.Evaluator):
    """Answers by what the conversation says."""

    type = "test.scripted"
    kind = evald.ASSERTION

    def evaluate(self, ctx: evald.EvaluatorContext) -> Result:
        """A result of every sort."""
        match ctx.answer:
            case "answer of skipped":
                return evald.skipped("not for me")
            case "answer of broken":
                return evald.errored("JUDGE_REFUSED", "no")
            case "answer of raising":
                raise RuntimeError("oops")
            case "answer of panel":
                votes = [{"vote": "passed", "model": "m-1"}, {"vote": "withheld", "model": "m-2"}]
                return evald.passed("yes", score=0.8, metadata={"judge": {"model": "m-1", "votes": votes}})
        result = evald.failed("no", score=0.1, metadata={"judge": {"model": "m-1"}})
        result.token_usage, result.cost_usd = TokenUsage(10, 5), 0.25
        return result


def _ask(*names: str) -> list[QueryAnswer]:
    async def main() -> list[QueryAnswer]:
        async with async_server(Scripted) as server, server.async_client() as client:
            judge = server_judge(client, {"type": "test.scripted"}, 10.0)
            return [await judge(Query(case(name))) for name in names]

    return run(main())


def test_a_result_becomes_an_answer_with_all_that_it_spent() -> None:
    (answer,) = _ask("plain")
    assert answer.latency_ms is not None
    assert answer._replace(latency_ms=None) == QueryAnswer(False, "", 0.1, 0.25, 10, 5, None, ("m-1",))


def test_what_is_no_verdict_is_an_error_with_its_code() -> None:
    answers = _ask("skipped", "broken", "raising")
    assert [answer.passed for answer in answers] == [None, None, None]
    assert [answer.code for answer in answers] == ["SKIPPED", "JUDGE_REFUSED", "EVALUATOR_EXCEPTION"]
    assert [answer.score for answer in answers] == [None, None, None]


def test_all_models_of_a_panel_are_named() -> None:
    (answer,) = _ask("panel")
    assert (answer.passed, answer.models) == (True, ("m-1", "m-2"))


class Refusing:
    """A client whose server refuses so many times."""

    def __init__(self, *problems: Exception) -> None:
        self.problems = list(problems)
        self.calls = 0

    async def evaluate(self, *_: Any, **__: Any) -> evald.Evaluation:
        """The next problem, then a verdict."""
        self.calls += 1
        if self.problems:
            raise self.problems.pop(0)
        passed = evald.EvaluatorResult(0, "x", "x", evald.ASSERTION, evald.Verdict.PASSED)
        return evald.Evaluation(evald.Verdict.PASSED, results=(passed,))


def _overloaded(seconds: float = 0.0001) -> Exception:
    return evald.errors.Overloaded("busy", reason="OVERLOADED", retry_after_seconds=seconds)


def _judged(client: Any) -> QueryAnswer:
    return run(_result(client))


async def _result(client: Any) -> QueryAnswer:
    return await server_judge(client, {"type": "x"}, 1.0)(Query(case("one")))


def test_an_overloaded_server_is_asked_again_a_few_times() -> None:
    client = Refusing(*[_overloaded() for _ in range(3)])
    assert _judged(client).passed is True
    assert client.calls == 4
    client = Refusing(*[_overloaded() for _ in range(9)])
    assert _judged(client) == QueryAnswer(None, "OVERLOADED")
    assert client.calls == 4


@pytest.mark.parametrize(
    ("problem", "code"),
    [
        pytest.param(
            evald.errors.DeadlineExceeded("late", code="DEADLINE_EXCEEDED"), "DEADLINE_EXCEEDED", id="late"
        ),
        pytest.param(
            evald.InvalidInput("messages", "too long", "less"), "INVALID_INPUT", id="cannot be sent"
        ),
        pytest.param(evald.errors.InvalidRequest("no", reason="TOO_LARGE"), "TOO_LARGE", id="refused"),
        pytest.param(evald.errors.ServerError("oops", code="INTERNAL"), "INTERNAL", id="fault of the server"),
    ],
)
def test_a_call_that_fails_is_an_error_of_that_question(problem: Exception, code: str) -> None:
    assert _judged(Refusing(problem)) == QueryAnswer(None, code)


@pytest.mark.parametrize(
    "problem",
    [
        evald.errors.Unavailable("gone"),
        evald.errors.Unauthenticated("who?"),
        evald.errors.PermissionDenied("no"),
    ],
    ids=lambda problem: type(problem).__name__,
)
def test_where_no_further_question_could_be_answered_it_ends(problem: Exception) -> None:
    with pytest.raises(type(problem)):
        _judged(Refusing(problem))
