"""A server and a worker as processes of their own: no plugin ends them, a signal does."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import evald

from ..cli.conftest import clean_environment

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


def _serve(evald_command: str, *arguments: str) -> "tuple[subprocess.Popen[str], str]":
    process = subprocess.Popen(
        [evald_command, "serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", *arguments],
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout
    return process, re.findall(r"127\.0\.0\.1:\d+", process.stdout.readline())[0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_server_ends_by_a_signal_alone(evald_command: str, tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "plugin.py").write_text(PLUGIN, encoding="utf-8")
    process, address = _serve(evald_command, "--plugin", str(tmp_path / "plugin.py"))
    try:
        with evald.Client(address) as client:
            for _ in range(3):
                _is_as_wanted(client)
        assert process.poll() is None
        process.send_signal(number)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_worker_ends_by_a_signal_alone(evald_command: str, tmp_path: Path, number: signal.Signals) -> None:
    script = tmp_path / "worker.py"
    script.write_text(
        PLUGIN + "evald.connect(leave, leave_inline, interrupt, fine, server=sys.argv[1])\n", encoding="utf-8"
    )
    server, address = _serve(evald_command)
    worker = subprocess.Popen(
        [sys.executable, str(script), address], env=clean_environment(), stderr=subprocess.PIPE, text=True
    )
    try:
        assert worker.stderr
        for line in worker.stderr:
            if "connected to" in line:
                break
        with evald.Client(address) as client:
            for _ in range(3):
                _is_as_wanted(client)
        assert worker.poll() is None
        worker.send_signal(number)
        assert worker.wait(20) == 0
    finally:
        for process in (worker, server):
            process.kill()
            process.communicate()
