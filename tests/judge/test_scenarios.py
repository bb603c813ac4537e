"""A scenario's criteria are judged, over a real channel."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from evald.v1 import context_pb2, evaluation_service_pb2, result_pb2
from evald_server.engine.registry import Origin
from evald_server.judge.llm_judge import judge_definition

from ..rpc.live import CONTAINS, Live, request, serving
from .scripted import ScriptedModels, criteria, fault, inside

FAILURE_MODE = context_pb2.FailureCriteriaMode.Value


@asynccontextmanager
async def judged_by(models: ScriptedModels) -> AsyncIterator[Live]:
    async with serving() as live:
        registry = live.app.registry
        if registry.get("llm-judge") is not None:
            registry.remove("llm-judge")
        registry.register(judge_definition(models), Origin.BUILT_IN)
        yield live


def of_scenario(**scenario: object) -> evaluation_service_pb2.EvaluateRequest:
    made = request()
    made.context.is_final = True
    made.context.scenario.CopyFrom(context_pb2.Scenario(**scenario))
    return made


@pytest.mark.parametrize(
    ("scenario", "success", "failure", "final", "verdict", "pending"),
    [
        ({"success_criteria": "greets"}, True, False, True, "PASSED", False),
        ({"success_criteria": "greets"}, False, False, True, "FAILED", False),
        ({"success_criteria": "greets"}, False, False, False, "FAILED", True),
        ({"failure_criteria": "is rude"}, False, True, True, "FAILED", False),
        ({"failure_criteria": "is rude"}, False, False, True, "PASSED", False),
        ({"failure_criteria": "is rude"}, False, True, False, "SKIPPED", False),
        (
            {
                "failure_criteria": "is rude",
                "failure_criteria_mode": FAILURE_MODE("FAILURE_CRITERIA_MODE_EVERY_TURN"),
            },
            False,
            True,
            False,
            "FAILED",
            False,
        ),
        (
            {
                "success_criteria": "a",
                "failure_criteria_mode": FAILURE_MODE("FAILURE_CRITERIA_MODE_ON_MAX_MESSAGES"),
            },
            True,
            False,
            True,
            "PASSED",
            False,
        ),
    ],
)
async def test_criteria_alone_are_a_call_and_decide_it(
    scenario: dict[str, object], success: bool, failure: bool, final: bool, verdict: str, pending: bool
) -> None:
    models = ScriptedModels(criteria(success, failure))
    async with judged_by(models) as live:
        wanted = of_scenario(**scenario)
        wanted.context.is_final = final
        summary = (await live.unary(wanted)).summary
        (result,) = summary.results
        assert (result.type, result.name, result.pending) == ("llm-judge", "criteria", pending)
        assert result.verdict == result_pb2.Verdict.Value(f"VERDICT_{verdict}")
        assert summary.verdict == result.verdict


async def test_criteria_and_evaluators_must_both_pass() -> None:
    for success in (True, False):
        models = ScriptedModels(criteria(success, why="so it is"))
        async with judged_by(models) as live:
            wanted = of_scenario(success_criteria="greets")
            wanted.evaluators.append(CONTAINS)
            summary = (await live.unary(wanted)).summary
            assert [result.type for result in summary.results] == ["contains", "llm-judge"]
            assert summary.success is success
            assert [record["content"] for record in inside(models.default.questions[0].user_message)] == [
                "hi",
                "hello",
            ]


async def test_a_judge_that_is_down_makes_the_call_inconclusive() -> None:
    async with judged_by(ScriptedModels(fault("JUDGE_UNAVAILABLE"))) as live:
        wanted = of_scenario(success_criteria="greets")
        wanted.evaluators.append(CONTAINS)
        summary = (await live.unary(wanted)).summary
        assert summary.verdict == result_pb2.VERDICT_ERROR
        assert not summary.success
        assert summary.results[1].error.code == "JUDGE_UNAVAILABLE"
        assert summary.cost.amount == pytest.approx(0.001)


async def test_the_results_over_the_wire_have_evidence_and_provenance() -> None:
    async with judged_by(ScriptedModels(criteria(True, confidence=0.7))) as live:
        (result,) = (await live.unary(of_scenario(success_criteria="greets"))).summary.results
        assert (result.score, result.reason) == (0.7, "because")
        assert result.metadata["successMet"] is True
        assert result.metadata["judge"]["endpoint"] == "default"
        assert result.raw_request["model"] == "scripted"
        assert [(check.text, check.met) for check in result.checks] == [("greets", True)]
