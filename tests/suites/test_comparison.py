"""Comparisons: when there is a verdict, which one, and that faults never help."""

from collections.abc import Iterable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from evald.v1 import result_pb2, suite_service_pb2
from evald_server.suites.comparison import BLOCK, INCONCLUSIVE, PASS, WARN, compare, merge_by_id
from evald_server.suites.statistics import change_interval, smallest_detectable_drop

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
        pytest.param(
            "P" * 100 + "F", "P" * 96 + "FFFFE", 0.05, "PASS", id="an error where the base failed is no drop"
        ),
        pytest.param(
            "P" * 101,
            "P" * 96 + "FFFFE",
            0.05,
            "INCONCLUSIVE",
            id="an error where it passed may be the fifth",
        ),
        pytest.param(
            "P" * 40 + "F" * 20,
            "P" * 36 + "EEEE" + "F" * 20,
            0.05,
            "INCONCLUSIVE",
            id="cases that never passed make up for no error",
        ),
    ],
)
def test_the_verdict(base: str, new: str, max_drop: float, wanted: str) -> None:
    assert _verdict(base, new, max_drop) == wanted


def test_five_points_are_accepted_unless_told_otherwise() -> None:
    for letters, wanted in (("P" * 95 + "F" * 5, WARN), ("P" * 94 + "F" * 6, BLOCK)):
        base, new = _cases("P" * 100), _cases(letters)
        assert compare(suite(base), suite(new), merge_by_id(base, new)).verdict == wanted


@pytest.mark.parametrize(
    ("base", "new", "reason"),
    [
        (
            "P" * 100,
            "P" * 95 + "F" * 5,
            "Pass rate down by 5 points over 100 pairs (5 broken, 0 fixed); within the 5 points allowed, but not by "
            "chance (p = 0.031)",
        ),
        ("P" * 40, "P" * 36 + "F" * 4, "more than the 5 points allowed, but possibly by chance (p = 0.062)"),
        ("P" * 40, "P" * 35 + "F" * 5, "more than the 5 points allowed, and not by chance (p = 0.031)"),
        (
            "P" * 100,
            "P" * 97 + "F" * 3,
            "down by 3 points over 100 pairs (3 broken, 0 fixed); within the 5 points",
        ),
        ("F" * 20, "P" * 20, "Pass rate up by 100 points over 20 pairs (0 broken, 20 fixed); not worse"),
        ("PF" * 9, "PF" * 9, "Pass rate unchanged over 18 pairs (0 broken, 0 fixed); not worse"),
    ],
)
def test_the_reason_has_the_figures(base: str, new: str, reason: str) -> None:
    assert reason in _compare(_cases(base), _cases(new)).reason


def test_changes_are_ordered_by_how_bad_they_are() -> None:
    got = _compare(_cases("FFPEP"), _cases("PSEFF"))
    assert [change.case_id for change in got.changes] == ["0004", "0002", "0001", "0003", "0000"]


def test_a_verdict_that_nobody_knows_is_an_error() -> None:
    base, new = _cases("P" * 20), _cases("P" * 20)
    for each in new[:5]:
        each.verdict = result_pb2.VERDICT_UNSPECIFIED
    got = _compare(base, new)
    assert (got.verdict, got.error_count, got.pair_count) == (INCONCLUSIVE, 5, 15)
    assert [change.new_verdict for change in got.changes] == [0] * 5


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
    assert comparison.effect_size == pytest.approx(-1.319, abs=0.001)
    assert 0.2 < comparison.smallest_detectable_drop < 0.4
    assert "(p = 9.5e-07)" in comparison.reason


def _three_broken(*more: tuple[str, str]) -> tuple[list[suite_service_pb2.CaseResult], ...]:
    """Return both runs: 3 cases that broke, one that was fixed, 10 that hold, and cases with these letters.

    One more break that costs a whole point of score makes the drop significant by the scores, not by the verdicts.
    """
    letters = [*"PPPF", *"P" * 10], [*"FFFP", *"P" * 10]
    scores = [1.0] * 3 + [0.4] + [None] * 10, [0.0] * 3 + [0.5] + [None] * 10
    runs = []
    for side in (0, 1):
        added = "".join(pair[side] for pair in more)
        runs.append(_cases("".join(letters[side]) + added, [*scores[side], *[1.0] * len(added)]))
    return tuple(runs)


def test_what_scores_could_have_been_counts_too() -> None:
    assert _compare(*_three_broken()).verdict == WARN
    assert _compare(*_three_broken(("E", "F"))).verdict == INCONCLUSIVE, "1 before and 0 after?"
    base, new = _three_broken(("P", "P"))
    assert _compare(base, new).verdict == WARN
    assert _compare([*base[:-1], *_judged(base[-1:], "a")], [*new[:-1], *_judged(new[-1:], "b")]).verdict == (
        INCONCLUSIVE
    ), "0 with the same judge?"


@pytest.mark.parametrize(
    ("old", "now", "wanted"),
    [
        pytest.param(("P", None), ("P", None), "PASS", id="without"),
        pytest.param(("P", 1.0), ("E", None), "INCONCLUSIVE", id="at worst 1 to 0"),
        pytest.param(("P", 0.5), ("E", None), "PASS", id="at worst 0.5 to 0"),
        pytest.param(("E", None), ("F", None), "INCONCLUSIVE", id="at worst from 1"),
        pytest.param(("?", None), ("F", None), "INCONCLUSIVE", id="an unknown verdict, too"),
        pytest.param(("E", None), ("P", 0.0), "INCONCLUSIVE", id="at worst from 1 to a passed 0"),
        pytest.param(("E", None), ("P", 0.5), "PASS", id="at worst from 1 to a passed 0.5"),
    ],
)
def test_an_error_counts_as_the_largest_fall_of_the_score_that_it_can_hide(
    old: tuple[str, float | None], now: tuple[str, float | None], wanted: str
) -> None:
    # By these scores p is 0.10; it is 0.056 if another one falls by 1, and 0.083 if it falls by 0.5.
    before, after = [*[1.0] * 7, 0.3, 0.3, *[None] * 20], [*[0.3] * 5, 0.9, 0.9, 1.0, 1.0, *[None] * 20]
    base = _cases("P" * 29 + old[0].replace("?", "E"), [*before, old[1]])
    new = _cases("P" * 29 + now[0], [*after, now[1]])
    if old[0] == "?":
        base[-1].verdict = result_pb2.VERDICT_UNSPECIFIED
    assert NAMES[_compare(base, new).verdict] == wanted


@pytest.mark.parametrize(
    ("base", "new", "others", "wanted"),
    [
        pytest.param("P" * 40, "P" * 35 + "F" * 5, 4, "INCONCLUSIVE", id="with them fixed, 1 of 40 broke"),
        pytest.param("P" * 40 + "F" * 40, "P" * 20 + "F" * 60, 1, "BLOCK", id="too few to matter"),
        pytest.param("P" * 40, "P" * 20 + "F" * 20, 1, "BLOCK", id="too few, and none failed in both"),
    ],
)
def test_another_judge_may_hide_as_many_fixed_cases_as_it_judged(
    base: str, new: str, others: int, wanted: str
) -> None:
    old, now = _cases(base), _cases(new)
    _judged(old[:others], "small")
    _judged(now[:others], "large")
    assert NAMES[_compare(old, now).verdict] == wanted


def test_another_judge_may_hide_a_rise_of_the_score_by_one() -> None:
    base, new = _cases("P" * 20, [1.0] * 20), _cases("P" * 20, [0.5] * 8 + [1.0] * 12)
    assert _compare(base, new).verdict == WARN
    # 8 falls by 0.5 and a rise by 1 have p = 0.074; with a rise by 0.5 it would be 0.020.
    _judged(base[8:9], "small")
    _judged(new[8:9], "large")
    assert _compare(base, new).verdict == INCONCLUSIVE


def test_cases_under_other_conditions_are_not_alike() -> None:
    base, new = _cases("P" * 20), _cases("P" * 20)
    for each in (*base, *new):
        each.conditions_sha256 = "aa"
    assert _compare(base, new).verdict == PASS
    for each in new:
        each.conditions_sha256 = "bb"
    got = _compare(base, new)
    assert got.verdict == INCONCLUSIVE
    assert (
        "different input, expected answer, options, weights or trials (cases: 20)"
        in got.provenance_changes[0]
    )


def test_an_evaluator_that_did_not_run_is_not_another_one() -> None:
    base, new = _judged(_cases("P" * 20), "small"), _judged(_cases("P" * 20), "small")
    for each in new:
        each.trials[0].turns[0].evaluation.results[0].ClearField("provenance")
    got = _compare(base, new)
    assert (got.verdict, list(got.provenance_changes)) == (PASS, [])


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
    nothing = [None] * 6
    base = _cases("PPPPFFE.PS..P..P", [0.9, 0.9, 0.9, 0.9, 0.1, 0.1, None, None, 0.9, None, *nothing])
    new = _cases("PPPFPFPPE.FE.PE.", [0.9, 0.9, 0.9, 0.3, 0.9, 0.1, 0.9, 0.9, None, None, *nothing])
    got = _compare(base, new)
    assert (got.pair_count, got.broken_count, got.fixed_count, got.error_count) == (6, 1, 1, 2)
    assert (got.base_only_count, got.new_only_count) == (2, 5)
    assert got.pass_rate_change.value == 0
    assert (got.pass_rate_change.low, got.pass_rate_change.high) == change_interval(3, 1, 1, 1)
    assert got.smallest_detectable_drop == smallest_detectable_drop(6, 1 / 6)
    assert got.mcnemar_p == pytest.approx(0.75)
    assert got.score_change == pytest.approx(0.2 / 6)
    assert [change.case_id for change in got.changes] == ["0003", "0008", "0004", "0006"]
    assert (got.changes[0].base_score, got.changes[0].new_score, got.changes[0].reason) == (
        0.9,
        0.3,
        "turn F",
    )
    assert not got.changes[1].HasField("new_score")
    assert (got.base.suite, got.new.case_count) == ("checkout", 13)


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


@pytest.mark.parametrize("sides", ["base", "new", "base and new"])
@pytest.mark.parametrize(
    ("model", "wanted"), [("large", ["tone: models small -> large (cases: 20)"]), ("small", [])]
)
def test_without_trials_the_judges_of_the_run_are_compared(sides: str, model: str, wanted: list[str]) -> None:
    base, new = _judged(_cases("P" * 20), "small"), _judged(_cases("P" * 20), model)
    runs = suite(base), suite(new)
    for each in (*(base if "base" in sides else ()), *(new if "new" in sides else ())):
        each.ClearField("trials")
    got = compare(*runs, merge_by_id(base, new))
    assert got.verdict == (INCONCLUSIVE if wanted else PASS)
    assert list(got.provenance_changes) == wanted


# Mostly pairs, and among those mostly broken ones: elsewhere there is little to make better.
_BASE = st.text("PPPPPPFE", min_size=6, max_size=14)
_NEW = st.text("FFFPPPES", min_size=6, max_size=14)
_SCORES = st.lists(st.sampled_from([None, 0.0, 0.25, 0.5, 0.75, 1.0]), min_size=14, max_size=14)


_FAULTS = st.text("KKKES.", min_size=14, max_size=14)


@pytest.mark.parametrize("side", ["base", "new"])
@settings(max_examples=150)
@given(_BASE, _NEW, _SCORES, _SCORES, _FAULTS, st.sampled_from([0.0, 0.05, 0.3]))
@example("PPPPPPPPPP", "FFFFFFPPPP", [None] * 14, [None] * 14, "EE.S.EKKKKKKKK", 0.05)
@example("PPPPPPPP", "FFFPPPPP", [1.0] * 14, [0.0, 0.0, 0.0, 0.5, 0.5] + [1.0] * 9, "EEKKKKKKKKKKKK", 0.05)
def test_no_fault_of_a_run_makes_the_verdict_better(
    side: str,
    base: str,
    new: str,
    base_scores: list[float | None],
    new_scores: list[float | None],
    faults: str,
    max_drop: float,
) -> None:
    size = min(len(base), len(new))
    sides = {"base": base[:size], "new": new[:size]}

    def verdict() -> int:
        return _compare(
            _cases(sides["base"], base_scores[:size]), _cases(sides["new"], new_scores[:size]), max_drop
        ).verdict

    before = verdict()
    # K keeps the verdict; other letters replace it. A case that the base lacks is a new one, and says nothing.
    kinds = faults if side == "new" else faults.replace(".", "E").replace("S", "E")
    sides[side] = "".join(
        letter if fault == "K" else fault for letter, fault in zip(sides[side], kinds, strict=False)
    )
    after = verdict()
    worse = {PASS: {PASS, WARN, BLOCK}, WARN: {WARN, BLOCK}, BLOCK: {BLOCK}, INCONCLUSIVE: set(NAMES)}
    assert after in {*worse[before], INCONCLUSIVE}, f"{NAMES[before]} became {NAMES[after]}: {sides}"


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


WEIGHED: dict[str, tuple[list[tuple[str, str, float]], float, str, float]] = {
    "one heavy case broke": ([("P", "P", 1)] * 19 + [("P", "F", 81)], 0.05, "WARN", -0.81),
    "the same drop was accepted": ([("P", "P", 1)] * 19 + [("P", "F", 81)], 0.81, "PASS", -0.81),
    "light cases broke": ([("P", "P", 100)] * 10 + [("P", "F", 1)] * 8, 0.05, "WARN", -8 / 1008),
    "heavy cases broke": ([("P", "P", 1)] * 12 + [("P", "F", 4)] * 8, 0.65, "BLOCK", -32 / 44),
    "a heavy one broke, light ones were fixed": (
        [("P", "P", 1)] * 20 + [("P", "F", 30)] + [("F", "P", 1)] * 5,
        0.05,
        "WARN",
        -25 / 55,
    ),
    "only cases without weight": ([("P", "P", 0)] * 20, 0.05, "INCONCLUSIVE", 0),
    "a heavy one in error": ([("P", "P", 1)] * 39 + [("P", "E", 100)], 0.05, "INCONCLUSIVE", 0),
    "one without weight in error": ([("P", "P", 1)] * 39 + [("P", "E", 0)], 0.05, "PASS", 0),
}


@pytest.mark.parametrize("name", WEIGHED)
def test_the_drop_is_that_of_the_pass_rates_by_weight(name: str) -> None:
    rows, max_drop, wanted, change = WEIGHED[name]
    sides = [
        [case(f"c{number:03}", row[side], weight=row[2]) for number, row in enumerate(rows)]
        for side in (0, 1)
    ]
    runs = [suite(cases) for cases in sides]
    found = compare(*runs, merge_by_id(*sides), max_drop)
    word = suite_service_pb2.ComparisonVerdict.Name(found.verdict).removeprefix("COMPARISON_VERDICT_")
    assert (word, found.pass_rate_change.value) == (wanted, pytest.approx(change))
    if not found.error_count and found.HasField("pass_rate_change"):
        assert change == pytest.approx(runs[1].pass_rate.value - runs[0].pass_rate.value)
        assert found.pass_rate_change.low <= change <= found.pass_rate_change.high
    if change:
        assert "by weight" in found.reason
