"""The telemetry of a server: its metrics, and the log of finished runs that they count."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from threading import Lock
from typing import Final, TypeAlias, TypeVar

from prometheus_client import GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from evald.result import Verdict
from evald_server.engine.plan import Plan
from evald_server.engine.run import EvaluationRun, Outcome

from .calls import EvaluationMetrics, EvaluationTally, RpcMetrics, RpcTally, Saturation
from .evaluators import EvaluatorMetrics
from .families import Families, TypeNames, shown
from .parts import AccessMetrics, JudgeMetrics, RemoteMetrics, RunMetrics, SuiteMetrics

# Noted runs that are counted at once, so that results do not pile up in memory.
_MAX_NOTED: Final = 256

_T = TypeVar("_T")
_Noted: TypeAlias = "tuple[Plan, Sequence[Outcome | None], Verdict, int, str, Mapping[str, str] | None]"


class Telemetry(Collector):
    """The metrics of a server.

    The event loop notes what ends, and `fold` counts it: once a second, before a scrape, and when much was noted.
    folding: hold it to count directly what `fold` counts, which a scrape does in its thread.

    clock: monotonic seconds. allowed_labels: the keys of a caller's labels that `evald_evaluations_total` has. The
    constructor raises ValueError if one is not allowed.
    """

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, allowed_labels: Sequence[str] = ()
    ) -> None:
        self._families = families = Families()
        types = TypeNames(families)
        self.evaluators = EvaluatorMetrics(families, types, clock)
        self.evaluations = EvaluationMetrics(families, allowed_labels)
        self.rpcs = RpcMetrics(families)
        self.judges = JudgeMetrics(families)
        self.remotes = RemoteMetrics(families, types)
        self.saturation = Saturation(families)
        self.runs = RunMetrics(families)
        self.suites = SuiteMetrics(families)
        self.access = AccessMetrics(families)
        build = _versions()
        text = "Always 1. The labels describe the server."
        families.gauge("evald_build_info", text, *build).labels(*build.values()).set(1)
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=families)
        self._has_labels = bool(allowed_labels)
        self._runs: deque[_Noted] = deque()
        self._ended: deque[tuple[RpcTally, str, float]] = deque()
        self.folding = Lock()

    def evaluated(self, run: EvaluationRun, rpc: str, labels: Mapping[str, str] | None) -> None:
        """Note a finished run. rpc: name of the method. labels: the caller's."""
        # Not the run itself, which has the caller's messages.
        kept = dict(labels) if self._has_labels and labels else None
        runs = self._runs
        runs.append((run.plan, run.outcomes, run.aggregate.verdict, run.nanos, rpc, kept))
        if len(runs) >= _MAX_NOTED:
            self.fold()

    def ended(self, tally: RpcTally, code: str, seconds: float) -> None:
        """Note the end of a call. code: name of a `grpc.StatusCode`."""
        self._ended.append((tally, code, seconds))

    def fold(self) -> None:
        """Count what was noted. May be called from any thread."""
        with self.folding:
            durations: dict[tuple[EvaluationTally, Verdict], list[float]] = {}
            outcomes_by_plan: dict[Plan, list[Sequence[Outcome | None]]] = {}
            for plan, outcomes, verdict, nanos, rpc, labels in _drained(self._runs):
                tally = self.evaluations.tally(rpc, labels)
                durations.setdefault((tally, verdict), []).append(nanos * 1e-9)
                outcomes_by_plan.setdefault(plan, []).append(outcomes)
            for (tally, verdict), seconds in durations.items():
                tally.add(verdict, *seconds)
            for plan, runs in outcomes_by_plan.items():
                self.evaluators.count(plan, runs)
            ends: dict[tuple[RpcTally, str], list[float]] = {}
            for method, code, duration in _drained(self._ended):
                ends.setdefault((method, code), []).append(duration)
            for (method, code), seconds in ends.items():
                method.handled(code, *seconds)

    def collect(self) -> Iterator[Metric]:
        """Yield the current metric families."""
        self.fold()
        yield from shown(self._families)

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """Return the body and content type of a scrape, as OpenMetrics if `accept`, the request's header, names it."""
        # The library copies the requested version into its response, so it never sees the header itself.
        openmetrics = "application/openmetrics-text"
        encode, content_type = choose_encoder(openmetrics if openmetrics in accept.lower() else "")
        return encode(self), content_type


def _drained(log: deque[_T]) -> Iterator[_T]:
    while log:
        yield log.popleft()


# Cached: to read them from the packages takes 2 ms.
@cache
def _versions() -> Mapping[str, str]:
    return {"version": version("evald"), "grpc_version": version("grpcio")}
