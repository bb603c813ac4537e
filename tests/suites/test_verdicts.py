"""Verdicts are three-valued; figures of a suite run are those of its cases."""

import itertools

import pytest
from google.protobuf.duration_pb2 import Duration
from hypothesis import given
from hypothesis import strategies as st

from evald.v1 import (
    evaluation_service_pb2,
    evaluator_pb2,
    message_pb2,
    result_pb2,
    run_service_pb2,
    suite_service_pb2,
)
from evald_server.suites.reports.page import evaluator_rows
from evald_server.suites.reports.report import measured, measures
from evald_server.suites.statistics import wilson
from evald_server.suites.verdicts import (
    SuiteTotals,
    case_verdict,
    decide_case,
    decide_trial,
    suite_verdict,
    trial_verdict,
)

from .results import LETTERS, VERDICTS, case, suite


def _case(letters: str, min_passed: int = 0) -> str:
    return LETTERS[case_verdict([VERDICTS[letter] for letter in letters], min_passed).verdict]


@pytest.mark.parametrize(
    ("letters", "min_passed", "wanted"),
    [
        ("P", 0, "P"),
        ("F", 0, "F"),
        ("E", 0, "E"),
        ("S", 0, "S"),
        ("PPPF", 3, "P"),
        ("PPFF", 3, "F"),
        ("PPFE", 3, "E"),
        ("PFFE", 3, "F"),
        ("PPPE", 3, "P"),
        ("PPPE", 0, "E"),
        ("PPFE", 0, "F"),
        ("PPSS", 0, "P"),
        ("PPSS", 3, "F"),
        ("SSES", 0, "E"),
        ("SSSS", 2, "S"),
        ("", 0, "E"),
    ],
)
def test_a_case_is_decided_by_its_trials(letters: str, min_passed: int, wanted: str) -> None:
    assert _case(letters, min_passed) == wanted


@given(st.text("PFES", min_size=1, max_size=6), st.integers(0, 6))
def test_a_case_has_a_verdict_exactly_when_its_errors_cannot_change_it(letters: str, min_passed: int) -> None:
    if set(letters) == {"S"}:
        return
    errors = letters.count("E")
    rest = letters.replace("E", "")
    needed = min_passed or len(letters) - letters.count("S")
    resolved = {
        rest.count("P") + ending.count("P") >= needed
        for ending in map("".join, itertools.product("PF", repeat=errors))
    }
    wanted = "E" if len(resolved) == 2 else "P" if resolved == {True} else "F"
    assert _case(letters, min_passed) == wanted


def test_a_verdict_that_nobody_knows_is_an_error() -> None:
    assert case_verdict([VERDICTS["P"], 0], 0).verdict == VERDICTS["E"]
    assert trial_verdict([VERDICTS["P"], 17]) == VERDICTS["E"]
    totals, run = SuiteTotals(), suite_service_pb2.SuiteRun()
    totals.add(suite_service_pb2.CaseResult(verdict=result_pb2.VERDICT_UNSPECIFIED, weight=1))
    totals.add(case("a", "P"))
    totals.fill(run)
    assert (run.error_count, run.verdict) == (1, VERDICTS["E"])


def test_the_reason_of_a_case_says_what_decided_it() -> None:
    assert case("a", "F").reason == "turn F"
    assert (
        case("a", "PPEF", min_passed=3).reason
        == "2 of 4 trials passed, 3 needed, 1 in error; trial 3: turn E"
    )
    assert case("a", "PF", min_passed=1).reason == "1 of 2 trials passed, 1 needed"
    assert case("a", "PSS", min_passed=2).reason == "1 of 3 trials passed, 2 needed, 2 skipped"


@pytest.mark.parametrize("verdict", ["VERDICT_PASSED", "VERDICT_SKIPPED"])
def test_a_trial_that_did_not_fail_has_the_reason_of_its_last_turn(verdict: str) -> None:
    made = suite_service_pb2.TrialResult(
        turns=[
            run_service_pb2.RunTurn(evaluation={"verdict": verdict, "reason": word})
            for word in ("one", "two")
        ]
    )
    decide_trial(made)
    assert made.reason == "two"


def test_a_trial_is_as_good_as_its_worst_turn_and_scores_as_its_last() -> None:
    turns = [
        run_service_pb2.RunTurn(
            turn=1, evaluation={"verdict": "VERDICT_PASSED", "score": 0.2, "reason": "one"}
        ),
        run_service_pb2.RunTurn(
            turn=2, evaluation={"verdict": "VERDICT_FAILED", "score": 0.1, "reason": "two"}
        ),
        run_service_pb2.RunTurn(
            turn=3, evaluation={"verdict": "VERDICT_PASSED", "score": 0.7, "reason": "three"}
        ),
        run_service_pb2.RunTurn(turn=4),
    ]
    made = suite_service_pb2.TrialResult(turns=turns)
    decide_trial(made)
    assert (made.verdict, made.score, made.reason) == (VERDICTS["F"], 0.7, "Turn 2: two")
    del made.turns[1]
    made.error.code, made.error.message = "CONNECTOR_TIMEOUT", "no answer"
    decide_trial(made)
    assert (made.verdict, made.reason) == (VERDICTS["E"], "CONNECTOR_TIMEOUT: no answer")


def test_a_trial_without_an_evaluation_is_an_error() -> None:
    made = suite_service_pb2.TrialResult(turns=[run_service_pb2.RunTurn(turn=1)])
    decide_trial(made)
    assert (made.verdict, made.reason) == (VERDICTS["E"], "No turn was evaluated")


def test_the_score_of_a_case_is_the_mean_of_the_trials_that_have_one() -> None:
    assert case("a", "PEP", scores=[1.0, None, 0.5]).score == 0.75
    assert not case("a", "PE").HasField("score")
    rerun = case("a", "P", scores=[1.0])
    rerun.trials[0].ClearField("score")
    decide_case(rerun)
    assert not rerun.HasField("score")


@pytest.mark.parametrize(
    ("letters", "threshold", "wanted"),
    [
        ("PPPP", 1.0, "P"),
        ("PPPF", 1.0, "F"),
        ("PPPF", 0.75, "P"),
        ("PPPE", 1.0, "E"),
        ("PPPE", 0.75, "P"),
        ("PPFE", 0.75, "E"),
        ("PFFE", 0.75, "F"),
        ("EEEE", 0.0, "E"),
        ("SSSS", 0.0, "E"),
        ("SSSP", 1.0, "P"),
        ("EEEF", 0.0, "P"),
        ("FFFF", 0.0, "P"),
        ("", 0.0, "E"),
        ("P" * 57 + "F" * 43, 0.57, "P"),
        ("P" * 55 + "F" * 45, 0.55, "P"),
    ],
)
def test_a_suite_is_decided_by_its_threshold(letters: str, threshold: float, wanted: str) -> None:
    run = suite((case(str(number), letter) for number, letter in enumerate(letters)), threshold)
    assert LETTERS[run.verdict] == wanted
    assert run.threshold == threshold
    assert run.reason


def test_weights_count_in_the_pass_rate_and_in_the_verdict() -> None:
    cases = [case("a", "P", weight=3), case("b", "F"), case("c", "E", weight=0)]
    run = suite(cases, 0.75)
    assert (run.pass_rate.value, run.verdict) == (0.75, VERDICTS["P"])
    # Two cases of weights 3 and 1 say as much as 1.6 equal ones.
    assert run.pass_rate.high - run.pass_rate.low > 0.8
    assert suite([case("a", "P", weight=0)], 0.5).verdict == VERDICTS["E"]
    assert suite([case("a", "P"), case("b", "E")]).error_share == 0.5
    assert (
        suite([case(str(i), "P", weight=0.1) for i in range(9)] + [case("x", "F", weight=0.1)], 0.9).verdict
        == 1
    )


def test_cases_are_counted_by_verdict() -> None:
    run = suite(case(str(number), letter) for number, letter in enumerate("PPPPFFFEES"))
    counts = (run.passed_count, run.failed_count, run.error_count, run.skipped_count)
    assert (run.case_count, *counts) == (10, 4, 3, 2, 1)


def test_cases_that_passed_without_an_assertion_that_counts_are_counted() -> None:
    cases = [case(str(number), letters) for number, letters in enumerate(["P", "PP", "PFP", "F", "E", "S"])]
    for turn in (trial.turns[0] for number in (0, 1, 3) for trial in cases[number].trials[:1]):
        turn.evaluation.passed_count = turn.evaluation.failed_count = 0
    assert "counted" not in suite(cases[1:]).reason, "one trial of the case counted"
    totals, other = SuiteTotals(), SuiteTotals()
    for one in cases:
        totals.add(one)
        other.add(one, results=False)
    totals.merge(other)
    run = suite_service_pb2.SuiteRun()
    totals.fill(run)
    assert run.reason.endswith("; no assertion counted in 2 of the 4 that passed")


@pytest.mark.parametrize(("letter", "wanted"), [("F", "F"), ("E", "E"), ("P", "P")])
def test_all_cases_are_all_of_them_whatever_they_weigh(letter: str, wanted: str) -> None:
    for heavy in (1e12, 1e300, 1e-300):
        run = suite([case("a", "P", weight=heavy), case("b", letter)])
        assert LETTERS[run.verdict] == wanted


def test_a_reason_does_not_round_to_all_or_nothing() -> None:
    _, reason = suite_verdict(9999, 1, 0, 1)
    assert reason == "99.9 % of the cases passed, 100 % wanted"
    _, reason = suite_verdict(1, 9999, 1, 1)
    assert reason.startswith("0.1 % to 0.1 % of the cases passed, because of errors")


@given(st.lists(st.sampled_from("PFES"), min_size=1, max_size=8), st.floats(0, 1))
def test_errors_never_turn_a_suite_green(letters: list[str], threshold: float) -> None:
    def verdict(of: list[str]) -> str:
        return LETTERS[suite((case(str(i), one) for i, one in enumerate(of)), threshold).verdict]

    if verdict(letters) == "P":
        return
    for position in range(len(letters)):
        broken = [*letters[:position], "E", *letters[position + 1 :]]
        if letters[position] != "S":
            assert verdict(broken) != "P"


def test_trials_give_pass_at_k_and_pass_hat_k_and_unstable_cases() -> None:
    run = suite([case("a", "PPPP"), case("b", "PPFF"), case("c", "FFFF"), case("d", "PPPE")])
    assert (run.trials, run.unstable_count) == (4, 1)
    got = [(e.k, e.case_count, e.any_passes.value, e.all_pass.value) for e in run.trial_estimates]
    assert got == [
        (1, 4, pytest.approx(2.5 / 4), pytest.approx(2.5 / 4)),
        (2, 4, pytest.approx((1 + 5 / 6 + 1) / 4), pytest.approx((1 + 1 / 6 + 1) / 4)),
        (3, 4, pytest.approx(3 / 4), pytest.approx(2 / 4)),
        (4, 3, pytest.approx(2 / 3), pytest.approx(1 / 3)),
    ]
    for estimate in run.trial_estimates:
        for share in (estimate.any_passes, estimate.all_pass):
            assert 0 <= share.low <= share.value <= share.high <= 1
    # By one trial, 10 cases with 4 independent trials say as much as 40 cases.
    single = suite([case(str(number), "PPFF") for number in range(10)]).trial_estimates[0].all_pass
    assert (single.low, single.high) == pytest.approx(wilson(20, 40))


def test_one_trial_has_no_estimates_and_mixed_numbers_are_said() -> None:
    assert not suite([case("a", "P"), case("b", "F")]).trial_estimates
    mixed = suite([case("a", "P"), case("b", "PP")])
    assert (mixed.trials, [e.case_count for e in mixed.trial_estimates]) == (0, [2, 1])


def _result(name: str, verdict: str, digest: str = "", kind: int = 1) -> result_pb2.EvaluationResult:
    made = result_pb2.EvaluationResult(
        name=name,
        type=name,
        version="1",
        verdict=VERDICTS[verdict],
        kind=kind,  # type: ignore[arg-type]
    )
    if digest:
        made.provenance.config_sha256 = digest
    return made


def test_totals_are_shadow_ones_where_no_result_counted() -> None:
    cases = []
    for name, enforced in (("a", False), ("b", True)):
        made = case(name, "P")
        found = [_result("tried", "F"), _result("in one case", "P"), _result("always", "P")]
        for one, shadow in zip(found, [True, not enforced, False], strict=True):
            one.enforcement = evaluator_pb2.Enforcement.Value(
                "ENFORCEMENT_SHADOW" if shadow else "ENFORCEMENT_ENFORCED"
            )
        made.trials[0].turns[0].evaluation.results.extend(found)
        cases.append(made)
    for run in (suite(cases), suite(cases[::-1])):
        shadow = {
            name
            for name, totals in run.evaluators.items()
            if totals.enforcement == evaluator_pb2.ENFORCEMENT_SHADOW
        }
        assert shadow == {"tried"}
        tables = evaluator_rows(run, {"tried": ("Tried", False)})
        assert [row.title for table in tables for row in table] == [
            "Tried (shadow)",
            "always",
            "in one case",
        ]


def test_evaluators_are_counted_over_all_turns_and_provenance_is_kept_once() -> None:
    made = case("a", "PF")
    for each, verdict in zip(made.trials, "PE", strict=True):
        each.turns[0].evaluation.results.extend(
            [_result("regex", verdict, "aa"), _result("regex#2", "S", "bb")]
        )
    made.trials[0].turns[0].evaluation.results.append(_result("latency", "P", kind=2))
    made.trials[0].turns[0].evaluation.results.append(_result("unavailable", "P", kind=2))
    made.trials[0].turns[0].evaluation.metrics["latency"] = 30.0
    made.trials[1].turns[0].evaluation.results.append(_result("strict", "F"))
    run = suite([made, made])
    assert (run.evaluators["regex"].passed_count, run.evaluators["regex"].error_count) == (2, 2)
    assert not run.evaluators["regex"].HasField("mean_value")
    assert run.evaluators["regex#2"].passed_count == 0
    assert run.evaluators["latency"].mean_value == 30.0
    assert {name: (totals.kind, totals.passed_count) for name, totals in run.evaluators.items()} == {
        "regex": (1, 2),
        "regex#2": (1, 0),
        "latency": (2, 0),
        "unavailable": (2, 0),
        "strict": (1, 0),
    }
    assert (run.evaluators["strict"].failed_count, run.evaluators["strict"].error_count) == (2, 0)
    enforced = evaluator_pb2.ENFORCEMENT_ENFORCED
    assert {totals.enforcement for totals in run.evaluators.values()} == {enforced}
    assert {name for name, totals in run.evaluators.items() if measures(totals)} == {"latency", "unavailable"}
    assert [(p.name, p.provenance.config_sha256) for p in run.provenance] == [
        ("regex", "aa"),
        ("regex#2", "bb"),
    ]


@pytest.mark.parametrize(("kind", "wanted"), [(2, True), (1, False), (0, False)])
def test_only_totals_of_metrics_are_measured(kind: int, wanted: bool) -> None:
    totals = evaluation_service_pb2.EvaluatorTotals(kind=kind, mean_value=1.0)  # type: ignore[arg-type]
    assert measures(totals) is wanted


@pytest.mark.parametrize(
    ("kind", "letter", "value", "wanted"),
    [(2, "P", 5, 5), (2, "E", 5, None), (2, "F", 5, None), (1, "P", 5, None), (2, "P", None, None)],
)
def test_only_a_metric_that_worked_has_a_value(
    kind: int, letter: str, value: float | None, wanted: float | None
) -> None:
    result = result_pb2.EvaluationResult(kind=kind, verdict=VERDICTS[letter], value=value)  # type: ignore[arg-type]
    assert measured(result) == wanted


def test_what_was_not_reported_is_absent_not_zero() -> None:
    silent = suite([case("a", "P")])
    assert not any(
        silent.HasField(name) for name in ("token_usage", "cost", "evaluator_token_usage", "evaluator_cost")
    )
    assert not silent.HasField("mean_latency_seconds")
    made = case("a", "PP")
    turn = made.trials[0].turns[0]
    turn.latency.CopyFrom(Duration(seconds=1, nanos=500_000_000))
    turn.token_usage.input_tokens = 10
    turn.cost.CopyFrom(message_pb2.Cost(currency_code="USD", amount=0.5))
    turn.evaluation.token_usage.output_tokens = 7
    made.trials[1].turns[0].latency.CopyFrom(Duration(nanos=500_000_000))
    run = suite([made, case("b", "P")])
    assert run.mean_latency_seconds == 1.0
    assert (run.token_usage.input_tokens, run.token_usage.HasField("output_tokens")) == (10, False)
    assert (run.cost.amount, run.cost.currency_code) == (0.5, "USD")
    assert run.evaluator_token_usage.output_tokens == 7
    made.trials[1].turns[0].cost.CopyFrom(message_pb2.Cost(currency_code="EUR", amount=0.5))
    assert not suite([made]).HasField("cost")


def test_sums_that_no_field_holds_are_no_fault() -> None:
    made = case("a", "P")
    turn = made.trials[0].turns[0]
    turn.token_usage.input_tokens = (1 << 63) - 1
    turn.cost.CopyFrom(message_pb2.Cost(currency_code="USD", amount=1e308))
    turn.evaluation.results.add(name="m", verdict=VERDICTS["P"])
    turn.evaluation.metrics["m"] = 1e308
    run = suite([made, made, made])
    assert run.token_usage.input_tokens == (1 << 63) - 1
    assert not run.HasField("cost")
    assert not run.evaluators["m"].HasField("mean_value")


def test_the_mean_score_is_that_of_the_cases_that_have_one() -> None:
    assert (
        suite([case("a", "P", scores=[0.5]), case("b", "F", scores=[0.25]), case("c", "P")]).mean_score
        == 0.375
    )
    assert not suite([case("a", "P")]).HasField("mean_score")


def test_totals_of_parts_add_up_to_those_of_the_whole() -> None:
    cases = []
    for number, letters in enumerate(("PF", "P", "E", "PPP", "S", "FP")):
        made = case(str(number), letters, weight=number + 0.5, scores=[number / 8] * len(letters))
        for each in made.trials:
            turn = each.turns[0]
            turn.latency.CopyFrom(Duration(seconds=number))
            turn.token_usage.input_tokens = 10 + number
            turn.cost.CopyFrom(message_pb2.Cost(currency_code="USD", amount=0.25))
            turn.evaluation.token_usage.output_tokens = 7
            turn.evaluation.cost.CopyFrom(message_pb2.Cost(currency_code="USD", amount=0.5))
            turn.evaluation.results.extend([_result("regex", letters[-1], f"a{number}"), _result("m", "P")])
            turn.evaluation.metrics["m"] = number
        cases.append(made)
    whole, parts = SuiteTotals(0.5), SuiteTotals(0.5)
    for half in (cases[:3], cases[3:]):
        part = SuiteTotals(0.5)
        for made in half:
            whole.add(made)
            part.add(made)
        parts.merge(part)
    runs = suite_service_pb2.SuiteRun(), suite_service_pb2.SuiteRun()
    for totals, run in zip((whole, parts), runs, strict=True):
        totals.fill(run)
    assert runs[0] == runs[1]
    assert (runs[0].cost.amount, runs[0].evaluator_cost.amount) == (2.5, 5.0)
    assert runs[0].error_share == pytest.approx(2.5 / 13.5)


def test_filling_twice_changes_nothing() -> None:
    totals, run = SuiteTotals(0.5), suite_service_pb2.SuiteRun()
    totals.add(case("a", "PF"))
    totals.fill(run)
    once = run.SerializeToString(deterministic=True)
    totals.fill(run)
    assert run.SerializeToString(deterministic=True) == once


def test_configs_of_every_case_are_not_all_kept() -> None:
    totals, run = SuiteTotals(), suite_service_pb2.SuiteRun()
    made = case("a", "P")
    made.trials[0].turns[0].evaluation.results.append(_result("regex", "P"))
    for number in range(1500):
        made.trials[0].turns[0].evaluation.results[0].provenance.config_sha256 = str(number)
        totals.add(made)
    totals.fill(run)
    assert (len(run.provenance), run.evaluators["regex"].passed_count) == (1000, 1500)
