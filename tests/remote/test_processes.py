"""kill -9, of plugins and of the server, with real processes."""

import asyncio
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import grpc
import pytest

from evald.plugin.v1 import registry_service_pb2 as registry_pb2
from evald.v1 import evaluation_service_pb2

from ..forks import Fork
from ..ports import free_address
from ..processes import clean_environment
from ..rpc.live import EVALUATION, request, spec, until
from .scripted import REGISTRY

ROOT = Path(__file__).parents[2]


class Process:
    """A child whose lines of output are read. Killed, with -9, when the block ends."""

    def __init__(self, *command: str) -> None:
        self._process = Fork(
            "-m", *command, directory=ROOT, environment=clean_environment(), stderr=subprocess.DEVNULL
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def line(self) -> str:
        """The next line."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def kill(self) -> None:
        """As the kernel does when memory runs out."""
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def plugin(way: str, server: str, name: str = "acme.word") -> Process:
    return Process("tests.remote.plugin_process", way, server, name)


class Server(Process):
    """`evald serve`. port: 0 for one of its own."""

    def __init__(self, directory: Path, port: int = 0, *, durable: bool = True) -> None:
        config = directory / "evald.toml"
        lines = ['http = ""', 'web = ""', 'remote_allowed = ["127.0.0.1"]', "remote_health_seconds = 0.5"]
        lines.append("remote_ping_seconds = 60")
        if durable:
            lines.append(f'data_dir = "{directory}/data"')
        config.write_text("\n".join(lines), encoding="utf-8")
        super().__init__(
            "evald_server",
            "serve",
            "--config",
            str(config),
            "--listen",
            f"127.0.0.1:{port}" if port else free_address(),
        )
        found = re.search(r"127\.0\.0\.1:(\d+)", self.line())
        assert found is not None
        self.port = int(found[1])
        self.address = f"127.0.0.1:{self.port}"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path) as found:
        yield found


class Caller:
    """Calls a server, however often it goes away."""

    def __init__(self, address: str) -> None:
        options = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 200)]
        self.channel = grpc.aio.insecure_channel(address, options)

    async def code(self, name: str = "acme.word") -> str:
        """The error code of one evaluation, "" when it passed; the reason when the call was refused."""
        wrapped = evaluation_service_pb2.EvaluateUnaryRequest(request=request(spec(name)))
        call: Any = self.channel.unary_unary(EVALUATION + "EvaluateUnary")
        try:
            data = await call(wrapped.SerializeToString(), timeout=20)
        except grpc.aio.AioRpcError as problem:
            return problem.code().name
        (result,) = evaluation_service_pb2.EvaluateUnaryResponse.FromString(data).summary.results
        return result.error.code

    async def instances(self) -> dict[str, int]:
        """State by instance id."""
        call: Any = self.channel.unary_unary(f"{REGISTRY}ListRegistrations")
        data = await call(b"", timeout=20)
        found = registry_pb2.ListRegistrationsResponse.FromString(data).registrations
        return {one.instance_id: one.state for one in found}

    async def until_active(self, *processes: Process, seconds: float = 20.0) -> None:
        """Wait until these plugins get tasks."""

        async def are() -> bool:
            try:
                known = await self.instances()
            except grpc.aio.AioRpcError:
                return False
            alive = {name.rpartition("-")[2] for name, state in known.items() if state == 2}
            return {str(process.pid) for process in processes} <= alive

        await until(are, seconds)


@pytest.mark.parametrize("way", ["connect", "register"])
async def test_a_killed_plugin_leaves_rotation_at_once_and_another_one_takes_over(
    server: Server, way: str
) -> None:
    caller = Caller(server.address)
    with plugin(way, server.address) as mortal, plugin(way, server.address) as other:
        await caller.until_active(mortal, other)
        codes: list[str] = []
        in_flight = 4
        stop = False

        async def load() -> None:
            while not stop:
                codes.append(await caller.code())
                await asyncio.sleep(0.01)

        loads = [asyncio.create_task(load()) for _ in range(in_flight)]
        await asyncio.sleep(0.5)
        assert set(codes) == {""}
        mortal.kill()

        async def gone() -> bool:
            return (await caller.instances()).get(f"{way}-{mortal.pid}") != 2

        await until(gone)  # long before a ping would tell
        await asyncio.sleep(0.5)
        stop = True
        await asyncio.gather(*loads)
        failed = [code for code in codes if code]
        assert len(failed) <= in_flight, failed
        assert set(failed) <= {"REMOTE_UNAVAILABLE"}
    await caller.channel.close()


async def test_after_a_kill_of_the_server_every_plugin_is_back_soon(tmp_path: Path) -> None:
    with Server(tmp_path) as first:
        caller = Caller(first.address)
        with plugin("connect", first.address) as dialled, plugin("register", first.address) as listening:
            await caller.until_active(dialled, listening)
            _, lease_id = (await asyncio.to_thread(listening.line)).split()
            await asyncio.to_thread(listening.line)
            first.kill()
            with Server(tmp_path, first.port):
                # 10 s after the start as a rule; as much again where other processes run.
                await caller.until_active(dialled, listening)
                assert {await caller.code() for _ in range(20)} == {""}
                # The very lease that was acknowledged before.
                words = (await asyncio.to_thread(listening.line)).split()
                assert words[:2] == ["renewed", lease_id]
        await caller.channel.close()


async def test_without_a_data_directory_plugins_register_anew_by_themselves(tmp_path: Path) -> None:
    with Server(tmp_path, durable=False) as first:
        caller = Caller(first.address)
        with plugin("register", first.address) as listening:
            await caller.until_active(listening)
            first.kill()
            with Server(tmp_path, first.port, durable=False):
                await caller.until_active(listening)
                assert await caller.code() == ""
        await caller.channel.close()


async def test_a_restored_type_is_there_before_its_plugin_is_and_its_lease_runs_out(tmp_path: Path) -> None:
    with Server(tmp_path) as first:
        caller = Caller(first.address)
        with plugin("register", first.address) as listening:
            await caller.until_active(listening)
        first.kill()
        with Server(tmp_path, first.port):

            async def is_restored() -> bool:
                try:
                    return list((await caller.instances()).values()) == [1]
                except grpc.aio.AioRpcError:
                    return False

            async def empty() -> bool:
                return not await caller.instances()

            await until(is_restored)
            assert await caller.code() == "REMOTE_UNAVAILABLE"
            await until(empty)
            assert await caller.code() == "REMOTE_UNAVAILABLE"
        await caller.channel.close()
