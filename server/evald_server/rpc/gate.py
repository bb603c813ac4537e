"""Authenticates and authorizes every call before its message is read.

gRPC asks the gate for the handler of each call. An interceptor would cost 6 % of the calls.
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

import grpc

from evald_server.auth.audit import Audit, record
from evald_server.auth.authenticator import Authenticator
from evald_server.auth.clients import client_names
from evald_server.auth.current_call import OPEN_CALL, PRINCIPAL, OpenCall
from evald_server.auth.keys import ApiKey
from evald_server.auth.limits import PrincipalLimits
from evald_server.auth.principal import ClientNames, Principal
from evald_server.auth.refusals import AccessDenied
from evald_server.auth.roles import METHODS, OPEN
from evald_server.call_errors import CallError

from .server import Context, Handler, RpcServer, RpcStream, refuse

# Changed keys, tokens and certificates take effect within a second for new calls.
_RELOAD_SECONDS: Final = 0.5

# Streams of credentials that have expired end within a minute, and those of changed keys at once.
_CHECK_SECONDS: Final = 30.0

# Entries of the cache of admitted callers; a token has at most 8 KiB.
_MAX_ADMITTED: Final = 1000

# The metrics' names of kinds of methods, by whether the request and the response are streams.
_KINDS: Final = {(False, False): "unary", (False, True): "server_stream", (True, True): "bidi_stream"}


class Gate(grpc.GenericRpcHandler):
    """The handlers of all services by method.

    authenticator: None allows every call. limited: called with the name of a principal's limit that refuses a call.
    audit_calls: log every call.
    max_principal_calls: calls in flight of a principal without a limit of its own.
    """

    def __init__(
        self,
        rpc: RpcServer,
        services: Mapping[str, Mapping[str, Handler]],
        authenticator: Authenticator | None = None,
        limited: Callable[[str], None] = lambda _limit: None,
        *,
        audit_calls: bool = False,
        max_principal_calls: int,
    ) -> None:
        self._rpc = rpc
        self._authenticator = authenticator
        self._reads_certificates = authenticator is not None and authenticator.clients is not None
        self._audit = Audit()
        self._audit_calls = audit_calls
        self._limits = PrincipalLimits(limited, max_principal_calls)
        self._streams: dict[asyncio.Task[Any], OpenCall] = {}  # those that are open
        # Callers admitted since the last reload, by method, credentials and certificate: they are not checked again.
        # Lookups take no time that depends on the credentials, because the hash of a text is keyed at random.
        self._admitted: dict[tuple[str, object, ClientNames | None], Principal] = {}
        self._methods = {
            f"/{service}/{name}": handler
            for service, handlers in services.items()
            for name, handler in handlers.items()
        }
        self._unknown = rpc.handler("unknown", "unknown", "bidi_stream", _refuse_unknown)
        self._authenticating = {
            name: self._authenticated(name, handler) for name, handler in self._methods.items()
        }

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler:
        """Return the handler of a call, which authenticates its caller first."""
        name = handler_call_details.method
        if self._authenticator is None or METHODS.get(name) is OPEN:
            return self._methods.get(name, self._unknown)
        return self._authenticating.get(name) or self._authenticated(name, self._unknown)

    def _authenticated(self, name: str, handler: Handler) -> Handler:
        """Wrap a handler: the caller is authenticated before a message is read, which strangers could make large."""

        async def call(requests: Any, context: Any) -> Any:
            # Only a handler that has started has the certificate and the address.
            certificate = client_names(context.auth_context()) if self._reads_certificates else None
            admitted: Any = self.admit(name, context, certificate)
            if admitted.request_streaming:
                return await admitted.stream_stream(requests, context)
            message = await context.read()
            if message is grpc.aio.EOF:
                text = "the call ended without a request message"
                await refuse(context, CallError("UNREADABLE_MESSAGE", text))
            if admitted is handler:
                try:  # once more, because the message may come long after the headers
                    self._caller(name, context, certificate)
                except AccessDenied as problem:
                    refusing: Any = self._refused(name, handler, problem)
                    return await refusing.stream_stream(requests, context)
            return await (admitted.unary_unary or admitted.unary_stream)(message, context)

        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(call)
        return grpc.stream_unary_rpc_method_handler(call)

    def admit(self, name: str, context: Context, certificate: ClientNames | None) -> Handler:
        """Return the handler of a call, or one that refuses it. Call it in the task of the call.

        name: of the method. certificate: of the connection.
        """
        handler = self._methods.get(name, self._unknown)
        if self._authenticator is None or METHODS.get(name) is OPEN:
            return handler
        task = asyncio.current_task()
        assert task is not None
        try:
            principal = self._caller(name, context, certificate)
            self._authenticator.passed(principal)
            task.add_done_callback(self._limits.begin(principal))
        except AccessDenied as problem:
            return self._refused(name, handler, problem)
        PRINCIPAL.set(principal)
        if self._audit_calls:
            record("called", principal, method=name)
        if handler.request_streaming or handler.response_streaming:
            call = self._streams[task] = OpenCall(principal, [partial(self._check_role, name)])
            OPEN_CALL.set(call)
            task.add_done_callback(self._streams.pop)
        return handler

    def _caller(self, name: str, context: Context, certificate: ClientNames | None) -> Principal:
        """Return the caller of a method, who has one of its roles. Raises AccessDenied."""
        assert self._authenticator is not None
        metadata: Iterable[tuple[str, str | bytes]] = context.invocation_metadata() or ()
        caller = (name, _authorization(metadata), certificate)
        principal = self._admitted.get(caller)
        if principal is None:
            principal = self._authenticator.authenticate(metadata, certificate, context.peer())
            self._check_role(name, principal)
            self._audit.used(name, principal)
            if name in self._methods:
                if len(self._admitted) >= _MAX_ADMITTED:
                    self._admitted.clear()
                self._admitted[caller] = principal
        return principal

    def _check_role(self, method: str, principal: Principal) -> None:
        """Raise AccessDenied unless a principal has one of the roles that may call a method."""
        assert self._authenticator is not None
        # A method without a row is for no role. One that does not exist is UNIMPLEMENTED for every principal.
        if method in self._methods:
            self._authenticator.authorize(principal, method, METHODS.get(method) or frozenset())

    def _refused(self, method: str, handler: Handler, problem: AccessDenied) -> Handler:
        # Only names of existing methods become labels of a metric.
        _, service, name = (method if method in self._methods else "/unknown/unknown").split("/")
        kind = _KINDS[handler.request_streaming, handler.response_streaming]
        # Their frames lead to the call's, which holds this handler: a cycle that would keep the call.
        problem.__traceback__ = problem.__context__ = problem.__cause__ = None

        async def refuse(_requests: object, stream: RpcStream) -> None:
            peer = stream.context.peer()
            self._audit.refused(method, peer, problem.reason, problem.why, problem.principal)
            raise problem

        return self._rpc.handler(service, name, kind, refuse)

    async def watch(self) -> None:
        """Reload keys and clients that have changed, and check the callers of open streams again."""
        authenticator = self._authenticator
        if authenticator is None:
            return
        keys, clients, checked = authenticator.keys, authenticator.clients, -math.inf
        while True:
            await asyncio.sleep(_RELOAD_SECONDS)
            changed = False
            if keys is not None:
                before = keys.content
                if changed := await keys.poll():
                    _record_changes(before, keys.content)
            if clients is not None and await clients.poll():
                record("clients changed", None)
                changed = True
            self._admitted.clear()
            if changed or time.monotonic() - checked >= _CHECK_SECONDS:
                await self._check_streams(authenticator)
                checked = time.monotonic()

    async def _check_streams(self, authenticator: Authenticator) -> None:
        """End the streams of principals that are no longer allowed to have them."""
        for task, call in list(self._streams.items()):
            try:
                call.judge(authenticator.current(call.principal))
            except CallError as problem:
                self._rpc.end_stream(task, problem)
            await asyncio.sleep(0)  # there may be thousands


async def _refuse_unknown(_requests: object, _stream: RpcStream) -> None:
    raise CallError(
        "UNKNOWN_METHOD",
        "this server has no such method; server reflection and protos/README.md list the methods that it has",
    )


def _authorization(metadata: Iterable[tuple[str, str | bytes]]) -> object:
    """Return the credentials of a call: None without any. Several give a tuple, which is never admitted."""
    credentials: object = None
    for name, value in metadata:
        if name == "authorization":
            credentials = value if credentials is None else (credentials, value)
    return credentials


def _record_changes(before: Mapping[str, ApiKey], after: Mapping[str, ApiKey]) -> None:
    for key_id in before.keys() | after.keys():
        old, new = before.get(key_id), after.get(key_id)
        key = new or old
        if key is None or old == new:
            continue
        if old is None:
            what = "key added"
        elif new is None or (new.revoked is not None and old.revoked is None):
            what = "key revoked"
        else:
            what = "key changed"
        record(what, Principal(key.principal, frozenset(key.roles), key.types, key_id))
