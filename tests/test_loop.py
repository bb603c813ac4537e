"""The event loop of commands."""

import sys

import pytest
import uvloop

from evald_server.loop import event_loop


def test_the_fastest_loop_that_is_installed_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with event_loop() as runner:
        assert type(runner.get_loop()) is uvloop.Loop
    monkeypatch.setitem(sys.modules, "uvloop", None)
    with event_loop() as runner:
        assert type(runner.get_loop()).__name__ == "_UnixSelectorEventLoop"
