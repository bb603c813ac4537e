"""The web port: uvicorn in the event loop of gRPC's server."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from ssl import SSLContext
from typing import Final

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from . import bridge
from .api import routes as api
from .calls import CallFailed
from .console import routes as console
from .errors import on_call_failed, on_http_exception
from .guards import Bodies, Guards
from .site import Site

_MAX_HEAD_BYTES: Final = 16 * 1024

# What scripts of web_origins may send; browsers ask before they send it.
_ALLOWED_HEADERS: Final = (
    "Authorization",
    "Content-Type",
    "Connect-Protocol-Version",
    "Connect-Timeout-Ms",
    "Idempotency-Key",
    "Last-Event-ID",
    "traceparent",
)


class WebServer:
    """The console and the HTTP API on a port of their own. tls: the certificate for new connections, None for none."""

    def __init__(self, site: Site, tls: Callable[[], SSLContext] | None = None) -> None:
        self._site = site
        self._tls = tls
        self._server: _Uvicorn | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen. Returns the port. Raises OSError if the address cannot be had."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family)
        config = uvicorn.Config(
            application(self._site),
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
        )
        self._server = _Uvicorn(config)
        self._task = asyncio.create_task(self._server.serve([listener]))
        return int(listener.getsockname()[1])

    async def stop(self) -> None:
        """End open connections and stop listening."""
        if self._server is None or self._task is None:
            return
        self._server.should_exit = self._server.force_exit = True
        await self._task


def application(site: Site) -> Starlette:
    """Return everything that the web port answers."""
    settings = site.settings
    pages = console.routes(site) if settings.web_console else []
    scripts = Middleware(
        CORSMiddleware,
        allow_origins=settings.web_origins,
        allow_methods=["GET", "POST", "PUT", "DELETE"],
        allow_headers=_ALLOWED_HEADERS,
        expose_headers=["Retry-After", "Link"],
    )
    return Starlette(
        routes=[*bridge.routes(site), *api.routes(site), *pages],
        middleware=[
            Middleware(Guards, settings=settings),
            *([scripts] if settings.web_origins else []),
            Middleware(Bodies, max_message_bytes=settings.max_message_bytes),
        ],
        exception_handlers={CallFailed: on_call_failed, HTTPException: on_http_exception},
    )


class _Uvicorn(uvicorn.Server):
    """uvicorn without its signal handlers: the server's command has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
