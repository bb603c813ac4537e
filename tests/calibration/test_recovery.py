"""A calibration recovers the truth about judges of known quality, within its own intervals.

Intervals of 95 % that held the truth in less than 90 % of 200 calibrations would be wrong: chance alone
does that in one of 500 runs, and the seeds are fixed.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple
from unittest import mock

import pytest

from evald_server.calibration import figures
from evald_server.calibration.attack_suite import attack_suite
from evald_server.calibration.card import CalibrationCard
from evald_server.calibration.cases import QUOTED, UNARMED, Case
from evald_server.calibration.kappa import Confusion, cohen_kappa, kappa_interval

from .scripted import ScriptedJudge, card_of, cases, pairs

TIMES = 200
LEAST = 0.9


class Truth(NamedTuple):
    """A figure: its true value, and the ends that a card gives it."""

    name: str
    value: float
    ends: Callable[[CalibrationCard], tuple[float | None, float | None]]


def _coverage(judge: ScriptedJudge, some: Sequence[Case], truths: Sequence[Truth], repeats: int = 1) -> None:
    held = dict.fromkeys((truth.name for truth in truths), 0)
    # The interval of kappa takes most of a calibration's time: once per table, and only where it is looked at.
    intervals = cache(kappa_interval) if "kappa" in held else lambda _: None
    for seed in range(TIMES):
        with mock.patch.object(figures, "kappa_interval", intervals):
            card = card_of(replace(judge, seed=seed), some, repeats=repeats)
        for truth in truths:
            low, high = truth.ends(card)
            assert low is not None
            assert high is not None
            held[truth.name] += low <= truth.value <= high
    assert {name: count for name, count in held.items() if count < LEAST * TIMES} == {}


def _accuracy(card: CalibrationCard) -> tuple[float | None, float | None]:
    assert card.agreement
    return card.agreement.accuracy.low, card.agreement.accuracy.high


def _kappa(card: CalibrationCard) -> tuple[float | None, float | None]:
    assert card.agreement
    return card.agreement.kappa.low, card.agreement.kappa.high


def _flips(card: CalibrationCard) -> tuple[float | None, float | None]:
    assert card.order_flips
    return card.order_flips.flips.low, card.order_flips.flips.high


def _same(card: CalibrationCard) -> tuple[float | None, float | None]:
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
        pytest.param(ScriptedJudge(0.55, 0.55), id="hardly better than chance", marks=pytest.mark.thorough),
        pytest.param(ScriptedJudge(0.97, 0.6), id="lenient", marks=pytest.mark.thorough),
        pytest.param(ScriptedJudge(0.85, 0.8, errors=0.15), id="erring", marks=pytest.mark.thorough),
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
    # Without the long texts, whose digests take most of the time.
    suite = [case for case in attack_suite() if case.family != "availability"]
    sizes = Counter(case.family for case in suite)
    attacks = len(suite) - sizes[QUOTED] - sizes[UNARMED]
    overall = (0.3 * sizes["direct"] + 0.05 * sizes["master-keys"]) / attacks

    def bound_of(family: str) -> Callable[[CalibrationCard], tuple[float, float]]:
        def ends(card: CalibrationCard) -> tuple[float, float]:
            assert card.attacks
            return 0.0, next(one.success.upper for one in card.attacks.families if one.family == family)

        return ends

    def overall_bound(card: CalibrationCard) -> tuple[float, float]:
        assert card.attacks
        return 0.0, card.attacks.success.upper

    def alarms(card: CalibrationCard) -> tuple[float, float]:
        assert card.false_alarms
        return 0.0, card.false_alarms.alarms.upper

    truths = [
        Truth("direct", 0.3, bound_of("direct")),
        Truth("master-keys", 0.05, bound_of("master-keys")),
        Truth("style", 0.0, bound_of("style")),
        Truth("all", overall, overall_bound),
        Truth("false alarms", 0.2, alarms),
    ]
    _coverage(judge, suite, truths)


def test_a_wrong_interval_would_be_found() -> None:
    """The check above can fail: ends without any room hold the truth only by luck."""

    def point(card: CalibrationCard) -> tuple[float | None, float | None]:
        assert card.agreement
        return card.agreement.accuracy.value, card.agreement.accuracy.value

    with pytest.raises(AssertionError, match="accuracy"):
        _coverage(ScriptedJudge(0.9, 0.9), cases(36, 24), [Truth("accuracy", 0.9, point)])
