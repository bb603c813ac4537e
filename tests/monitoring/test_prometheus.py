"""Prometheus's own tools accept what is shipped for them, and a real Prometheus computes with it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from evald.result import Kind, Metric, Verdict
from evald_server.monitoring import EvaluatorTally, HttpServer, Telemetry

from ..prometheus import Prometheus, promtool, scraping
from .test_metric_names import dashboard_queries

pytestmark = pytest.mark.interop

UNITS = ("", "seconds", "tokens", "words", "usd", "furlongs")


def flood(telemetry: Telemetry, names: int) -> None:
    """Use many types with hostile names."""
    for number in range(names):
        unit = UNITS[number % 6]
        tally = telemetry.evaluators.tally(
            f'evil"\\\n{number}',
            1 + number % 2,
            enforced=number % 3 > 0,
            origin="remote",
            metric=Metric(unit) if number % 2 else None,
        )
        tally.add(1, 0.1, 0.5)
        tally.measure(unit, 3.0)
        tally.error("TIMEOUT")


@pytest.mark.parametrize("names", [0, 10, 5000])
def test_promtool_finds_nothing_wrong_with_a_scrape(names: int) -> None:
    telemetry = Telemetry()
    flood(telemetry, names)
    assert promtool("check", "metrics", sent=telemetry.exposition("")[0]) == ""


def test_the_rules_and_alerts_are_valid_and_pass_their_unit_tests() -> None:
    promtool("check", "rules", "rules.yml", "alerts.yml")
    promtool("test", "rules", "rules_test.yml")


def test_every_query_of_the_dashboard_is_valid(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(dashboard_queries())]
    assert len(rules) > 20
    file = tmp_path / "rules.json"  # JSON is YAML
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    promtool("check", "rules", str(file))


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry()


@pytest.fixture
def prometheus(telemetry: Telemetry, tmp_path: Path) -> Iterator[Prometheus]:
    """Scrapes the telemetry and evaluates the rules that are shipped."""
    http = HttpServer(telemetry, host="127.0.0.1", port=0, ready=lambda: True)
    with scraping(f"127.0.0.1:{http.start()}", tmp_path, ["rules.yml", "alerts.yml"]) as started:
        yield started
    http.stop()


def _assertion(telemetry: Telemetry, name: str, *, enforced: bool = True) -> EvaluatorTally:
    return telemetry.evaluators.tally(name, Kind.ASSERTION, enforced=enforced, origin="built_in", metric=None)


def test_a_real_prometheus_computes_the_pass_rates(telemetry: Telemetry, prometheus: Prometheus) -> None:
    regex, contains = _assertion(telemetry, "regex"), _assertion(telemetry, "contains")
    size = telemetry.evaluators.tally(
        "size", Kind.METRIC, enforced=True, origin="built_in", metric=Metric("tokens")
    )
    prometheus.wait_for('evald_evaluator_results_total{evaluator="contains", verdict="failed"} == 0')
    for verdict, times in ((1, 3), (2, 1), (3, 5), (4, 7)):
        for _ in range(times):
            regex.add(verdict, 0.3, None)
            contains.add(verdict if verdict > 2 else 1, 0.3, None)
    for _ in range(100):
        _assertion(telemetry, "regex", enforced=False).add(Verdict.FAILED, 0.3, None)
        size.add(Verdict.PASSED, 0.001, None)
        size.measure("tokens", 20.0)
    prometheus.wait_for(
        'evald_evaluator_results_total{evaluator="regex", enforcement="shadow", verdict="failed"}'
    )

    query = (
        (Path(__file__).parents[2] / "docs/telemetry.md").read_text().split("```promql\n")[1].split("```")[0]
    )
    wanted = pytest.approx({"regex": 0.75, "contains": 1.0})
    prometheus.wait_for(f"({query}) >= 0", wanted)
    # Each rule is evaluated some time after the scrape.
    prometheus.wait_for("job_evaluator:evald_assertions_passed:ratio_rate5m", wanted)
    prometheus.wait_for("evald_assertion_pass_ratio", wanted)
    quantile = "histogram_quantile(0.5, rate(evald_metric_value_tokens_bucket[5m])) > 0"
    assert 10 <= prometheus.wait_for(quantile)["size"] <= 30

    prometheus.wait_until_up()


def test_a_real_prometheus_scrapes_a_server_under_attack(
    telemetry: Telemetry, prometheus: Prometheus
) -> None:
    flood(telemetry, 100_000)
    held = prometheus.wait_for('scrape_samples_scraped{job="evald"} > 1500 < 7000')
    assert held
    prometheus.wait_until_up()
