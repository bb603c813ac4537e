"""What /metrics serves is what Prometheus's own tools accept and a real Prometheus stores."""

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

MISSING = "no {}: install Prometheus (Debian: apt-get install prometheus)"


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return bytes(answer.read())


def _evaluate(evald: str, address: str, tmp_path: Path) -> None:
    """One passed assertion, one failed, and a metric."""
    conversation = tmp_path / "conversation.json"
    conversation.write_text(json.dumps([{"role": "assistant", "content": "You fly to Lisbon."}]))
    for text in ("Lisbon", "Porto"):
        subprocess.run(
            [
                evald,
                "evaluate",
                str(conversation),
                "--server",
                address,
                "-e",
                f"contains:text={text}",
                "-e",
                "response-length",
            ],
            capture_output=True,
            check=False,
            timeout=30,
        )


@pytest.mark.interop
def test_promtool_finds_nothing_wrong_with_a_scrape(
    server_process: Any, evald_command: str, tmp_path: Path
) -> None:
    assert shutil.which("promtool"), MISSING.format("promtool")
    _evaluate(evald_command, server_process.grpc, tmp_path)
    scrape = _get(f"http://{server_process.http}/metrics")
    run = subprocess.run(
        ["promtool", "check", "metrics"], input=scrape, capture_output=True, timeout=30, check=False
    )
    assert run.returncode == 0, run.stderr.decode() + run.stdout.decode()
    assert not run.stderr, run.stderr.decode()


@pytest.fixture
def prometheus(server_process: Any, tmp_path: Path) -> Iterator[str]:
    """A Prometheus that scrapes the server every 200 ms. Its base URL."""
    assert shutil.which("prometheus"), MISSING.format("prometheus")
    config = tmp_path / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 200ms, scrape_timeout: 200ms}\n"
        "scrape_configs:\n"
        "  - job_name: evald\n"
        f"    static_configs: [{{targets: ['{server_process.http}']}}]\n"
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [
            "prometheus",
            f"--config.file={config}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=30)


def _query(base: str, expression: str) -> list[dict[str, Any]]:
    try:
        answer = json.loads(_get(f"{base}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"))
    except (urllib.error.URLError, ConnectionError):
        return []  # it is still starting
    assert answer["status"] == "success", answer
    found: list[dict[str, Any]] = answer["data"]["result"]
    return found


def _wait_for(base: str, expression: str) -> list[dict[str, Any]]:
    """Another program's clock: polled, for at most 30 s."""
    give_up = time.monotonic() + 30
    while not (found := _query(base, expression)):
        assert time.monotonic() < give_up, f"no result within 30 s: {expression}"
        time.sleep(0.1)
    return found


@pytest.mark.interop
def test_a_real_prometheus_stores_verdicts_and_computes_the_pass_rate(
    server_process: Any, evald_command: str, prometheus: str, tmp_path: Path
) -> None:
    _evaluate(evald_command, server_process.grpc, tmp_path)
    _wait_for(prometheus, 'up{job="evald"} == 1')
    by_verdict = 'evald_evaluator_results_total{{evaluator="contains",verdict="{}"}}'
    _wait_for(prometheus, by_verdict.format("failed"))
    (rate,) = _wait_for(
        prometheus,
        f"sum({by_verdict.format('passed')}) / "
        'sum(evald_evaluator_results_total{evaluator="contains",verdict=~"passed|failed"})',
    )
    assert float(rate["value"][1]) == 0.5
