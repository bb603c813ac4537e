"""What combinators make of children that fail, break, lack data, are pending, required, in shadow or skipped."""

from typing import Any

import pytest

from evald.result import TokenUsage, Verdict, failed, unproven
from evald_server.engine.plan import InvalidPlan
from evald_server.engine.registry import Origin

from .scripted import Engine, definition

PASSED, FAILED, ERROR, SKIPPED = Verdict.PASSED, Verdict.FAILED, Verdict.ERROR, Verdict.SKIPPED


@pytest.fixture(name="engine", scope="module")
def _engine() -> Engine:
    engine = Engine()
    engine.registry.register(definition("blind", lambda _ctx: unproven("No data")), Origin.BUILT_IN)
    return engine


def _child(do: str, **fields: Any) -> dict[str, Any]:
    if do == "blind":
        return {"type": "blind", **fields}
    config = {"do": "fail", "pending": True} if do == "pending" else {"do": do}
    return {"type": "scripted", "config": config, **fields}


def _scored(do: str, score: float, **fields: Any) -> dict[str, Any]:
    return {"type": "scripted", "config": {"do": do, "score": score}, **fields}


def _spec(name: str, *children: dict[str, Any], negate: bool = False, **config: Any) -> dict[str, Any]:
    return {"type": name, "negate": negate, "config": {"evaluators": list(children), **config}}


def _nested(levels: int) -> dict[str, Any]:
    spec = _child("pass")
    for _ in range(levels):
        spec = _spec("all-of", spec)
    return spec


# The verdict, and " pending" where a later turn can still change it.
@pytest.mark.parametrize(
    ("children", "all_of", "any_of"),
    [
        ("pass pass", "PASSED", "PASSED"),
        ("pass fail", "FAILED", "PASSED"),
        ("pass error", "ERROR", "PASSED"),
        ("pass skip", "PASSED", "PASSED"),
        ("pass pending", "FAILED pending", "PASSED"),
        ("pass blind", "FAILED", "PASSED"),
        ("fail fail", "FAILED", "FAILED"),
        ("fail error", "FAILED", "ERROR"),
        ("fail skip", "FAILED", "FAILED"),
        ("fail pending", "FAILED", "FAILED pending"),
        ("fail blind", "FAILED", "FAILED"),
        ("error error", "ERROR", "ERROR"),
        ("error skip", "ERROR", "ERROR"),
        ("error pending", "FAILED", "ERROR"),
        ("error blind", "FAILED", "ERROR"),
        ("skip skip", "SKIPPED", "SKIPPED"),
        ("skip pending", "FAILED pending", "FAILED pending"),
        ("skip blind", "FAILED", "FAILED"),
        ("pending pending", "FAILED pending", "FAILED pending"),
        ("fail error pending", "FAILED", "ERROR"),
        ("pass fail pending", "FAILED", "PASSED"),
    ],
)
def test_the_truth_table(engine: Engine, children: str, all_of: str, any_of: str) -> None:
    specs = [_child(do) for do in children.split()]
    for name, wanted in (("all-of", all_of), ("any-of", any_of)):
        for order in (specs, specs[::-1]):
            result = engine.run([_spec(name, *order)], is_final=False).results[0]
            assert f"{Verdict(result.verdict).name}{' pending' if result.pending else ''}" == wanted


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        (_spec("any-of", _child("blind"), _child("fail")), FAILED),
        (_spec("any-of", _child("blind"), _child("pass")), FAILED),
        (_spec("all-of", _child("blind"), _child("fail")), PASSED),
        (_spec("all-of", _child("blind"), _child("pass")), FAILED),
        (_spec("at-least", _child("blind"), _child("pass"), _child("fail"), k=2), FAILED),
        (_spec("at-least", _child("blind"), _child("fail"), _child("fail"), k=2), PASSED),
        (_spec("at-least", _child("blind"), _child("fail"), threshold=0.5), FAILED),
        (_spec("at-least", _child("blind"), _child("fail"), threshold=0.6), PASSED),
        (_spec("formula", _child("blind", name="a"), _child("fail", name="b"), formula="a + b"), FAILED),
        (_spec("formula", _child("blind", name="a"), formula="4 * (a - 0.5) ^ 2"), FAILED),
        (_spec("all-of", _spec("any-of", _child("blind"), _child("fail"))), FAILED),
    ],
)
def test_negated_it_passes_only_if_it_would_whatever_the_missing_data_say(
    engine: Engine, spec: dict[str, Any], wanted: Verdict
) -> None:
    assert engine.verdict([{**spec, "negate": True}]) is wanted


@pytest.mark.parametrize("negate", [False, True])
@pytest.mark.parametrize("others", [(), (_child("skip"),)], ids=["alone", "the other one skipped"])
def test_a_share_of_weights_that_add_up_to_nothing_is_no_verdict(
    engine: Engine, others: tuple[dict[str, Any], ...], negate: bool
) -> None:
    for do in ("pass", "fail"):
        spec = _spec("at-least", _child(do, weight=0), *others, negate=negate, threshold=0.5)
        assert engine.verdict([spec]) is ERROR


HALF_PASS, LOW_FAIL, HIGH_FAIL = _scored("pass", 0.5), _scored("fail", 0.2), _scored("fail", 0.7)
ERRS = _child("error")


@pytest.mark.parametrize(
    ("spec", "wanted", "score", "reason"),
    [
        (_spec("all-of", HALF_PASS, _child("pass")), PASSED, 0.5, "2 of 2 evaluators passed, wanted all"),
        (_spec("all-of", HALF_PASS, HIGH_FAIL, LOW_FAIL), FAILED, 0.2, "1 of 3 evaluators passed"),
        (_spec("all-of", HALF_PASS, ERRS), ERROR, None, "1 of 2 evaluators passed"),
        (_spec("all-of", HIGH_FAIL, ERRS), FAILED, 0.0, "0 of 2 evaluators passed"),
        (_spec("all-of", HIGH_FAIL, ERRS, negate=True), PASSED, 0.3, "0 of 2 evaluators passed"),
        (_spec("any-of", HALF_PASS, LOW_FAIL), PASSED, 0.5, "1 of 2 evaluators passed"),
        (_spec("any-of", LOW_FAIL, HIGH_FAIL), FAILED, 0.7, "0 of 2 evaluators passed"),
        (_spec("any-of", HALF_PASS, ERRS), PASSED, 0.5, "1 of 2 evaluators passed"),
        (_spec("any-of", HALF_PASS, ERRS, negate=True), FAILED, 0.0, "1 of 2 evaluators passed"),
        (_spec("at-least", HALF_PASS, HALF_PASS, k=2), PASSED, 1.0, "wanted at least 2"),
        (_spec("at-least", HALF_PASS, ERRS, k=1), PASSED, 0.5, "wanted at least 1"),
        (_spec("at-least", HALF_PASS, ERRS, k=2), ERROR, None, "1 of 2 evaluators passed"),
        (_spec("at-least", LOW_FAIL, ERRS, LOW_FAIL, k=2), FAILED, 0.0, "0 of 3 evaluators passed"),
        (_spec("at-least", HALF_PASS, LOW_FAIL, threshold=0.5), PASSED, 0.5, "share 0.5"),
        (_spec("at-least", HALF_PASS, ERRS, threshold=0.6), ERROR, None, "share 0.5"),
        (_spec("at-least", HALF_PASS, ERRS, threshold=0.5), PASSED, 0.5, "share 0.5"),
        (_spec("at-least", LOW_FAIL, ERRS, threshold=0.6), FAILED, 0.0, "share 0"),
        (_spec("at-least", HALF_PASS, {**LOW_FAIL, "weight": 0}), PASSED, 1.0, "wanted all"),
        (_spec("at-least", HALF_PASS, {**ERRS, "weight": 0}), PASSED, 1.0, "wanted all"),
        (_spec("at-least", HALF_PASS, ERRS), ERROR, None, "wanted all"),
        (_spec("at-least", HALF_PASS, LOW_FAIL, ERRS), FAILED, 1 / 3, "wanted all"),
        (_spec("assert-set", HALF_PASS, HIGH_FAIL, threshold=0.6), PASSED, 0.6, "score 0.6"),
        (_spec("assert-set", HALF_PASS, HIGH_FAIL, threshold=0.61), FAILED, 0.6, "score 0.6"),
        (_spec("assert-set", HALF_PASS, ERRS, threshold=0.3), ERROR, None, "score 0.25"),
        (_spec("assert-set", HALF_PASS, ERRS, threshold=0.8), FAILED, 0.25, "score 0.25"),
    ],
)
def test_the_score_and_the_reason_follow_the_verdict(
    engine: Engine, spec: dict[str, Any], wanted: Verdict, score: float | None, reason: str
) -> None:
    result = engine.run([spec]).results[0]
    found = result.score if result.HasField("score") else None
    assert (result.verdict, found) == (wanted, score if score is None else pytest.approx(score)), (
        result.reason
    )
    assert reason in result.reason
    done = [child["config"]["do"] for child in spec["config"]["evaluators"]]
    if not spec["negate"]:
        first = {FAILED: "failed as told" if "fail" in done else "", ERROR: "broken as told"}.get(wanted, "")
        assert result.reason.partition("; first: ")[2] == first
    assert [check.met for check in result.checks] == [do == "pass" for do in done]
    assert dict(result.error.metadata) == ({"codes": "REMOTE_UNAVAILABLE"} if wanted is ERROR else {})


def test_what_all_children_spent_is_added_up(engine: Engine) -> None:
    def spend(input_tokens: int, output_tokens: int | None, cost_usd: float | None) -> dict[str, Any]:
        result = failed("spent")
        result.token_usage, result.cost_usd = TokenUsage(input_tokens, output_tokens), cost_usd
        name = f"spends-{input_tokens}"
        engine.registry.register(definition(name, lambda _ctx: result), Origin.BUILT_IN)
        return {"type": name}

    spending = [spend(10, 1, 0.25), {**spend(5, None, None), "shadow": True}, spend(200, 20, 4)]
    result = engine.run([_spec("any-of", *spending, _child("pass"))]).results[0]
    usage = result.token_usage
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (215, 21, 236)
    assert result.cost.amount == 4.25
    free = engine.run([_spec("any-of", _child("pass"))]).results[0]
    assert not free.HasField("token_usage")
    assert not free.HasField("cost")


@pytest.mark.parametrize("other", [_child("skip"), _child("fail", weight=0)], ids=["skipped", "weightless"])
def test_too_few_that_passed_score_less_than_one(engine: Engine, other: dict[str, Any]) -> None:
    summary = engine.run([_spec("at-least", _child("pass"), other, k=2)])
    assert (summary.verdict, summary.score) == (FAILED, 0.5)


def test_a_formula_of_missing_data_fails_whatever_its_shape(engine: Engine) -> None:
    for formula in ("1 - a", "4 * (a - 0.5) ^ 2", "0 * a + 1"):
        summary = engine.run([_spec("formula", _child("blind", name="a"), formula=formula)])
        assert (summary.verdict, summary.score) == (FAILED, 0.0)
        assert f"{formula}: no number for a; first: No data" in summary.reason


@pytest.mark.parametrize(("do", "wanted"), [("error", ERROR), ("blind", FAILED), ("fail", PASSED)])
def test_inside_a_formula_no_error_is_outvoted(engine: Engine, do: str, wanted: Verdict) -> None:
    half = _spec("at-least", _child("pass"), _child(do), k=1)
    formula = _spec("formula", {**half, "name": "half"}, formula="1 - half", threshold=0.5)
    assert engine.verdict([formula]) is wanted, "with two that pass it would be 0"


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("any-of", {}),
        ("all-of", {}),
        ("at-least", {"k": 1}),
        ("assert-set", {"threshold": 0.1}),
    ],
)
@pytest.mark.parametrize(
    ("required", "wanted"), [("fail", FAILED), ("error", ERROR), ("blind", FAILED), ("pass", PASSED)]
)
def test_a_required_child_decides_alone(
    engine: Engine, name: str, config: dict[str, Any], required: str, wanted: Verdict
) -> None:
    children = [_child("pass", name="a"), _child(required, name="b", required=True)]
    result = engine.run([_spec(name, *children, **config)]).results[0]
    assert result.verdict == wanted
    if wanted is FAILED:
        assert result.score == 0
    if required == "fail":
        assert '"b" is required' in result.reason


@pytest.mark.parametrize("required", ["fail", "error", "blind"])
def test_without_a_required_child_nothing_is_left_of_the_score(engine: Engine, required: str) -> None:
    children = [_child("pass"), _child("pass"), _child("fail"), _child(required, required=True)]
    result = engine.run([_spec("at-least", *children, threshold=0.9)]).results[0]
    assert (result.verdict, result.score) == (FAILED, 0.0)


@pytest.mark.parametrize("name", ["all-of", "any-of", "at-least", "assert-set"])
@pytest.mark.parametrize(("do", "wanted"), [("pass", PASSED), ("fail", FAILED), ("error", ERROR)])
@pytest.mark.parametrize("shadow", ["pass", "fail", "error", "pending", "blind"])
def test_a_shadow_child_is_shown_and_decides_nothing(
    engine: Engine, name: str, do: str, wanted: Verdict, shadow: str
) -> None:
    result = engine.run([_spec(name, _child(shadow, shadow=True), _child(do))], is_final=False).results[0]
    assert (result.verdict, result.pending) == (wanted, False)
    assert "(shadow)" in result.checks[0].evidence


@pytest.mark.parametrize(
    ("spec", "path", "message"),
    [
        (
            _spec("any-of", _child("pass", shadow=True)),
            "/config/evaluators",
            "all evaluators are shadow evaluators",
        ),
        (
            _spec("at-least", _child("pass"), _child("pass", shadow=True), k=2),
            "/config/k",
            "only 1 evaluators",
        ),
        (_spec("at-least", _child("pass"), _child("pass"), k=3), "/config/k", "got 3, but only 2"),
        (
            _spec("at-least", _child("pass"), _child("pass"), k=1, threshold=0.5),
            "/config/threshold",
            "got both k and threshold",
        ),
        (
            _spec("formula", _child("pass", name="a", shadow=True), formula="a"),
            "/config/evaluators/0/enforcement",
            "got a shadow evaluator",
        ),
        (
            _spec("any-of", _child("pass"), _child("pass", on_error="fail_open")),
            "/config/evaluators/1/error_policy",
            "set it on the combinator",
        ),
        (
            _spec("any-of", _child("pass", required=True), negate=True),
            "/config/evaluators/0/required",
            "inside a negated combinator",
        ),
        (
            _spec("formula", _child("pass", name="a", required=True), formula="1 - a"),
            "/config/evaluators/0/required",
            "or a formula",
        ),
        (_spec("all-of", _child("pass", weight=1e10)), "/config/evaluators/0", "from 1e-9 to 1e9"),
        (
            _spec("all-of", _child("pass"), {"type": "gauge", "config": {"do": "measure"}}),
            "/config/evaluators/1/type",
            "accepts only assertions",
        ),
        (_nested(5), f"/config/evaluators{4 * '/0/config/evaluators'}/0", "at most 4 levels deep"),
        (_spec("all-of", *(100 * [_child("pass")])), "/config/evaluators/99", "at most 100"),
    ],
)
def test_what_a_child_cannot_have_is_refused(
    engine: Engine, spec: dict[str, Any], path: str, message: str
) -> None:
    with pytest.raises(InvalidPlan) as refused:
        engine.run([spec])
    (violation,) = refused.value.violations
    assert violation.path == path
    assert message in violation.message


def test_combinators_at_the_limits_run(engine: Engine) -> None:
    assert engine.verdict([_nested(4)]) == PASSED
    assert engine.verdict([_spec("all-of", *(99 * [_child("pass")]))]) == PASSED
