"""evald's verdicts, which jsonschema-rs gives, agree with those of the reference implementation, `jsonschema`."""

from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evald_server.jsonschema.schema import Schema

# Formats of which both agree what is valid. `jsonschema` checks others only with further packages installed.
FORMATS = ("date", "email", "ipv4", "ipv6", "uuid", "regex")

VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    1.0,
    -3,
    7,
    2.5,
    1e30,
    "",
    "a",
    "abc",
    "A1",
    "é",
    "😀😀",
    "2026-01-31",
    "2026-02-31",
    "a@example.com",
    "(a",
    "127.0.0.1",
    "::1",
    "2b7b7b7e-8a3a-4b6e-9d43-8f5f0b5b0b5b",
    [],
    [1],
    [1, 1.0],
    [True, 1],
    [1, "a", None],
    [[1], [1]],
    [{"a": 1}, {"a": 2}],
    {},
    {"a": 1},
    {"a": "x", "b": 2},
    {"a": 1, "b": None, "c": [1, 2]},
    {"n": {"n": {"n": 1}}},
    {"x-1": 5},
)

SCHEMAS: dict[str, Any] = {
    "anything": True,
    "nothing": False,
    "type": {"type": "integer"},
    "types": {"type": ["string", "null", "array"]},
    "number": {"type": "number"},
    "enum": {"enum": [1, "a", None, [1]]},
    "const-number": {"const": 1},
    "const-true": {"const": True},
    "bounds": {"minimum": 0, "exclusiveMaximum": 7},
    "multiple": {"multipleOf": 2.5},
    "lengths": {"minLength": 2, "maxLength": 3},
    "pattern": {"pattern": "^[a-z]+[0-9]?$"},
    "array-size": {"minItems": 1, "maxItems": 2},
    "items": {"items": {"type": "integer"}},
    "prefixItems": {"prefixItems": [{"type": "integer"}], "items": {"type": "string"}},
    "uniqueItems": {"uniqueItems": True},
    "contains": {"contains": {"const": 1}, "minContains": 1, "maxContains": 1},
    "required": {"type": "object", "required": ["a"]},
    "properties": {"properties": {"a": {"type": "integer"}}, "additionalProperties": False},
    "patternProperties": {"patternProperties": {"^x-": {"type": "string"}}},
    "propertyNames": {"propertyNames": {"maxLength": 1}},
    "object-size": {"minProperties": 1, "maxProperties": 2},
    "dependentRequired": {"dependentRequired": {"a": ["b"]}},
    "dependentSchemas": {"dependentSchemas": {"a": {"required": ["b"]}}},
    "allOf": {"allOf": [{"type": "number"}, {"minimum": 1}]},
    "anyOf": {"anyOf": [{"type": "string"}, {"minimum": 2}]},
    "oneOf": {"oneOf": [{"type": "integer"}, {"minimum": 2}]},
    "not": {"not": {"type": "object"}},
    "if-then-else": {"if": {"type": "string"}, "then": {"minLength": 2}, "else": {"type": "array"}},
    "unevaluatedProperties": {
        "anyOf": [{"properties": {"a": True}, "required": ["a"]}, {"properties": {"n": True}}],
        "unevaluatedProperties": False,
    },
    "unevaluatedItems": {"prefixItems": [True], "unevaluatedItems": {"type": "string"}},
    "reference": {"$ref": "#/$defs/small", "$defs": {"small": {"maximum": 1}}},
    "recursion": {"properties": {"n": {"$ref": "#"}}, "additionalProperties": {"type": "string"}},
    "unknown-format": {"format": "no-such-format"},
    **{f"format-{name}": {"format": name} for name in FORMATS},
}


def second_opinion(schema: Any, value: Any) -> bool:
    validator = jsonschema.Draft202012Validator
    return validator(schema, format_checker=validator.FORMAT_CHECKER).is_valid(value)


@pytest.mark.parametrize("name", SCHEMAS)
def test_both_say_the_same(name: str) -> None:
    schema = Schema(SCHEMAS[name])
    differences = [
        (value, schema.is_valid(value))
        for value in VALUES
        if schema.is_valid(value) is not second_opinion(SCHEMAS[name], value)
    ]
    assert not differences


@given(
    st.sampled_from(sorted(set(SCHEMAS) - {f"format-{name}" for name in FORMATS})),
    st.recursive(
        st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab1x-é", max_size=4),
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abn"), inner, max_size=3)
        ),
        max_leaves=8,
    ),
)
def test_both_say_the_same_of_any_value(name: str, value: Any) -> None:
    assert Schema(SCHEMAS[name]).is_valid(value) is second_opinion(SCHEMAS[name], value)


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_table_has_values_of_both_verdicts(name: str) -> None:
    verdicts = {second_opinion(SCHEMAS[name], value) for value in VALUES}
    assert verdicts == {True, False} or name in ("anything", "nothing", "unknown-format")
