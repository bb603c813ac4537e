"""The services that all HTTP handlers share."""

from typing import Any, NamedTuple

from google.protobuf.message import Message
from starlette.requests import Request

from evald_server.config import Settings
from evald_server.monitoring import Telemetry
from evald_server.store.database import Database

from .access import WebAccess
from .calls import Calls


class Site(NamedTuple):
    """The services that a handler uses.

    calls: the server's gRPC methods, through which handlers work. access: finds a request's caller. database: for
    figures that no method returns.
    """

    settings: Settings
    calls: Calls
    access: WebAccess
    database: Database
    telemetry: Telemetry

    async def ask(self, request: Request, message: Message) -> Any:
        """Call the method that takes a message, as a request's caller, and return its response. Raises CallFailed."""
        return await self.calls.ask(message, self.access.caller(request))
