"""A server and a worker as processes of their own: no plugin ends them, a signal does."""

import signal
import subprocess
from pathlib import Path

import pytest

import evald

from ..forks import Fork
from ..processes import clean_environment, server_process

PLUGIN = """
import asyncio, os, signal, sys
import evald

@evald.assertion("acme.exit")
def leave(ctx):
    sys.exit()

@evald.assertion("acme.exit-inline", inline=True)
def leave_inline(ctx):
    sys.exit()

@evald.assertion("acme.interrupt")
async def interrupt(ctx):
    await asyncio.sleep(0)
    raise KeyboardInterrupt

@evald.assertion("acme.fine")
async def fine(ctx):
    await asyncio.sleep(0)
    return True
"""
BROKEN = ["acme.exit", "acme.exit-inline", "acme.interrupt"]
TURN = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]


def _is_as_wanted(client: evald.Client) -> None:
    evaluation = client.evaluate(TURN, [*BROKEN, "acme.fine"], timeout=20)
    codes = [result.error.code if result.error else result.verdict.name for result in evaluation.results]
    assert codes == ["EVALUATOR_EXCEPTION"] * 3 + ["PASSED"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_server_ends_by_a_signal_alone(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "plugin.py").write_text(PLUGIN, encoding="utf-8")
    with server_process("--plugin", str(tmp_path / "plugin.py"), stderr=subprocess.DEVNULL) as server:
        with evald.Client(server.grpc) as client:
            for _ in range(3):
                _is_as_wanted(client)
        assert server.process.poll() is None
        server.process.send_signal(number)
        assert server.process.wait(20) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_worker_ends_by_a_signal_alone(tmp_path: Path, number: signal.Signals) -> None:
    script = tmp_path / "worker.py"
    script.write_text(
        PLUGIN + "evald.connect(leave, leave_inline, interrupt, fine, server=sys.argv[1])\n", encoding="utf-8"
    )
    with (
        server_process(stderr=subprocess.DEVNULL) as server,
        Fork(str(script), server.grpc, environment=clean_environment(), stdout=None) as worker,
    ):
        try:
            assert worker.stderr
            for line in worker.stderr:
                if "connected to" in line:
                    break
            with evald.Client(server.grpc) as client:
                for _ in range(3):
                    _is_as_wanted(client)
            assert worker.poll() is None
            worker.send_signal(number)
            assert worker.wait(20) == 0
        finally:
            worker.kill()
