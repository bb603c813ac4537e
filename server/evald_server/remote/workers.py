"""Plugins that dial out: hello, welcome, a session, and the end of all sessions."""

import asyncio
import logging
import secrets
from collections.abc import Iterable
from typing import Final

from evald.plugin.v1 import registry_service_pb2

from .directory import Directory
from .instance import Instance, Mode, State
from .offer import CONTRACT, Offer, read_plugin
from .permission import Permissions
from .refusal import Refusal, invalid
from .session import Frames, Session, read_frame

_log = logging.getLogger("evald.remote")

STATIC_PREFIX: Final = "static:"
_LONGEST_ID: Final = 128
_CANCEL_SECONDS: Final = 0.05


def check_instance_id(instance_id: str, field: str = "instance_id") -> None:
    """Raise Refusal for an id that is none."""
    if not 0 < len(instance_id) <= _LONGEST_ID or not instance_id.isascii() or not instance_id.isprintable():
        raise invalid(
            field, f"got {instance_id[:80]!r}, wanted 1 to {_LONGEST_ID} printable ASCII characters"
        )
    if instance_id.startswith(STATIC_PREFIX):
        raise invalid(field, f'starts with "{STATIC_PREFIX}", which the server keeps for itself')


def check_replaceable(directory: Directory, instance_id: str, mode: Mode) -> Instance | None:
    """The instance that one of the same id replaces. Raises Refusal when it came another way."""
    old = directory.instances.get(instance_id)
    if old is not None and old.mode is not mode:
        raise Refusal(
            "INSTANCE_ID_TAKEN",
            f'instance_id: "{instance_id}" is in use by an instance that is {old.mode.name.lower()}; '
            "an id must be unique per process and way in",
            "instance_id",
        )
    return old


class Workers:
    """The sessions of this server. server_id: of this process."""

    def __init__(self, directory: Directory, permissions: Permissions, server_id: str) -> None:
        self._directory = directory
        self._permissions = permissions
        self._server_id = server_id
        self._sessions: dict[str, Session] = {}
        self._draining: tuple[str, float] | None = None

    @property
    def open(self) -> int:
        """How many sessions are open."""
        return len(self._sessions)

    async def serve(self, frames: Frames, peer: str, principal: str) -> None:
        """One stream, from hello to its end. Raises Refusal."""
        async for data in frames:
            session = self._accept(data, peer, principal)
            break
        else:
            raise invalid("frame", "the stream ended before its hello")
        directory = self._directory
        try:
            await session.serve(frames)
        except Refusal as problem:
            _log.warning("remote instance %s: session ended: %s", session.name, problem.message)
            raise
        finally:
            self._sessions.pop(session.session_id, None)
            directory.remove(session)
            if session.state is State.DRAINING:
                directory.said_goodbye(session, directory.limits.lease_seconds)
            _log.info("remote instance %s: gone", session.name)
            await session.flush()
        # A stream that breaks ends for its reader like one that was closed in order, but the call is cancelled
        # a moment later.
        await asyncio.sleep(_CANCEL_SECONDS)
        directory.said_goodbye(session, directory.limits.lease_seconds)

    def drain(self, reason: str, grace: float) -> None:
        """Tell all workers that the server stops, those too that still come."""
        self._draining = reason, grace
        for session in self._sessions.values():
            session.tell_draining(reason, grace)

    def end(self) -> None:
        """End all sessions well."""
        for session in list(self._sessions.values()):
            session.end()

    def _accept(self, data: bytes, peer: str, principal: str) -> Session:
        hello = _hello(data)
        check_instance_id(hello.instance_id, "hello.instance_id")
        if hello.initial_credit < 0:
            raise invalid("hello.initial_credit", f"got {hello.initial_credit}, wanted 0 or more")
        plugin = read_plugin(hello.plugin, "hello.plugin")
        check_permission(self._permissions, principal, plugin.offers, "hello.plugin")
        directory = self._directory
        old = check_replaceable(directory, hello.instance_id, Mode.CONNECTED)
        directory.check(plugin, old, "hello.plugin")
        if isinstance(old, Session):
            # Its connection broke without the server's noticing, or a second process has copied its id.
            directory.remove(old)
            old.end(Refusal("SESSION_REPLACED", "another session has the same instance_id"))
        session = Session(
            hello.instance_id,
            secrets.token_hex(16),
            peer,
            plugin,
            hello.initial_credit,
            directory.limits,
            directory.ids,
            directory.changed,
        )
        session.welcome(CONTRACT, self._server_id)
        directory.add(session)
        self._sessions[session.session_id] = session
        _log.info(
            "remote instance %s: connected, offers %s",
            session.name,
            ", ".join(f"{offer.type} {offer.version}" for offer in plugin.offers),
        )
        return session


def check_permission(permissions: Permissions, principal: str, offers: Iterable[Offer], path: str) -> None:
    """Raise Refusal for a type that the principal may not offer."""
    for index, offer in enumerate(offers):
        if not permissions.may_offer(principal, offer.type):
            place = f"{path}.evaluator_types[{index}].type"
            raise Refusal("TYPE_NOT_ALLOWED", f'{place}: the caller may not offer "{offer.type}"', place)


def _hello(data: bytes) -> registry_service_pb2.WorkerHello:
    frame = read_frame(data)
    kind = frame.WhichOneof("frame")
    if kind != "hello":
        raise invalid("frame", f"the first frame must be hello, got {kind or 'none'}")
    return frame.hello
