"""What runs and suite runs have in common for their callers: filters of lists, and errors."""

from typing import Any, Final, TypeVar

from google.protobuf.message import Message

from evald_server.call_errors import CallError, invalid
from evald_server.store.runs import RunFilter
from evald_server.store.suites import SuiteFilter

from .errors import check_enum, microseconds

Filter = TypeVar("Filter", RunFilter, SuiteFilter)

USUAL_PAGE: Final = 50
"""Runs and cases on a page if the caller does not say how many."""


def read_filter(request: Message, kind: type[Filter]) -> Filter:
    """Return the filter in the request for a list, whose fields have the same names. Raises CallError."""
    fields: dict[str, Any] = {name: getattr(request, name) for name in kind._fields}
    described: Any = request.DESCRIPTOR
    for name in ("status", "verdict"):
        check_enum(request, name, max(described.fields_by_name[name].enum_type.values_by_number))
    times = {name: microseconds(request, name, name) for name in ("since", "until")}
    return kind(**fields | times)


def no_such(what: str, stored_id: str, method: str) -> str:
    """Return the text about an id that does not exist. method: lists the existing ones."""
    return f'no {what} has the id "{stored_id[:100]}"; {method} returns the existing ones'


def not_found(field: str, what: str, stored_id: str, method: str) -> CallError:
    """Return the error of a field with an id that does not exist."""
    return invalid(field, no_such(what, stored_id, method), "RESOURCE_NOT_FOUND")
