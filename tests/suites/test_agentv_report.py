"""AgentV's result files: REQ-EVAL-008 of its specification, and score 0 with the error among the misses."""

import io
import json
from typing import Any

import pytest

from evald.v1 import evaluator_pb2, result_pb2, run_service_pb2
from evald_server.suites.reports.agentv import write_agentv
from evald_server.suites.reports.report import SuiteReport

from .results import VERDICTS, suite
from .results import case as decided


def _result(name: str, letter: str, score: float | None = None, **fields: Any) -> result_pb2.EvaluationResult:
    made = result_pb2.EvaluationResult(
        name=name,
        type="llm-judge",
        kind=evaluator_pb2.EVALUATOR_KIND_ASSERTION,
        enforcement=evaluator_pb2.ENFORCEMENT_ENFORCED,
        verdict=VERDICTS[letter],
        reason=f"{name} says",
        **fields,
    )
    if score is not None:
        made.score = score
    return made


def _lines(
    letter: str, *results: result_pb2.EvaluationResult, mean: float | None = None
) -> list[dict[str, Any]]:
    case = decided("a", letter)
    trial = case.trials[0]
    trial.messages.add(role="assistant", text="the answer")
    evaluation = trial.turns[0].evaluation
    evaluation.results.extend(results)
    if mean is not None:
        evaluation.mean_score = mean
    stream = io.StringIO()
    write_agentv([SuiteReport(suite([case]), [case])], stream)
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_one_evaluator_has_its_request_and_no_list() -> None:
    judge = _result(
        "j", "P", 0.9, checks=[result_pb2.Check(text="hit", met=True), result_pb2.Check(text="miss")]
    )
    judge.raw_request["model"] = "m"
    (line,) = _lines("P", judge, mean=0.9)
    assert line["evaluator_raw_request"] == {"model": "m"}
    assert not {"evaluator_results", "grader_raw_request", "error"} & line.keys()
    assert (line["score"], line["hits"], line["misses"]) == (0.9, ["hit"], ["miss"])
    assert (line["eval_id"], line["dataset"], line["candidate_answer"]) == ("a", "checkout", "the answer")


def test_several_evaluators_have_an_entry_each_and_a_mean() -> None:
    (line,) = _lines("P", _result("j", "P", 1), _result("k", "P", 0.5), _result("l", "S"), mean=0.75)
    assert line["score"] == 0.75
    assert "evaluator_raw_request" not in line
    assert line["evaluator_results"] == [
        {
            "name": "j",
            "type": "llm_judge",
            "score": 1,
            "hits": ["j says"],
            "misses": [],
            "reasoning": "j says",
        },
        {
            "name": "k",
            "type": "llm_judge",
            "score": 0.5,
            "hits": ["k says"],
            "misses": [],
            "reasoning": "k says",
        },
    ]


def test_an_error_is_score_0_with_the_error_among_the_misses_and_beside_it() -> None:
    broken = _result("c", "E", error=result_pb2.EvaluationError(code="SCRIPT_FAILED", message="exit code 1"))
    (line,) = _lines("E", _result("j", "P", 1), broken)
    assert line["score"] == 0.5
    assert line["evaluator_results"][1]["score"] == 0
    assert line["evaluator_results"][1]["misses"] == ["exit code 1"]
    assert line["error"]


@pytest.mark.parametrize("kind", ["metric", "shadow"])
def test_what_does_not_count_is_left_out(kind: str) -> None:
    extra = _result("x", "P")
    if kind == "metric":
        extra.kind = evaluator_pb2.EVALUATOR_KIND_METRIC
    else:
        extra.enforcement = evaluator_pb2.ENFORCEMENT_SHADOW
    (line,) = _lines("F", _result("j", "F", 0), extra, mean=0)
    assert "evaluator_results" not in line
    assert (line["score"], line["misses"]) == (0, ["j says"])


def test_an_agent_that_broke_has_score_0_and_an_error() -> None:
    case = decided("a", "E")
    del case.trials[0].turns[:]
    case.trials[0].error.CopyFrom(run_service_pb2.RunError(code="CONNECTOR_UNAVAILABLE", message="gone"))
    stream = io.StringIO()
    write_agentv([SuiteReport(suite([case]), [case])], stream)
    line = json.loads(stream.getvalue())
    assert (line["score"], line["hits"], line["misses"]) == (0, [], [])
    assert line["error"]
