"""The gate in front of all handlers: finds the handler of a call, and lets in who may call it.

gRPC asks it once for every call, with the metadata parsed and no message read. An interceptor would cost 6 % of
the calls.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

import grpc

from evald_server.auth.audit import Audit, record
from evald_server.auth.authenticator import AccessDenied, Authenticator
from evald_server.auth.clients import ClientNames
from evald_server.auth.files import FileProblem
from evald_server.auth.keys import ApiKey
from evald_server.auth.limits import PrincipalLimits
from evald_server.auth.principal import LOCAL, PRINCIPAL, Principal
from evald_server.auth.roles import METHODS, OPEN

from .errors import CallError
from .late_check import checked_late
from .server import Handler, RpcServer, RpcStream

_log = logging.getLogger("evald.auth")

Metadata: TypeAlias = Iterable[tuple[str, str | bytes]]

# A key that is revoked counts no longer after this time; its streams end with it.
_RELOAD_SECONDS: Final = 1.0

# What metrics call the methods whose handler streams in, and out.
_KINDS: Final = {
    (False, False): "unary",
    (False, True): "server_stream",
    (True, False): "client_stream",
    (True, True): "bidi_stream",
}


class Gate(grpc.GenericRpcHandler):
    """The handlers of all services by method. authenticator: None lets everybody call everything.

    limited: called with the limit of a principal that refuses a call.
    """

    def __init__(
        self,
        rpc: RpcServer,
        services: Mapping[str, Mapping[str, Handler]],
        authenticator: Authenticator | None = None,
        limited: Callable[[str], None] = lambda _limit: None,
    ) -> None:
        self._rpc = rpc
        self._handlers = {
            f"/{service}/{method}": handler
            for service, methods in services.items()
            for method, handler in methods.items()
        }
        self._unknown = rpc.unknown()
        self._authenticator = authenticator
        self._audit = Audit()
        self._limits = PrincipalLimits(limited)
        self._streams: dict[Principal, set[asyncio.Task[Any]]] = {}
        if authenticator is not None:
            rpc.on_message = self._on_message
        self._late = {
            method: checked_late(method, handler, self.admit) for method, handler in self._handlers.items()
        }

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler:
        """Return the handler of a call, or one that refuses it."""
        method = handler_call_details.method
        handler = self._handlers.get(method, self._unknown)
        if self._authenticator is None:
            return handler
        if METHODS.get(method) is OPEN:
            return handler
        metadata = handler_call_details.invocation_metadata
        try:
            principal = self._authenticator.at_once(metadata)
        except AccessDenied as problem:
            return self._refused(method, problem)
        return self.late(method) if principal is None else self._admitted(method, handler, principal)

    def late(self, method: str) -> Handler:
        """Return the handler of a call that looks at who calls when it begins."""
        if self._authenticator is None or METHODS.get(method) is OPEN:
            return self._handlers.get(method, self._unknown)
        return self._late.get(method) or checked_late(method, self._unknown, self.admit)

    def admit(self, method: str, metadata: Metadata, certificate: ClientNames | None, peer: str) -> Handler:
        """Return the handler of a call, or one that refuses it. To be called in the task of the call.

        certificate: of its connection. peer: the address that it comes from.
        """
        handler = self._handlers.get(method, self._unknown)
        if self._authenticator is None or METHODS.get(method) is OPEN:
            return handler
        try:
            principal = self._authenticator.authenticate(metadata, certificate, peer)
        except AccessDenied as problem:
            return self._refused(method, problem)
        return self._admitted(method, handler, principal)

    def _admitted(self, method: str, handler: Handler, principal: Principal) -> Handler:
        assert self._authenticator is not None
        try:
            # Without a row nobody may call what there is; what there is not, everybody may ask for who is known.
            if handler is not self._unknown:
                self._authenticator.authorize(principal, method, METHODS.get(method) or frozenset())
            if principal.rate is not None or principal.in_flight is not None:
                self._begin(principal)
        except AccessDenied as problem:
            return self._refused(method, problem)
        PRINCIPAL.set(principal)
        self._audit.used(method, principal)
        # Other streams are opened by their message: gRPC tells nobody of a call that ends while it waits for that.
        if handler.request_streaming:
            self._opened(principal)
        return handler

    def _on_message(self, streams: bool) -> None:
        assert self._authenticator is not None
        principal = PRINCIPAL.get()
        if principal is LOCAL:
            return
        ended = self._authenticator.ended(principal)
        if ended is not None:
            raise call_error_of(ended)
        if streams:
            self._opened(principal)

    async def watch(self) -> None:
        """Read the keys and clients again when they change, and end the streams of those that count no longer."""
        if self._authenticator is None:
            return
        keys, clients = self._authenticator.keys, self._authenticator.clients
        while True:
            await asyncio.sleep(_RELOAD_SECONDS)
            if keys is not None:
                before = keys.ring.keys
                if await _reloaded("keys_file", keys.reload):
                    _record_changes(before, keys.ring.keys)
            if clients is not None and await _reloaded("tls_clients_file", clients.reload):
                record("clients changed", None)
            self._end_streams()

    def _begin(self, principal: Principal) -> None:
        self._limits.begin(principal)
        task = asyncio.current_task()
        assert task is not None
        task.add_done_callback(lambda _: self._limits.end(principal))

    def _opened(self, principal: Principal) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks = self._streams.setdefault(principal, set())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def _end_streams(self) -> None:
        assert self._authenticator is not None
        for principal, tasks in list(self._streams.items()):
            if not tasks:
                del self._streams[principal]
                continue
            ended = self._authenticator.ended(principal)
            if ended is not None:
                for task in list(tasks):
                    self._rpc.end_stream(task, call_error_of(ended))

    def _refused(self, method: str, problem: AccessDenied) -> Handler:
        # Only names of methods that there are become labels of a metric.
        known = method if method in self._handlers else "/unknown/unknown"
        _, service, name = known.split("/")
        handler = self._handlers.get(method, self._unknown)
        kind = _KINDS[handler.request_streaming, handler.response_streaming]

        async def refuse(stream: RpcStream) -> None:
            peer = stream.context.peer()
            self._audit.refused(method, peer, problem.reason, problem.why, problem.principal)
            raise call_error_of(problem)

        return self._rpc.refusing(service, name, kind, refuse)


class CertificateGate(grpc.GenericRpcHandler):
    """The same gate on a port where a certificate may say who calls. Others are spared what that costs a call."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler:
        """Return a handler that looks at the certificate first."""
        return self._gate.late(handler_call_details.method)


async def _reloaded(setting: str, reload: Callable[[], bool]) -> bool:
    """Read a file again. Returns whether it has changed, and can be used."""
    try:
        return await asyncio.to_thread(reload)
    except FileProblem as problem:
        _log.error("%s: %s; what stood in it before still counts", setting, problem)
        return False


def call_error_of(problem: AccessDenied) -> CallError:
    """Return a refusal as the error of a call."""
    error = CallError(problem.reason, problem.message, (), **problem.metadata)
    if problem.retry_seconds is not None:
        error.retry_seconds = problem.retry_seconds
    return error


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
