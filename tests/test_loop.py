"""The event loop of commands: how it is woken by gRPC."""

import asyncio
import functools
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator

import pytest
import uvloop

from evald_server import loop as loops


class PollerCompletionQueue:
    """What gRPC's class of this name does: an event is put down, then a byte sent; a byte read, then all
    events taken."""

    def __init__(self) -> None:
        self.reading, self._writing = socket.socketpair()
        self.reading.setblocking(False)
        self._events: deque[int] = deque()
        self.wanted = 0
        self.all = asyncio.Event()
        self.woken = 0
        self.handled: list[int] = []

    def happen(self, event: int) -> None:
        """Something happens in gRPC's thread. Waits when some 270 bytes have not been read yet."""
        self._events.append(event)
        self._writing.send(b"1")

    def handle(self, _loop: object = None) -> None:
        self.woken += 1
        self.reading.recv(1)
        while self._events:
            self.handled.append(self._events.popleft())
        if len(self.handled) == self.wanted:
            self.all.set()

    def close(self) -> None:
        self.reading.close()
        self._writing.close()


@pytest.fixture
def grpc_queue() -> Iterator[PollerCompletionQueue]:
    queue = PollerCompletionQueue()
    yield queue
    queue.close()


@pytest.fixture(params=[uvloop.Loop, asyncio.SelectorEventLoop], ids=["uvloop", "asyncio"])
def runner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[asyncio.Runner]:
    if request.param is asyncio.SelectorEventLoop:
        monkeypatch.setitem(sys.modules, "uvloop", None)
    with loops.event_loop(only=True) as made:
        assert isinstance(made.get_loop(), request.param)
        yield made


def test_the_fastest_loop_that_is_installed_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with loops.event_loop() as runner:
        assert type(runner.get_loop()) is uvloop.Loop
    monkeypatch.setitem(sys.modules, "uvloop", None)
    with loops.event_loop() as runner:
        assert type(runner.get_loop()).__name__ == "_UnixSelectorEventLoop"


def test_what_has_piled_up_is_handed_out_at_one_wake_up(
    runner: asyncio.Runner, grpc_queue: PollerCompletionQueue
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(grpc_queue.reading, functools.partial(grpc_queue.handle, loop))
        for event in range(200):
            grpc_queue.happen(event)
        grpc_queue.wanted = 200
        await grpc_queue.all.wait()
        await asyncio.sleep(0.01)
        loop.remove_reader(grpc_queue.reading)

    runner.run(main())
    assert grpc_queue.handled == list(range(200))
    assert grpc_queue.woken == 1


def test_nothing_is_lost_while_a_thread_goes_on_sending(
    runner: asyncio.Runner, grpc_queue: PollerCompletionQueue
) -> None:
    count = 20_000

    def send() -> None:
        for event in range(count):
            grpc_queue.happen(event)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(grpc_queue.reading, functools.partial(grpc_queue.handle, loop))
        grpc_queue.wanted = count
        thread = threading.Thread(target=send)
        thread.start()
        async with asyncio.timeout(30):
            await grpc_queue.all.wait()
        thread.join()
        loop.remove_reader(grpc_queue.reading)

    runner.run(main())
    assert grpc_queue.handled == list(range(count))


def test_where_bytes_come_alone_it_is_seldom_looked_for_more() -> None:
    looked = 0

    class Socket:
        def recv(self, _size: int, flags: int = 0) -> bytes:
            nonlocal looked
            looked += flags == socket.MSG_PEEK
            return b"1"

    read = loops.once_for_all(Socket(), lambda: None)  # type: ignore[arg-type]
    for _ in range(90):
        read()
    assert looked == 10


def test_other_readers_are_left_alone(runner: asyncio.Runner, grpc_queue: PollerCompletionQueue) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(grpc_queue.reading, grpc_queue.handle)
        for event in range(10):
            grpc_queue.happen(event)
        await asyncio.sleep(0.01)
        loop.remove_reader(grpc_queue.reading)

    runner.run(main())
    assert grpc_queue.handled == list(range(10))
    assert grpc_queue.woken == 10


_BUSY_SERVER = """
import asyncio, time
import grpc
from evald_server import loop as loops

CALLS = 100
really = loops.once_for_all

class Spy:
    taken_at_once = 0

    def __init__(self, wakeups):
        self._wakeups = wakeups

    def recv(self, size, flags=0):
        data = self._wakeups.recv(size, flags)
        if not flags:
            Spy.taken_at_once += len(data)
        return data

loops.once_for_all = lambda wakeups, handle: really(Spy(wakeups), handle)

async def slow(request, _context):
    time.sleep(0.001)
    return request

async def main():
    server = grpc.aio.server()
    handler = grpc.method_handlers_generic_handler("a.B", {"c": grpc.unary_unary_rpc_method_handler(slow)})
    server.add_generic_rpc_handlers([handler])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary("/a.B/c")
        said = await asyncio.gather(*(call(b"%d" % n, timeout=30) for n in range(CALLS)))
    await server.stop(None)
    assert said == [b"%d" % n for n in range(CALLS)], said
    print(Spy.taken_at_once)

with loops.event_loop(only=True) as runner:
    runner.run(main())
"""


def test_the_grpc_that_is_installed_is_known_by_how_it_wakes_the_loop() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _BUSY_SERVER], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    # While one call keeps the loop, something happens to others.
    assert int(done.stdout) > 0
