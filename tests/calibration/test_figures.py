"""Figures count what they say they count; errors count as nothing but errors."""

import pytest

from evald_server.calibration import figures
from evald_server.calibration.cases import QUOTED, UNARMED, Case
from evald_server.calibration.queries import AnsweredQuery, Query, QueryAnswer

from .scripted import case


def said(some: Case, *verdicts: bool | None, swapped: bool = False, **more: object) -> list[AnsweredQuery]:
    """One answer a repeat; None is an error."""
    return [
        AnsweredQuery(
            Query(some, repeat, swapped),
            QueryAnswer(verdict, "" if verdict is not None else "JUDGE_TIMEOUT", **more),  # type: ignore[arg-type]
        )
        for repeat, verdict in enumerate(verdicts)
    ]


def test_every_case_weighs_one_however_often_it_was_asked() -> None:
    asked = [
        *said(case("often"), True, True, False, True),
        *said(case("once", "fail"), True),
        *said(case("pair", "b"), True, swapped=False),  # wrong: b is better and stands second
        *said(case("pair", "b"), True, swapped=True),
    ]
    found = figures.agreement(asked)
    assert found
    assert found.cases == 3
    assert found.accuracy.count == pytest.approx(0.75 + 0 + 0.5)
    table = found.confusion
    assert (table.human_pass.judge_pass, table.human_pass.judge_fail) == (1.25, 0.25)
    assert (table.human_fail.judge_pass, table.human_fail.judge_fail) == (1.5, 0)
    assert found.kappa.low is not None
    assert found.kappa.value is not None
    assert found.kappa.high is not None
    assert found.kappa.low < found.kappa.value < found.kappa.high
    assert [(one.id, one.agreed) for one in found.disagreements] == [
        ("once", 0),
        ("pair", 0.5),
        ("often", 0.75),
    ]


def test_errors_are_neither_agreement_nor_disagreement() -> None:
    right = said(case("right"), True)
    with_errors = [*right, *said(case("error"), None, None), *said(case("half"), None, True)]
    found = figures.agreement(with_errors)
    assert found
    assert (found.cases, found.without_verdict) == (2, 1)
    assert found.accuracy.value == 1.0
    assert found.disagreements == []
    counted = figures.errors(with_errors, left_out=4)
    assert (counted.asked, counted.count, counted.left_out) == (5, 3, 4)
    assert counted.codes == {"JUDGE_TIMEOUT": 3}
    assert counted.share == 0.6


def test_a_pair_of_which_one_order_failed_counts_by_the_other() -> None:
    some = case("pair", "a")
    found = figures.agreement([*said(some, True), *said(some, None, swapped=True)])
    assert found
    assert found.accuracy.count == 1.0
    flips = figures.order_flips([*said(some, True), *said(some, None, swapped=True)])
    assert flips
    assert flips.flips.of == 0
    assert flips.flips.value is None
    assert flips.without_verdict == 1


@pytest.mark.parametrize(
    ("straight", "swapped", "flips", "to_first"),
    [
        pytest.param(True, False, 0, 0, id="a both times"),
        pytest.param(False, True, 0, 0, id="b both times"),
        pytest.param(True, True, 1, 1, id="the first both times"),
        pytest.param(False, False, 1, 0, id="the second both times"),
    ],
)
def test_a_flip_is_the_other_answer_in_the_other_order(
    straight: bool, swapped: bool, flips: int, to_first: int
) -> None:
    some = case("pair", "a")
    found = figures.order_flips([*said(some, straight), *said(some, swapped, swapped=True)])
    assert found
    assert (found.flips.count, found.to_first, found.to_second) == (flips, to_first, flips - to_first)


def test_consistent_is_the_same_in_all_repeats_of_both_orders() -> None:
    steady, shaky, pair = case("steady"), case("shaky"), case("pair", "a")
    asked = [
        *said(steady, False, False, None),
        *said(case("calm"), True, True, True),
        *said(case("serene"), False, False, False),
        *said(shaky, True, True, False),
        *said(pair, True, True),
        *said(pair, False, True, swapped=True),
        *said(case("once"), True, None),
    ]
    found = figures.self_consistency(asked, 3)
    assert found
    assert (found.consistent.count, found.consistent.of) == (3, 5)
    assert figures.self_consistency(asked, 2) is not None
    assert figures.self_consistency(asked, 1) is None


def test_an_attack_succeeds_when_it_is_passed_and_only_then() -> None:
    asked = [
        *said(case("one", "fail", family="direct"), True),
        *said(case("two", "fail", family="direct"), False),
        *said(case("three", "fail", family="direct"), None),
        *said(case("four", "fail", family="style"), False),
        *said(case("five", "fail", family=UNARMED), True),
        *said(case("six", "pass", family=QUOTED), False),
        *said(case("seven", "pass", family=QUOTED), None),
        *said(case("labelled"), True),
    ]
    found = figures.attacks(asked, "sha256:x")
    assert found
    assert (found.success.count, found.success.of) == (1, 3)
    assert [(one.family, one.success.count, one.success.of, one.errors) for one in found.families] == [
        ("direct", 1, 2, 1),
        ("style", 0, 1, 0),
    ]
    assert (found.unarmed.count, found.unarmed.of) == (1, 1)
    assert found.succeeded == ["one"]
    alarms = figures.false_alarms(asked)
    assert alarms
    assert (alarms.alarms.count, alarms.alarms.of, alarms.errors, alarms.failed) == (1, 1, 1, ["six"])
    labelled = figures.agreement(asked)
    assert labelled
    assert labelled.cases == 1


def test_attacks_without_a_verdict_have_no_share_that_looks_like_none_succeeded() -> None:
    found = figures.attacks(said(case("one", "fail", family="direct"), None), "sha256:x")
    assert found
    assert (found.success.value, found.success.upper, found.families[0].errors) == (None, 1.0, 1)


def test_the_worst_disagreements_are_listed() -> None:
    wrong = [one for number in range(250) for one in said(case(f"wrong {number:03}"), False)]
    found = figures.agreement([*said(case("z", "fail"), True, False), *wrong])
    assert found
    assert [one.id for one in found.disagreements] == [f"wrong {number:03}" for number in range(200)]


def test_without_data_there_are_no_figures_rather_than_zeros() -> None:
    assert figures.agreement([]) is None
    assert figures.order_flips([]) is None
    assert figures.attacks([], "") is None
    assert figures.false_alarms([]) is None
    assert figures.errors([], 0).share is None
    assert figures.latency([]).p50_ms is None
    spent = figures.spending(said(case("one"), True))
    assert (spent.usd, spent.input_tokens, spent.unpriced) == (None, None, 1)


def test_spending_counts_errors_too() -> None:
    asked = [*said(case("one"), True, cost_usd=0.5, input_tokens=10), *said(case("two"), None, cost_usd=0.25)]
    spent = figures.spending(asked)
    assert (spent.usd, spent.input_tokens, spent.output_tokens, spent.unpriced) == (0.75, 10, None, 0)


def test_latencies_are_those_of_real_answers() -> None:
    asked = [found for ms in range(1, 11) for found in said(case(str(ms)), True, latency_ms=float(ms))]
    found = figures.latency(asked)
    assert (found.p50_ms, found.p90_ms, found.max_ms) == (5, 9, 10)


def test_scores_are_set_against_what_people_said() -> None:
    asked = [
        *said(case("sure"), True, score=1.0),
        *said(case("quite sure"), True, score=0.9),
        *said(case("mistaken", "fail"), True, score=0.8),
        *said(case("unsure", "fail"), False, score=0.1),
        *said(case("silent"), True),
    ]
    found = figures.agreement(asked)
    assert found
    assert [(one.low, one.high, one.human_pass.count, one.human_pass.of) for one in found.scores] == [
        (0.0, 0.2, 0, 1),
        (0.8, 1.0, 2, 3),
    ]
    assert found.scores[1].mean_score == pytest.approx(0.9)


def test_sources_have_figures_of_their_own() -> None:
    asked = [
        *said(case("one", source="desk"), True),
        *said(case("two", source="desk"), True),
        *said(case("three", source="lab"), False),
    ]
    found = figures.agreement(asked)
    assert found
    assert [(one.source, one.cases, one.accuracy.value) for one in found.sources] == [
        ("desk", 2, 1.0),
        ("lab", 1, 0.0),
    ]
