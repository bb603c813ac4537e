"""What many evaluations add up to never looks better than they are."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console, RenderableType

from evald import ASSERTION, METRIC, Evaluation, EvaluatorResult, Verdict
from evald.errors import EvaluatorError
from evald.v1 import evaluator_pb2, result_pb2, run_service_pb2, suite_service_pb2
from evald_server.cli.exit_codes import ExitCode
from evald_server.cli.result_tables import (
    CaseRow,
    EvaluatorRunTotals,
    RunTotals,
    VerdictCount,
    case_tables,
    result_tables,
    title,
    total_tables,
    turn_table,
)
from evald_server.cli.runs import turn_block
from evald_server.cli.suite_view import show_evaluators, sparkline
from evald_server.pages import formats

PASSED, FAILED, ERROR, SKIPPED = Verdict.PASSED, Verdict.FAILED, Verdict.ERROR, Verdict.SKIPPED


def _totals(*verdicts: Verdict) -> RunTotals:
    totals = RunTotals()
    for verdict in verdicts:
        result = EvaluatorResult(0, "check", "check", ASSERTION, verdict)
        totals.add(verdict.name, [Evaluation(verdict, results=(result,))])
    return totals


@pytest.mark.parametrize(
    ("verdicts", "verdict", "code", "rate"),
    [
        pytest.param((PASSED, PASSED), PASSED, ExitCode.PASSED, 1.0, id="all passed"),
        pytest.param((PASSED, SKIPPED), PASSED, ExitCode.PASSED, 1.0, id="skipped counts for nothing"),
        pytest.param((PASSED, FAILED, ERROR), FAILED, ExitCode.FAILED, 0.5, id="failed outranks error"),
        pytest.param((PASSED, ERROR), ERROR, ExitCode.INCONCLUSIVE, 1.0, id="error outranks passed"),
        pytest.param((ERROR, ERROR), ERROR, ExitCode.INCONCLUSIVE, None, id="all errors"),
        pytest.param((SKIPPED,), SKIPPED, ExitCode.INCONCLUSIVE, None, id="nothing was judged"),
        pytest.param((), SKIPPED, ExitCode.INCONCLUSIVE, None, id="nothing at all"),
    ],
)
def test_the_exit_code_says_the_worst(
    verdicts: tuple[Verdict, ...], verdict: Verdict, code: ExitCode, rate: float | None
) -> None:
    totals = _totals(*verdicts)
    assert totals.conversations.exit_code is code
    summary = totals.to_dict()
    assert (summary["verdict"], summary["exitCode"]) == (verdict.name, code)
    assert summary["conversationCount"] == summary["turnCount"] == len(verdicts)
    assert summary.get("passRate") == rate
    if verdicts:
        assert summary["evaluators"]["check"].get("passRate") == rate


def _measured(value: float | None, **metadata: Any) -> Evaluation:
    result = EvaluatorResult(0, "m", "m", METRIC, PASSED, value=value, metadata=metadata)
    return Evaluation(PASSED, results=(result,))


def test_a_metric_without_data_is_no_zero_in_the_mean() -> None:
    totals = RunTotals()
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


@pytest.mark.parametrize(
    ("passed", "failed", "shown"),
    [
        (1, 0, "100.0% ██████████"),
        (0, 1, "  0.0% ░░░░░░░░░░"),
        (986, 14, " 98.6% █████████░"),
        (9999, 1, " 99.9% █████████░"),
        (1, 9999, "  0.1% █░░░░░░░░░"),
        (1, 1, " 50.0% █████░░░░░"),
    ],
)
def test_only_all_looks_like_all_and_only_none_like_none(passed: int, failed: int, shown: str) -> None:
    count = VerdictCount(passed, failed, errors=3, skipped=2)
    totals = EvaluatorRunTotals("check", "check", is_metric=False, shadow=False, count=count)
    console = Console(width=120)
    with console.capture() as captured:
        console.print(*total_tables([totals]))
    assert shown in captured.get()


def test_errors_of_a_metric_are_counted_in_its_row() -> None:
    count = VerdictCount(passed=1, errors=2)
    totals = EvaluatorRunTotals(
        "m", "m", is_metric=True, shadow=False, count=count, measured=1, sum=-3.5, low=-3.5, high=-3.5
    )
    run = suite_service_pb2.SuiteRun()
    run.evaluators["m"].kind = evaluator_pb2.EVALUATOR_KIND_METRIC
    run.evaluators["m"].error_count = 2
    tried = run.evaluators["tried"]
    tried.kind, tried.failed_count = evaluator_pb2.EVALUATOR_KIND_ASSERTION, 3
    tried.enforcement = evaluator_pb2.ENFORCEMENT_SHADOW
    console = Console(width=120)
    with console.capture() as captured:
        console.print(*total_tables([totals]))
    assert re.search(r"│ m +│ +-3.5 │ +-3.5 │ +-3.5 │ +1 │ +2 │", captured.get())
    with pytest.MonkeyPatch.context() as patch, console.capture() as captured:
        patch.setattr("evald_server.cli.suite_view.show", console.print)
        show_evaluators(run)
    assert re.search(r"│ m +│ +n/a │ +2 │", captured.get())
    assert re.search(r"│ tried \(shadow\) +│ 0 % +│ +│ +3 │ +│", captured.get())


def _rows(*tables: RenderableType) -> list[list[str]]:
    """The cells of tables, without their heads."""
    console = Console(width=160)
    with console.capture() as captured:
        console.print(*tables)
    bodies = re.split("[├╭]", captured.get())[2::2]
    lines = [line for body in bodies for line in body.splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


RESULTS = (
    EvaluatorResult(0, "p", "p", ASSERTION, PASSED, "fine", score=0.999),
    EvaluatorResult(1, "f", "f", ASSERTION, FAILED, "bad", score=0.0, pending=True),
    EvaluatorResult(2, "e", "e", ASSERTION, ERROR, "r", error=EvaluatorError("TIMEOUT", "slow"), shadow=True),
    EvaluatorResult(3, "e2", "e2", ASSERTION, ERROR, "r", error=EvaluatorError("TIMEOUT", "")),
    EvaluatorResult(4, "s", "s", ASSERTION, SKIPPED, "not yet", cached=True),
    EvaluatorResult(5, "m", "m", METRIC, PASSED, "measured", value=-1234.5),
    EvaluatorResult(6, "me", "me", METRIC, ERROR, "broke", value=0),
    EvaluatorResult(7, "ms", "ms", METRIC, SKIPPED, "later"),
)


def test_every_verdict_has_its_word_and_sign_in_the_tables() -> None:
    assert _rows(*result_tables(RESULTS)) == [
        ["p", "✓ Pass", "0.99", "fine"],
        ["f", "✗ Fail (pending)", "0.00", "bad"],
        ["e", "! Error (shadow)", "", "TIMEOUT: slow"],
        ["e2", "! Error", "", "TIMEOUT: r"],
        ["s", "- Skipped (cached)", "", "not yet"],
        ["m", "-1,234.5", "measured"],
        ["me", "! Error", "broke"],
        ["ms", "- Skipped", "later"],
    ]


def test_every_turn_has_a_row_with_its_verdict_and_why() -> None:
    turns = [
        Evaluation(FAILED, "bad", results=RESULTS[:2]),
        "turn 2 was refused",
        Evaluation(PASSED, "fine", results=(RESULTS[0], RESULTS[5])),
        Evaluation(ERROR, "slow", results=(RESULTS[2], RESULTS[6])),
    ]
    assert _rows(turn_table(turns)) == [
        ["1", "FAILED", "✓", "✗", "", "", "", "bad"],
        ["2", "ERROR", "", "", "", "", "", "turn 2 was refused"],
        ["3", "PASSED", "✓", "", "-1,234.5", "", "", ""],
        ["4", "ERROR", "", "", "", "!", "!", "slow"],
    ]
    assert _rows(turn_table([Evaluation(FAILED, "bad", results=RESULTS)])) == [
        ["1", "FAILED", "✓ ✗ ! ! - -1,234.5 ! -", "bad"]
    ]


def test_what_did_not_pass_is_listed_and_the_rest_counted() -> None:
    red = [CaseRow("a", "FAILED", ["bad", "worse"]), CaseRow("b", "ERROR", ["slow"])]
    green = [CaseRow("c", "PASSED", ["answer: yes"]), CaseRow("d", "SKIPPED", ["not yet"])]
    listed = [["a", "FAILED", "bad"], ["", "", "worse"], ["b", "ERROR", "slow"]]
    assert _rows(*case_tables("Case", [green[0], *red, green[1]])) == [
        *listed,
        ["c", "PASSED", "answer: yes"],
        ["d", "SKIPPED", "not yet"],
    ]
    assert _rows(*case_tables("Case", red, 1200)) == [*listed, ["and 1,200 more", "", ""]]
    assert case_tables("Case", []) == []


def test_the_json_of_totals_has_the_counts_of_each_evaluator() -> None:
    totals = RunTotals()
    totals.add("ERROR", [Evaluation(ERROR, results=RESULTS)] * 2)
    assert totals.conversations.rest == ", 1 inconclusive"
    found = totals.to_dict()["evaluators"]
    assert found["e"] == {
        "type": "e",
        "kind": "assertion",
        "shadow": True,
        "passedCount": 0,
        "failedCount": 0,
        "errorCount": 2,
        "skippedCount": 0,
    }
    assert found["p"]["kind"] == "assertion"
    assert "shadow" not in found["p"]
    assert (found["m"]["kind"], found["m"]["meanValue"]) == ("metric", -1234.5)
    assert "meanValue" not in found["me"]


@pytest.mark.parametrize(
    ("verdict", "sign", "word", "style"),
    [
        (0, "!", "Inconclusive", "error"),
        (1, "✓", "Passed", "pass"),
        (2, "✗", "Failed", "fail"),
        (3, "!", "Inconclusive", "error"),
        (4, "\u2013", "Skipped", "skip"),
        (99, "!", "Inconclusive", "error"),
    ],
)
def test_a_mark_is_that_of_its_verdict_and_an_error_if_unknown(
    verdict: int, sign: str, word: str, style: str
) -> None:
    found = formats.mark(verdict)
    assert (found.sign, found.word, found.style) == (sign, word, style)


@pytest.mark.parametrize(
    ("verdict", "word", "style"),
    [
        (0, "INCONCLUSIVE", "error"),
        (1, "PASS", "pass"),
        (2, "WARN", "error"),
        (3, "BLOCK", "fail"),
        (99, "INCONCLUSIVE", "error"),
    ],
)
def test_a_comparison_has_the_mark_of_its_verdict(verdict: int, word: str, style: str) -> None:
    found = formats.comparison_mark(verdict)
    assert (found.word, found.style) == (word, style)


def test_only_a_full_share_is_a_full_block() -> None:
    assert sparkline([0.0, 0.5, 0.9999, 1.0, None]) == "▁▄▇█·"


def test_a_turn_shows_its_warnings_and_which_results_did_not_count() -> None:
    turn = run_service_pb2.RunTurn(turn=3)
    turn.evaluation.warnings.append('"judge" gave no verdict (TIMEOUT) and was ignored (fail open)')
    results = [
        result_pb2.EvaluationResult(name="tone", kind=1, verdict=2, reason="rude", enforcement=2),  # type: ignore[arg-type]
        result_pb2.EvaluationResult(name="greets", kind=1, verdict=2, pending=True, reason="not yet"),  # type: ignore[arg-type]
        result_pb2.EvaluationResult(name="cost", kind=2, verdict=3, reason="no price"),  # type: ignore[arg-type]
    ]
    console = Console(width=200)
    with console.capture() as captured:
        console.print(turn_block([], results, turn))
    lines = [line.strip() for line in captured.get().splitlines()]
    assert lines == [
        "turn 3",
        "✗ tone: rude (shadow)",
        "✗ greets: not yet (pending)",
        "! cost: no price",
        'warning: "judge" gave no verdict (TIMEOUT) and was ignored (fail open)',
    ]


@pytest.mark.parametrize(
    ("format_", "value", "shown"),
    [
        (formats.percent, 1.0, "100\u202f%"),
        (formats.percent, 0.9999, "99.9\u202f%"),
        (formats.percent, 0.0001, "0.1\u202f%"),
        (formats.percent, 0.0, "0\u202f%"),
        (formats.score, 1.0, "1.00"),
        (formats.score, 0.9999, "0.99"),
        (formats.score, 0.0001, "0.01"),
        (formats.score, 0.0, "0.00"),
        (formats.score, 0.625, "0.62"),
        (formats.points, -0.0001, "\u22120.1"),
        (formats.points, 0.0001, "+0.1"),
        (formats.points, 0.9 - 0.8 - 0.1, "±0"),
        (formats.points, -0.0714, "\u22127.1"),
        (formats.points, 1.0, "+100.0"),
    ],
)
def test_rounding_makes_no_share_whole_and_no_change_nothing(
    format_: Callable[[float], str], value: float, shown: str
) -> None:
    assert format_(value) == shown


def test_an_unavailable_metric_is_shown_as_such_and_not_as_0() -> None:
    results = [
        EvaluatorResult(0, "m", "m", METRIC, PASSED, "no data", value=0, metadata={"available": False}),
        EvaluatorResult(1, "n", "n", METRIC, PASSED, "none", value=0),
    ]
    console = Console(width=120)
    with console.capture() as captured:
        console.print(*result_tables(results))
    rows = [line.split("│")[1:3] for line in captured.get().splitlines() if line.startswith("│")]
    assert [[cell.strip() for cell in row] for row in rows[1:]] == [["m", "n/a"], ["n", "0"]]
