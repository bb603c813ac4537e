"""AgentV's result files: JSON Lines with a line for each trial, in AgentV's fields."""

import json
from collections.abc import Sequence
from typing import Any, Final, TextIO

from google.protobuf.json_format import MessageToDict

from evald.chat import message_text
from evald.records import read_verdict
from evald.result import Verdict
from evald.v1 import evaluator_pb2, result_pb2, suite_service_pb2

from .report import SuiteReport, checked_cases

_ASSERTION: Final = evaluator_pb2.EVALUATOR_KIND_ASSERTION


def write_agentv(reports: Sequence[SuiteReport], stream: TextIO) -> None:
    """Write a line for each trial. Raises WrongCases."""
    for report in reports:
        for case, _ in checked_cases(report):
            for trial in case.trials:
                line = agentv_result(case, trial, report.run)
                stream.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")


def agentv_result(
    case: suite_service_pb2.CaseResult,
    trial: suite_service_pb2.TrialResult,
    run: suite_service_pb2.SuiteRun,
) -> dict[str, Any]:
    """Return a trial as an AgentV result.

    With one evaluator, `evaluator_raw_request` has its request; with several, `evaluator_results` has one entry for
    each. An evaluator in error has score 0 and its error among the misses; a trial in error has the key `error`.
    """
    results = [result for turn in trial.turns for result in _counted(turn.evaluation)]
    entries = [_entry(result) for result in results]
    line: dict[str, Any] = {
        "eval_id": case.case_id,
        "dataset": run.suite,
        "target": run.target,
        "attempt": trial.trial - 1,
        "score": _score(trial, entries),
        "hits": [hit for entry in entries for hit in entry["hits"]],
        "misses": [miss for entry in entries for miss in entry["misses"]],
        "expected_aspect_count": sum(len(entry["hits"]) + len(entry["misses"]) for entry in entries),
        "candidate_answer": _answer(trial),
        "reasoning": trial.reason,
    }
    if len(entries) == 1:
        if "evaluator_raw_request" in entries[0]:
            line["evaluator_raw_request"] = entries[0]["evaluator_raw_request"]
    elif entries:
        line["evaluator_results"] = entries
    if read_verdict(trial.verdict) is Verdict.ERROR:
        line["error"] = trial.reason
    return line


def _counted(evaluation: result_pb2.AggregatedEvaluation) -> list[result_pb2.EvaluationResult]:
    """Return the assertions that are not shadow and were not skipped."""
    return [
        result
        for result in evaluation.results
        if result.kind == _ASSERTION
        and result.enforcement != evaluator_pb2.ENFORCEMENT_SHADOW
        and read_verdict(result.verdict) is not Verdict.SKIPPED
    ]


def _entry(result: result_pb2.EvaluationResult) -> dict[str, Any]:
    verdict = read_verdict(result.verdict)
    hits = [check.text for check in result.checks if check.met]
    misses = [check.text for check in result.checks if not check.met]
    if verdict is Verdict.ERROR:
        hits, misses = [], [result.error.message or result.reason]
    elif not result.checks:
        (hits if verdict is Verdict.PASSED else misses).append(result.reason)
    score = result.score if result.HasField("score") else float(verdict is Verdict.PASSED)
    entry: dict[str, Any] = {
        "name": result.name,
        "type": result.type.replace("-", "_"),
        "score": 0.0 if verdict is Verdict.ERROR else score,
        "hits": hits,
        "misses": misses,
        "reasoning": result.reason,
    }
    if result.HasField("raw_request"):
        entry["evaluator_raw_request"] = MessageToDict(result.raw_request)
    return entry


def _score(trial: suite_service_pb2.TrialResult, entries: Sequence[dict[str, Any]]) -> float:
    """Return the weighted mean of a single turn. After an error or with several turns: the mean of all entries."""
    if trial.turns and read_verdict(trial.verdict) is not Verdict.ERROR:
        evaluation = trial.turns[-1].evaluation
        if len(trial.turns) == 1 and evaluation.HasField("mean_score"):
            return evaluation.mean_score
    return sum(entry["score"] for entry in entries) / len(entries) if entries else 0.0


def _answer(trial: suite_service_pb2.TrialResult) -> str:
    answers = [message_text(one) for one in trial.messages if one.role == "assistant"]
    return next((text for text in reversed(answers) if text), "")
