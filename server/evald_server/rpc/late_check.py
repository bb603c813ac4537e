"""Handlers that look at who calls when they begin: gRPC shows a caller's certificate and address nowhere earlier."""

from collections.abc import Callable
from typing import Any, TypeAlias

from evald_server.auth.clients import client_names
from evald_server.auth.principal import ClientNames

from .first_message import reading_itself
from .server import Handler

Admit: TypeAlias = Callable[[str, ClientNames | None, str], Handler]
"""Returns the handler of a call, or one that refuses it. Takes the method, the certificate and the address."""


def checked_late(method: str, handler: Handler, admit: Admit) -> Handler:
    """Wrap a handler that reads what is sent: its caller is looked at before that."""

    async def call(requests: Any, context: Any) -> Any:
        admitted: Any = admit(method, client_names(context.auth_context()), context.peer())
        return await (admitted.stream_unary or admitted.stream_stream)(requests, context)

    return reading_itself(handler, call)
