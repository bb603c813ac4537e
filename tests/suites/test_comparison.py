"""Comparisons: when there is a verdict, which one, and that faults never help."""

from collections.abc import Iterable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from evald.v1 import result_pb2, suite_service_pb2
from evald_server.suites.comparison import BLOCK, INCONCLUSIVE, PASS, WARN, compare, merge_by_id

from .results import VERDICTS, case, suite

NAMES = {PASS: "PASS", WARN: "WARN", BLOCK: "BLOCK", INCONCLUSIVE: "INCONCLUSIVE"}


def _cases(letters: str, scores: Iterable[float | None] | None = None) -> list[suite_service_pb2.CaseResult]:
    """Return a case per letter: P, F, E, S; "." is a case that is not there."""
    given = list(scores) if scores is not None else [None] * len(letters)
    return [
        case(f"{number:04}", letter, scores=[score if letter in "PF" else None])
        for number, (letter, score) in enumerate(zip(letters, given, strict=True))
        if letter != "."
    ]


def _compare(
    base: list[suite_service_pb2.CaseResult], new: list[suite_service_pb2.CaseResult], max_drop: float = 0.05
) -> suite_service_pb2.SuiteComparison:
    return compare(suite(base), suite(new), merge_by_id(base, new), max_drop)


def _verdict(base: str, new: str, max_drop: float = 0.05) -> str:
    return NAMES[_compare(_cases(base), _cases(new), max_drop).verdict]


@pytest.mark.parametrize(
    ("base", "new", "max_drop", "wanted"),
    [
        pytest.param("P" * 20, "P" * 20, 0.05, "PASS", id="equal"),
        pytest.param("F" * 20, "P" * 20, 0.0, "PASS", id="better"),
        pytest.param("P" * 100, "P" * 96 + "F" * 4, 0.05, "PASS", id="a drop within what is allowed"),
        pytest.param("P" * 100, "P" * 95 + "F" * 5, 0.05, "WARN", id="within, but not by chance"),
        pytest.param("P" * 40, "P" * 36 + "F" * 4, 0.05, "WARN", id="more, but possibly by chance"),
        pytest.param("P" * 40, "P" * 35 + "F" * 5, 0.05, "BLOCK", id="more, and not by chance"),
        pytest.param("P" * 40, "P" * 36 + "F" * 4, 0.0, "WARN", id="nothing is allowed, possibly by chance"),
        pytest.param("P" * 5, "F" * 5, 0.05, "BLOCK", id="five pairs can show it"),
        pytest.param("P" * 4, "F" * 4, 0.05, "INCONCLUSIVE", id="four pairs cannot"),
        pytest.param("P" * 4, "P" * 4, 0.05, "PASS", id="four pairs that hold"),
        pytest.param("", "", 0.05, "INCONCLUSIVE", id="no pair"),
        pytest.param("E" * 9, "P" * 9, 0.05, "INCONCLUSIVE", id="the base is in error"),
        pytest.param("S" * 9, "S" * 9, 0.05, "INCONCLUSIVE", id="all skipped"),
        pytest.param("P" * 40, "P" * 37 + "E" * 3, 0.05, "INCONCLUSIVE", id="errors that could be failures"),
        pytest.param("P" * 40, "P" * 37 + "." * 3, 0.05, "INCONCLUSIVE", id="lost cases"),
        pytest.param("P" * 40, "P" * 37 + "S" * 3, 0.05, "INCONCLUSIVE", id="skipped cases"),
        pytest.param("P" * 40, "P" * 39 + "E", 0.05, "PASS", id="an error that cannot decide"),
        pytest.param("P" * 37 + "F" * 3, "P" * 37 + "E" * 3, 0.05, "PASS", id="errors where the base failed"),
        pytest.param(
            "P" * 37 + "E" * 3, "P" * 40, 0.05, "PASS", id="errors of the base where the new one passes"
        ),
        pytest.param("P" * 37 + "E" * 3, "P" * 37 + "F" * 3, 0.05, "INCONCLUSIVE", id="and where it fails"),
        pytest.param("P" * 37 + "." * 3, "P" * 37 + "F" * 3, 0.05, "PASS", id="new cases say nothing"),
        pytest.param("P" * 40, "F" * 20 + "E" * 20, 0.05, "BLOCK", id="errors do not save it"),
    ],
)
def test_the_verdict(base: str, new: str, max_drop: float, wanted: str) -> None:
    assert _verdict(base, new, max_drop) == wanted


def test_a_verdict_without_power_says_so() -> None:
    for count, powerless in ((4, True), (5, False)):
        comparison = _compare(_cases("P" * count), _cases("P" * count))
        assert comparison.verdict == PASS
        assert ("no drop could be told from chance with so few pairs" in comparison.reason) is powerless


def test_scores_can_show_what_verdicts_do_not() -> None:
    base = _cases("P" * 20, [1.0] * 20)
    new = _cases("F" * 3 + "P" * 17, [0.2] * 3 + [0.8] * 17)
    comparison = _compare(base, new)
    assert comparison.verdict == BLOCK
    assert comparison.mcnemar_p == pytest.approx(0.125)
    assert comparison.permutation_p == pytest.approx(2**-20)
    assert comparison.score_change == pytest.approx(-0.29)


@pytest.mark.parametrize(
    ("scores", "wanted"),
    [
        pytest.param([0.8] * 20, "WARN", id="all fell"),
        pytest.param([0.8] * 4 + [1.0] * 16, "PASS", id="four fell, which chance may do"),
        pytest.param([1.0] * 20, "PASS", id="none fell"),
    ],
)
@pytest.mark.parametrize("base", ["P" * 20, "P" * 19 + "F"], ids=["equal verdicts", "one fixed"])
def test_scores_that_fall_give_a_warning_though_no_verdict_changes(
    base: str, scores: list[float], wanted: str
) -> None:
    comparison = _compare(_cases(base, [1.0] * 20), _cases("P" * 20, scores))
    assert NAMES[comparison.verdict] == wanted
    assert ("the scores fell by 0.2 on average, and not by chance" in comparison.reason) is (wanted == "WARN")


def test_the_figures_are_those_of_the_pairs() -> None:
    base = _cases("PPPPFFE.PS", [0.9, 0.9, 0.9, 0.9, 0.1, 0.1, None, None, 0.9, None])
    new = _cases("PPPFPFPPE.", [0.9, 0.9, 0.9, 0.3, 0.9, 0.1, 0.9, 0.9, None, None])
    got = _compare(base, new)
    assert (got.pair_count, got.broken_count, got.fixed_count, got.error_count) == (6, 1, 1, 2)
    assert (got.base_only_count, got.new_only_count) == (0, 1)
    assert got.pass_rate_change.value == 0
    assert got.pass_rate_change.low < 0 < got.pass_rate_change.high
    assert got.mcnemar_p == pytest.approx(0.75)
    assert got.score_change == pytest.approx(0.2 / 6)
    assert [change.case_id for change in got.changes] == ["0003", "0008", "0004", "0006"]
    assert (got.changes[0].base_score, got.changes[0].new_score, got.changes[0].reason) == (
        0.9,
        0.3,
        "turn F",
    )
    assert not got.changes[1].HasField("new_score")
    assert (got.base.suite, got.new.case_count) == ("checkout", 9)


def test_nothing_is_said_about_scores_that_are_not_there() -> None:
    got = _compare(_cases("PPPPP"), _cases("PPPPP"))
    assert not any(got.HasField(name) for name in ("score_change", "permutation_p", "effect_size"))
    nonsense = _compare(_cases("PP", [float("nan"), 2.0]), _cases("PP", [1.0, 1.0]))
    assert not nonsense.HasField("score_change")


@pytest.mark.parametrize("side", ["base", "new"])
def test_a_run_that_did_not_complete_decides_nothing(side: str) -> None:
    cases = _cases("P" * 20)
    runs = {"base": suite(cases), "new": suite(cases)}
    runs[side].status = suite_service_pb2.SUITE_RUN_STATUS_INTERRUPTED
    got = compare(runs["base"], runs["new"], zip(cases, cases, strict=True))
    assert got.verdict == INCONCLUSIVE
    assert "did not complete" in got.reason


def _judged(
    cases: list[suite_service_pb2.CaseResult], model: str, *, enforced: bool = True, name: str = "tone"
) -> list[suite_service_pb2.CaseResult]:
    for each in cases:
        each.trials[0].turns[0].evaluation.results.add(
            name=name,
            type="llm-judge",
            kind="EVALUATOR_KIND_ASSERTION",
            enforcement="ENFORCEMENT_ENFORCED" if enforced else "ENFORCEMENT_SHADOW",
            provenance=result_pb2.Provenance(config_sha256="aa", judge_models=[model]),
        )
    return cases


@pytest.mark.parametrize("new", ["P" * 20, "F" * 20], ids=["holds", "breaks"])
def test_another_judge_makes_it_inconclusive(new: str) -> None:
    got = _compare(_judged(_cases("P" * 20), "small"), _judged(_cases(new), "large"))
    assert got.verdict == INCONCLUSIVE
    assert list(got.provenance_changes) == ["tone: models small -> large (cases: 20)"]
    assert "20 evaluated differently, tone: models small -> large" in got.reason


def test_another_judge_of_cases_that_cannot_decide_changes_nothing() -> None:
    base = [*_judged(_cases("P"), "small"), *_cases("." + "P" * 99)]
    new = [*_judged(_cases("P"), "large"), *_cases("." + "P" * 99)]
    got = _compare(base, new)
    assert (got.verdict, len(got.provenance_changes)) == (PASS, 1)


def test_a_judge_that_counts_for_nothing_changes_nothing() -> None:
    got = _compare(
        _judged(_cases("P" * 20), "small", enforced=False), _judged(_cases("P" * 20), "large", enforced=False)
    )
    assert (got.verdict, list(got.provenance_changes)) == (PASS, [])


def test_an_evaluator_more_is_another_judge() -> None:
    got = _compare(_cases("P" * 20), _judged(_cases("P" * 20), "small"))
    assert got.verdict == INCONCLUSIVE
    assert list(got.provenance_changes) == ["tone: only in the new run (cases: 20)"]


def test_without_trials_the_judges_of_the_run_are_compared() -> None:
    base, new = _judged(_cases("P" * 20), "small"), _judged(_cases("P" * 20), "large")
    runs = suite(base), suite(new)
    for each in (*base, *new):
        each.ClearField("trials")
    got = compare(*runs, merge_by_id(base, new))
    assert got.verdict == INCONCLUSIVE
    assert list(got.provenance_changes) == ["tone: models small -> large (cases: 20)"]


# Mostly pairs, and among those mostly broken ones: elsewhere there is little to make better.
_BASE = st.text("PPPPPPFE", min_size=6, max_size=14)
_NEW = st.text("FFFPPPES", min_size=6, max_size=14)
_SCORES = st.lists(st.sampled_from([None, 0.0, 0.25, 0.5, 0.75, 1.0]), min_size=14, max_size=14)


_FAULTS = st.text("KKKES.", min_size=14, max_size=14)


@settings(max_examples=300)
@given(_BASE, _NEW, _SCORES, _SCORES, _FAULTS, st.sampled_from([0.0, 0.05, 0.3]))
@example("PPPPPPPPPP", "FFFFFFPPPP", [None] * 14, [None] * 14, "EE.S.EKKKKKKKK", 0.05)
@example("PPPPPPPP", "FFFPPPPP", [1.0] * 14, [0.0, 0.0, 0.0, 0.5, 0.5] + [1.0] * 9, "EEKKKKKKKKKKKK", 0.05)
def test_no_fault_of_the_new_run_makes_its_verdict_better(
    base: str,
    new: str,
    base_scores: list[float | None],
    new_scores: list[float | None],
    faults: str,
    max_drop: float,
) -> None:
    size = min(len(base), len(new))
    before = _cases(base[:size], base_scores[:size])
    verdict = _compare(before, _cases(new[:size], new_scores[:size]), max_drop).verdict
    # K keeps the verdict; other letters replace it.
    broken = "".join(
        letter if fault == "K" else fault for letter, fault in zip(new[:size], faults, strict=False)
    )
    after = _compare(before, _cases(broken, new_scores[:size]), max_drop).verdict
    worse = {PASS: {PASS, WARN, BLOCK}, WARN: {WARN, BLOCK}, BLOCK: {BLOCK}, INCONCLUSIVE: set(NAMES)}
    assert after in {*worse[verdict], INCONCLUSIVE}, f"{NAMES[verdict]} became {NAMES[after]}: {broken}"


def test_pairs_are_made_by_id_and_need_order() -> None:
    pairs = list(merge_by_id(_cases("PP.P"), _cases("P.PP")))
    ids = [(one and one.case_id, other and other.case_id) for one, other in pairs]
    assert ids == [("0000", "0000"), ("0001", None), (None, "0002"), ("0003", "0003")]
    with pytest.raises(ValueError, match="new: case '0000' comes after '0001'"):
        list(merge_by_id([], reversed(_cases("PP"))))
    with pytest.raises(ValueError, match="each id once"):
        list(merge_by_id(_cases("P") * 2, []))


@pytest.mark.parametrize("max_drop", [-0.1, 1.5, float("nan")])
def test_a_drop_that_is_no_share_is_refused(max_drop: float) -> None:
    with pytest.raises(ValueError, match="wanted a number from 0 to 1"):
        _compare([], [], max_drop)


def test_many_changes_are_cut_broken_ones_first() -> None:
    got = _compare(_cases("F" * 600 + "P" * 600), _cases("P" * 600 + "F" * 600))
    assert len(got.changes) == 1000
    assert [change.new_verdict for change in got.changes[:600]] == [VERDICTS["F"]] * 600
