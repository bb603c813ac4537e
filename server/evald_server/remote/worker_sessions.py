"""The sessions of workers that dial out: from hello to the end of the stream."""

import asyncio
import logging
import secrets
from typing import Final

from evald_server.auth.audit import record
from evald_server.auth.current_call import need
from evald_server.auth.principal import LOCAL, Principal

from .errors import Refusal, invalid
from .instance import InstanceState, Mode
from .instances import InstanceRegistry, check_instance_id, check_types
from .plugin_type import CONTRACT, load_plugin
from .session import Frames, WorkerSession, read_frame

_log = logging.getLogger("evald.remote")

_CANCEL_SECONDS: Final = 0.05


class WorkerSessions:
    """The sessions of this server. server_id: id of this process."""

    def __init__(self, instances: InstanceRegistry, server_id: str) -> None:
        self._instances = instances
        self._server_id = server_id
        self._sessions: dict[str, WorkerSession] = {}

    async def serve(self, frames: Frames, peer: str, principal: Principal = LOCAL) -> None:
        """Serve one stream from hello to its end. Raises Refusal."""
        async for data in frames:
            session = await self._accept(data, peer, principal)
            break
        else:
            raise invalid("frame", "the stream ended before the hello frame")
        instances = self._instances
        try:
            await session.serve(frames)
        except Refusal as problem:
            _log.warning("remote instance %s: session ended: %s", session.name, problem)
            raise
        finally:
            self._sessions.pop(session.session_id, None)
            instances.remove(session)
            if session.state is InstanceState.DRAINING:
                instances.remove_types_after(session, instances.settings.remote_lease_seconds)
            _log.info("remote instance %s: disconnected", session.name)
            await session.flush()
        # For the reader, a broken stream ends like a half-closed one, but gRPC cancels the call a moment later.
        await asyncio.sleep(_CANCEL_SECONDS)
        instances.remove_types_after(session, instances.settings.remote_lease_seconds)

    def drain(self, reason: str, grace: float) -> None:
        """Notify all workers that the server stops."""
        for session in self._sessions.values():
            session.send_draining(reason, grace)

    def end(self) -> None:
        """End all sessions with OK."""
        for session in list(self._sessions.values()):
            session.end()

    async def _accept(self, data: bytes, peer: str, principal: Principal) -> WorkerSession:
        frame = read_frame(data)
        if frame.WhichOneof("frame") != "hello":
            raise invalid(
                "frame", f"the first frame must be hello, got {frame.WhichOneof('frame') or 'none'}"
            )
        hello = frame.hello
        check_instance_id(hello.instance_id, "hello.instance_id")
        if hello.initial_credit < 0:
            raise invalid("hello.initial_credit", f"got {hello.initial_credit}, wanted 0 or more")
        plugin = await load_plugin(hello.plugin, "hello.plugin")
        instances = self._instances
        old = instances.replaced_by(hello.instance_id, Mode.CONNECTED, principal)
        instances.check(plugin, old, "hello.plugin", principal)
        need(lambda current: check_types(plugin, current, "hello.plugin"))
        if isinstance(old, WorkerSession):
            instances.remove(old)
            # A draining session finishes its tasks and ends by itself. Any other one has a connection that broke
            # unnoticed, or a second process has copied its id.
            if old.state is not InstanceState.DRAINING:
                old.end(Refusal("SESSION_REPLACED", "another session has the same instance_id"))
        session = WorkerSession(
            hello.instance_id,
            secrets.token_hex(16),
            peer,
            plugin,
            hello.initial_credit,
            instances.settings,
            instances.task_ids,
            instances.changed,
        )
        session.owner = principal
        session.welcome(CONTRACT, self._server_id)
        instances.add(session)
        self._sessions[session.session_id] = session
        record("connected", principal, peer=peer, instance=hello.instance_id)
        _log.info(
            "remote instance %s: connected, offers %s",
            session.name,
            ", ".join(f"{one.name} {one.version}" for one in plugin.types),
        )
        return session
