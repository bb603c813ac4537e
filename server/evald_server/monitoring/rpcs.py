"""Metrics of gRPC methods, with the names that the gRPC ecosystem uses."""

from collections.abc import Iterator, Mapping

from prometheus_client.core import HistogramMetricFamily, Metric

from .histogram import DURATION_BOUNDS, Histogram, series_count
from .prometheus import OTHER, add_count, add_histogram, counter
from .series_limit import CodeCounts, SeriesLimit

# The spelling of grpc.StatusCode names in Go's gRPC metrics: public dashboards and alerts filter on it.
GRPC_CODES: Mapping[str, str] = {
    "OK": "OK",
    "CANCELLED": "Canceled",
    "UNKNOWN": "Unknown",
    "INVALID_ARGUMENT": "InvalidArgument",
    "DEADLINE_EXCEEDED": "DeadlineExceeded",
    "NOT_FOUND": "NotFound",
    "ALREADY_EXISTS": "AlreadyExists",
    "PERMISSION_DENIED": "PermissionDenied",
    "RESOURCE_EXHAUSTED": "ResourceExhausted",
    "FAILED_PRECONDITION": "FailedPrecondition",
    "ABORTED": "Aborted",
    "OUT_OF_RANGE": "OutOfRange",
    "UNIMPLEMENTED": "Unimplemented",
    "INTERNAL": "Internal",
    "UNAVAILABLE": "Unavailable",
    "DATA_LOSS": "DataLoss",
    "UNAUTHENTICATED": "Unauthenticated",
}

# + 3: started, received and sent. Each code reserves its own series.
_METHOD_SERIES = series_count(DURATION_BOUNDS) + 3


class RpcTally:
    """A tally of the calls of one gRPC method. labels: grpc_type, grpc_service, grpc_method.

    Its series begin with its first call, because nobody uses all methods of a server. durations and codes are None
    until then. Above the series limit, they are those of `other`, which then exports this tally's counts too.
    """

    def __init__(self, labels: tuple[str, str, str], limit: SeriesLimit, other: "RpcTally | None") -> None:
        self.labels = labels
        self.durations: Histogram | None = None
        self.codes: CodeCounts | None = None
        self.started_count = 0
        self.received_count = 0
        self.sent_count = 0
        self._limit = limit
        self._other = other
        if other is None:
            self.durations, self.codes = Histogram(DURATION_BOUNDS), CodeCounts()

    @property
    def shared(self) -> bool:
        """Whether its calls are exported as those of `other`."""
        return self._other is not None and self.codes is self._other.codes

    def started(self) -> None:
        """Count the start of a call."""
        self.started_count += 1

    def handled(self, code_name: str, seconds: float) -> None:
        """Count the end of a call. code_name: name of a `grpc.StatusCode`; any other counts as UNKNOWN."""
        if self.codes is None or self.durations is None:
            self.codes, self.durations = self.open()
        self.codes.add(GRPC_CODES.get(code_name, "Unknown"))
        self.durations.observe(seconds)

    def received(self) -> None:
        """Count a message from the caller."""
        self.received_count += 1

    def sent(self) -> None:
        """Count a message to the caller."""
        self.sent_count += 1

    def open(self) -> tuple[CodeCounts, Histogram]:
        """Begin the series of the method."""
        other, limit = self._other, self._limit
        assert other is not None
        assert other.codes is not None
        assert other.durations is not None
        self.codes, self.durations = other.codes, other.durations
        if limit.reserve("rpc", _METHOD_SERIES):
            self.codes = CodeCounts(limit, other.codes)
            self.durations = Histogram(DURATION_BOUNDS)
        return self.codes, self.durations


class RpcMetrics:
    """The metrics of RPCs: creates and exports the tallies of gRPC methods. series: how many they may have."""

    def __init__(self, limit: SeriesLimit, series: int) -> None:
        limit.add_fixed(_METHOD_SERIES + len(GRPC_CODES))  # of "other"
        self._limit = limit.split(series, "rpc", "code")
        self._other = RpcTally((OTHER, OTHER, OTHER), self._limit, None)
        self._tallies: dict[tuple[str, str, str], RpcTally] = {}

    def tally(self, service: str, method: str, grpc_type: str) -> RpcTally:
        """Return the tally of a gRPC method, the same object each time.

        service: the service's full name. grpc_type: "unary", "client_stream", "server_stream" or "bidi_stream".
        """
        key = (grpc_type, service, method)
        found = self._tallies.get(key)
        return found or self._tallies.setdefault(key, RpcTally(key, self._limit, self._other))

    def open_called(self) -> None:
        """Begin the series of the methods that were called."""
        for tally in list(self._tallies.values()):
            if tally.started_count and tally.codes is None:
                tally.open()

    def families(self) -> Iterator[Metric]:
        """Yield the current metric families."""
        started = counter("grpc_server_started", "RPCs started on the server.")
        handled = counter(
            "grpc_server_handled", "RPCs completed on the server, whether they succeeded or failed."
        )
        received = counter("grpc_server_msg_received", "Messages received from callers.")
        sent = counter("grpc_server_msg_sent", "Messages sent to callers.")
        names = ("grpc_type", "grpc_service", "grpc_method")
        durations = HistogramMetricFamily(
            "grpc_server_handling_seconds",
            "Duration of RPCs in the server until they completed.",
            labels=names,
        )
        called = [tally for tally in list(self._tallies.values()) if tally.codes is not None]
        shared = [tally for tally in called if tally.shared]
        for tally in [tally for tally in called if not tally.shared] + [self._other] * bool(shared):
            assert tally.codes is not None
            assert tally.durations is not None
            counted = shared if tally is self._other else [tally]
            labels = dict(zip(names, tally.labels, strict=True))
            add_count(started, labels, sum(one.started_count for one in counted))
            add_count(received, labels, sum(one.received_count for one in counted))
            add_count(sent, labels, sum(one.sent_count for one in counted))
            add_histogram(durations, tally.labels, tally.durations)
            for code, count in tally.codes.counts.copy().items():
                add_count(handled, {**labels, "grpc_code": code}, count)
        yield from (started, handled, received, sent, durations)
