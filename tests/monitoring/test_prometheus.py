"""Prometheus's own tools accept what is shipped for them, and a real Prometheus computes with it."""

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evald.evaluator import Metric
from evald.result import Kind, Verdict
from evald_server.monitoring import EvaluatorTally, HttpServer, Telemetry

from .test_metric_names import dashboard_queries
from .test_series_limit import flood

pytestmark = pytest.mark.interop

DEPLOY = Path(__file__).parents[2] / "deploy/prometheus"
TRACE = "0af7651916cd43dd8448eb211c80319c"


def run(*command: str, sent: bytes = b"") -> str:
    """What the tool says; it has to succeed."""
    assert shutil.which(command[0]), (
        f"no {command[0]}: install Prometheus (Debian: apt-get install prometheus)"
    )
    ended = subprocess.run(command, input=sent, capture_output=True, check=False, timeout=60, cwd=DEPLOY)
    said = (ended.stdout + ended.stderr).decode()
    assert ended.returncode == 0, said
    return said


@pytest.mark.parametrize("names", [0, 10, 5000])
def test_promtool_finds_nothing_wrong_with_a_scrape(names: int) -> None:
    telemetry = Telemetry()
    telemetry.watch(inflight=lambda: 1, queued=lambda: 0)
    flood(telemetry, names)
    assert run("promtool", "check", "metrics", sent=telemetry.exposition("")[0]) == ""


def test_the_rules_and_alerts_are_valid_and_pass_their_unit_tests() -> None:
    run("promtool", "check", "rules", "rules.yml", "alerts.yml")
    run("promtool", "test", "rules", "rules_test.yml")


def test_every_query_of_the_dashboard_is_valid(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(dashboard_queries())]
    assert len(rules) > 20
    file = tmp_path / "rules.json"  # JSON is YAML
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    run("promtool", "check", "rules", str(file))


class Prometheus:
    """A running Prometheus, asked over its API."""

    def __init__(self, address: str) -> None:
        self._address = address

    def ask(self, path: str, **parameters: str) -> Any:
        """The answer's data; None while it is not up."""
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as refusal:
            with refusal:
                if refusal.code == 503:  # it is still starting
                    return None
                pytest.fail(f"{path} {parameters}: {refusal.read().decode()}")

    def wait_for(self, query: str) -> dict[str, float]:
        """Values by evaluator, once there are any. Another program's clock: polled, for at most 30 s."""
        give_up = time.monotonic() + 30
        while True:
            data = self.ask("query", query=query)
            if data and data["result"]:
                return {one["metric"].get("evaluator", ""): float(one["value"][1]) for one in data["result"]}
            assert time.monotonic() < give_up, f"no result within 30 s: {query}"
            time.sleep(0.1)


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry()


@pytest.fixture
def prometheus(telemetry: Telemetry, tmp_path: Path) -> Iterator[Prometheus]:
    """Scrapes the telemetry and evaluates the rules that are shipped, twice a second."""
    assert shutil.which("prometheus"), "no prometheus: install it (Debian: apt-get install prometheus)"
    http = HttpServer(telemetry, host="127.0.0.1", port=0, ready=lambda: True)
    port = http.start()
    config = {
        "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
        "rule_files": [str(DEPLOY / "rules.yml"), str(DEPLOY / "alerts.yml")],
        "scrape_configs": [{"job_name": "evald", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}],
    }
    (tmp_path / "prometheus.yml").write_text(json.dumps(config))
    command = [
        "prometheus",
        f"--config.file={tmp_path}/prometheus.yml",
        f"--storage.tsdb.path={tmp_path}/data",
        "--web.listen-address=127.0.0.1:0",
        "--enable-feature=exemplar-storage",
        "--log.format=json",
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        try:
            yield Prometheus(_listening_address(process.stderr))
        finally:
            process.terminate()
            process.communicate(timeout=30)
            http.stop()


def _listening_address(log: Any) -> str:
    said = []
    for line in log:
        said.append(line)
        entry = json.loads(line)
        if entry.get("msg") == "Listening on":
            return str(entry["address"])
    pytest.fail(f"Prometheus ended before it listened: {''.join(said)}")


def _assertion(telemetry: Telemetry, name: str, *, enforced: bool = True) -> EvaluatorTally:
    return telemetry.tally(name, Kind.ASSERTION, enforced=enforced, origin="built_in", metric=None)


def test_a_real_prometheus_computes_the_pass_rates(telemetry: Telemetry, prometheus: Prometheus) -> None:
    regex, contains = _assertion(telemetry, "regex"), _assertion(telemetry, "contains")
    size = telemetry.tally("size", Kind.METRIC, enforced=True, origin="built_in", metric=Metric("tokens"))
    prometheus.wait_for('evald_evaluator_results_total{evaluator="contains", verdict="failed"} == 0')
    for verdict, times in ((1, 3), (2, 1), (3, 5), (4, 7)):
        for _ in range(times):
            regex.add(verdict, 0.3, None, None, TRACE)
            contains.add(verdict if verdict > 2 else 1, 0.3, None, None)
    for _ in range(100):
        _assertion(telemetry, "regex", enforced=False).add(Verdict.FAILED, 0.3, None, None)
        size.add(Verdict.PASSED, 0.001, None, 20.0)
    prometheus.wait_for(
        'evald_evaluator_results_total{evaluator="regex", enforcement="shadow", verdict="failed"}'
    )

    query = (
        (Path(__file__).parents[2] / "docs/telemetry.md").read_text().split("```promql\n")[1].split("```")[0]
    )
    assert prometheus.wait_for(f"({query}) >= 0") == pytest.approx({"regex": 0.75, "contains": 1.0})
    recorded = prometheus.wait_for("job_evaluator:evald_assertions_passed:ratio_rate5m")
    assert recorded == pytest.approx({"regex": 0.75, "contains": 1.0})
    assert prometheus.wait_for("evald_assertion_pass_ratio") == {"regex": 0.75, "contains": 1.0}
    quantile = "histogram_quantile(0.5, rate(evald_metric_value_tokens_bucket[5m])) > 0"
    assert 10 <= prometheus.wait_for(quantile)["size"] <= 30

    exemplars = prometheus.ask(
        "query_exemplars",
        query="evald_evaluator_duration_seconds_bucket",
        start=str(time.time() - 60),
        end=str(time.time() + 60),
    )
    assert {one["labels"]["trace_id"] for series in exemplars for one in series["exemplars"]} == {TRACE}
    (target,) = prometheus.ask("targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")


def test_a_real_prometheus_scrapes_a_server_under_attack(
    telemetry: Telemetry, prometheus: Prometheus
) -> None:
    flood(telemetry, 100_000)
    held = prometheus.wait_for('scrape_samples_scraped{job="evald"} > 1500 < 2000')
    assert held
    (target,) = prometheus.ask("targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")
