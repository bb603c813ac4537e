"""A scripted server of `evald.plugin.v1`, frame by frame."""

import queue
import threading
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc

from evald.plugin.v1 import registry_service_pb2 as pb
from evald.plugin.v1 import registry_service_pb2_grpc, task_pb2

from ..ports import free_address

# Longest wait for anything that a plugin does at once; a JVM needs 2 s to start on a busy machine.
PATIENCE = 30.0


class Session:
    """An Attach stream, after its hello."""

    def __init__(self, hello: pb.WorkerHello, context: grpc.ServicerContext) -> None:
        self.hello = hello
        self.peer = context.peer()
        self.authorization = [value for key, value in context.invocation_metadata() if key == "authorization"]
        self._context = context
        self._incoming: queue.Queue[pb.AttachRequest | None] = queue.Queue()
        self._outgoing: queue.Queue[pb.AttachResponse | None] = queue.Queue()

    def send(self, **frame: Any) -> None:
        """Send a frame, for example `send(ping=pb.Ping(nonce=1))`."""
        self._outgoing.put(pb.AttachResponse(**frame))

    def welcome(self, session_id: str) -> None:
        """Accept the worker."""
        self.send(welcome=pb.ServerWelcome(session_id=session_id, contract_version="evald.plugin.v1"))

    def end(self) -> None:
        """End the stream with OK."""
        self._outgoing.put(None)

    def receive(self, kind: str) -> Any:
        """Return the next frame, which must be of this kind."""
        frame = self._incoming.get(timeout=PATIENCE)
        assert frame is not None, f"wanted {kind}, but the worker has closed the stream"
        assert frame.WhichOneof("frame") == kind, f"wanted {kind}, got {frame}"
        return getattr(frame, kind)

    def half_closed(self) -> bool:
        """Return whether the worker half-closes without another frame."""
        return self._incoming.get(timeout=PATIENCE) is None

    def _read(self, requests: Iterator[pb.AttachRequest]) -> None:
        try:
            for request in requests:
                self._incoming.put(request)
        except grpc.RpcError:
            pass  # the worker has broken the stream off
        self._incoming.put(None)

    def _write(self) -> Iterator[pb.AttachResponse]:
        while (frame := self._outgoing.get()) is not None:
            yield frame


class Registry(registry_service_pb2_grpc.RegistryServiceServicer):  # type: ignore[misc]
    """The registry. `sessions`, `registered` and `deregistered` receive the plugins' requests."""

    def __init__(self) -> None:
        self.sessions: queue.Queue[Session] = queue.Queue()
        self.registered: queue.Queue[pb.RegisterRequest] = queue.Queue()
        self.deregistered: queue.Queue[pb.DeregisterRequest] = queue.Queue()
        self.renewed = threading.Semaphore(0)
        # What the next renewal answers; those after it answer ACTIVE again.
        self.lease_state = pb.LEASE_STATE_ACTIVE
        self.refusal: grpc.StatusCode | None = None
        self._leases = 0
        self._server: grpc.Server | None = None
        self._open: list[Session] = []

    def start(self, address: str | None = None) -> str:
        """Listen, and return the address."""
        self._server = grpc.server(
            futures.ThreadPoolExecutor(max_workers=16), options=[("grpc.so_reuseport", 0)]
        )
        registry_service_pb2_grpc.add_RegistryServiceServicer_to_server(self, self._server)
        port = self._server.add_insecure_port(address or free_address())
        self._server.start()
        return f"127.0.0.1:{port}"

    def stop(self) -> None:
        """Break all connections."""
        if self._server is not None:
            stopped = self._server.stop(grace=0)
            for session in self._open:
                session.end()
            stopped.wait(PATIENCE)

    def session(self) -> Session:
        """Wait for the next worker that connects."""
        return self.sessions.get(timeout=PATIENCE)

    def Attach(self, requests: Iterator[pb.AttachRequest], context: grpc.ServicerContext) -> Any:  # noqa: N802
        self._refuse(context)
        session = Session(next(requests).hello, context)
        self._open.append(session)
        self.sessions.put(session)
        threading.Thread(target=session._read, args=(requests,), daemon=True).start()
        yield from session._write()

    def Register(self, request: pb.RegisterRequest, context: grpc.ServicerContext) -> pb.RegisterResponse:  # noqa: N802
        self._refuse(context)
        self._leases += 1
        self.registered.put(request)
        lease = pb.RegisterResponse(lease_id=f"lease-{self._leases}", contract_version="evald.plugin.v1")
        lease.ttl.FromMilliseconds(600)
        lease.renew_interval.FromMilliseconds(200)
        return lease

    def KeepAlive(self, requests: Iterator[pb.KeepAliveRequest], context: grpc.ServicerContext) -> Any:  # noqa: N802
        for request in requests:
            yield pb.KeepAliveResponse(lease_id=request.lease_id, state=self._renew(request.lease_id))

    def RenewLease(self, request: pb.RenewLeaseRequest, context: grpc.ServicerContext) -> Any:  # noqa: N802
        return pb.RenewLeaseResponse(state=self._renew(request.lease_id))

    def Deregister(self, request: pb.DeregisterRequest, context: grpc.ServicerContext) -> Any:  # noqa: N802
        self.deregistered.put(request)
        return pb.DeregisterResponse()

    def _renew(self, lease_id: str) -> Any:
        if lease_id != f"lease-{self._leases}":
            return pb.LEASE_STATE_EXPIRED
        state, self.lease_state = self.lease_state, pb.LEASE_STATE_ACTIVE
        self.renewed.release()
        return state

    def _refuse(self, context: grpc.ServicerContext) -> None:
        if self.refusal is not None:
            context.abort(self.refusal, "refused by the test")


def task(task_id: str, type_: str, answer: str, **config: Any) -> task_pb2.EvaluationTask:
    """Return a task about one answer. config: a trailing "_" is dropped from keys that Python reserves."""
    made = task_pb2.EvaluationTask(task_id=task_id, type=type_, attempt=1)
    made.context.messages.add(role="user", text="Well?")
    made.context.messages.add(role="assistant", text=answer)
    made.config.update({key.removesuffix("_"): value for key, value in config.items()})
    made.timeout.FromSeconds(120)
    return made
