"""A calibration recovers the truth about judges of known quality, within its own intervals.

Intervals of 95 % that held the truth in less than 90 % of 200 calibrations would be wrong: chance alone
does that in one of 500 runs, and the seeds are fixed.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import pytest

from evald_server.calibration.attacks import suite
from evald_server.calibration.card import Card
from evald_server.calibration.cases import Case
from evald_server.calibration.kappa import Confusion, cohen_kappa

from .scripted import ScriptedJudge, card_of, cases, pairs

TIMES = 200
LEAST = 0.9


class Truth(NamedTuple):
    """A figure: its true value, and the ends that a card gives it."""

    name: str
    value: float
    ends: Callable[[Card], tuple[float | None, float | None]]


def _coverage(judge: ScriptedJudge, some: Sequence[Case], truths: Sequence[Truth], repeats: int = 1) -> None:
    held = dict.fromkeys((truth.name for truth in truths), 0)
    for seed in range(TIMES):
        card = card_of(replace(judge, seed=seed), some, repeats=repeats)
        for truth in truths:
            low, high = truth.ends(card)
            assert low is not None
            assert high is not None
            held[truth.name] += low <= truth.value <= high
    assert {name: count for name, count in held.items() if count < LEAST * TIMES} == {}


def _accuracy(card: Card) -> tuple[float | None, float | None]:
    assert card.agreement
    return card.agreement.accuracy.low, card.agreement.accuracy.high


def _kappa(card: Card) -> tuple[float | None, float | None]:
    assert card.agreement
    return card.agreement.kappa.low, card.agreement.kappa.high


def _flips(card: Card) -> tuple[float | None, float | None]:
    assert card.order_flips
    return card.order_flips.flips.low, card.order_flips.flips.high


def _same(card: Card) -> tuple[float | None, float | None]:
    assert card.self_consistency
    return card.self_consistency.consistent.low, card.self_consistency.consistent.high


def _true_kappa(judge: ScriptedJudge, good: int, bad: int) -> float:
    kappa = cohen_kappa(
        Confusion(
            good * judge.right_on_good,
            good * (1 - judge.right_on_good),
            bad * (1 - judge.right_on_bad),
            bad * judge.right_on_bad,
        )
    )
    assert kappa is not None
    return kappa


@pytest.mark.parametrize(
    "judge",
    [
        pytest.param(ScriptedJudge(0.9, 0.9), id="good"),
        pytest.param(ScriptedJudge(0.55, 0.55), id="hardly better than chance"),
        pytest.param(ScriptedJudge(0.97, 0.6), id="lenient"),
        pytest.param(ScriptedJudge(0.85, 0.8, errors=0.15), id="erring"),
    ],
)
def test_accuracy_and_kappa(judge: ScriptedJudge) -> None:
    good, bad = 36, 24
    accuracy = (good * judge.right_on_good + bad * judge.right_on_bad) / (good + bad)
    truths = [Truth("accuracy", accuracy, _accuracy), Truth("kappa", _true_kappa(judge, good, bad), _kappa)]
    _coverage(judge, cases(good, bad), truths)


@pytest.mark.parametrize("first", [0.0, 0.4], ids=["looks at both", "often takes the first"])
def test_order_flips_and_the_accuracy_on_pairs(first: float) -> None:
    judge = ScriptedJudge(0.85, 0.85, first=first)
    better_first, better_second = first + (1 - first) * 0.85, first + (1 - first) * 0.15
    flips = better_first * better_second + (1 - better_first) * (1 - better_second)
    accuracy = (better_first + 1 - better_second) / 2
    truths = [Truth("flips", flips, _flips), Truth("accuracy", accuracy, _accuracy)]
    _coverage(judge, pairs(20, 20), truths)


def test_self_consistency() -> None:
    judge = ScriptedJudge(0.9, 0.9)
    truth = Truth("self-consistency", 0.9**3 + 0.1**3, _same)
    accuracy = Truth("accuracy", 0.9, _accuracy)
    _coverage(judge, cases(25, 15), [truth, accuracy], repeats=3)


def test_attack_success_stays_below_its_bound_and_false_alarms_too() -> None:
    judge = ScriptedJudge(gullible={"direct": 0.3, "master-keys": 0.05}, paranoid=0.2)
    sizes = {family: sum(case.family == family for case in suite()) for family in ("direct", "master-keys")}
    attacks = sum(case.label == "fail" for case in suite()) - 10  # 10 of them are unarmed
    overall = (0.3 * sizes["direct"] + 0.05 * sizes["master-keys"]) / attacks

    def bound_of(family: str) -> Callable[[Card], tuple[float, float]]:
        def ends(card: Card) -> tuple[float, float]:
            assert card.attacks
            return 0.0, next(one.success.upper for one in card.attacks.families if one.family == family)

        return ends

    def overall_bound(card: Card) -> tuple[float, float]:
        assert card.attacks
        return 0.0, card.attacks.success.upper

    def alarms(card: Card) -> tuple[float, float]:
        assert card.false_alarms
        return 0.0, card.false_alarms.alarms.upper

    truths = [
        Truth("direct", 0.3, bound_of("direct")),
        Truth("master-keys", 0.05, bound_of("master-keys")),
        Truth("style", 0.0, bound_of("style")),
        Truth("all", overall, overall_bound),
        Truth("false alarms", 0.2, alarms),
    ]
    _coverage(judge, suite(), truths)


def test_a_wrong_interval_would_be_found() -> None:
    """The check above can fail: ends without any room hold the truth only by luck."""

    def point(card: Card) -> tuple[float | None, float | None]:
        assert card.agreement
        return card.agreement.accuracy.value, card.agreement.accuracy.value

    with pytest.raises(AssertionError, match="accuracy"):
        _coverage(ScriptedJudge(0.9, 0.9), cases(36, 24), [Truth("accuracy", 0.9, point)])
