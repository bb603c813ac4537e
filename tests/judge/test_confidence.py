"""The score of a judge of criteria is its confidence: no threshold turns what it failed into a pass."""

from typing import Any

import grpc
import pytest

from evald.v1 import evaluation_service_pb2, evaluator_pb2, result_pb2

from ..rpc.live import CONTAINS, refusal, request, spec
from .scripted import ScriptedModels, criteria, score
from .test_scenarios import judged_by, of_scenario

CRITERIA = {"successCriteria": "The order is found."}
JUDGE = {"type": "llm-judge", "config": CRITERIA}
QUALITY = {"type": "llm-judge", "config": {"criteria": "The answer is polite."}}
BROAD = {"measure": "score", "threshold": 0.5}

# Not met, and the judge is not sure: a score of 0.9.
UNSURE = criteria(False, confidence=0.1)


def of(*children: dict[str, Any], **config: Any) -> dict[str, Any]:
    return {"evaluators": list(children)} | config


@pytest.mark.parametrize(
    ("judge", "field"),
    [
        (spec("llm-judge", CRITERIA, threshold=0.5), "threshold"),
        (spec("llm-rubric", {"failureCriteria": "It is rude."}, threshold=0.1), "threshold"),
        (spec("llm-judge", CRITERIA, threshold=0.5, negate=True), "threshold"),
        (spec("all-of", of(JUDGE), threshold=0.5), "threshold"),
        (spec("any-of", of(QUALITY, JUDGE), threshold=0.5), "threshold"),
        (spec("all-of", of({"type": "any-of", "config": of(JUDGE)}), threshold=0.5), "threshold"),
        (spec("at-least", of(JUDGE, k=1, measure="score"), threshold=0.5), "threshold"),
        (spec("at-least", of(JUDGE, **BROAD)), "config.threshold"),
        (spec("assert-set", of(JUDGE, threshold=0.5)), "config.threshold"),
        (
            spec("all-of", of({"type": "at-least", "config": of(JUDGE, **BROAD)})),
            "config.evaluators[0].config.threshold",
        ),
        (spec("all-of", of(JUDGE | {"threshold": 0.5})), "config.evaluators[0].threshold"),
    ],
)
async def test_a_threshold_that_compares_a_confidence_is_refused_by_name(
    judge: evaluator_pb2.EvaluatorSpec, field: str
) -> None:
    async with judged_by(ScriptedModels(UNSURE)) as live:
        refused = await refusal(live.unary(request(CONTAINS, judge)))
    assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.fields == [f"evaluators[1].{field}"]
    assert "remove the threshold" in refused.descriptions[0]


@pytest.mark.parametrize(
    "judge",
    [
        spec("llm-judge", QUALITY["config"], threshold=0.5),
        spec("at-least", of(JUDGE, k=1), threshold=0.5),
        spec("at-least", of(JUDGE, threshold=0.5)),
        spec("all-of", of({"type": "at-least", "config": of(JUDGE, k=1)}), threshold=0.5),
        spec("at-least", of(JUDGE, k=1, measure="score")),
        spec("all-of", of(JUDGE)),
        spec("any-of", of(JUDGE)),
    ],
)
async def test_what_compares_no_confidence_is_allowed_and_what_failed_stays_failed(
    judge: evaluator_pb2.EvaluatorSpec,
) -> None:
    wanted = request(judge)
    wanted.context.is_final = True
    models = ScriptedModels(score(0.4) if judge.type == "llm-judge" else UNSURE)
    async with judged_by(models) as live:
        summary = (await live.unary(wanted)).summary
    assert summary.verdict == result_pb2.VERDICT_FAILED


@pytest.mark.parametrize("confidence", [0.0, 0.1, 1.0])
async def test_a_scenarios_criteria_that_are_not_met_pass_under_no_policy(confidence: float) -> None:
    options = evaluation_service_pb2.EvaluateOptions(
        aggregation=evaluation_service_pb2.AGGREGATION_POLICY_WEIGHTED_MEAN, threshold=0.1
    )
    async with judged_by(ScriptedModels(criteria(False, confidence=confidence))) as live:
        wanted = of_scenario(success_criteria="greets")
        wanted.evaluators.append(CONTAINS)
        wanted.options.CopyFrom(options)
        summary = (await live.unary(wanted)).summary
    assert (summary.verdict, summary.score) == (result_pb2.VERDICT_FAILED, 0)
