"""Metrics of calls: gRPC methods, evaluations of turns, and the load of the server."""

import re
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import grpc
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from evald.result import Verdict

from .families import Families, caller_value, shown

_METHOD: Final = ("grpc_type", "grpc_service", "grpc_method")

# As Go's gRPC spells them: public dashboards and alerts filter on it.
_CODES: Final = {code.name: code.name.title().replace("_", "") for code in grpc.StatusCode}
_CODES.update(OK="OK", CANCELLED="Canceled")

# A minute's worth, so that a scrape every minute misses no peak.
_LAGS: Final = 240

_LABEL_NAME: Final = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")


class RpcTally:
    """A tally of the calls of one gRPC method. labels: grpc_type, grpc_service, grpc_method.

    The counts of starts and messages are plain numbers, which only the event loop changes.
    """

    def __init__(self, metrics: "RpcMetrics", labels: tuple[str, str, str]) -> None:
        self.labels = labels
        self.started_count = self.received_count = self.sent_count = 0
        self._metrics = metrics

    def handled(self, code_name: str, *seconds: float) -> None:
        """Count the ends of calls. code_name: name of a `grpc.StatusCode`; any other counts as UNKNOWN."""
        self._metrics.handled.add(*self.labels, _CODES.get(code_name, "Unknown"), count=len(seconds))
        for duration in seconds:
            self._metrics.durations.labels(*self.labels).observe(duration)


class RpcMetrics(Collector):
    """The metrics of gRPC methods, with the names that the gRPC ecosystem uses."""

    def __init__(self, families: Families) -> None:
        text = "RPCs completed on the server, whether they succeeded or failed."
        self.handled = families.counter("grpc_server_handled", text, *_METHOD, "grpc_code")
        text = "Duration of RPCs in the server until they completed."
        self.durations = families.histograms("grpc_server_handling_seconds", text, *_METHOD)
        self._tallies: dict[tuple[str, str, str], RpcTally] = {}
        families.register(self)

    def tally(self, service: str, method: str, kind: str) -> RpcTally:
        """Return the tally of a gRPC method, the same object each time.

        service: the service's full name. kind: "unary", "client_stream", "server_stream" or "bidi_stream".
        """
        labels = (kind, service, method)
        return self._tallies.setdefault(labels, RpcTally(self, labels))

    def collect(self) -> Iterable[Metric]:
        """Yield the counts of starts and messages, of methods that were called."""
        called = [tally for tally in self._tallies.copy().values() if tally.started_count]
        for name, text, attribute in (
            ("grpc_server_started", "RPCs started on the server.", "started_count"),
            ("grpc_server_msg_received", "Messages received from callers.", "received_count"),
            ("grpc_server_msg_sent", "Messages sent to callers.", "sent_count"),
        ):
            family = CounterMetricFamily(name, text, labels=_METHOD)
            for tally in called:
                family.add_metric(tally.labels, getattr(tally, attribute))
            yield family


class EvaluationTally:
    """A tally of one RPC's evaluations with the same labels. labels: rpc, then the caller's labels."""

    def __init__(self, metrics: "EvaluationMetrics", labels: Sequence[str]) -> None:
        self._labels, self._metrics = labels, metrics
        for verdict in Verdict:
            metrics.evaluations.labels(*labels, verdict.name.lower())

    def add(self, verdict: int, *seconds: float) -> None:
        """Count evaluations.

        verdict: number of the summary's `evald.Verdict`. seconds: durations of the evaluations, without queueing.
        """
        self._metrics.evaluations.add(*self._labels, Verdict(verdict).name.lower(), count=len(seconds))
        for duration in seconds:
            self._metrics.durations.observe(duration)


class EvaluationMetrics:
    """The metrics of evaluations, one per turn.

    allowed: the keys of a caller's labels that are exported. The constructor raises ValueError if one is not a valid label
    name or already used.
    """

    def __init__(self, families: Families, allowed: Sequence[str]) -> None:
        for name in allowed:
            if not _LABEL_NAME.fullmatch(name) or name in ("rpc", "verdict"):
                raise ValueError(
                    f"allowed_labels: got {name!r}, wanted letters, digits and '_', without a digit or '__' at the "
                    "start; 'rpc' and 'verdict' are reserved"
                )
        self._allowed = tuple(dict.fromkeys(allowed))
        text = "Turns evaluated, by the verdict of their summary."
        self.evaluations = families.counter("evald_evaluations", text, "rpc", *self._allowed, "verdict")
        text = "Duration of the evaluation of a turn in the server, without queueing."
        self.durations = families.histograms("evald_evaluation_duration_seconds", text).labels()
        self._tallies: dict[tuple[str, ...], EvaluationTally] = {}

    def tally(self, rpc: str, labels: Mapping[str, str] | None = None) -> EvaluationTally:
        """Return the tally of an RPC's evaluations, the same object each time.

        rpc: name of the method, as in the protos. labels: the caller's. Keys that the operator did not allow are
        dropped. Values that are too long become "other".
        """
        key = (rpc, *(caller_value((labels or {}).get(name, "")) for name in self._allowed))
        return self._tallies.get(key) or self._tallies.setdefault(key, EvaluationTally(self, key))

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the numbers of evaluations by RPC and verdict."""
        counts: dict[str, Counter[str]] = {}
        for family in shown(self.evaluations):
            for sample in family.samples:
                verdicts = counts.setdefault(sample.labels["rpc"], Counter())
                verdicts[sample.labels["verdict"]] += int(sample.value)
        return {rpc: dict(verdicts) for rpc, verdicts in counts.items()}


class Saturation:
    """The metrics of the server's load: refusals, running and queued evaluations, lag."""

    def __init__(self, families: Families) -> None:
        self.inflight = families.gauge("evald_inflight_evaluations", "Evaluations that run now.")
        self.queued = families.gauge("evald_queued_evaluations", "Evaluations in the queue.")
        self.store_degraded = families.gauge("evald_store_degraded", "1 while the store cannot be used.")
        rejected = families.counter("evald_evaluations_rejected", "Refused evaluations.", "reason")
        # With the reason of an evaluation that was refused before it started, from a short fixed list.
        self.rejected = rejected.add
        lags: deque[float] = deque(maxlen=_LAGS)
        # With the seconds between requested and actual wake-up of the event loop, four times a second.
        self.loop_lag = lags.append
        text = "Maximum delay of the loop in the last 60 seconds."
        lag = families.gauge("evald_event_loop_lag_seconds", text)
        lag.set_function(lambda: max(lags.copy(), default=0.0))
