"""The collector of a server: creates the tallies and exports their metric families."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import version

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from evald.result import Verdict
from evald_server.engine.run import EvaluationRun

from .access import AccessMetrics
from .evaluations import EvaluationMetrics
from .evaluators import EvaluatorMetrics
from .judges import JudgeMetrics
from .prometheus import ASSERTION_VERDICTS, add_count, counter
from .remotes import RemoteMetrics
from .rpcs import RpcMetrics
from .runs import RunMetrics, SuiteMetrics
from .saturation import Saturation
from .series_limit import SeriesLimit

# Series of the library's collectors: process (6), platform (1) and garbage collection (9).
_LIBRARY_SERIES = 16
# "histograms": histograms, last value and pass ratio of a type. "caller": combinations of callers' labels. "code": a
# closed list for each evaluator and method.
_MAX_VALUES = {"histograms": float("inf"), "code": float("inf"), "caller": 50, "reason": 16}

# Dashboards and alerts know this label by its first name.
_EXPORTED_LABELS = {"histograms": "detail"}

# One in so many passed evaluations gets an exemplar: reading the metadata of every call costs 2 % of the throughput.
_TRACED_ONE_IN = 64


class Telemetry(Collector):
    """The metrics of a server and their registry.

    Call every method except `exposition` only from the event loop.

    clock: monotonic seconds. max_types: limit of evaluator types with their own verdict series; the rest share
    evaluator="other". max_series: limit of series in a scrape. Types whose histograms do not fit keep their verdict
    series; their durations and errors count as "other", their scores and values are dropped. max_rpc_series: how many
    series of max_series are for RPCs, enough for about 25 methods in use; the rest share grpc_method="other".
    `evald_label_overflow_total` counts all these cases. allowed_labels: the keys of a caller's labels that
    `evald_evaluations_total` has. The constructor raises ValueError if max_series is too small for max_types, or if a
    label name is not allowed.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        max_types: int = 150,
        max_series: int = 2000,
        max_rpc_series: int = 500,
        allowed_labels: Sequence[str] = (),
    ) -> None:
        limit = self._limit = SeriesLimit(max_series, {**_MAX_VALUES, "evaluator": max_types})
        self.evaluators = EvaluatorMetrics(limit, clock)
        self.evaluations = EvaluationMetrics(limit, allowed_labels)
        self.rpcs = RpcMetrics(limit, max_rpc_series)
        self.judges = JudgeMetrics(limit)
        self.remotes = RemoteMetrics(limit)
        self.saturation = Saturation(limit, clock)
        self.runs = RunMetrics(limit)
        self.access = AccessMetrics(limit)
        self.suites = SuiteMetrics(limit)
        self._untraced = 0
        self._build = _versions()
        limit.add_fixed(len(ASSERTION_VERDICTS) * max_types)
        limit.add_fixed(len(limit.overflows) + 1 + _LIBRARY_SERIES)  # 1: the build
        if limit.fixed > max_series:
            raise ValueError(
                f"max_series: got {max_series}, wanted at least {limit.fixed}: {max_rpc_series} of RPCs, "
                f"{len(ASSERTION_VERDICTS)} for each of max_types {max_types}, and those of every scrape"
            )

        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    def evaluated(
        self,
        run: EvaluationRun,
        rpc: str,
        labels: Mapping[str, str] | None,
        trace_id: Callable[[], str | None],
    ) -> None:
        """Count a finished run and its results.

        rpc: name of the method. labels: the caller's. trace_id: called for one in 64 passed runs, and for all other
        runs, because people search for those.
        """
        verdict = run.aggregate.verdict
        self.evaluators.count(run)
        self._untraced = (self._untraced + 1) % _TRACED_ONE_IN
        traced = verdict is not Verdict.PASSED or not self._untraced
        tally = self.evaluations.tally(rpc, labels)
        tally.add(verdict, run.nanos * 1e-9, trace_id() if traced else None)

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """Return the body and content type of a scrape. May be called from any thread.

        accept: the request's header. If it names OpenMetrics, the only format with exemplars, the response has that
        format, else Prometheus text.
        """
        openmetrics = any(
            media.partition(";")[0].strip().lower() == "application/openmetrics-text"
            for media in accept.split(",")
        )
        # The library copies the requested version into its response, so it never sees the header itself.
        encode, content_type = choose_encoder(
            "application/openmetrics-text; version=1.0.0" if openmetrics else ""
        )
        return encode(self.registry), content_type

    def collect(self) -> Iterator[Metric]:
        """Yield the current metric families, for the registry."""
        parts = (
            self.evaluators,
            self.evaluations,
            self.judges,
            self.rpcs,
            self.remotes,
            self.saturation,
            self.runs,
            self.access,
            self.suites,
        )
        for part in parts:
            yield from part.families()
        overflows = counter(
            "evald_label_overflow", "Lookups of a label value beyond the limit, counted as other."
        )
        for label, count in self._limit.overflows.items():
            add_count(overflows, {"label": _EXPORTED_LABELS.get(label, label)}, count)
        yield overflows
        build = GaugeMetricFamily(
            "evald_build_info", "Always 1. The labels describe the server.", labels=list(self._build)
        )
        build.add_metric(list(self._build.values()), 1)
        yield build


# Cached: to read them from the packages takes 2 ms.
@cache
def _versions() -> Mapping[str, str]:
    return {"version": version("evald"), "grpc_version": version("grpcio")}
