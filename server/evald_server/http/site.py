"""What the handlers of HTTP requests share."""

from typing import Any, NamedTuple

from google.protobuf.message import Message
from starlette.requests import Request

from evald_server.config import Settings
from evald_server.monitoring import Telemetry
from evald_server.store.database import Database

from .access import WebAccess
from .calls import Calls


class Site(NamedTuple):
    """calls: of the server's own methods; everything that a method does goes through it. access: who calls, and from
    where. database: for figures that no method gives."""

    settings: Settings
    calls: Calls
    access: WebAccess
    database: Database
    telemetry: Telemetry

    async def ask(self, request: Request, message: Message) -> Any:
        """Return the answer to a message, for the sender of a request. Raises CallFailed."""
        return await self.calls.ask(message, self.access.caller(request))
