"""What many evaluations add up to never looks better than they are."""

from typing import Any

import pytest

from evald import ASSERTION, METRIC, Evaluation, EvaluatorResult, Verdict
from evald_server.cli.exits import Exit
from evald_server.cli.totals import Totals, title

PASSED, FAILED, ERROR, SKIPPED = Verdict.PASSED, Verdict.FAILED, Verdict.ERROR, Verdict.SKIPPED


def _totals(*verdicts: Verdict) -> Totals:
    totals = Totals()
    for verdict in verdicts:
        result = EvaluatorResult(0, "check", "check", ASSERTION, verdict)
        totals.add(verdict.name, [Evaluation(verdict, results=(result,))])
    return totals


@pytest.mark.parametrize(
    ("verdicts", "code", "rate"),
    [
        pytest.param((PASSED, PASSED), Exit.PASSED, 1.0, id="all passed"),
        pytest.param((PASSED, SKIPPED), Exit.PASSED, 1.0, id="skipped counts for nothing"),
        pytest.param((PASSED, FAILED, ERROR), Exit.FAILED, 0.5, id="failed outranks error"),
        pytest.param((PASSED, ERROR), Exit.INCONCLUSIVE, 1.0, id="error outranks passed"),
        pytest.param((ERROR, ERROR), Exit.INCONCLUSIVE, None, id="all errors"),
        pytest.param((SKIPPED,), Exit.INCONCLUSIVE, None, id="nothing was judged"),
        pytest.param((), Exit.INCONCLUSIVE, None, id="nothing at all"),
    ],
)
def test_the_exit_code_says_the_worst(verdicts: tuple[Verdict, ...], code: Exit, rate: float | None) -> None:
    totals = _totals(*verdicts)
    assert totals.exit_code is code
    summary = totals.to_dict()
    assert summary["exitCode"] == code
    assert summary.get("passRate") == rate
    if verdicts:
        assert summary["evaluators"]["check"].get("passRate") == rate


def _measured(value: float | None, **metadata: Any) -> Evaluation:
    result = EvaluatorResult(0, "m", "m", METRIC, PASSED, value=value, metadata=metadata)
    return Evaluation(PASSED, results=(result,))


def test_a_metric_without_data_is_no_zero_in_the_mean() -> None:
    totals = Totals()
    totals.add("PASSED", [_measured(2), _measured(4), _measured(0, available=False)])
    metric = totals.to_dict()["evaluators"]["m"]
    assert (metric["meanValue"], metric["minValue"], metric["maxValue"]) == (3, 2, 4)
    assert "passRate" not in metric


@pytest.mark.parametrize(
    ("name", "shown"),
    [("regex", "Regex"), ("regex#2", "Regex #2"), ("reference", "reference")],
)
def test_an_evaluator_goes_by_its_label_unless_it_was_named(name: str, shown: str) -> None:
    assert title(EvaluatorResult(0, name, "regex", ASSERTION, PASSED, label="Regex")) == shown
