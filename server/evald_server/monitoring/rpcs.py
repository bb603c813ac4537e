"""Metrics of gRPC methods, with the names that the gRPC ecosystem uses."""

from collections.abc import Iterator, Mapping

from prometheus_client.core import HistogramMetricFamily, Metric

from .histogram import DURATION_BOUNDS, Histogram, series_count
from .prometheus import OTHER, add_count, add_histogram, counter
from .series_limit import CodeCounts, SeriesLimit

# As Go's gRPC metrics spell the names of grpc.StatusCode: public dashboards and alerts filter on these.
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

_GRPC_INDEX = {code: index for index, code in enumerate(GRPC_CODES)}


class RpcTally:
    """Counts the calls of one gRPC method. labels: grpc_type, grpc_service, grpc_method."""

    __slots__ = ("codes", "durations", "labels", "received_count", "sent_count", "started_count")

    def __init__(self, labels: tuple[str, str, str], durations: Histogram, codes: CodeCounts) -> None:
        self.labels = labels
        self.durations = durations
        self.codes = codes
        self.started_count = 0
        self.received_count = 0
        self.sent_count = 0

    def started(self) -> None:
        """Count the start of a call."""
        self.started_count += 1

    def handled(self, code_name: str, seconds: float) -> None:
        """Count the end of a call. code_name: of a `grpc.StatusCode`; any other counts as UNKNOWN."""
        self.codes.add(_GRPC_INDEX.get(code_name, _GRPC_INDEX["UNKNOWN"]))
        self.durations.observe(seconds)

    def received(self, n: int = 1) -> None:
        """Count messages from the caller."""
        self.received_count += n

    def sent(self, n: int = 1) -> None:
        """Count messages to the caller."""
        self.sent_count += n


class RpcMetrics:
    """Creates and exports the tallies of gRPC methods."""

    def __init__(self, limit: SeriesLimit) -> None:
        self._limit = limit
        self._tallies: dict[tuple[str, str, str], RpcTally] = {}
        self._other = RpcTally((OTHER, OTHER, OTHER), Histogram(DURATION_BOUNDS), CodeCounts(len(GRPC_CODES)))

    def tally(self, service: str, method: str, grpc_type: str) -> RpcTally:
        """Return the tally of a gRPC method, the same object each time.

        service: its full name. grpc_type: "unary", "client_stream", "server_stream" or "bidi_stream".
        """
        key = (grpc_type, service, method)
        found = self._tallies.get(key)
        if found is not None:
            return found
        # Started, received and sent. Each code reserves its own series.
        if not self._limit.reserve("rpc", series_count(DURATION_BOUNDS) + 3):
            return self._tallies.setdefault(self._other.labels, self._other)
        codes = CodeCounts(len(GRPC_CODES), lambda: self._limit.reserve("code", 1), self._other.codes)
        return self._tallies.setdefault(key, RpcTally(key, Histogram(DURATION_BOUNDS), codes))

    def families(self) -> Iterator[Metric]:
        """Yield the current families."""
        started = counter("grpc_server_started", "RPCs started on the server.")
        handled = counter(
            "grpc_server_handled", "RPCs completed on the server, whether they succeeded or failed."
        )
        received = counter("grpc_server_msg_received", "Messages received from callers.")
        sent = counter("grpc_server_msg_sent", "Messages sent to callers.")
        names = ("grpc_type", "grpc_service", "grpc_method")
        durations = HistogramMetricFamily(
            "grpc_server_handling_seconds",
            "How long RPCs took in the server until they completed.",
            labels=names,
        )
        for tally in list(self._tallies.values()):
            labels = dict(zip(names, tally.labels, strict=True))
            add_count(started, labels, tally.started_count)
            add_count(received, labels, tally.received_count)
            add_count(sent, labels, tally.sent_count)
            add_histogram(durations, tally.labels, tally.durations)
            for code, count in zip(GRPC_CODES.values(), tally.codes.cells[:], strict=True):
                if count:
                    add_count(handled, {**labels, "grpc_code": code}, count)
        yield from (started, handled, received, sent, durations)
