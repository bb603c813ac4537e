"""Gates decide; what could not be measured decides nothing."""

from typing import Any

import pytest

from evald_server.calibration.attack_suite import attack_suite
from evald_server.calibration.cases import QUOTED, UNARMED
from evald_server.calibration.gates import GateLimits
from evald_server.calibration.queries import Query, QueryAnswer

from .scripted import ScriptedJudge, card_of, cases, pairs

ALL = [*cases(30, 30), *pairs(15, 15), *attack_suite()]
PERFECT = ScriptedJudge()


@pytest.mark.parametrize(
    ("judge", "limits", "verdict"),
    [
        pytest.param(PERFECT, {}, "PASSED", id="no gates"),
        pytest.param(PERFECT, {"min_accuracy": 1.0, "min_kappa": 1.0}, "PASSED", id="exactly reached"),
        pytest.param(ScriptedJudge(0.7, 0.7), {"min_accuracy": 0.9}, "FAILED", id="accuracy"),
        pytest.param(ScriptedJudge(0.7, 0.7), {"min_kappa": 0.9}, "FAILED", id="kappa"),
        pytest.param(ScriptedJudge(first=0.8), {"max_order_flips": 0.2}, "FAILED", id="order flips"),
        pytest.param(
            ScriptedJudge(gullible={"style": 1.0}), {"max_attack_success": 0.0}, "FAILED", id="attacks"
        ),
        pytest.param(PERFECT, {"max_attack_success": 0.0, "max_false_alarms": 0.0}, "PASSED", id="none"),
        pytest.param(ScriptedJudge(paranoid=1.0), {"max_false_alarms": 0.5}, "FAILED", id="false alarms"),
        pytest.param(ScriptedJudge(cost_usd=0.01), {"max_cost": 1e3}, "PASSED", id="cost"),
        pytest.param(ScriptedJudge(cost_usd=0.01), {"max_cost": 0.5}, "FAILED", id="cut off by cost"),
        pytest.param(ScriptedJudge(errors=1.0), {}, "ERROR", id="only errors"),
        pytest.param(ScriptedJudge(errors=0.3), {"min_accuracy": 0.5}, "ERROR", id="many errors"),
        pytest.param(ScriptedJudge(0.1, 0.1, errors=0.3), {"min_accuracy": 0.5}, "ERROR", id="both"),
        pytest.param(ScriptedJudge(errors=0.3), {"max_errors": 0.5}, "PASSED", id="errors allowed"),
    ],
)
def test_the_verdict(judge: ScriptedJudge, limits: dict[str, Any], verdict: str) -> None:
    card = card_of(judge, ALL, limits=GateLimits(**limits))
    assert card.verdict == verdict, card.reason
    asked_for = {name.replace("_", "-") for name in limits if name != "max_errors"}
    assert {gate.name for gate in card.gates} == asked_for
    if verdict == "PASSED":
        assert all(gate.met for gate in card.gates)


@pytest.mark.parametrize(
    ("group", "limits"),
    [
        ("attack", {"max_attack_success": 0.0}),
        ("quoted", {"max_false_alarms": 0.0}),
        ("labelled", {"min_accuracy": 0.5}),
        ("labelled", {"min_kappa": 0.5}),
        ("pair", {"max_order_flips": 0.5}),
    ],
)
def test_a_gate_of_which_most_cases_have_no_verdict_is_inconclusive(
    group: str, limits: dict[str, float]
) -> None:
    """Although all the queries together have few errors."""

    def group_of(query: Query) -> str:
        if query.case.pair is not None:
            return "pair"
        return {"": "labelled", QUOTED: "quoted", UNARMED: ""}.get(query.case.family, "attack")

    many = 20 if group == "labelled" else 2000
    asked = [
        *cases(many, many),
        *(pairs(10, 10) if group == "pair" else []),
        *attack_suite() * (1 if group != "labelled" else 20),
    ]
    heard: list[Query] = []

    async def judge(query: Query) -> QueryAnswer:
        if group_of(query) == group:
            heard.append(query)
            if len(heard) > 4 and not query.case.id.endswith("-0"):  # bad-0 is not among the first
                return QueryAnswer(None, "JUDGE_TIMEOUT")
        return await PERFECT(query)

    card = card_of(judge, asked, limits=GateLimits(**limits))
    assert card.errors.share is not None
    assert card.errors.share <= 0.05
    [gate] = card.gates
    assert gate.met is None
    assert gate.value is not None
    assert (card.verdict, gate.name in card.reason) == ("ERROR", True), card.reason


def test_a_gate_on_nothing_is_inconclusive() -> None:
    card = card_of(PERFECT, cases(3, 3), limits=GateLimits(max_order_flips=0.5))
    assert card.verdict == "ERROR"
    assert card.gates[0].met is None
    assert "max-order-flips" in card.reason


def test_a_calibration_without_queries_is_inconclusive() -> None:
    assert card_of(PERFECT, []).verdict == "ERROR"


def test_kappa_is_inconclusive_where_it_is_not_defined() -> None:
    card = card_of(PERFECT, cases(5, 0), limits=GateLimits(min_kappa=0.1))
    assert card.verdict == "ERROR"


def test_the_reason_names_every_missed_gate_with_its_number() -> None:
    judge = ScriptedJudge(0.5, 0.5, first=0.9)
    card = card_of(judge, ALL, limits=GateLimits(min_accuracy=0.95, max_order_flips=0.01))
    assert "min-accuracy 0.95 is not met: got 0." in card.reason
    assert "max-order-flips 0.01 is not met: got 0." in card.reason


def test_a_calibration_that_was_cut_short_says_how_much_is_missing() -> None:
    card = card_of(ScriptedJudge(cost_usd=0.1), cases(10, 10), limits=GateLimits(max_cost=0.5))
    assert card.errors.left_out == 15
    assert card.spending.usd == pytest.approx(0.5)
    assert "left out 15 of 20 queries" in card.reason
