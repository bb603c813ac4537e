"""The page about telemetry, the rules and the dashboard speak of what is exposed, and of nothing else."""

import json
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from evald.result import Kind, Metric, TokenUsage, Verdict
from evald_server.monitoring import Telemetry

from .scrape import families

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy/prometheus"
UNITS = ("seconds", "tokens", "characters", "words", "", "ratio", "bytes", "usd")
LIBRARY = re.compile(r"(process|python)_")


def _used() -> Telemetry:
    """Telemetry in which every family has a series."""
    telemetry = Telemetry()
    telemetry.saturation.inflight.set_function(lambda: 1)
    telemetry.saturation.queued.set_function(lambda: 1)
    telemetry.saturation.store_degraded.set_function(lambda: 0)
    tally = telemetry.evaluators.tally("regex", Kind.ASSERTION, enforced=True, origin="built_in", metric=None)
    tally.add(Verdict.PASSED, 0.1, 1.0)
    tally.error("TIMEOUT")
    for unit in UNITS:
        metric = telemetry.evaluators.tally(
            f"metric-{unit}", Kind.METRIC, enforced=True, origin="built_in", metric=Metric(unit)
        )
        metric.add(Verdict.PASSED, 0.1, None)
        metric.measure(unit, 1.0)
    telemetry.evaluations.tally("Evaluate").add(Verdict.PASSED, 0.1)
    call = telemetry.rpcs.tally("s", "m", "unary")
    call.started_count += 1
    call.handled("OK", 0.1)
    judge = telemetry.judges
    judge.request("gpt", "ok", 0.1)
    judge.spent("gpt", TokenUsage(10, 1), 0.001)
    telemetry.remotes.instances = lambda: {("acme.pii", "connected", "active"): 1}
    telemetry.remotes.open_circuits.set_function(lambda: 0)
    telemetry.remotes.tasks("acme.pii").observe(0.1)
    telemetry.runs.running.set_function(lambda: 1)
    telemetry.runs.queued.set_function(lambda: 1)
    telemetry.runs.ended("passed", 1.0)
    telemetry.suites.running.set_function(lambda: 1)
    telemetry.access.checks.add("key", "ok")
    telemetry.access.limited.add("rate")
    telemetry.access.reloads.add("ok")
    telemetry.access.key_set_reads.add("ok")
    telemetry.access.file_reads.add("keys_file", "ok")
    telemetry.access.set_expiries({"tls_cert_file": 1.0})
    telemetry.saturation.rejected("overloaded")
    telemetry.saturation.loop_lag(0.1)
    return telemetry


def exposed() -> dict[str, tuple[str, frozenset[str]]]:
    """Type and labels by name, as a page would give them."""
    shown: dict[str, tuple[str, frozenset[str]]] = {}
    for family in families(_used()):
        if LIBRARY.match(family.name):
            continue
        assert family.samples, f"{family.name} has no series"
        labels = frozenset(name for one in family.samples for name in one.labels) - {"le"}
        name = f"{family.name}_total" if family.type == "counter" else family.name
        shown[name] = (family.type, labels)
    return shown


def test_the_page_lists_every_name_with_its_type_and_labels() -> None:
    rows = re.findall(
        r"^\| `((?:evald|grpc|gen_ai_client)_\w+)` \| (\w+) \| ([^|]*) \|",
        (ROOT / "docs/telemetry.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    written = {name: (kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    assert len(written) == len(rows)
    assert written == exposed()


def _recorded() -> set[str]:
    text = (DEPLOY / "rules.yml").read_text(encoding="utf-8")
    return set(re.findall(r"^ *- record: (\S+)$", text, re.MULTILINE))


def _unknown(queries: Iterable[str]) -> set[str]:
    """Names in the queries that nobody exposes or records."""
    known = _recorded()
    for name, (kind, _) in exposed().items():
        known |= (
            {f"{name}{suffix}" for suffix in ("_bucket", "_sum", "_count")} if kind == "histogram" else {name}
        )
    found = {
        name
        for query in queries
        for name in re.findall(r"[\w:]*\b(?:evald|grpc_server|gen_ai_client)_[\w:]+", query)
    }
    assert found
    return found - known


def dashboard_queries() -> list[str]:
    """The dashboard's queries, its variables filled in."""
    board = json.loads((DEPLOY / "grafana-dashboard.json").read_text(encoding="utf-8"))
    return [
        re.sub(r"\$(job|evaluator)", ".*", target["expr"].replace("$__rate_interval", "5m"))
        for panel in board["panels"]
        for target in panel.get("targets", [])
    ]


def test_the_dashboard_asks_for_names_that_exist() -> None:
    assert not _unknown(dashboard_queries())


@pytest.mark.parametrize("file", ["rules.yml", "alerts.yml"])
def test_the_rules_ask_for_names_that_exist(file: str) -> None:
    text = (DEPLOY / file).read_text(encoding="utf-8")
    queries = re.findall(r"expr:(.*?)(?=\n +(?:for|labels):|\n\n|\Z)", text, re.DOTALL)
    assert len(queries) == text.count("expr:")
    assert not _unknown(queries)


def test_the_readme_lists_the_alerts() -> None:
    alerts = re.findall(r"- alert: (\w+)", (DEPLOY / "alerts.yml").read_text(encoding="utf-8"))
    assert alerts == re.findall(
        r"^\| `(Evald\w+)`", (DEPLOY / "README.md").read_text(encoding="utf-8"), re.MULTILINE
    )


def test_every_alert_fires_and_stays_silent_in_a_unit_test() -> None:
    alerts = set(re.findall(r"- alert: (\w+)", (DEPLOY / "alerts.yml").read_text(encoding="utf-8")))
    tests = (DEPLOY / "rules_test.yml").read_text(encoding="utf-8")
    cases = re.findall(r"alertname: (\w+),?\s+eval_time: \w+,?\s+exp_alerts:( \[\])?", tests)
    assert {name for name, silent in cases if not silent} == alerts
    assert {name for name, silent in cases if silent} >= alerts - {"EvaldRpcErrors"}
