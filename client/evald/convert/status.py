"""The details of a status, read from a call's trailing metadata."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple


class StatusDetails(NamedTuple):
    """The google.rpc details of a status, as plain data. violations: (field, description)."""

    reason: str = ""
    metadata: Mapping[str, str] = {}
    violations: Sequence[tuple[str, str]] = ()
    retry_after_seconds: float | None = None


def read_status(trailing_metadata: Iterable[Any]) -> StatusDetails:
    """ErrorInfo, BadRequest and RetryInfo out of a call's trailing metadata; empty where there are none."""
    data = next((value for key, value in trailing_metadata if key == "grpc-status-details-bin"), None)
    if data is None:
        return StatusDetails()
    # Only here: loading them costs as much as the rest of this module, and most calls go well.
    from google.protobuf.message import DecodeError
    from google.rpc import error_details_pb2, status_pb2

    found: dict[str, Any] = {}
    try:
        details = status_pb2.Status.FromString(data).details
        for detail in details:
            if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
                info = error_details_pb2.ErrorInfo.FromString(detail.value)
                found |= {"reason": info.reason, "metadata": dict(info.metadata)}
            elif detail.Is(error_details_pb2.BadRequest.DESCRIPTOR):
                request = error_details_pb2.BadRequest.FromString(detail.value)
                found["violations"] = [(field.field, field.description) for field in request.field_violations]
            elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
                delay = error_details_pb2.RetryInfo.FromString(detail.value).retry_delay
                found["retry_after_seconds"] = delay.seconds + delay.nanos / 1e9
    except DecodeError:
        pass  # somebody else's trailer: the status and its text still stand
    return StatusDetails(**found)
