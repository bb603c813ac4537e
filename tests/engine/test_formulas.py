"""`formula`: arithmetic on the results of other evaluators."""

import math
from typing import Any

import pytest

from evald.v1.result_pb2 import Verdict
from evald_server.engine.formulas import Formula
from evald_server.engine.plan import InvalidPlan

from ..evaluators.contexts import answered, context
from ..evaluators.engine import evaluate


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.7 * a + 0.3*b", 0.65),
        ("(100 - abs(b - a)) / 100", 0.995),
        ("min(a, b, 0.2) + max(a) - floor(1.9) + ceil(0.1)", 1),
        ("max(b, a, 0.2)", 0.8),
        ("2 ^ 3 ^ 2", 512),
        ("-a ^ 2", -0.64),
        ("exp(0) + sqrt(4) + log(1)", 3),
        ("+1e-1", 0.1),
        pytest.param("1+" * 249 + "11", 260, id="500 characters"),
    ],
)
def test_a_formula_computes(text: str, value: float) -> None:
    assert Formula(text).value({"a": 0.8, "b": 0.3}) == pytest.approx(value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a +",
        "a if b else c",
        "a.b",
        "a[0]",
        "open(a)",
        "__import__('os')",
        "min()",
        "sqrt(a, b)",
        "min(a, key=b)",
        "'a' * 9",
        "a // b",
        "a > b",
        "True",
        "1j",
        "lambda: 1",
        "0.5 * a + 0.5 * b)",
        pytest.param("1+" * 250 + "1", id="501 characters"),
        "(" * 300 + ")" * 300,
    ],
)
def test_what_is_no_arithmetic_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"formula|meaning|characters|takes"):
        Formula(text)


@pytest.mark.parametrize(
    "text",
    [
        "1 / (a - a)",
        "9^9^9^9",
        "sqrt(0-1)",
        "log(0)",
        "(0-8)^(1/3)",
        "abs((0-8)^(1/3))",
        "max((0-8)^(1/3), 1)",
        "min(1, a * 1e308 * 1e308)",
        "max(0, a * 1e308 * 1e308 - n * 1e308 * 1e308)",
        "exp(9999)",
        "-1e999",
        # Integers would grow until the memory is used up, where floats overflow.
        "floor(10)^floor(400) / ceil(10)^ceil(400)",
        "n^400 / n^400",
    ],
)
def test_a_formula_without_a_value_raises(text: str) -> None:
    with pytest.raises(ArithmeticError):
        Formula(text).value({"a": 1, "n": 10})


def _formula(formula: str, *children: dict[str, Any], **config: Any) -> dict[str, Any]:
    return {"type": "formula", "config": {"formula": formula, "evaluators": list(children), **config}}


HIT: dict[str, Any] = {"name": "hit", "type": "contains", "config": {"text": "yes"}}
HALF: dict[str, Any] = {"name": "half", "type": "contains", "config": {"substrings": ["yes", "no"]}}
BROKEN: dict[str, Any] = {
    "name": "broken",
    "type": "string-check",
    "config": {"input": "{{item.x}}", "reference": "", "operation": "eq"},
}
SKIPPED: dict[str, Any] = {"name": "skipped", "type": "contains", "when": "final", "config": {"text": "yes"}}


@pytest.mark.parametrize(
    ("formula", "threshold", "verdict", "score"),
    [
        ("0.5 * hit + 0.5 * half", 0.75, Verdict.VERDICT_PASSED, 0.75),
        ("0.5 * hit + 0.5 * half", 0.76, Verdict.VERDICT_FAILED, 0.75),
        ("3 * hit + half", 3.5, Verdict.VERDICT_PASSED, None),
        ("hit - half - 0.5", 0.1, Verdict.VERDICT_FAILED, 0.0),
        ("0 * hit + half + 0.5", 0.1, Verdict.VERDICT_PASSED, 1.0),
        ("0 * hit + half - 1", -0.4, Verdict.VERDICT_FAILED, None),
        ("hit / (half - 0.5)", 0.5, Verdict.VERDICT_ERROR, None),
    ],
)
def test_the_result_is_compared_with_the_threshold(
    formula: str, threshold: float, verdict: Verdict, score: float | None
) -> None:
    (result,) = evaluate([_formula(formula, HIT, HALF, threshold=threshold)], answered("yes")).results
    assert result.verdict == verdict
    assert (result.score if result.HasField("score") else None) == score


def test_a_value_counts_before_a_score() -> None:
    length = {"name": "length", "type": "length-within", "config": {"max": 99}}
    (result,) = evaluate([_formula("length", length, threshold=3)], answered("yes")).results
    assert result.verdict == Verdict.VERDICT_PASSED


@pytest.mark.parametrize("child", [BROKEN, SKIPPED])
@pytest.mark.parametrize("negate", [False, True])
def test_a_child_without_a_number_makes_it_an_error(child: dict[str, Any], negate: bool) -> None:
    spec = {**_formula(f"hit + 0 * {child['name']}", HIT, child, threshold=0.1), "negate": negate}
    (result,) = evaluate([spec], answered("yes")).results
    assert result.verdict == Verdict.VERDICT_ERROR


def test_missing_evidence_does_not_pass_a_formula_that_falls() -> None:
    spec = _formula("1 - hit", HIT)
    assert evaluate([spec], answered("no")).results[0].verdict == Verdict.VERDICT_PASSED
    assert evaluate([spec], context()).results[0].verdict == Verdict.VERDICT_FAILED


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (_formula("hit", HIT, HALF), "'half' does not occur in the formula"),
        (_formula("hit + other", HIT), "no evaluator has the name 'other'; the names are hit"),
        (_formula("hit", HIT, HIT), "'hit' is already the name of another evaluator"),
        (_formula("hit +", HIT), "as a formula; wanted for example"),
        (_formula("hit", HIT, threshold=math.inf), "threshold"),
    ],
)
def test_a_formula_that_does_not_fit_is_refused(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message) as refused:
        evaluate([spec], answered("yes"))
    assert isinstance(refused.value, InvalidPlan) or "threshold" in message
