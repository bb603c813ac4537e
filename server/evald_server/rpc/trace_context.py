"""The W3C trace context of a call, from its metadata. Source: https://www.w3.org/TR/trace-context/."""

from typing import Final

from evald.scope import Scope

from .server import Context

_HEADERS: Final = frozenset(("traceparent", "tracestate", "baggage"))


def scope_of(context: Context, evaluation_id: str) -> Scope:
    """Return the id and the trace headers of a call for its pending evaluators."""
    headers = {
        key: value
        for key, value in context.invocation_metadata() or ()
        if key in _HEADERS and isinstance(value, str)
    }
    return Scope(evaluation_id=evaluation_id, trace_context=headers)


def trace_id_of(context: Context) -> str | None:
    """Return the trace id of a call; None without one."""
    for key, value in context.invocation_metadata() or ():
        if key == "traceparent" and isinstance(value, str):
            parts = value.split("-")
            return parts[1] if len(parts) > 2 else None
    return None
