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
