"""The one collector of a server: gives tallies out, and strings the families together that are read from them."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from evald.result import Verdict
from evald_server.engine.run import EvaluationRun

from .evaluations import EvaluationTallies
from .evaluators import EvaluatorTallies
from .judges import JudgeTallies
from .labels import ASSERTION_VERDICTS
from .remotes import RemoteTallies
from .room import Room, overflow_family
from .rpcs import RpcTallies
from .saturation import Saturation

# What is always there: the `other` of evaluators (51), RPCs (36), evaluations (4) and reasons (1), the
# evaluations' durations (16), process and Python (16), build, saturation and overflow (9), remotes (30).
_FIXED_SERIES = 170

# "detail": histograms, last value and pass ratio of a type. "caller": the sets of labels that callers
# send. The codes are a closed list, of each evaluator and method.
_MAX_VALUES = {"detail": float("inf"), "code": float("inf"), "rpc": 64, "caller": 50, "reason": 16}


_TRACED_ONE_IN = 64


class Telemetry(Collector):
    """What a server counts, and its registry.

    Call every method but `exposition` from the event loop only.

    clock: monotonic seconds. max_types: most evaluator types whose verdicts are counted on their
    own; the rest share evaluator="other". max_series: most series of a scrape. Types whose
    histograms find no room keep their verdicts; their durations and errors join "other", their
    scores and values are left out. `evald_label_overflow_total` counts all that. allowed_labels:
    the keys of a caller's labels that `evald_evaluations_total` carries. Raises ValueError:
    max_series is too small for max_types, or a label name is not allowed.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        max_types: int = 150,
        max_series: int = 2000,
        allowed_labels: Sequence[str] = (),
    ) -> None:
        fixed = _FIXED_SERIES + len(ASSERTION_VERDICTS) * max_types
        if max_series < fixed:
            raise ValueError(
                f"max_series: got {max_series}, wanted at least {fixed}: {_FIXED_SERIES} that are always there "
                f"and {len(ASSERTION_VERDICTS)} for each of max_types {max_types}"
            )
        room = self._room = Room(max_series - fixed, {**_MAX_VALUES, "evaluator": max_types})
        self._clock = clock
        self._evaluators = EvaluatorTallies(room, clock)
        self._evaluations = EvaluationTallies(room, allowed_labels)
        self._judges = JudgeTallies(room)
        self._rpcs = RpcTallies(room)
        self._remotes = RemoteTallies(room)
        self._saturation = Saturation(room, clock)
        self._untraced = 0
        self._build = {"version": version("evald"), "grpc_version": version("grpcio")}

        # Bound instead of wrapped: some of these are asked in every call.
        self.tally = self._evaluators.tally
        self.tally_of = self._evaluators.of
        self.announce = self._evaluators.announce
        self.evaluation = self._evaluations.tally
        self.judge = self._judges.tally
        self.rpc = self._rpcs.tally
        self.remote_tasks = self._remotes.tally
        self.lease_expired = self._remotes.lease_expired
        self.watch_remotes = self._remotes.watch
        self.rejected = self._saturation.rejected
        self.watch = self._saturation.watch

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

        rpc: name of the method. labels: the caller's. trace_id: called when the trace is noted. That is for
        one in 64 of the runs that passed, because reading a call's metadata costs 2 % of the calls, and for
        all others, which are what people look for.
        """
        verdict = run.aggregate.verdict
        self._evaluators.count(run)
        self._untraced = (self._untraced + 1) % _TRACED_ONE_IN
        traced = verdict is not Verdict.PASSED or not self._untraced
        tally = self._evaluations.tally(rpc, labels)
        tally.add(verdict, run.nanos * 1e-9, trace_id() if traced else None)

    def loop_lag(self, seconds: float) -> None:
        """Note how much later than asked for the event loop woke up. Call at least once a second."""
        self._saturation.lagged(seconds, self._clock())

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """A scrape's body and content type, from any thread.

        accept: the request's header. OpenMetrics, which alone has exemplars, for whoever names it;
        else the text format, which everyone reads.
        """
        openmetrics = any(
            media.partition(";")[0].strip().lower() == "application/openmetrics-text"
            for media in accept.split(",")
        )
        # The library copies the version asked for into its answer, so it never sees the header itself.
        encode, content_type = choose_encoder(
            "application/openmetrics-text; version=1.0.0" if openmetrics else ""
        )
        return encode(self.registry), content_type

    def collect(self) -> Iterator[Metric]:
        """The families of this moment, for the registry."""
        yield from self._evaluators.families()
        yield from self._evaluations.families()
        yield from self._judges.families()
        yield from self._rpcs.families()
        yield from self._remotes.families()
        yield from self._saturation.families()
        yield overflow_family(self._room, self._judges.model_room)
        build = GaugeMetricFamily(
            "evald_build_info", "Always 1. The labels say what runs.", labels=list(self._build)
        )
        build.add_metric(list(self._build.values()), 1)
        yield build
