"""Numbers: which ones a text holds, and when two are close enough."""

from typing import Any

import pytest

from evald.evaluator import InvalidConfig
from evald.result import Verdict
from evald_server.evaluators import numbers
from evald_server.evaluators.numbers import Numeric, numbers_in

from .contexts import answered, context, run

PASSED, FAILED, ERROR, SKIPPED = Verdict.PASSED, Verdict.FAILED, Verdict.ERROR, Verdict.SKIPPED


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("28 + 32 = 60%", [28, 32, 60]),
        ("It costs $1,234.50.", [1234.5]),
        ("12,345,678.9, I think", [12345678.9]),
        ("1,2,3", [1, 2, 3]),
        ("1234,567", [1234, 567]),
        ("-5 and \u22127 and +4", [-5, -7, 4]),
        ("x=-5", [-5]),
        ("-$5 or $-5", [-5, -5]),
        ("€ 5kg 3rd", [5, 3]),
        (".5 and 0.5", [0.5, 0.5]),
        ("pi is 3.14.", [3.14]),
        ("1e3, 2.5E-1, 1e999", [1000, 0.25]),
        ("BK-12345 on 2024-01-15", [12345, 2024, 1, 15]),
        ("(5)-3, 10%-20%", [5, 3, 10, 20]),
        ("GPT4 v1.2 1.2.3 \u0663", []),
        ("", []),
    ],
)
def test_the_numbers_of_a_text(text: str, found: list[float]) -> None:
    assert list(numbers_in(text)) == found


@pytest.mark.parametrize(
    ("config", "answer", "verdict", "value"),
    [
        pytest.param({"expected": 60}, "28 + 32 = 60%", PASSED, 60, id="last"),
        pytest.param({"expected": 28, "extract": "first"}, "28 + 32 = 60", PASSED, 28, id="first"),
        pytest.param({"expected": 5, "extract": "first"}, "50 is the answer", FAILED, 50, id="whole-number"),
        pytest.param({"expected": 25, "extract": "any"}, "7 then 25 then 9", PASSED, 25, id="any"),
        pytest.param({"expected": 25, "extract": "any"}, "got 7 and 11", FAILED, 11, id="any-closest"),
        pytest.param({"expected": -5}, "5", FAILED, 5, id="sign"),
        pytest.param({"expected": 0.3}, "0.30", PASSED, 0.3, id="equal"),
        pytest.param({"expected": 1, "tolerance": 0.1}, "1.1", PASSED, 1.1, id="tolerance-inclusive"),
        pytest.param({"expected": 1, "tolerance": 0.1}, "1.11", FAILED, 1.11, id="beyond-tolerance"),
        pytest.param({"expected": 200, "relative": 0.01}, "202", PASSED, 202, id="relative"),
        pytest.param({"expected": -200, "relative": 0.01}, "-202", PASSED, -202, id="relative-negative"),
        pytest.param({"expected": -200, "relative": 0.01}, "-203", FAILED, -203, id="beyond-relative"),
        pytest.param(
            {"expected": 200, "relative": 0.01, "tolerance": 5}, "205", PASSED, 205, id="larger-tolerance"
        ),
        pytest.param({"expected": 5}, "five", FAILED, None, id="no-number"),
    ],
)
def test_the_number_has_to_be_within_the_tolerance(
    config: dict[str, Any], answer: str, verdict: Verdict, value: float | None
) -> None:
    result = run(Numeric, config, answered(answer))
    assert (result.verdict, result.value) == (verdict, value)
    assert f"expected {config['expected']:.15g}" in result.reason


@pytest.mark.parametrize(
    ("answer", "expected", "score"),
    [("0", 1, 0), ("1", 2, 2 / 3), ("2", 1, 2 / 3), ("-1", 1, 0), ("0", 0, 1), ("none", 1, 0)],
)
def test_the_score_falls_with_the_difference(answer: str, expected: float, score: float) -> None:
    assert run(Numeric, {"expected": expected}, answered(answer)).score == pytest.approx(score)


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        pytest.param({"expected_data": 42}, PASSED, id="data"),
        pytest.param({"expected_text": "6 times 7 is 42"}, PASSED, id="text"),
        pytest.param({"expected_data": "no number", "expected_text": "42"}, PASSED, id="data-is-text"),
        pytest.param({"expected_data": 41, "expected_text": "42"}, FAILED, id="data-first"),
        pytest.param({"expected_data": True}, SKIPPED, id="no-truth-value"),
        pytest.param({"expected_text": "many"}, SKIPPED, id="no-number"),
        pytest.param({}, SKIPPED, id="nothing"),
    ],
)
def test_it_falls_back_to_what_the_context_expects(facts: dict[str, Any], verdict: Verdict) -> None:
    assert run(Numeric, {"onMissing": "skip"}, answered("42", **facts)).verdict is verdict


def test_without_an_assistant_message_it_fails() -> None:
    result = run(Numeric, {"expected": 0}, context())
    assert (result.verdict, result.score, result.reason) == (FAILED, 0, "No assistant message found")


def test_a_text_that_would_hold_up_the_server_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers, "MAX_SCANNED", 9)
    large = run(Numeric, {"expected": 1}, answered("1" + " " * 9))
    assert large.error
    assert large.error.code == "INPUT_TOO_LARGE"


@pytest.mark.parametrize(
    "config", [{"expected": "1"}, {"expected": float("inf")}, {"tolerance": -1}, {"extract": "second"}]
)
def test_a_wrong_config_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig, match=f"config/{next(iter(config))}"):
        Numeric.definition().compile(config)
