"""Suite results, made from strings of verdict letters."""

from collections.abc import Iterable

from evald.v1 import result_pb2, run_service_pb2, suite_service_pb2
from evald_server.suites.verdicts import SuiteTotals, decide_case, decide_trial

VERDICTS = {
    "P": result_pb2.VERDICT_PASSED,
    "F": result_pb2.VERDICT_FAILED,
    "E": result_pb2.VERDICT_ERROR,
    "S": result_pb2.VERDICT_SKIPPED,
}
LETTERS = {number: letter for letter, number in VERDICTS.items()}


def trial(letter: str, number: int = 1, score: float | None = None) -> suite_service_pb2.TrialResult:
    """Return a trial of one turn with this verdict."""
    evaluation = result_pb2.AggregatedEvaluation(verdict=VERDICTS[letter], reason=f"turn {letter}")
    evaluation.passed_count, evaluation.failed_count = int(letter == "P"), int(letter == "F")
    if score is not None:
        evaluation.score = score
    made = suite_service_pb2.TrialResult(
        trial=number, turns=[run_service_pb2.RunTurn(turn=1, evaluation=evaluation)]
    )
    decide_trial(made)
    return made


def case(
    case_id: str,
    letters: str,
    *,
    min_passed: int = 0,
    weight: float = 1.0,
    scores: Iterable[float | None] | None = None,
) -> suite_service_pb2.CaseResult:
    """Return a decided case whose trials have these verdicts: P, F, E or S."""
    given = [None] * len(letters) if scores is None else list(scores)
    trials = [
        trial(letter, number, score)
        for number, (letter, score) in enumerate(zip(letters, given, strict=True), 1)
    ]
    made = suite_service_pb2.CaseResult(case_id=case_id, trials=trials, weight=weight)
    decide_case(made, min_passed)
    return made


def suite(
    cases: Iterable[suite_service_pb2.CaseResult], threshold: float = 1.0
) -> suite_service_pb2.SuiteRun:
    """Return the completed suite run of these cases."""
    totals = SuiteTotals(threshold)
    for result in cases:
        totals.add(result)
    run = suite_service_pb2.SuiteRun(
        id="00000000-0000-4000-8000-000000000000",
        suite="checkout",
        target="staging",
        status=suite_service_pb2.SUITE_RUN_STATUS_COMPLETED,
    )
    totals.fill(run)
    return run
