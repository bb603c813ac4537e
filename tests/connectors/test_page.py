"""The connectors of docs/connectors.md can be saved."""

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict

from evald.v1 import connector_service_pb2

from .building import connectors

PAGE = (Path(__file__).parents[2] / "docs/connectors.md").read_text(encoding="utf-8")
BLOCKS = [json.loads(block.partition("```")[0]) for block in PAGE.split("```json\n")[1:]]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block["type"])
def test_a_connector_of_the_page_can_be_saved(block: dict[str, Any]) -> None:
    pb = ParseDict(block, connector_service_pb2.Connector())
    assert connectors().violations(pb) == []


def test_the_page_shows_every_type() -> None:
    assert {block["type"] for block in BLOCKS} == {one.type for one in connectors().types()}
