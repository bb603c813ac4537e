"""A real Prometheus and promtool, from Debian's package."""

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

DEPLOY = Path(__file__).parents[1] / "deploy/prometheus"
# Of another program's clock, on a machine that others use too.
PATIENCE = 60.0


def _need(program: str) -> None:
    assert shutil.which(program), f"no {program}: install Prometheus (Debian: apt-get install prometheus)"


def promtool(*arguments: str, sent: bytes = b"") -> str:
    """Run promtool in the folder of the rules and return its output; it must succeed."""
    _need("promtool")
    command = ["promtool", *arguments]
    ended = subprocess.run(command, input=sent, capture_output=True, check=False, timeout=120, cwd=DEPLOY)
    said = (ended.stdout + ended.stderr).decode()
    assert ended.returncode == 0, said
    return said


class Prometheus:
    """A running Prometheus, queried over its API."""

    def __init__(self, address: str) -> None:
        self._address = address

    def ask(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer; None until Prometheus is up."""
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as refusal:
            with refusal:
                if refusal.code == 503:  # it is still starting
                    return None
                pytest.fail(f"{path} {parameters}: {refusal.read().decode()}")

    def wait_for(self, query: str, wanted: Any = None) -> dict[str, float]:
        """Wait for values by evaluator. wanted: wait until they are these."""
        give_up = time.monotonic() + PATIENCE
        while True:
            data = self.ask("query", query=query)
            found = {
                one["metric"].get("evaluator", ""): float(one["value"][1])
                for one in (data or {}).get("result", [])
            }
            if found and (wanted is None or found == wanted):
                return found
            assert time.monotonic() < give_up, f"within {PATIENCE:g} s only {found}: {query}"
            time.sleep(0.1)

    def wait_until_up(self) -> None:
        """Wait until a scrape has succeeded."""
        give_up = time.monotonic() + PATIENCE
        while True:
            (target,) = self.ask("targets")["activeTargets"]
            if (target["health"], target["lastError"]) == ("up", ""):
                return
            assert time.monotonic() < give_up, target
            time.sleep(0.1)


@contextmanager
def scraping(target: str, directory: Path, rules: Sequence[str] = ()) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes an address and evaluates rule files twice a second. directory: of its data."""
    _need("prometheus")
    config = {
        "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
        "rule_files": [str(DEPLOY / name) for name in rules],
        "scrape_configs": [{"job_name": "evald", "static_configs": [{"targets": [target]}]}],
    }
    (directory / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    command = [
        "prometheus",
        f"--config.file={directory}/prometheus.yml",
        f"--storage.tsdb.path={directory}/data",
        "--web.listen-address=127.0.0.1:0",
        "--log.format=json",
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        try:
            yield Prometheus(_listening_address(process.stderr))
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE)


def _listening_address(log: Any) -> str:
    said = []
    for line in log:
        said.append(line)
        entry = json.loads(line)
        if entry.get("msg") == "Listening on":
            return str(entry["address"])
    pytest.fail(f"Prometheus ended before it listened: {''.join(said)}")
