"""What comes back is read so that nothing unknown ever looks like a pass."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evald import Evaluation, EvaluatorResult, Verdict
from evald.batch import BatchAnswer, BatchSummary, EvaluatorTotals
from evald.catalog import CatalogChange, EvaluatorType
from evald.errors import EvaluatorError
from evald.result import Kind, Provenance
from evald.session import SessionSummary
from evald.stream import EvaluationStream
from evald.v1 import catalog_service_pb2, evaluation_service_pb2
from evald.v1 import evaluator_pb2 as typed_evaluator_pb2
from evald.v1 import result_pb2 as typed_result_pb2

# Untyped, because enum fields take numbers that their types do not know.
result_pb2: Any = typed_result_pb2
evaluator_pb2: Any = typed_evaluator_pb2


def result(**fields: Any) -> EvaluatorResult:
    return EvaluatorResult.from_pb(result_pb2.EvaluationResult(**fields))


@given(st.integers(-(2**31), 2**31 - 1))
def test_one_number_alone_is_passed(verdict: int) -> None:
    passed = verdict == 1
    assert result(verdict=verdict, kind=1).passed == passed
    summary = result_pb2.AggregatedEvaluation(verdict=verdict, success=True)
    assert Evaluation.from_pb(summary).passed == passed
    session = evaluation_service_pb2.SessionSummary(verdict=verdict, success=True)  # type: ignore[arg-type]
    assert SessionSummary.from_pb(session).passed == passed


def of_verdict(verdict: Verdict) -> dict[str, Any]:
    """One of everything that has a verdict."""
    evaluation = Evaluation(verdict)
    return {
        "evaluation": evaluation,
        "result of an assertion": result(verdict=int(verdict), kind=1),
        "result of a metric": result(verdict=int(verdict), kind=2),
        "answer of a batch": BatchAnswer("a", evaluation),
        "session": SessionSummary(verdict, 1),
    }


@pytest.mark.parametrize("verdict", Verdict)
@pytest.mark.parametrize("what", of_verdict(Verdict.PASSED))
def test_what_did_not_pass_is_false_so_that_assert_fails(what: str, verdict: Verdict) -> None:
    found = of_verdict(verdict)[what]
    assert bool(found) is found.passed is (verdict is Verdict.PASSED)


def test_an_answer_without_an_evaluation_is_false() -> None:
    assert not BatchAnswer("a")


def test_an_answer_keeps_the_verdict_of_an_evaluation_that_did_not_pass() -> None:
    answer = BatchAnswer("a", Evaluation(Verdict.FAILED, "no"))
    assert answer.verdict is Verdict.FAILED
    assert answer.to_dict()["evaluation"]["reason"] == "no"


def test_an_answer_always_says_why() -> None:
    assert BatchAnswer("a", Evaluation(Verdict.FAILED, "no")).reason == "no"
    assert BatchAnswer("a", error=EvaluatorError("INVALID_ITEM", "no turn")).reason == "no turn"


def test_an_unavailable_metric_has_no_measurement_and_the_value_0() -> None:
    unavailable = result_pb2.EvaluationResult(verdict=1, kind=2, value=0)
    unavailable.metadata.update({"available": False})
    found = EvaluatorResult.from_pb(unavailable)
    assert (found.value, found.measurement) == (0, None)
    assert result(verdict=1, kind=2, value=0).measurement == 0
    assert result(verdict=3, kind=2, value=5).measurement is None
    assert result(verdict=1, kind=1, value=5).measurement is None


@pytest.mark.parametrize(
    ("kind", "verdict", "success"),
    [
        pytest.param(kind, verdict, success, id=f"{kind.name} {verdict.name}")
        for kind, verdicts in {
            Kind.ASSERTION: {Verdict.PASSED, Verdict.SKIPPED},
            Kind.METRIC: set(Verdict),
        }.items()
        for verdict in Verdict
        for success in [verdict in verdicts]
    ],
)
def test_success_in_json_is_for_passed_and_skipped_and_always_for_metrics(
    kind: Kind, verdict: Verdict, success: bool
) -> None:
    data = result(kind=int(kind), verdict=int(verdict)).to_dict()
    assert (data["success"], data["verdict"], data["kind"]) == (success, verdict.name, kind.name.lower())


def test_an_absent_number_is_none_and_a_zero_is_zero() -> None:
    assert (result().score, result().value, result().cost_usd, result().token_usage.total) == (None,) * 4
    zero = result(score=0, value=0)
    assert (zero.score, zero.value) == (0, 0)
    assert zero.to_dict()["score"] == 0
    assert "score" not in result().to_dict()


def test_a_whole_result_is_read() -> None:
    pb = result_pb2.EvaluationResult(
        index=3,
        name="n",
        type="t",
        version="1",
        kind=1,
        enforcement=2,
        verdict=3,
        value=2.5,
        reason="r",
        label="L",
        error=result_pb2.EvaluationError(
            code="TIMEOUT", category=1, message="m", retryable=True, metadata={"k": "v"}
        ),
        checks=[result_pb2.Check(text="a", met=True, evidence="b")],
        cached=True,
        pending=True,
        instance_id="i",
        provenance=result_pb2.Provenance(
            config_sha256="c0", judge_models=["m1", "m2"], prompt_sha256="d0", calibration_card="cal-1"
        ),
    )
    pb.metadata.update({"a": {"b": [1, 2.5]}})
    pb.duration.FromMilliseconds(5)
    pb.start_time.FromJsonString("2026-01-02T03:04:05Z")
    pb.token_usage.input_tokens = 3
    pb.cost.amount = 0.5
    assert EvaluatorResult.from_pb(pb).to_dict() == {
        "index": 3,
        "name": "n",
        "type": "t",
        "label": "L",
        "version": "1",
        "kind": "assertion",
        "verdict": "ERROR",
        "success": False,
        "reason": "r",
        "value": 2.5,
        "shadow": True,
        "pending": True,
        "metadata": {"a": {"b": [1, 2.5]}},
        "checks": [{"text": "a", "met": True, "evidence": "b"}],
        "error": {
            "code": "TIMEOUT",
            "category": "INFRASTRUCTURE",
            "message": "m",
            "retryable": True,
            "metadata": {"k": "v"},
        },
        "startTime": "2026-01-02T03:04:05+00:00",
        "durationMs": 5,
        "tokenUsage": {"inputTokens": 3},
        "costUsd": 0.5,
        "instanceId": "i",
        "cached": True,
        "provenance": {
            "configSha256": "c0",
            "judgeModels": ["m1", "m2"],
            "promptSha256": "d0",
            "calibrationCard": "cal-1",
        },
    }


def test_provenances_can_be_compared() -> None:
    made = result(provenance=result_pb2.Provenance(config_sha256="c0", judge_models=["m"]))
    assert made.provenance == Provenance("c0", ("m",))
    assert made.provenance != result(provenance=result_pb2.Provenance(config_sha256="c0")).provenance
    assert result().provenance == Provenance()
    assert "provenance" not in result().to_dict()


def test_an_error_of_an_unknown_category_is_still_an_error() -> None:
    pb = result_pb2.EvaluationResult(verdict=3, error=result_pb2.EvaluationError(code="NEW"))
    pb.error.category = 77
    error = EvaluatorResult.from_pb(pb).error
    assert error is not None
    assert (error.code, error.category) == ("NEW", None)


def test_results_are_found_by_name_failures_and_errors() -> None:
    pb = result_pb2.AggregatedEvaluation(
        verdict=2,
        results=[
            result_pb2.EvaluationResult(index=0, name="a", verdict=1, kind=1),
            result_pb2.EvaluationResult(index=1, name="b", verdict=2, kind=1),
            result_pb2.EvaluationResult(index=2, name="c", verdict=2, kind=1, enforcement=2),
            result_pb2.EvaluationResult(index=3, name="d", verdict=3, kind=1),
        ],
    )
    evaluation = Evaluation.from_pb(pb)
    assert evaluation["b"].index == 1
    assert [found.name for found in evaluation.failures] == ["b"]
    assert [found.name for found in evaluation.errors] == ["d"]
    assert evaluation.failed
    with pytest.raises(KeyError, match="no result is named 'e'; the names are a, b, c, d"):
        evaluation["e"]


def test_to_dict_is_json() -> None:
    pb = result_pb2.AggregatedEvaluation(
        verdict=1, results=[result_pb2.EvaluationResult(name="a")], metrics={"m": 1}
    )
    data = Evaluation.from_pb(pb, "id").to_dict()
    assert json.loads(json.dumps(data)) == data
    assert data["metrics"] == {"m": 1}
    assert [found["name"] for found in data["results"]] == ["a"]


def test_a_stream_gives_every_result_once_and_the_summary_in_declared_order() -> None:
    stream = EvaluationStream()
    response = evaluation_service_pb2.EvaluateResponse
    started = evaluation_service_pb2.EvaluationStarted(
        evaluation_id="e", plan=[evaluator_pb2.EvaluatorSpec(type="t", name="n")]
    )
    events = stream.read(response(started=started, results=[result_pb2.EvaluationResult(index=1, name="b")]))
    assert [type(event).__name__ for event in events] == ["Started", "EvaluatorResult"]
    progress = evaluation_service_pb2.EvaluationProgress(index=0, message="half", fraction=0.5)
    assert [type(event).__name__ for event in stream.read(response(progress=[progress]))] == ["Progress"]
    assert stream.evaluation is None
    events = stream.read(
        response(
            results=[result_pb2.EvaluationResult(index=0, name="a")],
            summary=result_pb2.AggregatedEvaluation(verdict=1),
        )
    )
    assert [type(event).__name__ for event in events] == ["EvaluatorResult", "Evaluation"]
    assert stream.evaluation is not None
    assert [found.name for found in stream.evaluation.results] == ["a", "b"]
    assert stream.evaluation.evaluation_id == "e"


BATCH_ANSWERS = {
    "passed": ({"summary": {"verdict": 1}}, Verdict.PASSED),
    "failed": ({"summary": {"verdict": 2}}, Verdict.FAILED),
    "error": ({"error": {"code": "INVALID_ITEM"}}, Verdict.ERROR),
    "an outcome that this client does not know": ({}, Verdict.ERROR),
}


@pytest.mark.parametrize(("outcome", "verdict"), BATCH_ANSWERS.values(), ids=BATCH_ANSWERS.keys())
def test_an_answer_without_an_evaluation_is_an_error(outcome: dict[str, Any], verdict: Verdict) -> None:
    answer = BatchAnswer.from_pb(evaluation_service_pb2.BatchAnswer(item_id="x", **outcome))
    assert answer.verdict is verdict
    assert answer.passed == (verdict is Verdict.PASSED)
    assert (answer.evaluation is None) == (answer.error is not None)
    assert answer.to_dict()["verdict"] == verdict.name


@pytest.mark.parametrize(
    ("passed", "failed", "rate"), [(3, 1, 0.75), (0, 2, 0.0), (0, 0, None)], ids=["some", "none", "undecided"]
)
def test_errors_and_skips_stay_out_of_pass_rates(passed: int, failed: int, rate: float | None) -> None:
    assert BatchSummary(99, passed, failed, error_count=5, skipped_count=7).pass_rate == rate
    assert EvaluatorTotals(passed, failed, error_count=5).pass_rate == rate


def test_an_event_of_the_catalogue_that_this_client_does_not_know_is_skipped() -> None:
    assert CatalogChange.from_pb(catalog_service_pb2.WatchEvaluatorTypesResponse(revision=3)) is None


def test_an_evaluator_type_is_read() -> None:
    pb = evaluator_pb2.EvaluatorType(
        type="t",
        version="1",
        label="T",
        kind=2,
        origin=1,
        state=1,
        config_schema_json='{"type": "object"}',
        aliases=["u"],
        metric=evaluator_pb2.MetricDescriptor(unit="seconds", minimum=0),
    )
    entry = EvaluatorType.from_pb(pb)
    assert entry.config_schema == {"type": "object"}
    assert (entry.kind, entry.origin, entry.state) == (Kind.METRIC, "built_in", "active")
    assert entry.metric is not None
    assert (entry.metric.unit, entry.metric.minimum, entry.metric.maximum) == ("seconds", 0, None)
    data = entry.to_dict()
    assert json.loads(json.dumps(data)) == data
    assert data["metric"] == {"unit": "seconds", "minimum": 0}
    assert EvaluatorType.from_pb(evaluator_pb2.EvaluatorType(type="t")).origin == "unknown"
