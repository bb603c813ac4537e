"""RPCs, evaluations, saturation, and the exposition itself."""

import threading

import grpc
import pytest
from prometheus_client import REGISTRY
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from evald.result import Metric, Verdict
from evald_server.monitoring import Telemetry

from .scrape import OPENMETRICS, families, histogram, samples, shown, value


def test_a_call_is_counted_as_dashboards_for_grpc_expect() -> None:
    telemetry = Telemetry()
    service, method, kind = "evald.v1.EvaluationService", "Evaluate", "server_stream"
    tally = telemetry.rpcs.tally(service, method, kind)
    labels = {"grpc_type": kind, "grpc_service": service, "grpc_method": method}
    assert value(telemetry, "grpc_server_started_total", **labels) is None, "nobody called it"
    tally.started_count += 3
    tally.received_count += 1
    tally.sent_count += 3
    tally.handled("OK", 0.2)
    tally.handled("INVALID_ARGUMENT", 0.0)
    telemetry.ended(tally, "OK", 0.1)
    for name, count in (("started", 3), ("msg_received", 1), ("msg_sent", 3)):
        assert value(telemetry, f"grpc_server_{name}_total", **labels) == count
    assert shown(telemetry, "grpc_server_handled_total", "grpc_code", **labels) == {
        "OK": 2,
        "InvalidArgument": 1,
    }
    assert histogram(telemetry, "grpc_server_handling_seconds", **labels)[1:] == (pytest.approx(0.3), 3)
    assert telemetry.rpcs.tally(service, method, kind) is tally


def test_every_status_code_has_a_name_of_its_own_and_others_are_unknown() -> None:
    telemetry = Telemetry()
    for code in (*(code.name for code in grpc.StatusCode), "TEAPOT"):
        telemetry.rpcs.tally("s", "m", "unary").handled(code, 0.0)
    codes = shown(telemetry, "grpc_server_handled_total", "grpc_code")
    assert codes.pop("Unknown") == 2
    assert len(codes) == len(grpc.StatusCode) - 1
    assert set(codes.values()) == {1}
    assert {"OK", "Canceled", "DeadlineExceeded", "Unauthenticated"} <= codes.keys()


def test_evaluations_are_counted_by_rpc_and_verdict() -> None:
    telemetry = Telemetry()
    telemetry.evaluations.tally("Evaluate").add(Verdict.PASSED, 0.3)
    telemetry.evaluations.tally("EvaluateBatch").add(Verdict.ERROR, 0.1)
    passed = {"passed": 1, "failed": 0, "error": 0, "skipped": 0}
    assert shown(telemetry, "evald_evaluations_total", "verdict", rpc="Evaluate") == passed
    assert value(telemetry, "evald_evaluations_total", rpc="EvaluateBatch", verdict="error") == 1
    assert histogram(telemetry, "evald_evaluation_duration_seconds")[1:] == (pytest.approx(0.4), 2)
    assert telemetry.evaluations.counts()["Evaluate"] == passed


def test_only_allowed_labels_of_a_caller_are_shown() -> None:
    telemetry = Telemetry(allowed_labels=["suite"])
    sent = [{"suite": "checkout", "secret": "hunter2"}, None, {"suite": "x" * 65}, {"suite": "a\nb"}]
    for labels in sent:
        telemetry.evaluations.tally("Evaluate", labels).add(Verdict.PASSED, 0.1)
    by_suite = shown(telemetry, "evald_evaluations_total", "suite", verdict="passed")
    assert by_suite == {"checkout": 1, "": 1, "other": 2}
    assert b"hunter2" not in telemetry.exposition("")[0]


@pytest.mark.parametrize("name", ["", "9a", "a-b", "__a", "rpc", "verdict"])
def test_a_label_that_prometheus_or_the_family_cannot_have_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="allowed_labels"):
        Telemetry(allowed_labels=[name])


def test_saturation_is_asked_for_at_the_scrape() -> None:
    telemetry = Telemetry()
    running = [3]
    telemetry.saturation.inflight.set_function(lambda: running[-1])
    assert value(telemetry, "evald_inflight_evaluations") == 3
    running.append(5)
    assert value(telemetry, "evald_inflight_evaluations") == 5
    for _ in range(2):
        telemetry.saturation.rejected("overloaded")
    assert value(telemetry, "evald_evaluations_rejected_total", reason="overloaded") == 2


def test_the_lag_is_the_worst_of_the_last_minute() -> None:
    telemetry = Telemetry()
    for lag in (0.8, *(0.2,) * 239):
        telemetry.saturation.loop_lag(lag)
    assert value(telemetry, "evald_event_loop_lag_seconds") == 0.8
    telemetry.saturation.loop_lag(0.1)
    assert value(telemetry, "evald_event_loop_lag_seconds") == 0.2


def test_the_format_is_what_the_scraper_asks_for() -> None:
    text, openmetrics = "text/plain; version=0.0.4", "application/openmetrics-text; version=1.0.0"
    for accept, wanted in (
        ("", text),
        ("*/*", text),
        ("text/html,application/xhtml+xml", text),
        (OPENMETRICS, openmetrics),
        ("Application/OpenMetrics-Text", openmetrics),
        ("application/openmetrics-text; version=9\r\nX-Evil: 1", openmetrics),
    ):
        body, content_type = Telemetry().exposition(accept)
        assert content_type.startswith(wanted)
        assert "Evil" not in content_type
        assert body.endswith(b"# EOF\n") is (wanted is openmetrics)


def test_build_and_process_are_shown_and_no_series_tells_when_it_was_created() -> None:
    telemetry = Telemetry()
    telemetry.evaluations.tally("Evaluate").add(Verdict.PASSED, 0.1)
    names = {one.name for accept in ("", OPENMETRICS) for one in samples(telemetry, accept=accept)}
    assert {"evald_build_info", "process_cpu_seconds_total", "python_info"} <= names
    assert not [name for name in names if name.endswith("_created")]
    assert all(family.documentation for family in families(telemetry))


def test_each_server_has_a_registry_of_its_own() -> None:
    first, second = Telemetry(), Telemetry()
    first.evaluations.tally("Evaluate").add(Verdict.PASSED, 0.1)
    assert value(second, "evald_evaluations_total", rpc="Evaluate", verdict="passed") is None
    assert REGISTRY.get_sample_value("evald_build_info") is None


def test_scrapes_beside_a_writer_are_whole() -> None:
    """The strict parser refuses buckets that go down, and a count that is not the last bucket."""
    telemetry = Telemetry()
    scrapes: list[bytes] = []
    written = threading.Event()

    def scrape() -> None:
        for _ in range(8):
            # On a busy machine all scrapes could be over before the first write.
            written.wait(60)
            written.clear()
            scrapes.append(telemetry.exposition(OPENMETRICS)[0])

    thread = threading.Thread(target=scrape)
    thread.start()
    number = 0
    while thread.is_alive():
        number += 1
        tally = telemetry.evaluators.tally(
            f"type-{number % 50}",
            1 + number % 2,
            enforced=number % 3 > 0,
            origin="remote",
            metric=Metric("tokens") if number % 2 else None,
        )
        tally.add(1 + number % 4, number % 7 / 10, 0.5)
        tally.measure("tokens", 12.0)
        method = telemetry.rpcs.tally("s", f"m{number % 20}", "unary")
        method.started_count += 1
        telemetry.ended(method, "OK", 0.1)
        written.set()
    thread.join()
    totals = [
        sum(
            one.value
            for family in parse_openmetrics(body.decode())
            for one in family.samples
            if one.name == "evald_evaluator_results_total"
        )
        for body in scrapes
    ]
    assert len(totals) == 8
    assert totals == sorted(totals)
    assert totals[-1] > totals[0]
    assert value(telemetry, "grpc_server_handled_total", grpc_method="m0") == number // 20
