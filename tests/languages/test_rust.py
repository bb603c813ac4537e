"""The example in Rust builds from the contract alone, and passes the conformance kit and a real server."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import evald

from ..ports import free_address
from .examples import ENVIRONMENT, EXAMPLES
from .test_conformance import CONFIG_OR_TLS, SLOW, findings, kit, require_all
from .test_live import conversation, is_active, serving, until

pytestmark = pytest.mark.interop

CONFIG = '{"maxWords": 3}'


@pytest.fixture(scope="module")
def program() -> Path:
    if shutil.which("cargo") is None:
        pytest.skip("rust: not installed: cargo")
    folder = EXAMPLES / "rust"
    built = subprocess.run(
        ["cargo", "build", "--quiet"], cwd=folder, capture_output=True, text=True, timeout=900, check=False
    )
    assert built.returncode == 0, built.stderr[-4000:]
    return folder / "target/debug/word-limit"


@contextmanager
def _running(program: Path, address: str) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen([program, address], env=ENVIRONMENT, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_it_passes_the_conformance_kit(program: Path, evald_command: str) -> None:
    address = free_address()
    checking = kit(evald_command, "--attach", "--listen", address, "--config", f"acme.word-limit={CONFIG}")
    with _running(program, address):
        require_all(findings(checking), (*SLOW, *CONFIG_OR_TLS))


def test_it_evaluates_for_a_server_and_leaves_in_order(
    program: Path, evald_command: str, tmp_path: Path
) -> None:
    specs = [{"type": "acme.word-limit", "config": {"maxWords": 3}}, "acme.questions"]
    with (
        serving(evald_command, tmp_path) as server,
        _running(program, server.address) as plugin,
        evald.Client(server.address) as client,
    ):
        until(lambda: is_active(client, "acme.word-limit"))
        assert client.evaluate(conversation("Three words here."), specs).passed
        failed = client.evaluate(conversation("Are these not far more? Yes?"), specs)
        assert failed.verdict is evald.Verdict.FAILED
        assert failed.metrics == {"acme.questions": 2}
        plugin.terminate()
        assert plugin.wait(timeout=20) == 0
        gone = client.evaluate(conversation("Three words here."), specs)
        assert gone.verdict is evald.Verdict.ERROR
