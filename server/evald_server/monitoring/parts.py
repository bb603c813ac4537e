"""Metrics of the parts around evaluation: judges, remote evaluators, runs, suite runs and access control."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from evald.result import TokenUsage
from evald_server.engine.contexts import JUDGE

from .families import OTHER, Families, Histogram, TypeNames, caller_value, total

_JUDGE_OUTCOMES: Final = (
    *("ok", "adapted", "unparseable", "refused", "truncated", "rate_limited", "unavailable", "timeout"),
    *("input_too_large", "cancelled", OTHER),
)
_RUN_OUTCOMES: Final = ("passed", "failed", "skipped", "error", "cancelled", "interrupted")
_SUITE_OUTCOMES: Final = ("passed", "failed", "error", "interrupted")

# In seconds. A conversation with models takes from a second to an hour.
_RUN_BOUNDS: Final = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0)


class JudgeMetrics:
    """The metrics of requests to judge models: evald's own, and those of the OpenTelemetry conventions."""

    def __init__(self, families: Families) -> None:
        count, judge, ways = families.counter, (JUDGE,), ("input", "output")
        self._requests = count("evald_judge_requests", "Requests to judge models.", outcome=_JUDGE_OUTCOMES)
        text = "Tokens of judges, as their endpoints report them."
        self._tokens = count("evald_judge_tokens", text, evaluator=judge, direction=ways)
        text = "Cost of judges, by configured prices."
        self._cost = count("evald_judge_cost_usd", text, evaluator=judge)
        self._cache = count("evald_judge_cache", "Lookups in the cache of answers.", result=("miss", "hit"))
        model = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model")
        text = "Duration of requests to judge models. error_type is empty for successful ones."
        name = "gen_ai_client_inference_duration_seconds"
        self._durations = families.histograms(name, text, *model, "error_type")
        text = "Tokens of judge models, as their endpoints report them."
        self._usage = {
            way: count(f"gen_ai_client_inference_usage_{way}_tokens", text, *model) for way in ways
        }

    def request(self, model: str, outcome: str, seconds: float) -> None:
        """Count a finished request. outcome: an unknown one counts as "other"."""
        outcome = outcome if outcome in _JUDGE_OUTCOMES else OTHER
        self._requests.add(outcome)
        error_type = "" if outcome == "ok" else outcome
        self._durations.labels("chat", "openai", caller_value(model), error_type).observe(seconds)

    def spent(self, model: str, usage: TokenUsage | None, cost_usd: float | None) -> None:
        """Count the known tokens and cost of a request. cost_usd: US dollars."""
        self._cost.add(JUDGE, count=cost_usd or 0)
        if usage is not None:
            for way, tokens in (("input", usage.input_tokens), ("output", usage.output_tokens)):
                self._tokens.add(JUDGE, way, count=tokens or 0)
                self._usage[way].add("chat", "openai", caller_value(model), count=tokens or 0)

    def cache(self, *, hit: bool) -> None:
        """Count a cache lookup."""
        self._cache.add("hit" if hit else "miss")

    def spent_usd(self) -> float:
        """Return the known cost in US dollars."""
        return total(self._cost)


class RemoteMetrics(Collector):
    """The metrics of remote evaluators: task durations by type, instances, leases and circuit breakers.

    instances: returns the number of instances by (type, mode, state). Each scrape calls it in its thread.
    """

    def __init__(self, families: Families, types: TypeNames) -> None:
        self._types = types
        self.instances: Callable[[], Mapping[tuple[str, str, str], int]] = dict
        text = "Duration of a task on a remote instance, each attempt counted, without queueing."
        self._durations = families.histograms("evald_remote_task_duration_seconds", text, "evaluator")
        self.lease_expired = families.counter("evald_remote_lease_expirations", "Leases not renewed.").add
        self.open_circuits = families.gauge("evald_remote_circuit_open", "Instances with an open circuit.")
        families.register(self)

    def tasks(self, type: str) -> Histogram:  # noqa: A002 - the word of the contract
        """Return the duration histogram of a remote type's tasks, the same object each time."""
        return self._durations.labels(self._types.label(type))

    def collect(self) -> Iterable[Metric]:
        """Yield the numbers of instances."""
        text = "Instances of remote evaluators, by how they connected and by state."
        family = GaugeMetricFamily("evald_remote_instances", text, labels=["evaluator", "mode", "state"])
        counts: Counter[tuple[str, str, str]] = Counter()
        for (name, mode, state), count in self.instances().items():
            counts[name if name in self._types else OTHER, mode, state] += count
        for labels, count in counts.items():
            family.add_metric(labels, count)
        yield family


class RunMetrics:
    """The metrics of runs: outcomes, turns, durations, and current numbers."""

    def __init__(self, families: Families) -> None:
        self._outcomes = families.counter("evald_runs", "Ended or interrupted runs.", outcome=_RUN_OUTCOMES)
        self.turns = families.counter("evald_run_turns", "Turns of runs that were evaluated.")
        text = "Duration of runs from start to end."
        self._durations = families.histograms("evald_run_duration_seconds", text, bounds=_RUN_BOUNDS).labels()
        self.running = families.gauge("evald_runs_running", "Runs whose conversation is in progress.")
        self.queued = families.gauge("evald_runs_queued", "Runs in the queue.")

    def ended(self, outcome: str, seconds: float | None) -> None:
        """Count an ended or interrupted run. seconds: duration of the run; None if it never began."""
        self._outcomes.add(outcome)
        if seconds is not None:
            self._durations.observe(seconds)


class SuiteMetrics:
    """The metrics of suite runs."""

    def __init__(self, families: Families) -> None:
        text = "Ended or interrupted suite runs."
        self.ended = families.counter("evald_suite_runs", text, outcome=_SUITE_OUTCOMES)
        self.running = families.gauge("evald_suite_runs_running", "Suite runs in progress.")


class AccessMetrics:
    """The metrics of access control. A server without credentials and certificates exports none of them."""

    def __init__(self, families: Families) -> None:
        count = families.counter
        self.checks = count("evald_auth", "Checks of credentials, one a call.", "kind", "outcome")
        text = "Refused or delayed by a principal's limit."
        self.limited = count("evald_principal_limited", text, "limit")
        self.reloads = count("evald_tls_reloads", "Reads of changed certificates.", "outcome")
        self.key_set_reads = count("evald_jwks_reads", "Reads of the keys that verify tokens.", "outcome")
        self.file_reads = count("evald_auth_file_reads", "Reads of changed files.", "file", "outcome")
        text = "Expiry of the certificate in use, as Unix time."
        self._expiry = families.gauge("evald_tls_certificate_expiry_seconds", text, "file")

    def set_expiries(self, expiries: Mapping[str, float]) -> None:
        """Set the expiries of the certificates in use, by setting: Unix times in seconds."""
        self._expiry.clear()
        for file, seconds in expiries.items():
            self._expiry.labels(file).set(seconds)
