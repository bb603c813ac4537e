"""What /metrics serves is what Prometheus's own tools accept and a real Prometheus stores."""

import urllib.request
from pathlib import Path
from typing import Any

import pytest

from evald import Client

from ..prometheus import promtool, scraping

pytestmark = pytest.mark.interop

TURN = [{"role": "assistant", "content": "You fly to Lisbon."}]


@pytest.fixture(scope="module", autouse=True)
def evaluated(server_process: Any) -> None:
    """One passed assertion, one failed, and a metric."""
    with Client(server_process.grpc) as client:
        for text in ("Lisbon", "Porto"):
            client.evaluate(TURN, [{"type": "contains", "config": {"text": text}}, "response-length"])


def test_promtool_finds_nothing_wrong_with_a_scrape(server_process: Any) -> None:
    with urllib.request.urlopen(f"http://{server_process.http}/metrics", timeout=60) as answer:
        assert promtool("check", "metrics", sent=answer.read()) == ""


def test_a_real_prometheus_stores_verdicts_and_computes_the_pass_rate(
    server_process: Any, tmp_path: Path
) -> None:
    counted = 'evald_evaluator_results_total{{evaluator="contains",verdict=~"{}"}}'
    with scraping(server_process.http, tmp_path) as prometheus:
        prometheus.wait_for('up{job="evald"} == 1')
        query = f"sum({counted.format('passed')}) / sum({counted.format('passed|failed')})"
        assert prometheus.wait_for(query) == {"": 0.5}
