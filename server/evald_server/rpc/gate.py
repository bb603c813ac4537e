"""Authenticates and authorizes every call before its handler runs.

gRPC asks the gate for the handler of each call, with the metadata parsed and no message read. An interceptor would
cost 6 % of the calls.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

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

from .server import Handler, RpcServer, RpcStream, abort, refuse_unknown

_log = logging.getLogger("evald.auth")

Metadata: TypeAlias = Iterable[tuple[str, str | bytes]]

# Of a call that is authenticated when its handler starts: reading it from gRPC again would cost a third of the check.
_METADATA: Final[ContextVar[Metadata]] = ContextVar("metadata")

# Changed keys, tokens and certificates take effect within a second for new calls.
_RELOAD_SECONDS: Final = 0.5

# Streams of credentials that have expired end within a minute, and those of changed keys at once.
_CHECK_SECONDS: Final = 30.0

# Entries of the cache of admitted callers; a token has at most 8 KiB.
_MAX_ADMITTED: Final = 1000

# The metrics' names of kinds of methods, by whether the request and the response are streams.
_KINDS: Final = {
    (False, False): "unary",
    (False, True): "server_stream",
    (True, False): "client_stream",
    (True, True): "bidi_stream",
}


class _Method(NamedTuple):
    """The handlers of a method. authenticate: authenticates the caller first, and reads the message then."""

    handle: Handler
    authenticate: Handler


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
        self._audit = Audit()
        self._audit_calls = audit_calls
        self._limits = PrincipalLimits(limited, max_principal_calls)
        # Streams that are open, by the principal that opened them.
        self._streams: dict[Principal, dict[asyncio.Task[Any], OpenCall]] = {}
        # Callers admitted since the last reload, by method, credentials and certificate: they are not checked again.
        # Lookups take no time that depends on the credentials, because the hash of a text is keyed at random.
        self._admitted: dict[tuple[str, object, ClientNames | None], Principal] = {}
        self._methods = {
            f"/{service}/{name}": _Method(handler, self._authenticated(f"/{service}/{name}", handler))
            for service, handlers in services.items()
            for name, handler in handlers.items()
        }
        unknown = rpc.stream("unknown", "unknown", refuse_unknown)
        self._unknown = _Method(unknown, unknown)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler:
        """Return the handler of a call, or one that refuses it."""
        name = handler_call_details.method
        method = self._methods.get(name, self._unknown)
        if self._authenticator is None or METHODS.get(name) is OPEN:
            return method.handle
        principal = self._admitted.get((name, _authorization(handler_call_details.invocation_metadata), None))
        if principal is None:
            return self.authenticate_on_start(handler_call_details)
        self._authenticator.passed(principal)
        return self._begin(name, method.handle, principal)

    def authenticate_on_start(self, handler_call_details: grpc.HandlerCallDetails) -> Handler:
        """Return a handler that authenticates when it starts: gRPC has the certificate and the address only then."""
        name = handler_call_details.method
        _METADATA.set(handler_call_details.invocation_metadata)
        method = self._methods.get(name)
        return self._authenticated(name, self._unknown.handle) if method is None else method.authenticate

    def admit(
        self, name: str, metadata: Metadata, certificate: ClientNames | None, peer: Callable[[], str]
    ) -> Handler:
        """Return the handler of a call whose message was read, or one that refuses it.

        Call it in the task of the call. name: of the method. certificate: of the connection. peer: returns the
        address of the caller.
        """
        return self._admit(name, self._methods.get(name, self._unknown).handle, metadata, certificate, peer)

    def _authenticated(self, name: str, handler: Handler) -> Handler:
        """Wrap a handler that reads its messages: the caller is authenticated first."""

        async def call(requests: Any, context: Any) -> Any:
            certificate = client_names(context.auth_context())
            admitted: Any = self._admit(name, handler, _METADATA.get(), certificate, context.peer)
            if admitted.request_streaming:
                return await admitted.stream_stream(requests, context)
            # Read only now, so that strangers cannot make the server read what they send.
            message = await context.read()
            if message is grpc.aio.EOF:
                await abort(
                    context, grpc.StatusCode.INVALID_ARGUMENT, "the call ended without a request message"
                )
            return await (admitted.unary_unary or admitted.unary_stream)(message, context)

        make: Any = (
            grpc.stream_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.stream_unary_rpc_method_handler
        )
        wrapped: Handler = make(call, handler.request_deserializer, handler.response_serializer)
        return wrapped

    def _admit(
        self,
        name: str,
        handler: Handler,
        metadata: Metadata,
        certificate: ClientNames | None,
        peer: Callable[[], str],
    ) -> Handler:
        if self._authenticator is None or METHODS.get(name) is OPEN:
            return handler
        caller = (name, _authorization(metadata), certificate)
        principal = self._admitted.get(caller)
        if principal is None:
            try:
                principal = self._authenticator.authenticate(metadata, certificate, peer())
                self._check_role(name, principal)
            except AccessDenied as problem:
                return self._refused(name, problem)
            self._audit.used(name, principal)
            if name not in self._methods:
                return self._begin(name, handler, principal)
            if len(self._admitted) >= _MAX_ADMITTED:
                self._admitted.clear()
            self._admitted[caller] = principal
        self._authenticator.passed(principal)
        return self._begin(name, handler, principal)

    def _begin(self, name: str, handler: Handler, principal: Principal) -> Handler:
        """Count a call against the limits of its principal. Returns its handler, or one that refuses it."""
        task = asyncio.current_task()
        assert task is not None
        try:
            task.add_done_callback(self._limits.begin(principal))
        except AccessDenied as problem:
            return self._refused(name, problem)
        PRINCIPAL.set(principal)
        if self._audit_calls:
            record("called", principal, method=name)
        if handler.request_streaming or handler.response_streaming:
            self._opened(name, principal)
        return handler

    def _check_role(self, method: str, principal: Principal) -> None:
        """Raise AccessDenied unless a principal has one of the roles that may call a method."""
        assert self._authenticator is not None
        # A method without a row is for no role. One that does not exist is UNIMPLEMENTED for every principal.
        if method in self._methods:
            self._authenticator.authorize(principal, method, METHODS.get(method) or frozenset())

    async def watch(self) -> None:
        """Reload keys and clients that have changed, and check the principals of open streams again."""
        if self._authenticator is None:
            return
        checked = -math.inf
        while True:
            await asyncio.sleep(_RELOAD_SECONDS)
            changed = await self._reload(self._authenticator)
            self._admitted.clear()
            if changed or time.monotonic() - checked >= _CHECK_SECONDS:
                self._check_streams()
                checked = time.monotonic()

    async def _reload(self, authenticator: Authenticator) -> bool:
        """Reload keys and clients. Returns whether one of them has changed."""
        keys, clients = authenticator.keys, authenticator.clients
        changed = False
        if keys is not None:
            before = keys.content
            if await keys.poll():
                _record_changes(before, keys.content)
                changed = True
        if clients is not None and await clients.poll():
            record("clients changed", None)
            changed = True
        return changed

    def _opened(self, method: str, principal: Principal) -> None:
        task = asyncio.current_task()
        assert task is not None
        call = OpenCall(principal, [partial(self._check_role, method)])
        OPEN_CALL.set(call)
        calls = self._streams.setdefault(principal, {})
        calls[task] = call
        task.add_done_callback(calls.pop)

    def _check_streams(self) -> None:
        """End the streams of principals that are no longer allowed to have them."""
        assert self._authenticator is not None
        for principal, calls in list(self._streams.items()):
            if not calls:
                del self._streams[principal]
                continue
            try:
                current = self._authenticator.current(principal)
            except AccessDenied as problem:
                for task in list(calls):
                    self._rpc.end_stream(task, problem)
                continue
            for task, call in list(calls.items()):
                if call.principal is current or call.principal == current:
                    continue
                try:
                    call.judge(current)
                except CallError as problem:
                    self._rpc.end_stream(task, problem)

    def _refused(self, method: str, problem: AccessDenied) -> Handler:
        # Only names of existing methods become labels of a metric.
        _, service, name = (method if method in self._methods else "/unknown/unknown").split("/")
        handler = self._methods.get(method, self._unknown).handle
        kind = _KINDS[handler.request_streaming, handler.response_streaming]
        # Their frames lead to the call's, which holds this handler: a cycle that would keep the call.
        problem.__traceback__ = problem.__context__ = problem.__cause__ = None

        async def refuse(stream: RpcStream) -> None:
            peer = stream.context.peer()
            self._audit.refused(method, peer, problem.reason, problem.why, problem.principal)
            raise problem

        return self._rpc.stream(service, name, refuse, kind=kind, open_streams=False)


class CertificateGate(grpc.GenericRpcHandler):
    """The same gate on a port that asks for client certificates, which cost each call a look at the connection."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler:
        """Return a handler that authenticates when it starts."""
        return self._gate.authenticate_on_start(handler_call_details)


def _authorization(metadata: Metadata) -> object:
    """Return the credentials of a call: None without any. Several give a tuple, which is never admitted."""
    found: object = None
    for name, value in metadata:
        if name == "authorization":
            found = value if found is None else (found, value)
    return found


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
