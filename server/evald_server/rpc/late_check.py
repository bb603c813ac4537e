"""Handlers that look at who calls when they begin: gRPC shows a caller's certificate and address nowhere earlier."""

from collections.abc import Callable
from typing import Any, TypeAlias

import grpc

from evald_server.auth.clients import ClientNames, client_names

from .server import Handler, abort

Admit: TypeAlias = Callable[[str, Any, ClientNames | None, str], Handler]
"""Returns the handler of a call, or one that refuses it. Takes the method, the metadata, certificate and address."""


def checked_late(method: str, handler: Handler, admit: Admit) -> Handler:
    """Wrap a handler of any kind: its caller is looked at first, and what it sends is read after that.

    Unary ones become streams, because gRPC reads the message of a unary call before it calls its handler.
    """

    async def call(requests: Any, context: Any) -> None:
        # gRPC's types are those of handlers that do not await.
        admitted: Any = admit(
            method, context.invocation_metadata(), client_names(context.auth_context()), context.peer()
        )
        if admitted.stream_stream is not None:
            await admitted.stream_stream(requests, context)
            return
        request = await context.read()
        if request is grpc.aio.EOF:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, "the call ended without its message")
        if admitted.unary_stream is not None:
            await admitted.unary_stream(request, context)
            return
        await context.write(await admitted.unary_unary(request, context))

    return grpc.stream_stream_rpc_method_handler(
        call, handler.request_deserializer, handler.response_serializer
    )
