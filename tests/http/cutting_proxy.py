"""A proxy that forwards connections to a server, and breaks them on request."""

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self


class CuttingProxy:
    """A proxy in front of HOST:PORT.

    address: its own. down: it takes connections and closes them at once. budget: how many bytes of answers a new
    connection passes on before it is broken, None for all.
    """

    def __init__(self, address: str) -> None:
        self._server = address.rpartition(":")[::2]
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.down = False
        self.budget: int | None = None

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down = True
        _break(self._listener)
        self.cut()

    def cut(self) -> None:
        """Break all connections."""
        for one in list(self._open):
            _break(one)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                caller, _ = self._listener.accept()
                if self.down:
                    caller.close()
                    continue
                server = socket.create_connection((self._server[0], int(self._server[1])))
                self._open |= {caller, server}
                for source, sink, budget in ((caller, server, None), (server, caller, self.budget)):
                    threading.Thread(target=self._pass_on, args=(source, sink, budget), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, budget: int | None) -> None:
        left = budget
        with suppress(OSError):
            while data := source.recv(65536 if left is None else min(left, 65536)):
                sink.sendall(data)
                left = None if left is None else left - len(data)
                if left == 0:
                    break
        for one in (source, sink):
            self._open.discard(one)
            _break(one)


def _break(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
