"""RPCs, evaluations, saturation, and the exposition itself."""

import threading

import grpc
import pytest
from prometheus_client import REGISTRY
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from evald.result import Metric, Verdict
from evald_server.monitoring import Telemetry

from .scrape import OPENMETRICS, families, histogram, samples, value


def test_a_call_is_counted_as_dashboards_for_grpc_expect() -> None:
    telemetry = Telemetry()
    tally = telemetry.rpcs.tally("evald.v1.EvaluationService", "Evaluate", "server_stream")
    tally.started()
    tally.started()
    tally.received()
    for _ in range(3):
        tally.sent()
    tally.handled("OK", 0.2)
    tally.handled("INVALID_ARGUMENT", 0.0)
    labels = {
        "grpc_type": "server_stream",
        "grpc_service": "evald.v1.EvaluationService",
        "grpc_method": "Evaluate",
    }
    assert value(telemetry, "grpc_server_started_total", **labels) == 2
    assert value(telemetry, "grpc_server_msg_received_total", **labels) == 1
    assert value(telemetry, "grpc_server_msg_sent_total", **labels) == 3
    assert value(telemetry, "grpc_server_handled_total", **labels, grpc_code="OK") == 1
    assert value(telemetry, "grpc_server_handled_total", **labels, grpc_code="InvalidArgument") == 1
    assert histogram(telemetry, "grpc_server_handling_seconds", **labels)[1:] == (0.2, 2)
    assert telemetry.rpcs.tally("evald.v1.EvaluationService", "Evaluate", "server_stream") is tally


def test_every_status_code_has_a_name_of_its_own() -> None:
    telemetry = Telemetry()
    for code in grpc.StatusCode:
        telemetry.rpcs.tally("s", "m", "unary").handled(code.name, 0.0)
    shown = {one.labels["grpc_code"]: one.value for one in samples(telemetry, "grpc_server_handled_total")}
    assert len(shown) == len(grpc.StatusCode)
    assert set(shown.values()) == {1}
    assert {"OK", "Canceled", "DeadlineExceeded", "Unauthenticated"} <= shown.keys()


def test_an_unknown_status_code_is_unknown() -> None:
    telemetry = Telemetry()
    telemetry.rpcs.tally("s", "m", "unary").handled("TEAPOT", 0.0)
    assert value(telemetry, "grpc_server_handled_total", grpc_code="Unknown") == 1


def test_evaluations_are_counted_by_rpc_and_verdict() -> None:
    telemetry = Telemetry()
    telemetry.evaluations.tally("Evaluate").add(Verdict.PASSED, 0.3)
    telemetry.evaluations.tally("EvaluateBatch").add(Verdict.ERROR, 0.1)
    assert value(telemetry, "evald_evaluations_total", rpc="Evaluate", verdict="passed") == 1
    assert value(telemetry, "evald_evaluations_total", rpc="Evaluate", verdict="failed") == 0
    assert value(telemetry, "evald_evaluations_total", rpc="EvaluateBatch", verdict="error") == 1
    assert histogram(telemetry, "evald_evaluation_duration_seconds")[1:] == (pytest.approx(0.4), 2)


def test_only_allowed_labels_of_a_caller_are_shown() -> None:
    telemetry = Telemetry(allowed_labels=["suite"])
    telemetry.evaluations.tally("Evaluate", {"suite": "checkout", "secret": "hunter2"}).add(
        Verdict.PASSED, 0.1
    )
    telemetry.evaluations.tally("Evaluate").add(Verdict.PASSED, 0.1)
    telemetry.evaluations.tally("Evaluate", {"suite": "x" * 65}).add(Verdict.PASSED, 0.1)
    telemetry.evaluations.tally("Evaluate", {"suite": "a\nb"}).add(Verdict.PASSED, 0.1)
    shown = {
        one.labels["suite"]: one.value
        for one in samples(telemetry, "evald_evaluations_total", verdict="passed")
    }
    assert shown == {"checkout": 1, "": 1, "other": 2}
    assert b"hunter2" not in telemetry.exposition("")[0]


@pytest.mark.parametrize("name", ["", "9a", "a-b", "__a", "rpc", "verdict"])
def test_a_label_that_prometheus_or_the_family_cannot_have_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="allowed_labels"):
        Telemetry(allowed_labels=[name])


def test_saturation_is_asked_for_at_the_scrape() -> None:
    telemetry = Telemetry()
    assert value(telemetry, "evald_inflight_evaluations") is None
    running = [3]
    telemetry.saturation.inflight.set_function(lambda: running[-1])
    telemetry.saturation.queued.set_function(lambda: 7)
    assert value(telemetry, "evald_inflight_evaluations") == 3
    running.append(5)
    assert value(telemetry, "evald_inflight_evaluations") == 5
    assert value(telemetry, "evald_queued_evaluations") == 7
    telemetry.saturation.rejected("overloaded")
    telemetry.saturation.rejected("overloaded")
    assert value(telemetry, "evald_evaluations_rejected_total", reason="overloaded") == 2


def test_the_lag_is_the_worst_of_the_last_minute() -> None:
    telemetry = Telemetry()
    assert value(telemetry, "evald_event_loop_lag_seconds") == 0
    for lag in (0.1, 0.8, *[0.2] * 239):
        telemetry.saturation.loop_lag(lag)
    assert value(telemetry, "evald_event_loop_lag_seconds") == 0.8
    telemetry.saturation.loop_lag(0.1)
    assert value(telemetry, "evald_event_loop_lag_seconds") == 0.2


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("", "text/plain; version=0.0.4"),
        ("*/*", "text/plain; version=0.0.4"),
        ("text/html,application/xhtml+xml", "text/plain; version=0.0.4"),
        (OPENMETRICS, "application/openmetrics-text; version=1.0.0"),
        ("Application/OpenMetrics-Text", "application/openmetrics-text; version=1.0.0"),
        (
            "application/openmetrics-text; version=9\r\nX-Evil: 1",
            "application/openmetrics-text; version=1.0.0",
        ),
    ],
)
def test_the_format_is_what_the_scraper_asks_for(accept: str, wanted: str) -> None:
    body, content_type = Telemetry().exposition(accept)
    assert content_type.startswith(wanted)
    assert "Evil" not in content_type
    assert body.endswith(b"# EOF\n") is ("openmetrics" in wanted)


def test_build_and_process_are_shown_and_no_series_tells_when_it_was_created() -> None:
    telemetry = Telemetry()
    telemetry.evaluations.tally("Evaluate").add(Verdict.PASSED, 0.1)
    names = {one.name for one in samples(telemetry, accept=OPENMETRICS)}
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
        tally.error("TIMEOUT")
        telemetry.rpcs.tally("s", f"m{number % 20}", "unary").handled("OK", 0.1)
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
