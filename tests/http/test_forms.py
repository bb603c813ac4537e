"""Forms from JSON Schemas: nothing is lost on the way to the browser and back, whatever the schema."""

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evald_server.app import App
from evald_server.config import Settings
from evald_server.http.console import page_edit
from evald_server.http.console.forms import MAX_FIELDS, Field, Problems, data_of, fields_of, pointer_of

from .forms import posted, rendered

APP = App(Settings.model_validate({"listen": "127.0.0.1:0", "http": None, "web": None}))
SCHEMAS = {
    entry.definition.type: json.loads(entry.definition.config_schema()) for entry in APP.registry.types()
}

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


def values(root: Any, schema: Any, depth: int = 0) -> st.SearchStrategy[Any]:
    """Data as a schema has them, and now and then as it has not."""
    while "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rsplit("/", 1)[1]]
    if "anyOf" in schema and "type" not in schema:
        return st.one_of(
            [values(root, one, depth) for one in schema["anyOf"] if one.get("type") != "null"] + [JSON]
        )
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema.get("type"):
        case "string":
            return TEXTS
        case "integer":
            return st.integers(-(10**9), 10**9)
        case "number":
            return st.floats(allow_nan=False, allow_infinity=False) | st.integers(-5, 5)
        case "boolean":
            return st.booleans()
        case "array" if depth < 3 and "items" in schema:
            return st.lists(values(root, schema["items"], depth + 1), max_size=3)
        case "object" if depth < 3 and schema.get("properties"):
            inner = {name: values(root, one, depth + 1) for name, one in schema["properties"].items()}
            return st.fixed_dictionaries({}, optional=inner)
    return JSON


def without_defaults(root: Any, schema: Any, data: Any) -> Any:
    """Leave out what the form leaves out: optional values equal to their defaults, and null."""
    while "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rsplit("/", 1)[1]]
    if isinstance(data, list) and isinstance(schema.get("items"), dict):
        return [without_defaults(root, schema["items"], one) for one in data]
    if not isinstance(data, dict) or "properties" not in schema:
        return data
    required = schema.get("required", ())
    return {
        key: without_defaults(root, schema["properties"].get(key, {}), value)
        for key, value in data.items()
        if value is not None
        and (key in required or value != schema["properties"].get(key, {}).get("default"))
    }


@pytest.mark.parametrize("type_name", sorted(SCHEMAS))
def test_15_config_to_form_to_config_is_the_identity(type_name: str) -> None:
    schema = SCHEMAS[type_name]

    @settings(max_examples=13, derandomize=True)  # of 40 types: more than 500 configs
    @given(values(schema, schema).filter(lambda config: isinstance(config, dict)))
    def check(config: Any) -> None:
        problems = Problems()
        page = rendered(fields_of(schema, config, "/evaluators/0/config"))
        found = data_of(schema, posted(page), problems, "/evaluators/0/config")
        assert not problems
        assert without_defaults(schema, schema, found or {}) == without_defaults(schema, schema, config)

    check()


def test_text_that_is_no_number_is_kept_for_the_server_to_refuse() -> None:
    schema = SCHEMAS["latency-budget"]
    found = data_of(schema, {"/maxMs": "soon", "/scoreFormula": '"ratio"'}, Problems())
    assert found == {"maxMs": "soon", "scoreFormula": "ratio"}


@pytest.mark.parametrize("text", ['{"type": ', '{"type": "object", "type": "array"}', '{"minimum": NaN}'])
def test_text_that_is_no_json_is_named_and_shown_again(text: str) -> None:
    problems = Problems()
    schema = SCHEMAS["json-schema"]
    found = data_of(schema, {"json:/schema": text}, problems)
    field = fields_of(schema, found, "", problems)
    box = next(one for one in field.fields if one.pointer == "/schema")
    assert box.value == text
    assert "not valid JSON" in box.errors[0]


def test_15_every_violation_stands_at_its_field() -> None:
    problems = Problems(
        [
            (pointer_of("evaluators[0].config.items[1].weight"), "too small"),
            (pointer_of("evaluators[0].config.nonsense"), "unknown"),
        ]
    )
    config = {"items": [{"text": "a"}, {"text": "b", "weight": -1}]}
    field = fields_of(SCHEMAS["llm-judge"], config, "/evaluators/0/config", problems)
    places = {one.pointer: one.errors for one in every(field) if one.errors}
    assert places["/evaluators/0/config/items/1/weight"] == ("too small",)
    assert problems.rest() == ["evaluators/0/config/nonsense: unknown"]


DEEP: dict[str, Any] = {"type": "string"}
for _ in range(50):
    DEEP = {"type": "object", "properties": {"a": DEEP}}
HOSTILE: list[Any] = [
    {"type": "object", "properties": {f"p{index}": {"type": "string"} for index in range(5000)}},
    DEEP,
    {"$ref": "#"},
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
    {"$ref": "https://example.com/schema.json"},
    {"$ref": "#/nowhere/at/all"},
    {
        "$ref": "#/$defs/a",
        "$defs": {"a": {"type": "object", "properties": {name: {"$ref": "#/$defs/a"} for name in "abcdefgh"}}},
    },
    {"type": "object", "properties": {"a": True, "b": False, "c": None, "d": 3, "e": "x", "f": []}},
    {"type": "object", "properties": {"a": {"enum": [{"x": 1}]}, "b": {"enum": []}, "c": {"enum": "abc"}}},
    {"type": "object", "properties": {"a": {"type": ["string", "null"]}, "b": {"type": 7}}},
    {"type": "object", "properties": {"": {"type": "string"}, "a/b~c": {"type": "string"}, "x" * 9999: {}}},
    {"type": "object", "required": "yes", "properties": {"a": {"type": "string"}}},
    {"type": "object", "required": [[], {}], "properties": {"a": {"type": "string"}}},
    {"type": "object", "properties": {"a": {"type": "array", "items": []}}},
    {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string", "enum": 5}}}},
    {"type": "object", "properties": {"a": {"type": "string", "pattern": "(a+)+$", "maxLength": "9"}}},
    {"type": "object", "properties": {"a": {"type": "number", "minimum": "x", "default": {"a": [1] * 10**5}}}},
    {"type": "object", "properties": {"a": {"type": "string", "title": ["x"], "description": "y" * 10**6}}},
    {"type": "object", "properties": {"a": {"anyOf": "null"}, "b": {"anyOf": [None, {"type": "null"}]}}},
    {"type": "object", "properties": {"a": {"anyOf": [{"type": "null"}, {"anyOf": [{"type": "null"}, {}]}]}}},
    {"properties": {"a": {"type": "string"}}},
    {"type": "object", "properties": 9},
    {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}},
    {"const": None},
    [],
    "text",
    None,
] + [{"type": "object", "properties": {text: {"title": text, "default": text, "enum": [text, 1]}}} for text in (
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "'onmouseover='alert(1)", "</textarea><b>",
    "{{ 7 * 7 }}", "javascript:alert(1)", "\u202egnp.exe", "__proto__", "constructor", "0", "-1", "json:/x",
    "count:/x", "/", "~", "~0", "~2", "%s", "${HOME}", "&lt;", "\n", " ", "é", "😀",
)]  # fmt: skip


@pytest.mark.parametrize("schema", HOSTILE, ids=range(len(HOSTILE)))
def test_15_hostile_schemas_render_within_the_limits(schema: Any) -> None:
    field = fields_of(schema, {}, "/c")
    page = rendered(field)
    assert len(list(every(field))) <= 2 * MAX_FIELDS
    assert "<script" not in page
    assert "<img" not in page
    problems = Problems()
    assert data_of(schema, posted(page), problems, "/c") in (None, {})
    assert not problems
    assert data_of(schema, {"json:/c": json.dumps({"x": 1})}, problems, "/c") == {"x": 1}


def every(field: Field) -> Any:
    """Yield a field and all within it."""
    yield field
    for inner in field.fields:
        yield from every(inner)


def test_places_around_deep_names_do_not_fill_the_memory() -> None:
    posted = {"/a": "x", "/" * 20_000: "", **{f"/{number}" + "/a" * 900: "" for number in range(100)}}
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    tracemalloc.start()
    try:
        assert data_of(schema, posted, Problems()) == {"a": "x"}
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def test_a_field_of_an_evaluator_is_looked_at_for_that_one_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = 0

    def counted(schema: Any, posted: Any, *args: Any) -> None:
        nonlocal looked
        looked += len(posted)

    monkeypatch.setattr(page_edit, "data_of", counted)
    posted = {f"/evaluators/{number}/type": "regex" for number in range(300)} | {"/name": "x"}
    assert len(page_edit.read_specs(posted, Problems(), {}, 300)) == 300
    assert looked == 600
