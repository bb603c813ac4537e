"""The collector of a server: creates the tallies and exports their metric families."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from typing import TypeAlias

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from evald.result import Verdict
from evald_server.engine.plan import Plan
from evald_server.engine.run import EvaluationRun, Outcome

from .access import AccessMetrics
from .evaluations import EvaluationMetrics
from .evaluators import EvaluatorMetrics
from .judges import JudgeMetrics
from .prometheus import ASSERTION_VERDICTS, add_count, counter
from .remotes import RemoteMetrics
from .rpcs import RpcMetrics, RpcTally
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

# Noted runs that are counted at once, so that results do not pile up in memory.
_MAX_NOTED = 256

_Noted: TypeAlias = "tuple[Plan, Sequence[Outcome | None], Verdict, int, str, dict[str, str] | None]"


class Telemetry(Collector):
    """The metrics of a server and their registry.

    Call every method except `exposition` and `fold` only from the event loop. folding: hold it to count directly what
    `fold` counts, which a scrape does in its thread.

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
        self.saturation = Saturation(limit)
        self.runs = RunMetrics(limit)
        self.access = AccessMetrics(limit)
        self.suites = SuiteMetrics(limit)
        self._has_labels = bool(allowed_labels)
        self._log: deque[_Noted] = deque()
        self._ended: deque[tuple[RpcTally, str, float]] = deque()
        self.folding = threading.Lock()
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

    def evaluated(self, run: EvaluationRun, rpc: str, labels: Mapping[str, str] | None) -> None:
        """Note a finished run, to be counted by `fold`. rpc: name of the method. labels: the caller's."""
        # Not the run itself, which has the caller's messages.
        kept = dict(labels) if self._has_labels and labels else None
        log = self._log
        log.append((run.plan, run.outcomes, run.aggregate.verdict, run.nanos, rpc, kept))
        if len(log) >= _MAX_NOTED:
            self.fold()

    def ended(self, tally: RpcTally, code: str, seconds: float) -> None:
        """Note the end of a call, to be counted by `fold`. code: name of a `grpc.StatusCode`."""
        self._ended.append((tally, code, seconds))

    def fold(self) -> None:
        """Count what was noted. To be called every second; a scrape calls it too. May be called from any thread.

        A call only notes what happened: counting many runs of a plan at once takes less time than each of them alone.
        """
        with self.folding:
            self.rpcs.open_called()
            runs_of: dict[Plan, list[Sequence[Outcome | None]]] = {}
            while self._log:
                plan, outcomes, verdict, nanos, rpc, labels = self._log.popleft()
                self.evaluations.tally(rpc, labels).add(verdict, nanos * 1e-9)
                runs_of.setdefault(plan, []).append(outcomes)
            while self._ended:
                tally, code, seconds = self._ended.popleft()
                tally.handled(code, seconds)
            for plan, runs in runs_of.items():
                self.evaluators.count(plan, runs)

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """Return the body and content type of a scrape. May be called from any thread.

        accept: the request's header. If it names OpenMetrics, the response has that format, else Prometheus text.
        """
        openmetrics = any(
            media.partition(";")[0].strip().lower() == "application/openmetrics-text"
            for media in accept.split(",")
        )
        self.fold()
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
