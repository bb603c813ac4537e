"""What tallies count is what a scrape shows."""

import math
from collections import Counter
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evald.errorcodes import CODES
from evald.result import Kind, Metric, Verdict
from evald_server.monitoring import EvaluatorTally, Telemetry

from .scrape import Clock, families, histogram, samples, value

PASSED, FAILED, ERROR, SKIPPED = Verdict.PASSED, Verdict.FAILED, Verdict.ERROR, Verdict.SKIPPED


def assertion(telemetry: Telemetry, name: str = "regex", *, enforced: bool = True) -> EvaluatorTally:
    return telemetry.evaluators.tally(name, Kind.ASSERTION, enforced=enforced, origin="built_in", metric=None)


def metric(
    telemetry: Telemetry, descriptor: Metric, name: str = "size", *, enforced: bool = True
) -> EvaluatorTally:
    return telemetry.evaluators.tally(
        name, Kind.METRIC, enforced=enforced, origin="plugin", metric=descriptor
    )


class Outcome(NamedTuple):
    evaluator: str
    enforced: bool
    verdict: Verdict
    seconds: float
    score: float | None


OUTCOMES = st.lists(
    st.builds(
        Outcome,
        st.sampled_from(["regex", "contains"]),
        st.booleans(),
        st.sampled_from(Verdict),
        st.floats(0, 200),
        st.none() | st.floats(0, 1),
    ),
    max_size=40,
)


@settings(max_examples=40)  # a scrape takes long
@given(OUTCOMES)
def test_every_result_is_counted_once_under_its_labels(outcomes: list[Outcome]) -> None:
    telemetry = Telemetry()
    for one in outcomes:
        assertion(telemetry, one.evaluator, enforced=one.enforced).add(one.verdict, one.seconds, one.score)
    wanted = Counter(
        (one.evaluator, "enforced" if one.enforced else "shadow", one.verdict.name.lower())
        for one in outcomes
    )
    shown = {
        (one.labels["evaluator"], one.labels["enforcement"], one.labels["verdict"]): one.value
        for one in samples(telemetry, "evald_evaluator_results_total", kind="assertion")
    }
    assert {labels: count for labels, count in shown.items() if count} == wanted


@settings(max_examples=40)
@given(OUTCOMES)
def test_durations_hold_all_but_skips_and_scores_only_what_was_judged(outcomes: list[Outcome]) -> None:
    telemetry = Telemetry()
    for one in outcomes:
        assertion(telemetry, one.evaluator, enforced=one.enforced).add(one.verdict, one.seconds, one.score)
    for name in {one.evaluator for one in outcomes}:
        mine = [one for one in outcomes if one.evaluator == name]
        took = [one.seconds for one in mine if one.verdict is not SKIPPED]
        buckets, total, count = histogram(telemetry, "evald_evaluator_duration_seconds", evaluator=name)
        assert count == buckets["+Inf"] == len(took)
        assert total == pytest.approx(sum(took))
        for bound, below in buckets.items():
            assert below == sum(seconds <= float(bound) for seconds in took)
        scores = [
            one.score
            for one in mine
            if one.enforced and one.verdict in (PASSED, FAILED) and one.score is not None
        ]
        buckets, total, count = histogram(telemetry, "evald_assertion_score_ratio", evaluator=name)
        assert count == buckets["+Inf"] == buckets["1.0"] == len(scores)
        assert total == pytest.approx(sum(scores))


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.floats(0, 120), st.sampled_from(Verdict), st.booleans()), min_size=1, max_size=60),
    st.floats(0, 400),
)
def test_the_pass_ratio_is_that_of_five_minutes(
    steps: list[tuple[float, Verdict, bool]], idle: float
) -> None:
    """To the slot of ten seconds: a result is forgotten 290 to 300 s after it came."""
    clock = Clock()
    telemetry = Telemetry(clock=clock)
    judged: list[tuple[float, Verdict]] = []
    for wait, verdict, enforced in steps:
        clock.now += wait
        assertion(telemetry, enforced=enforced).add(verdict, 0.001, None)
        if enforced and verdict in (PASSED, FAILED):
            judged.append((clock.now, verdict))
    clock.now += idle
    recent = [verdict for at, verdict in judged if at // 10 > clock.now // 10 - 30]
    shown = value(telemetry, "evald_assertion_pass_ratio", evaluator="regex")
    if not recent:
        assert shown is None
    else:
        assert shown == pytest.approx(recent.count(PASSED) / len(recent))


@pytest.mark.parametrize(
    ("said", "asked", "shown"),
    [(1000.0, 1299.9, 1.0), (1000.0, 1300.0, None), (1009.9, 1299.9, 1.0), (1009.9, 1300.0, None)],
)
def test_a_verdict_leaves_the_pass_ratio_after_five_minutes(
    said: float, asked: float, shown: float | None
) -> None:
    clock = Clock()
    telemetry = Telemetry(clock=clock)
    clock.now = said
    assertion(telemetry).add(PASSED, 0.001, None)
    clock.now = asked
    assert value(telemetry, "evald_assertion_pass_ratio", evaluator="regex") == shown


@pytest.mark.parametrize("score", [math.nan, math.inf, -0.1, 1.1], ids=str)
def test_a_score_outside_0_to_1_spoils_no_sum(score: float) -> None:
    telemetry = Telemetry()
    assertion(telemetry).add(PASSED, 0.001, score)
    assertion(telemetry).add(PASSED, 0.001, 0.5)
    assert histogram(telemetry, "evald_assertion_score_ratio", evaluator="regex")[1:] == (0.5, 1)


UNITS = ["seconds", "tokens", "characters", "words", "count", "ratio", "bytes", "usd"]


@pytest.mark.parametrize(
    ("unit", "family"), [*((unit, unit) for unit in UNITS), ("", "count"), ("furlongs", "count")]
)
def test_a_value_lands_in_the_family_of_its_unit(unit: str, family: str) -> None:
    telemetry = Telemetry()
    metric(telemetry, Metric(unit)).measure(unit, 0.75)
    for other in UNITS:
        found = list(samples(telemetry, f"evald_metric_value_{other}_sum", evaluator="size"))
        assert [one.value for one in found] == ([0.75] if other == family else [])
    assert value(telemetry, "evald_metric_last_value", evaluator="size", unit=unit) == 0.75


def test_a_bound_is_the_upper_one_of_its_bucket() -> None:
    telemetry = Telemetry()
    tally = metric(telemetry, Metric("count"))
    for number in (0, 1, 2, 2, 4, 1000):
        tally.measure("count", number)
    buckets, total, count = histogram(telemetry, "evald_metric_value_count", evaluator="size")
    assert [buckets[bound] for bound in ("0.0", "1.0", "2.0", "3.0", "5.0", "100.0", "+Inf")] == [
        1,
        2,
        4,
        4,
        5,
        5,
        6,
    ]
    assert (total, count) == (1009, 6)


@pytest.mark.parametrize(
    ("bounds", "own"),
    [
        ((1, 10, 100), True),
        ((-5.0, 0.0, 5.0), True),
        (tuple(range(20)), True),
        (tuple(range(21)), False),
        ((1.0, 1.0), False),
        ((2.0, 1.0), False),
        ((1.0, math.inf), False),
        ((math.nan,), False),
        ((), False),
    ],
    ids=str,
)
def test_a_metric_keeps_its_own_buckets_when_they_are_valid(bounds: tuple[float, ...], own: bool) -> None:
    telemetry = Telemetry()
    metric(telemetry, Metric("tokens", bucket_bounds=bounds)).measure("tokens", 7.0)
    shown = [
        float(one.labels["le"])
        for one in samples(telemetry, "evald_metric_value_tokens_bucket", evaluator="size")
    ]
    default = [10.0, 30.0, 100.0, 300.0, 1e3, 3e3, 1e4, 3e4, 1e5]
    assert shown == [*(bounds if own else default), math.inf]
    assert families(telemetry, "application/openmetrics-text")


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 1e308], ids=str)
def test_a_value_that_cannot_be_added_up_spoils_no_sum(number: float) -> None:
    telemetry = Telemetry()
    tally = metric(telemetry, Metric("tokens"))
    tally.measure("tokens", number)
    tally.measure("tokens", 5.0)
    assert histogram(telemetry, "evald_metric_value_tokens", evaluator="size")[1:] == (5.0, 1)


def test_values_measured_in_shadow_count_and_those_without_a_descriptor_do_not() -> None:
    telemetry = Telemetry()
    metric(telemetry, Metric("tokens"), enforced=False).measure("tokens", 5.0)
    assertion(telemetry).measure("count", 1234.0)
    assert value(telemetry, "evald_metric_value_tokens_count", evaluator="size") == 1
    assert not list(samples(telemetry, "evald_metric_value_count_count", evaluator="regex"))


def test_a_metric_has_no_failed_no_score_and_no_pass_ratio() -> None:
    telemetry = Telemetry()
    metric(telemetry, Metric("tokens")).add(PASSED, 0.001, None)
    shown = {one.labels["verdict"] for one in samples(telemetry, "evald_evaluator_results_total")}
    assert shown == {"passed", "error", "skipped"}
    assert not list(samples(telemetry, "evald_assertion_pass_ratio"))
    assert not list(samples(telemetry, "evald_assertion_score_ratio_count"))


@pytest.mark.parametrize("code", [*CODES, "SOMETHING_NEW"])
def test_an_error_counts_under_its_code_and_an_unknown_one_under_other(code: str) -> None:
    telemetry = Telemetry()
    assertion(telemetry).error(code)
    shown = [(one.labels["code"], one.value) for one in samples(telemetry, "evald_evaluator_errors_total")]
    assert shown == [(code if code in CODES else "other", 1)]


def test_a_type_that_nothing_was_said_of_yet_shows_zeros() -> None:
    """Prometheus misses the first increase of a series that was not there before."""
    telemetry = Telemetry()
    assertion(telemetry)
    shown = {one.labels["verdict"]: one.value for one in samples(telemetry, "evald_evaluator_results_total")}
    assert shown == {"passed": 0, "failed": 0, "error": 0, "skipped": 0}


def test_a_type_has_one_tally_per_enforcement() -> None:
    telemetry = Telemetry()
    assert assertion(telemetry) is assertion(telemetry)
    assert assertion(telemetry) is not assertion(telemetry, enforced=False)
