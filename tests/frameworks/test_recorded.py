"""Recorded dumps of other libraries' objects become the same turn, as data and as JSON text. Needs none of them."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

import evald
from evald_server import testing

from .expected import CHECKS, check_evaluation, check_turn
from .record import LIBRARY, RECORDED

DUMPS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RECORDED.glob("*.json"))}


@pytest.fixture(scope="module")
def client() -> Iterator[evald.Client]:
    with testing.server() as server, server.client() as connected:
        yield connected


def test_every_dump_says_where_it_is_from() -> None:
    assert DUMPS.keys() == LIBRARY.keys()
    for name, dump in DUMPS.items():
        assert dump["source"]["library"] == LIBRARY[name]
        assert dump["source"]["version"]
        assert dump["source"]["licence"]


@pytest.mark.parametrize("name", DUMPS)
def test_a_dump_becomes_the_turn(name: str) -> None:
    check_turn(evald.Turn(**DUMPS[name]["turn"]))


@pytest.mark.parametrize("name", DUMPS)
def test_a_server_reads_it_as_json_text(name: str, client: evald.Client) -> None:
    turn: dict[str, Any] = DUMPS[name]["turn"]
    messages, response = turn["messages"], turn.get("response")
    if isinstance(messages, dict):
        messages = messages["messages"]
    whole = json.dumps(messages if response is None else [*messages, response])
    sent = evald.Turn(whole)
    assert sent.to_proto().messages_json == whole
    check_evaluation(client.evaluate(sent, CHECKS))
