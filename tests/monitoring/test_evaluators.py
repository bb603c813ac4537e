"""What evaluators do is what a scrape shows."""

import math
from collections import Counter
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evald.errorcodes import CODES
from evald.result import Kind, Metric, Verdict
from evald_server.monitoring import EvaluatorTally, Telemetry

from .scrape import OPENMETRICS, Clock, families, histogram, samples, shown, value

PASSED, FAILED, ERROR, SKIPPED = Verdict.PASSED, Verdict.FAILED, Verdict.ERROR, Verdict.SKIPPED
UNITS = ("seconds", "tokens", "characters", "words", "count", "ratio", "bytes", "usd")


def assertion(telemetry: Telemetry, name: str = "regex", *, enforced: bool = True) -> EvaluatorTally:
    return telemetry.evaluators.tally(name, Kind.ASSERTION, enforced=enforced, origin="built_in", metric=None)


def metric(telemetry: Telemetry, descriptor: Metric, *, enforced: bool = True) -> EvaluatorTally:
    return telemetry.evaluators.tally(
        "size", Kind.METRIC, enforced=enforced, origin="plugin", metric=descriptor
    )


class Outcome(NamedTuple):
    evaluator: str
    enforced: bool
    verdict: Verdict
    seconds: float
    score: float | None
    count: int


@settings(max_examples=40)  # a scrape takes long
@given(
    st.lists(
        st.builds(
            Outcome,
            st.sampled_from(["regex", "contains"]),
            st.booleans(),
            st.sampled_from(Verdict),
            st.floats(0, 200),
            st.none() | st.floats(0, 1),
            st.integers(1, 3),
        ),
        max_size=40,
    )
)
def test_results_durations_and_scores_are_counted_once_under_their_labels(outcomes: list[Outcome]) -> None:
    telemetry = Telemetry()
    wanted: Counter[tuple[str, ...]] = Counter()
    for one in outcomes:
        tally = assertion(telemetry, one.evaluator, enforced=one.enforced)
        tally.add(one.verdict, one.seconds, one.score, one.count)
        enforcement = "enforced" if one.enforced else "shadow"
        wanted[one.evaluator, enforcement, one.verdict.name.lower()] += one.count
    counts = {
        (sample.labels["evaluator"], sample.labels["enforcement"], sample.labels["verdict"]): sample.value
        for sample in samples(telemetry, "evald_evaluator_results_total", kind="assertion")
    }
    assert {labels: count for labels, count in counts.items() if count} == wanted

    for name in {one.evaluator for one in outcomes}:
        took = [one for one in outcomes if one.evaluator == name and one.verdict is not SKIPPED]
        buckets, total, count = histogram(telemetry, "evald_evaluator_duration_seconds", evaluator=name)
        assert count == buckets["+Inf"] == sum(one.count for one in took)
        assert total == pytest.approx(sum(one.seconds * one.count for one in took))
        for bound, below in buckets.items():
            assert below == sum(one.count for one in took if one.seconds <= float(bound))
        scored = [
            (one.score, one.count)
            for one in took
            if one.enforced and one.verdict is not ERROR and one.score is not None
        ]
        score_total = value(telemetry, "evald_assertion_score_ratio_sum", evaluator=name) or 0
        assert score_total == pytest.approx(sum(score * count for score, count in scored))


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
    ratio = value(telemetry, "evald_assertion_pass_ratio", evaluator="regex")
    assert ratio == (pytest.approx(recent.count(PASSED) / len(recent)) if recent else None)


def test_a_value_lands_in_the_family_of_its_unit() -> None:
    for unit, family in [*((unit, unit) for unit in UNITS), ("", "count"), ("furlongs", "count")]:
        telemetry = Telemetry()
        metric(telemetry, Metric(unit), enforced=False).measure(unit, 0.75)
        sums = {other: value(telemetry, f"evald_metric_value_{other}_sum") for other in UNITS}
        assert sums == {other: 0.75 if other == family else None for other in UNITS}
        assert value(telemetry, "evald_metric_last_value", evaluator="size", unit=unit) == 0.75


def test_a_bound_is_the_upper_one_of_its_bucket() -> None:
    telemetry = Telemetry()
    for number, count in ((0, 1), (1, 1), (2, 2), (4, 1), (1000, 1)):
        metric(telemetry, Metric("count")).measure("count", number, count)
    buckets, total, count = histogram(telemetry, "evald_metric_value_count", evaluator="size")
    assert [buckets[bound] for bound in ("0.0", "1.0", "2.0", "3.0", "5.0", "100.0", "+Inf")] == [
        *(1, 2, 4, 4, 5, 5, 6)
    ]
    assert (total, count) == (1009, 6)


def test_a_metric_keeps_its_own_buckets_when_they_are_valid() -> None:
    valid: list[tuple[float, ...]] = [(1, 10, 100), (-5.0, 0.0, 5.0), tuple(range(20))]
    invalid = [tuple(range(21)), (1.0, 1.0), (2.0, 1.0), (1.0, math.inf), (math.nan,), ()]
    for bounds in valid + invalid:
        telemetry = Telemetry()
        metric(telemetry, Metric("tokens", bucket_bounds=bounds)).measure("tokens", 7.0)
        edges = [float(edge) for edge in shown(telemetry, "evald_metric_value_tokens_bucket", "le")]
        default = (10.0, 30.0, 100.0, 300.0, 1e3, 3e3, 1e4, 3e4, 1e5)
        assert edges == [*(bounds if bounds in valid else default), math.inf], bounds
        assert families(telemetry, OPENMETRICS)


def test_a_number_that_cannot_be_added_up_spoils_no_sum() -> None:
    for number in (math.nan, math.inf, -math.inf, 1e308):
        telemetry = Telemetry()
        tally = metric(telemetry, Metric("tokens"))
        for counted in (number, 5.0):
            tally.measure("tokens", counted)
        assert histogram(telemetry, "evald_metric_value_tokens")[1:] == (5.0, 1)
    for score in (math.nan, math.inf, -0.1, 1.1):
        telemetry = Telemetry()
        for counted in (score, 0.5):
            assertion(telemetry).add(PASSED, 0.001, counted)
        assert histogram(telemetry, "evald_assertion_score_ratio")[1:] == (0.5, 1)


def test_a_metric_has_no_failed_no_score_and_no_pass_ratio() -> None:
    telemetry = Telemetry()
    metric(telemetry, Metric("tokens")).add(PASSED, 0.001, None)
    assert shown(telemetry, "evald_evaluator_results_total", "verdict").keys() == {
        *("passed", "error", "skipped")
    }
    for name in ("evald_assertion_pass_ratio", "evald_assertion_score_ratio_count"):
        assert value(telemetry, name) is None


def test_an_error_counts_under_its_code_and_an_unknown_one_under_other() -> None:
    telemetry = Telemetry()
    for code in (*CODES, "SOMETHING_NEW"):
        assertion(telemetry).error(code)
    assert shown(telemetry, "evald_evaluator_errors_total", "code") == dict.fromkeys((*CODES, "other"), 1)


def test_a_type_shows_zeros_when_it_is_announced_and_histograms_when_it_is_used() -> None:
    """Prometheus misses the first increase of a series that was not there before."""
    telemetry = Telemetry()
    telemetry.evaluators.export_zeros("regex", Kind.ASSERTION)
    zeros = {"passed": 0, "failed": 0, "error": 0, "skipped": 0}
    assert shown(telemetry, "evald_evaluator_results_total", "verdict") == zeros
    assert value(telemetry, "evald_evaluator_duration_seconds_count") is None
    assertion(telemetry).add(FAILED, 0.1, 0.0)
    assert shown(telemetry, "evald_evaluator_results_total", "verdict") == zeros | {"failed": 1}
    assert value(telemetry, "evald_evaluator_duration_seconds_count", evaluator="regex") == 1


def test_names_beyond_the_cap_count_as_other_and_the_overflow_says_so() -> None:
    telemetry = Telemetry()
    codes = list(CODES)
    for number in range(3000):
        tally = assertion(telemetry, f'evil"\\\n{number}', enforced=number % 3 > 0)
        tally.add(Verdict(1 + number % 4), 0.1, 0.5)
        tally.error(codes[number % len(codes)])
    evaluators = {one.labels["evaluator"] for one in samples(telemetry, "evald_evaluator_results_total")}
    assert len(evaluators) == 151
    assert "other" in evaluators
    for name, count in (("results_total", 3000), ("errors_total", 3000), ("duration_seconds_count", 2250)):
        assert sum(one.value for one in samples(telemetry, f"evald_evaluator_{name}")) == count
    assert value(telemetry, "evald_label_overflow_total", label="evaluator") == 2850
    assert assertion(telemetry, "late") is assertion(telemetry, "later")
    series = Counter((one.name, *sorted(one.labels.items())) for one in samples(telemetry))
    assert set(series.values()) == {1}, "the same series twice makes Prometheus drop the scrape"
    telemetry.remotes.tasks("late").observe(0.1)
    assert shown(telemetry, "evald_remote_task_duration_seconds_count", "evaluator") == {"other": 1}
