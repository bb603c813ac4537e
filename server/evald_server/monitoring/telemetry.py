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
from .prometheus import ASSERTION_VERDICTS
from .remotes import RemoteMetrics
from .rpcs import RpcMetrics
from .runs import RunMetrics, SuiteMetrics
from .saturation import Saturation
from .series_limit import SeriesLimit, overflow_family

# Number of series in every scrape: the "other" of evaluators (51), RPCs (36), evaluations (4) and reasons (1);
# durations of evaluations (16); process and Python (16); build, saturation and overflow (9); remotes (30); runs (24);
# suite runs (5); access control (28: checks 15, limits 5, reloads 2, key sets 2, certificates 4).
_FIXED_SERIES = 231
# "detail": histograms, last value and pass ratio of a type. "caller": combinations of callers' labels. "code": a
# closed list for each evaluator and method.
_MAX_VALUES = {"detail": float("inf"), "code": float("inf"), "caller": 50, "reason": 16}

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
        fixed = _FIXED_SERIES + max_rpc_series + len(ASSERTION_VERDICTS) * max_types
        if max_series < fixed:
            raise ValueError(
                f"max_series: got {max_series}, wanted at least {fixed}: {_FIXED_SERIES} that are always there, "
                f"{max_rpc_series} of RPCs, and {len(ASSERTION_VERDICTS)} for each of max_types {max_types}"
            )
        limit = self._limit = SeriesLimit(max_series - fixed, {**_MAX_VALUES, "evaluator": max_types})
        self._evaluators = EvaluatorMetrics(limit, clock)
        self._evaluations = EvaluationMetrics(limit, allowed_labels)
        self._judges = JudgeMetrics(limit)
        self._rpc_limit = SeriesLimit(max_rpc_series, {"rpc": float("inf"), "code": float("inf")})
        self._rpcs = RpcMetrics(self._rpc_limit)
        self._remotes = RemoteMetrics(limit)
        self._saturation = Saturation(limit, clock)
        self.runs = RunMetrics()
        self.access = AccessMetrics()
        self.suites = SuiteMetrics()
        self._untraced = 0
        self._build = _versions()

        # The methods of the parts; each is documented at its definition.
        self.tally = self._evaluators.tally
        self.tally_of = self._evaluators.of
        self.announce = self._evaluators.announce
        self.evaluation = self._evaluations.tally
        self.evaluation_counts = self._evaluations.counts
        self.judges_spent_usd = self._judges.spent_usd
        self.judge = self._judges.tally
        self.rpc = self._rpcs.tally
        self.remote_tasks = self._remotes.tasks
        self.lease_expired = self._remotes.lease_expired
        self.watch_remotes = self._remotes.watch
        self.rejected = self._saturation.rejected
        self.watch = self._saturation.watch
        self.loop_lag = self._saturation.loop_lag

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
        self._evaluators.count(run)
        self._untraced = (self._untraced + 1) % _TRACED_ONE_IN
        traced = verdict is not Verdict.PASSED or not self._untraced
        tally = self._evaluations.tally(rpc, labels)
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
        yield from self._evaluators.families()
        yield from self._evaluations.families()
        yield from self._judges.families()
        yield from self._rpcs.families()
        yield from self._remotes.families()
        yield from self._saturation.families()
        yield from self.runs.families()
        yield from self.access.families()
        yield from self.suites.families()
        yield overflow_family(self._limit, self._rpc_limit, self._judges.model_limit)
        build = GaugeMetricFamily(
            "evald_build_info", "Always 1. The labels describe the server.", labels=list(self._build)
        )
        build.add_metric(list(self._build.values()), 1)
        yield build


# Cached: to read them from the packages takes 2 ms.
@cache
def _versions() -> Mapping[str, str]:
    return {"version": version("evald"), "grpc_version": version("grpcio")}
