"""A config's schema is readable as rows."""

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from evald_server.cli.catalog import ConfigKey, config_keys, config_table

CASES: list[Any] = [
    pytest.param(
        {"properties": {"a": {"type": "string", "description": "A."}}, "required": ["a"]},
        [ConfigKey("a", "string", "required", "A.")],
        id="required",
    ),
    pytest.param(
        {"properties": {"a": {"type": "number", "minimum": 0, "exclusiveMaximum": 5, "default": 1}}},
        [ConfigKey("a", "number (>= 0, < 5)", "1", "")],
        id="bounds and default",
    ),
    pytest.param(
        {"properties": {"a": {"enum": ["x", "y"], "default": "x"}}},
        [ConfigKey("a", "x | y", '"x"', "")],
        id="choice",
    ),
    pytest.param(
        {"properties": {"a": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}}},
        [ConfigKey("a", "integer", "", "")],
        id="null says that it may be absent",
    ),
    pytest.param(
        {"properties": {"a": {"type": "array", "items": {"type": "string"}}}},
        [ConfigKey("a", "list of strings", "", "")],
        id="list",
    ),
    pytest.param(
        {
            "$defs": {"E": {"type": "object", "properties": {"n": {"type": "string"}}, "required": ["n"]}},
            "properties": {"a": {"type": "array", "items": {"$ref": "#/$defs/E"}}},
        },
        [ConfigKey("a", "list of objects", "", ""), ConfigKey("a[].n", "string", "required", "")],
        id="list of objects by reference",
    ),
    pytest.param(
        {"properties": {"a": {"type": "object", "properties": {"b": {"type": "boolean"}}}}},
        [ConfigKey("a", "object", "", ""), ConfigKey("a.b", "boolean", "", "")],
        id="nested",
    ),
    pytest.param({"properties": {"a": True}}, [ConfigKey("a", "any", "", "")], id="anything"),
    pytest.param(
        {"properties": {"a": {"$ref": "#/nowhere"}}}, [ConfigKey("a", "any", "", "")], id="dangling reference"
    ),
    pytest.param(
        {"properties": {"a": {"$ref": "http://x/y"}}}, [ConfigKey("a", "any", "", "")], id="foreign reference"
    ),
    pytest.param({}, [], id="no config"),
]


@pytest.mark.parametrize(("schema", "expected"), CASES)
def test_a_schema_is_shown_as_rows(schema: dict[str, Any], expected: list[ConfigKey]) -> None:
    assert config_keys(schema) == expected


def test_a_schema_within_itself_ends() -> None:
    schema = {
        "$defs": {"T": {"type": "object", "properties": {"child": {"$ref": "#/$defs/T"}}}},
        "properties": {"tree": {"$ref": "#/$defs/T"}, "loop": {"$ref": "#/properties/loop"}},
    }
    assert len(config_keys(schema)) < 10


def test_a_narrow_screen_shows_every_column_of_a_key() -> None:
    kind = {"type": "string", "minLength": 1, "maxLength": 4000, "default": "x", "description": "Meant."}
    console = Console(width=50, file=StringIO())
    console.print(config_table({"properties": {"key": kind}}))
    assert {"key", "string", "4000)", '"x"', "Meant."} <= set(console.file.getvalue().split())
