"""Rubric items, each met or not."""

from collections.abc import Mapping
from typing import Any

import pytest

from evald.result import Verdict

from .scripted import ScriptedModels, judge

PASSED, FAILED, ERROR = Verdict.PASSED, Verdict.FAILED, Verdict.ERROR


def items(*texts: str, **more: Any) -> dict[str, Any]:
    return {"items": [{"id": text, "text": f"says {text}", **more.get(text, {})} for text in texts]}


def answer(**met: bool) -> Mapping[str, Any]:
    checks = [{"id": name, "satisfied": one, "reasoning": f"saw {name}"} for name, one in met.items()]
    return {"checks": checks, "reasoning": "overall"}


@pytest.mark.parametrize(
    ("config", "met", "verdict", "score"),
    [
        (items("a", "b"), {"a": True, "b": True}, PASSED, 1),
        (items("a", "b"), {"b": True, "a": False}, FAILED, 0.5),
        (items("a", "b") | {"threshold": 0.5}, {"a": True, "b": False}, PASSED, 0.5),
        (items("a", "b", a={"weight": 3}) | {"threshold": 0.7}, {"a": True, "b": False}, PASSED, 0.75),
        (items("a", "b", b={"weight": 0}), {"a": True, "b": False}, PASSED, 1),
        (items("a", "b", b={"required": True}) | {"threshold": 0.1}, {"a": True, "b": False}, FAILED, 0),
        (items("a", "b", a={"required": True}) | {"threshold": 0.5}, {"a": True, "b": False}, PASSED, 0.5),
        (
            items("a", "b", "c", a={"weight": 0.7}, b={"weight": 0.1}, c={"weight": 0.2})
            | {"threshold": 0.8},
            {"a": True, "b": True, "c": False},
            PASSED,
            pytest.approx(0.8),
        ),
        (
            items("a", "b", a={"weight": 1000}, b={"weight": 1e-9}) | {"threshold": 1},
            {"a": True, "b": False},
            FAILED,
            pytest.approx(1),
        ),
    ],
)
def test_the_score_is_the_weight_of_what_is_met_and_a_required_miss_fails_both(
    config: dict[str, Any], met: dict[str, bool], verdict: Verdict, score: float
) -> None:
    result = judge(ScriptedModels(answer(**met)), config)
    assert (result.verdict, result.score) == (verdict, score)


def test_every_item_is_a_check_with_the_judges_evidence_in_the_order_of_the_config() -> None:
    result = judge(ScriptedModels(answer(b=False, a=True)), items("a", "b", b={"required": True}))
    assert [tuple(check) for check in result.checks] == [
        ("says a", True, "saw a"),
        ("says b", False, "saw b"),
    ]
    assert result.reason == "1 of 2 items met, score 0; required but not met: b. overall"
    assert result.metadata is not None
    assert result.metadata["items"] == {"a": True, "b": False}


@pytest.mark.parametrize(
    "reply",
    [
        answer(a=True),
        answer(a=True, b=True, c=True),
        {"checks": [*answer(a=True, b=True)["checks"], {"id": "a", "satisfied": False}]},
        {"checks": [{"id": "a", "satisfied": True}, {"id": "b", "satisfied": "yes"}]},
        {"checks": [{"id": "a", "satisfied": True}, {"id": "b"}]},
        {"checks": [{"id": "a", "satisfied": True}, {"satisfied": True}]},
        {"checks": {"a": True, "b": True}},
        {"checks": ["a", "b"]},
        {"checks": ["id: a, satisfied", "id: b, satisfied"]},
        {"a": True, "b": True},
    ],
)
def test_an_answer_without_exactly_one_verdict_for_each_item_is_none(reply: Mapping[str, Any]) -> None:
    result = judge(ScriptedModels(reply), items("a", "b"))
    assert result.error is not None
    assert (result.verdict, result.error.code) == (ERROR, "JUDGE_UNPARSEABLE")


def test_the_schema_names_the_items_and_leaves_room_for_all_of_them() -> None:
    models = ScriptedModels(answer(**{f"n{number}": True for number in range(50)}))
    judge(models, items(*(f"n{number}" for number in range(50))))
    (question,) = models.default.questions
    assert question.schema is not None
    check = question.schema["properties"]["checks"]["items"]["properties"]
    assert check["id"]["enum"] == [f"n{number}" for number in range(50)]
    assert question.max_tokens > 50 * 100
