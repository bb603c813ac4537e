"""The gate in front of all handlers: finds the handler of a call, and lets in who may call it.

gRPC asks it once for every call, with the metadata parsed and no message read. An interceptor would cost 6 % of
the calls.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import grpc

from evald_server.auth.audit import Audit, record
from evald_server.auth.authenticator import AccessDenied, Authenticator
from evald_server.auth.keys import ApiKey, KeyFileProblem
from evald_server.auth.limits import PrincipalLimits
from evald_server.auth.principal import PRINCIPAL, Principal
from evald_server.auth.roles import METHODS, OPEN

from .errors import CallError
from .server import Handler, RpcServer, RpcStream

_log = logging.getLogger("evald.auth")

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
        self._streams: dict[str, set[asyncio.Task[Any]]] = {}  # by key

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler:
        """Return the handler of a call, or one that refuses it."""
        method = handler_call_details.method
        handler = self._handlers.get(method, self._unknown)
        if self._authenticator is None:
            return handler
        # Without a row nobody may call what there is; what there is not, everybody may ask for who is known.
        roles = METHODS.get(method)
        if roles is OPEN:
            return handler
        try:
            principal = self._authenticator.authenticate(handler_call_details.invocation_metadata)
            if handler is not self._unknown:
                self._authenticator.authorize(principal, method, roles or frozenset())
            if principal.rate is not None or principal.in_flight is not None:
                self._begin(principal)
        except AccessDenied as problem:
            return self._refused(method, problem)
        PRINCIPAL.set(principal)
        self._audit.used(method, principal)
        if handler.request_streaming or handler.response_streaming:
            self._opened(principal)
        return handler

    async def watch(self) -> None:
        """Read the keys again when they change, and end the streams of those that count no longer."""
        if self._authenticator is None:
            return
        while True:
            await asyncio.sleep(_RELOAD_SECONDS)
            before = self._authenticator.keys.ring.keys
            try:
                if await asyncio.to_thread(self._authenticator.keys.reload):
                    _record_changes(before, self._authenticator.keys.ring.keys)
            except KeyFileProblem as problem:
                _log.error("keys_file: %s; the keys of before still count", problem)
            self._end_streams()

    def _begin(self, principal: Principal) -> None:
        self._limits.begin(principal)
        task = asyncio.current_task()
        assert task is not None
        task.add_done_callback(lambda _: self._limits.end(principal))

    def _opened(self, principal: Principal) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks = self._streams.setdefault(principal.key_id, set())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def _end_streams(self) -> None:
        assert self._authenticator is not None
        for key_id, tasks in list(self._streams.items()):
            if not tasks:
                del self._streams[key_id]
                continue
            ended = self._authenticator.ended(key_id)
            if ended is not None:
                for task in list(tasks):
                    self._rpc.end_stream(task, _as_call_error(ended))

    def _refused(self, method: str, problem: AccessDenied) -> Handler:
        # Only names of methods that there are become labels of a metric.
        known = method if method in self._handlers else "/unknown/unknown"
        _, service, name = known.split("/")
        handler = self._handlers.get(method, self._unknown)
        kind = _KINDS[handler.request_streaming, handler.response_streaming]

        async def refuse(stream: RpcStream) -> None:
            peer = stream.context.peer()
            self._audit.refused(method, peer, problem.reason, problem.why, problem.principal)
            raise _as_call_error(problem)

        return self._rpc.refusing(service, name, kind, refuse)


def _as_call_error(problem: AccessDenied) -> CallError:
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
