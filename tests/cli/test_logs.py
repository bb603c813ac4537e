"""The server's log says what the server did, and nothing of what was judged."""

import logging
from collections.abc import Iterator

import pytest

from evald_server.logs import configure_logging

CLIENTS = ("openai", "httpx", "httpx2", "httpcore", "httpcore2")


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    levels = {name: logging.getLogger(name).level for name in CLIENTS}
    yield
    root.handlers[:], root.level = handlers, level
    for name, before in levels.items():
        logging.getLogger(name).setLevel(before)


@pytest.mark.parametrize("level", ["debug", "info"])
def test_the_judges_client_does_not_log_its_requests(level: str, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("json", level)
    for name in CLIENTS:
        logging.getLogger(f"{name}._client").info("POST http://10.0.0.1/v1 Where is my order?")
        logging.getLogger(name).debug("Where is my order?")
    logging.getLogger("evald.server").info("a line of ours")
    logging.getLogger("httpx").warning("a fault")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "a line of ours" in lines[0]
    assert "a fault" in lines[1]
