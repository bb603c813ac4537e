"""However many names there are, a scrape stays small and fast, and pass rates stay right."""

import time
from collections import Counter

import pytest

from evald.errorcodes import CODES
from evald.result import Kind, Metric, Verdict
from evald_server.auth.principal import LIMITS
from evald_server.monitoring import Telemetry

from .scrape import OPENMETRICS, samples, value

UNITS = ("", "seconds", "tokens", "words", "usd", "furlongs")
STATUSES = ("OK", "CANCELLED", "INTERNAL", "UNAVAILABLE", "NOT_FOUND", "ABORTED", "DATA_LOSS", "UNKNOWN")

# The series of every scrape, without those of RPCs (500) and types (4 for each of 150).
FIXED = Telemetry()._limit.fixed - 500 - 4 * 150


def flood(telemetry: Telemetry, names: int) -> None:
    """As many types, and a fiftieth as many methods, labels and reasons, as a hostile peer likes."""
    for limit in LIMITS:
        telemetry.access.limited.add(limit)
    codes = list(CODES)
    for number in range(names):
        kind = Kind(1 + number % 2)
        tally = telemetry.evaluators.tally(
            f'evil"\\\n{number}',
            kind,
            enforced=number % 3 > 0,
            origin="remote",
            metric=Metric(UNITS[number % 6]) if kind is Kind.METRIC else None,
        )
        tally.add(1 if kind is Kind.METRIC else 1 + number % 4, 0.1, 0.5)
        tally.measure(UNITS[number % 6], 3.0)
        tally.error(codes[number % len(codes)])
        if number % 50 == 0:
            telemetry.rpcs.tally(f"s{number}", f"m{number}", "unary").handled(STATUSES[number % 8], 0.1)
            telemetry.evaluations.tally("Evaluate", {"suite": f"suite {number}"}).add(Verdict.PASSED, 0.1)
            telemetry.saturation.rejected(f"reason {number}")


def test_a_hundred_thousand_hostile_names_leave_a_scrape_below_2000_series_and_100_ms() -> None:
    telemetry = Telemetry(allowed_labels=["suite"])
    telemetry.saturation.inflight.set_function(lambda: 1)
    telemetry.saturation.queued.set_function(lambda: 1)
    flood(telemetry, 100_000)
    for accept in ("", OPENMETRICS):
        took = []
        for _ in range(5):
            began = time.thread_time()
            telemetry.exposition(accept)
            took.append(time.thread_time() - began)
        # Of processor time, and the fastest of five: what other processes do does not count.
        assert min(took) < 0.1
        assert len(list(samples(telemetry, accept=accept))) < 2000


@pytest.mark.parametrize(
    ("max_types", "max_series"),
    [(0, FIXED + 500), (10, FIXED + 540), (10, FIXED + 624), (200, FIXED + 1300), (200, 5000)],
)
def test_no_flood_exceeds_the_series_allowed(max_types: int, max_series: int) -> None:
    telemetry = Telemetry(max_types=max_types, max_series=max_series, allowed_labels=["suite"])
    telemetry.saturation.inflight.set_function(lambda: 1)
    telemetry.saturation.queued.set_function(lambda: 1)
    flood(telemetry, 5000)
    shown = Counter((one.name, *sorted(one.labels.items())) for one in samples(telemetry))
    assert len(shown) <= max_series
    assert set(shown.values()) == {1}, "the same series twice makes Prometheus drop the scrape"
    evaluators = {one.labels["evaluator"] for one in samples(telemetry, "evald_evaluator_results_total")}
    assert len(evaluators - {"other"}) == max_types


def test_a_type_that_is_announced_shows_zeros_and_takes_room_for_histograms_only_when_used() -> None:
    telemetry = Telemetry(max_series=1500)
    for number in range(100):
        telemetry.evaluators.export_zeros(f"built-in-{number}", Kind.ASSERTION)
    assert value(telemetry, "evald_evaluator_results_total", evaluator="built-in-7", verdict="passed") == 0
    assert not list(samples(telemetry, "evald_evaluator_duration_seconds_count"))
    for name in ("acme.pii", "built-in-7"):
        telemetry.evaluators.tally(name, Kind.ASSERTION, enforced=True, origin="remote", metric=None).add(
            Verdict.PASSED, 0.1, 1.0
        )
        assert value(telemetry, "evald_evaluator_duration_seconds_count", evaluator=name) == 1
        assert value(telemetry, "evald_evaluator_results_total", evaluator=name, verdict="passed") == 1
    shown = Counter((one.name, *sorted(one.labels.items())) for one in samples(telemetry))
    assert set(shown.values()) == {1}


def test_an_announced_type_that_is_first_used_as_a_shadow_stays_within_the_series_allowed() -> None:
    telemetry = Telemetry(max_types=2, max_series=FIXED + 508)
    for name in ("regex", "contains"):
        telemetry.evaluators.export_zeros(name, Kind.ASSERTION)
        for enforced in (False, True):
            telemetry.evaluators.tally(
                name, Kind.ASSERTION, enforced=enforced, origin="built_in", metric=None
            ).add(Verdict.FAILED, 0.1, 0.0)
    assert len(list(samples(telemetry))) <= 178
    assert (
        value(
            telemetry,
            "evald_evaluator_results_total",
            evaluator="regex",
            enforcement="enforced",
            verdict="failed",
        )
        == 1
    )


def test_names_without_room_are_not_kept() -> None:
    telemetry = Telemetry()
    flood(telemetry, 1000)
    evaluators = telemetry.evaluators
    assert len(evaluators._tallies) + len(evaluators._other_tallies) <= 150 + 4, (
        "one for each type with room, four for the rest"
    )
    first, second = (
        telemetry.evaluators.tally(name, Kind.ASSERTION, enforced=True, origin="remote", metric=None)
        for name in ("late", "later")
    )
    assert first is second


def test_every_result_of_a_flood_is_counted_and_the_overflow_says_so() -> None:
    telemetry = Telemetry()
    flood(telemetry, 3000)
    assert sum(one.value for one in samples(telemetry, "evald_evaluator_results_total")) == 3000
    assert sum(one.value for one in samples(telemetry, "evald_evaluator_errors_total")) == 3000
    took = sum(one.value for one in samples(telemetry, "evald_evaluator_duration_seconds_count"))
    skipped = sum(one.value for one in samples(telemetry, "evald_evaluator_results_total", verdict="skipped"))
    assert took == 3000 - skipped
    assert value(telemetry, "evald_label_overflow_total", label="evaluator") == 2850
    assert value(telemetry, "evald_label_overflow_total", label="code") == 0


def test_a_type_without_room_for_histograms_keeps_its_verdicts() -> None:
    telemetry = Telemetry(max_types=2, max_series=FIXED + 514)
    for name in ("regex", "contains"):
        tally = telemetry.evaluators.tally(
            name, Kind.ASSERTION, enforced=True, origin="built_in", metric=None
        )
        tally.add(Verdict.FAILED, 0.1, 0.0)
        tally.error("TIMEOUT")
        assert value(telemetry, "evald_evaluator_results_total", evaluator=name, verdict="failed") == 1, (
            "the pass rate needs this"
        )
    assert value(telemetry, "evald_evaluator_duration_seconds_count", evaluator="other") == 2
    assert value(telemetry, "evald_evaluator_errors_total", evaluator="other", code="TIMEOUT") == 2
    assert not list(samples(telemetry, "evald_assertion_score_ratio_count"))
    assert value(telemetry, "evald_label_overflow_total", label="detail") == 2


def test_a_type_that_is_called_other_shares_the_series_of_the_rest() -> None:
    telemetry = Telemetry(max_types=1)
    for name in ("other", "first", "third"):
        telemetry.evaluators.tally(name, Kind.ASSERTION, enforced=True, origin="remote", metric=None).add(
            Verdict.PASSED, 0.1, 1.0
        )
    assert value(telemetry, "evald_evaluator_results_total", evaluator="other", verdict="passed") == 2


def test_codes_without_room_count_under_other() -> None:
    telemetry = Telemetry(max_types=1, max_series=FIXED + 4 + 28 + 19 + 2, max_rpc_series=19)
    method = telemetry.rpcs.tally("s", "m", "unary")
    tally = telemetry.evaluators.tally("regex", Kind.ASSERTION, enforced=True, origin="built_in", metric=None)
    for code in ("TIMEOUT", "CANCELLED", "TIMEOUT", "CANCELLED"):
        tally.error(code)
    for code in ("OK", "INTERNAL", "OK", "INTERNAL"):
        method.handled(code, 0.1)
    telemetry.rpcs.tally("s", "n", "unary").handled("OK", 0.1)
    errors = {one.labels["code"]: one for one in samples(telemetry, "evald_evaluator_errors_total")}
    assert {code: (one.labels["evaluator"], one.value) for code, one in errors.items()} == {
        "TIMEOUT": ("regex", 2),
        "CANCELLED": ("regex", 2),
    }
    handled = {
        (one.labels["grpc_method"], one.labels["grpc_code"]): one.value
        for one in samples(telemetry, "grpc_server_handled_total")
    }
    assert handled == {("other", "OK"): 3, ("other", "Internal"): 2}
    assert value(telemetry, "evald_label_overflow_total", label="code") == 4
    tally.error("UNEVALUABLE")
    assert value(telemetry, "evald_evaluator_errors_total", evaluator="other", code="UNEVALUABLE") == 1


def test_too_few_series_for_the_types_are_refused_with_the_number_that_would_do() -> None:
    with pytest.raises(ValueError, match=f"max_series: got 500, wanted at least {FIXED + 1100}"):
        Telemetry(max_series=500)


def test_a_hundred_label_sets_of_callers_leave_room_for_evaluators() -> None:
    telemetry = Telemetry(allowed_labels=["suite"])
    for number in range(100):
        telemetry.evaluations.tally("Evaluate", {"suite": f"s{number}"}).add(Verdict.PASSED, 0.1)
    shown = {one.labels["suite"] for one in samples(telemetry, "evald_evaluations_total")}
    assert len(shown) == 51
    assert value(telemetry, "evald_evaluations_total", suite="other", verdict="passed") == 50
    tally = telemetry.evaluators.tally("regex", Kind.ASSERTION, enforced=True, origin="built_in", metric=None)
    tally.add(Verdict.PASSED, 0.1, 1.0)
    assert value(telemetry, "evald_evaluator_duration_seconds_count", evaluator="regex") == 1
