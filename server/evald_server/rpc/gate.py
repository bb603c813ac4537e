"""The gate in front of all handlers: finds the handler of a call, and lets in who may call it.

gRPC asks it once for every call, with the metadata parsed and no message read. An interceptor would cost 6 % of
the calls.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, TypeAlias

import grpc

from evald_server.auth.audit import Audit, record
from evald_server.auth.authenticator import Authenticator
from evald_server.auth.current_call import OPEN_CALL, PRINCIPAL, OpenCall
from evald_server.auth.files import FileProblem, in_reader
from evald_server.auth.keys import ApiKey
from evald_server.auth.limits import PrincipalLimits
from evald_server.auth.principal import LOCAL, ClientNames, Principal
from evald_server.auth.refusals import AccessDenied
from evald_server.auth.roles import METHODS, OPEN
from evald_server.remote.errors import Refusal

from .errors import CallError
from .first_message import FirstMessages
from .late_check import checked_late
from .registry import refused
from .server import Handler, RpcServer, RpcStream

_log = logging.getLogger("evald.auth")

Metadata: TypeAlias = Iterable[tuple[str, str | bytes]]

# Of a call whose caller is looked at when it begins: asking gRPC for it a second time costs a third of that look.
_METADATA: Final[ContextVar[Metadata]] = ContextVar("metadata")

# Rights that change count within a second, in which a file is looked at and what is open is judged anew.
_RELOAD_SECONDS: Final = 0.5

# Of 8 KiB each at most, as tokens are.
_MAX_KNOWN: Final = 1000

# What metrics call the methods whose handler streams in, and out.
_KINDS: Final = {
    (False, False): "unary",
    (False, True): "server_stream",
    (True, False): "client_stream",
    (True, True): "bidi_stream",
}


class Gate(grpc.GenericRpcHandler):
    """The handlers of all services by method. authenticator: None lets everybody call everything.

    limited: called with the limit of a principal that refuses a call. max_principal_calls: calls in flight of a
    principal that has no limit of its own. max_open_calls: calls without credentials whose message has not come.
    message_timeout: seconds in which the message of a call has to come.
    late: called when one does not.
    """

    def __init__(
        self,
        rpc: RpcServer,
        services: Mapping[str, Mapping[str, Handler]],
        authenticator: Authenticator | None = None,
        limited: Callable[[str], None] = lambda _limit: None,
        *,
        max_principal_calls: int,
        max_open_calls: int,
        message_timeout: float,
        late: Callable[[], None] = lambda: None,
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
        self._limits = PrincipalLimits(limited, max_principal_calls)
        # By the principals that opened them.
        self._streams: dict[Principal, dict[asyncio.Task[Any], OpenCall]] = {}
        # Who was let in within the last half second, by method, credentials and certificate, and is not checked again: a key
        # that is revoked has as long, too. The digests of a dict are random to callers, so that the time of a lookup
        # tells them nothing.
        self._known: dict[tuple[str, object, ClientNames | None], Principal] = {}
        if authenticator is not None:
            rpc.on_message = self._on_message
        self._messages = FirstMessages(message_timeout, late)
        self._open_messages = FirstMessages(message_timeout, late, max_open_calls)
        self._reading = {
            method: (self._open_messages if METHODS.get(method) is OPEN else self._messages).reading(handler)
            for method, handler in self._handlers.items()
        }
        self._late = {
            method: checked_late(method, handler, self._admit_late)
            for method, handler in self._reading.items()
        }

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler:
        """Return the handler of a call, or one that refuses it."""
        method = handler_call_details.method
        if self._authenticator is None or METHODS.get(method) is OPEN:
            return self._reading.get(method, self._unknown)
        who = (method, _authorization(handler_call_details.invocation_metadata), None)
        principal = self._known.get(who)
        if principal is None:
            return self.late(handler_call_details)
        self._authenticator.passed(principal)
        return self._begun(method, self._reading[method], principal)

    def late(self, handler_call_details: grpc.HandlerCallDetails) -> Handler:
        """Return the handler of a call that looks at who calls when it begins."""
        method = handler_call_details.method
        _METADATA.set(handler_call_details.invocation_metadata)
        return self._late.get(method) or checked_late(method, self._unknown, self._admit_late)

    def admit(self, method: str, metadata: Metadata, certificate: ClientNames | None, peer: str) -> Handler:
        """Return the handler of a call, or one that refuses it. To be called in the task of the call.

        certificate: of its connection. peer: the address that it comes from.
        """
        return self._admit(method, metadata, certificate, peer, self._handlers)

    def _admit_late(self, method: str, certificate: ClientNames | None, peer: str) -> Handler:
        return self._admit(method, _METADATA.get(), certificate, peer, self._reading)

    def _admit(
        self,
        method: str,
        metadata: Metadata,
        certificate: ClientNames | None,
        peer: str,
        handlers: Mapping[str, Handler],
    ) -> Handler:
        if self._authenticator is None or METHODS.get(method) is OPEN:
            return handlers.get(method, self._unknown)
        who = (method, _authorization(metadata), certificate)
        principal = self._known.get(who)
        if principal is not None:
            self._authenticator.passed(principal)
            return self._begun(method, handlers[method], principal)
        try:
            principal = self._authenticator.authenticate(metadata, certificate, peer)
            self._check_role(method, principal)
        except AccessDenied as problem:
            return self._refused(method, problem)
        self._audit.used(method, principal)
        if method in handlers:
            self._authenticator.passed(principal)
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[who] = principal
        return self._begun(method, handlers.get(method, self._unknown), principal)

    def _begun(self, method: str, handler: Handler, principal: Principal) -> Handler:
        try:
            self._begin(principal)
        except AccessDenied as problem:
            return self._refused(method, problem)
        PRINCIPAL.set(principal)
        # Others are opened by their message.
        if self._handlers.get(method, self._unknown).request_streaming:
            self._opened(method, principal)
        return handler

    def _on_message(self, method: str, streams: bool) -> None:
        assert self._authenticator is not None
        principal = PRINCIPAL.get()
        if principal is LOCAL:
            return
        try:
            current = self._authenticator.current(principal)
            if current is not principal:
                self._check_role(method, current)
        except AccessDenied as problem:
            raise call_error_of(problem) from None
        if streams:
            self._opened(method, principal)

    def _check_role(self, method: str, principal: Principal) -> None:
        """Raise AccessDenied unless a principal has one of the roles that a method is for."""
        assert self._authenticator is not None
        # Without a row nobody may call what there is; what there is not, everybody may ask for who is known.
        if method in self._handlers:
            self._authenticator.authorize(principal, method, METHODS.get(method) or frozenset())

    async def watch(self) -> None:
        """End calls whose message does not come, read keys and clients again when they change, and judge open
        streams anew."""
        while True:
            await asyncio.sleep(_RELOAD_SECONDS)
            self._messages.expire()
            self._open_messages.expire()
            if self._authenticator is not None:
                await self._reload(self._authenticator)

    async def _reload(self, authenticator: Authenticator) -> None:
        keys, clients = authenticator.keys, authenticator.clients
        if keys is not None:
            before = keys.ring.keys
            if await _reloaded("keys_file", keys.reload):
                _record_changes(before, keys.ring.keys)
        if clients is not None and await _reloaded("tls_clients_file", clients.reload):
            record("clients changed", None)
        self._known.clear()
        self._judge_streams()

    def _begin(self, principal: Principal) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.add_done_callback(self._limits.begin(principal))

    def _opened(self, method: str, principal: Principal) -> None:
        task = asyncio.current_task()
        assert task is not None
        call = OpenCall(principal, [partial(self._check_role, method)])
        OPEN_CALL.set(call)
        calls = self._streams.setdefault(principal, {})
        calls[task] = call
        task.add_done_callback(calls.pop)

    def _judge_streams(self) -> None:
        """End the streams of principals that may do no longer what these do."""
        assert self._authenticator is not None
        for principal, calls in list(self._streams.items()):
            if not calls:
                del self._streams[principal]
                continue
            try:
                current = self._authenticator.current(principal)
            except AccessDenied as problem:
                for task in list(calls):
                    self._rpc.end_stream(task, call_error_of(problem))
                continue
            for task, call in list(calls.items()):
                if call.principal is current or call.principal == current:
                    continue
                try:
                    call.judge(current)
                except AccessDenied as problem:
                    self._rpc.end_stream(task, call_error_of(problem))
                except Refusal as problem:
                    self._rpc.end_stream(task, refused(problem))
                except CallError as problem:
                    self._rpc.end_stream(task, problem)

    def _refused(self, method: str, problem: AccessDenied) -> Handler:
        # Only names of methods that there are become labels of a metric.
        known = method if method in self._handlers else "/unknown/unknown"
        _, service, name = known.split("/")
        handler = self._handlers.get(method, self._unknown)
        kind = _KINDS[handler.request_streaming, handler.response_streaming]
        # Their frames lead to the call's, which holds this handler: a cycle that would keep the call.
        problem.__traceback__ = problem.__context__ = problem.__cause__ = None

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
        return self._gate.late(handler_call_details)


def _authorization(metadata: Metadata) -> object:
    """Return the credentials of a call; None without any, and what no call has that is let in for several."""
    found: object = None
    for name, value in metadata:
        if name == "authorization":
            found = value if found is None else (found, value)
    return found


async def _reloaded(setting: str, reload: Callable[[], bool]) -> bool:
    """Read a file again. Returns whether it has changed, and can be used."""
    try:
        return await in_reader(reload)
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
