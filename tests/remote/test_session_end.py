"""A session that ends, without a server."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from evald.plugin.v1 import task_pb2
from evald_server.config import Settings
from evald_server.remote.errors import PluginUnavailable
from evald_server.remote.instance import RemoteTask, TaskIds
from evald_server.remote.plugin_type import read_plugin
from evald_server.remote.session import WorkerSession

from .scripted import plugin_info


class SlowToEnd:
    """A stream whose reader takes a while to end when it is cancelled."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.1)
        yield b""

    async def send(self, data: bytes, /) -> None:
        """Take a frame."""


async def test_tasks_are_failed_when_the_call_is_cancelled_while_its_session_ends() -> None:
    """As when a worker is back before the server has seen that its old stream broke."""
    plugin = read_plugin(plugin_info("acme.word"))
    ids = TaskIds()
    session = WorkerSession("w", "s", "peer", plugin, 1, Settings(), ids, lambda _: None)
    serving = asyncio.create_task(session.serve(SlowToEnd()))
    task = RemoteTask(task_pb2.EvaluationTask(task_id=ids.new()), 30.0, "", (), lambda *_: None)
    call = asyncio.create_task(session.run(task))
    await asyncio.sleep(0.01)
    session.end()
    await asyncio.sleep(0.01)
    serving.cancel()
    with pytest.raises(PluginUnavailable):
        async with asyncio.timeout(5):
            await call
    with pytest.raises(asyncio.CancelledError):
        await serving
    await session.flush()
