"""Who calls over HTTP, from where, and whether a browser may."""

import time

from starlette.requests import Request

from .calls import HttpCaller

# The headers that handlers of calls read.
_PASSED = frozenset(("authorization", "traceparent", "tracestate", "baggage"))


class WebAccess:
    """Finds the caller of a request."""

    def caller(self, request: Request, timeout: float | None = None) -> HttpCaller:
        """Return who sent a request. timeout: seconds that its sender waits for the answer."""
        headers = tuple((name, value) for name, value in request.headers.items() if name in _PASSED)
        peer = f"ipv4:{request.client.host}:{request.client.port}" if request.client else ""
        return HttpCaller(headers, peer, None if timeout is None else time.monotonic() + timeout)
