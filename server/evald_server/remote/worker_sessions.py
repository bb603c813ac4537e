"""The sessions of workers that dial out: from hello to the end of the stream."""

import logging
import secrets

from evald_server.auth.audit import record
from evald_server.auth.current_call import need
from evald_server.auth.principal import LOCAL, Principal
from evald_server.call_errors import CallError

from .errors import Refusal, invalid
from .instance import InstanceState, Mode
from .instances import InstanceRegistry, check_instance_id, check_types
from .plugin_type import CONTRACT, load_plugin
from .session import Frames, WorkerSession, read_frame

_log = logging.getLogger("evald.remote")


class WorkerSessions:
    """The sessions of this server. server_id: id of this process."""

    def __init__(self, instances: InstanceRegistry, server_id: str) -> None:
        self._instances = instances
        self._server_id = server_id
        self._sessions: dict[str, WorkerSession] = {}
        self._server_stops = False

    async def serve(self, frames: Frames, peer: str, principal: Principal = LOCAL) -> None:
        """Serve one stream from hello to its end. Raises Refusal."""
        async for data in frames:
            session = await self._accept(data, peer, principal)
            break
        else:
            raise invalid("frame", "the stream ended before the hello frame")
        instances = self._instances
        why = "its stream ended without a word (WorkerDraining)"
        try:
            await session.serve(frames)
        except CallError as problem:
            why = f"its session was ended: {problem.message}"
            raise
        finally:
            self._sessions.pop(session.session_id, None)
            if session.state is InstanceState.DRAINING or self._server_stops:
                instances.remove(session)
                instances.supersede_after(session, instances.settings.remote_lease_seconds)
                _log.info("remote instance %s: disconnected", session.name)
            else:
                instances.remove(session, lost=why)
            await session.flush()

    def drain(self, reason: str, grace: float) -> None:
        """Notify all workers that the server stops."""
        self._server_stops = True
        for session in self._sessions.values():
            session.send_draining(reason, grace)

    def end(self) -> None:
        """End all sessions with OK, because the server stops."""
        self._server_stops = True
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
