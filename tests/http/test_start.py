"""The web port as an operator meets it: named when it is open, one line when it cannot be."""

import logging
import subprocess
import sys
from typing import Any

import pytest

from evald_server.app import App, StartError
from evald_server.config import Settings

from ..processes import clean_environment
from ..rpc.live import CONTAINS, request, serving

WITHOUT = """\
import asyncio, sys
from evald_server.app import App
from evald_server.config import Settings

async def main(package):
    sys.modules[package] = None  # as if it were not installed
    app = App(Settings.model_validate({"listen": "127.0.0.1:0", "http": None, "web": "127.0.0.1:0"}))
    await app.start()
    print(app.address, app.web_address)
    await app.stop(0)
    del sys.modules[package]

for package in sys.argv[1:]:
    asyncio.run(main(package))
"""


def test_without_the_extra_one_line_says_what_is_missing_and_the_rest_works() -> None:
    packages = ["starlette", "uvicorn"]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, *packages],
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        assert line.startswith("127.0.0.1:")
        assert line.endswith(" None")
    assert done.stderr.splitlines() == [
        f"no web port: {package} is not installed: pip install 'evald[web]'" for package in packages
    ]


async def test_a_port_that_was_asked_for_and_is_taken_keeps_the_server_from_starting() -> None:
    async with serving(web="127.0.0.1:0") as live:
        taken = live.app.web_address
        app = App(Settings.model_validate({"listen": "127.0.0.1:0", "http": None, "web": taken}))
        with pytest.raises(StartError, match=f"web {taken}: .*is another server using port"):
            await app.start()
        assert (await live.unary(request(CONTAINS))).summary.success


async def test_the_default_port_that_is_taken_costs_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(web="127.0.0.1:0") as live:
        monkeypatch.setattr(Settings.model_fields["web"], "default", live.app.web_address)
        Settings.model_rebuild(force=True)
        try:
            app = App(Settings.model_validate({"listen": "127.0.0.1:0", "http": None}))
            with caplog.at_level(logging.WARNING):
                await app.start()
            await app.stop(0)
        finally:
            monkeypatch.undo()
            Settings.model_rebuild(force=True)
    assert "no web port" in caplog.text


def test_the_command_prints_where_the_console_is(server_process: Any) -> None:
    assert server_process.web != server_process.http
