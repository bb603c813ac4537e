"""Schemas from callers: the right draft, nothing fetched, nothing that takes long in the event loop."""

import asyncio
import json
import os
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from evald.evaluator import InvalidConfig
from evald_server.jsonschema.check import NEWEST
from evald_server.jsonschema.cost import estimate, pattern_size
from evald_server.jsonschema.pool import TaskTimeout
from evald_server.jsonschema.schema import MAX_BYTES, Schema, close_workers


def refusal(schema: Any) -> tuple[str, str]:
    """Path and message of the one problem that the schema has."""
    with pytest.raises(InvalidConfig) as caught:
        Schema(schema)
    [problem] = caught.value.problems
    return problem.path, problem.message


DRAFTS = {
    4: "http://json-schema.org/draft-04/schema#",
    6: "http://json-schema.org/draft-06/schema#",
    7: "http://json-schema.org/draft-07/schema#",
    2019: "https://json-schema.org/draft/2019-09/schema",
    2020: "https://json-schema.org/draft/2020-12/schema",
}


@pytest.mark.parametrize(
    ("drafts", "schema", "value", "valid"),
    [
        pytest.param([4], {"maximum": 3, "exclusiveMaximum": True}, 3, False, id="exclusive-as-flag"),
        pytest.param([6, 7, 2019, 2020], {"exclusiveMaximum": 3}, 3, False, id="exclusive-as-number"),
        pytest.param([4], {"const": 1}, 2, True, id="const-unknown"),
        pytest.param([6, 7, 2019, 2020], {"const": 1}, 2, False, id="const"),
        pytest.param([6], {"if": True, "then": False}, 1, True, id="if-unknown"),
        pytest.param([7, 2019, 2020], {"if": True, "then": False}, 1, False, id="if"),
        pytest.param(
            [7], {"dependentRequired": {"a": ["b"]}}, {"a": 1}, True, id="dependentRequired-unknown"
        ),
        pytest.param(
            [2019, 2020], {"dependentRequired": {"a": ["b"]}}, {"a": 1}, False, id="dependentRequired"
        ),
        pytest.param([2019], {"prefixItems": [False]}, [1], True, id="prefixItems-unknown"),
        pytest.param([2020], {"prefixItems": [False]}, [1], False, id="prefixItems"),
        pytest.param(
            [4, 6, 7],
            {"$ref": "#/definitions/a", "maximum": 0, "definitions": {"a": {}}},
            1,
            True,
            id="ref-alone",
        ),
        pytest.param(
            [2019, 2020], {"$ref": "#/$defs/a", "maximum": 0, "$defs": {"a": {}}}, 1, False, id="ref-beside"
        ),
    ],
)
def test_the_draft_is_the_one_that_the_schema_names(
    drafts: list[int], schema: dict[str, Any], value: Any, valid: bool
) -> None:
    for draft in drafts:
        assert Schema({"$schema": DRAFTS[draft], **schema}).is_valid(value) is valid, draft


def test_without_a_name_it_is_the_newest() -> None:
    assert not Schema({"prefixItems": [False]}).is_valid([1])


@pytest.mark.parametrize(
    "uri",
    [
        "https://json-schema.org/draft-07/schema",
        "http://json-schema.org/draft-07/schema",
    ],
)
def test_the_spelling_of_a_draft_may_vary(uri: str) -> None:
    assert Schema({"$schema": uri, "dependentRequired": {"a": ["b"]}}).is_valid({"a": 1})


def test_the_dialect_of_openapi_is_the_newest_draft() -> None:
    schema = Schema(
        {"$schema": "https://spec.openapis.org/oas/3.1/dialect/base", "dependentRequired": {"a": ["b"]}}
    )
    assert not schema.is_valid({"a": 1})


@pytest.mark.parametrize("uri", ["http://json-schema.org/draft-03/schema#", "http://example.com/mine", 7])
def test_another_draft_is_refused(uri: Any) -> None:
    path, message = refusal({"$schema": uri})
    assert path == "/schema/$schema"
    assert NEWEST in message


@pytest.mark.parametrize("schema", [True, False])
def test_a_schema_may_be_a_boolean(schema: bool) -> None:
    assert Schema(schema).is_valid(1) is schema


@pytest.mark.parametrize(
    ("format_", "good", "bad"),
    [
        ("date", "2026-01-31", "2026-02-31"),
        ("date-time", "2026-01-31T10:00:00Z", "2026-01-31 10 am"),
        ("time", "10:00:00Z", "ten"),
        ("email", "a@example.com", "a"),
        ("uri", "https://example.com", "not one"),
        ("uuid", "2b7b7b7e-8a3a-4b6e-9d43-8f5f0b5b0b5b", "2b7b"),
        ("ipv4", "127.0.0.1", "300.0.0.1"),
        ("no-such-format", "anything", None),
    ],
)
def test_known_formats_are_enforced_and_unknown_ones_ignored(
    format_: str, good: str, bad: str | None
) -> None:
    schema = Schema({"format": format_})
    assert schema.is_valid(good)
    assert bad is None or not schema.is_valid(bad)


class Canary:
    """An HTTP server that counts who comes."""

    def __init__(self) -> None:
        self.hits = 0

        class Handler(BaseHTTPRequestHandler):
            def do_GET(handler) -> None:  # noqa: N805 - self is the canary
                self.hits += 1
                handler.send_response(200)
                handler.end_headers()
                handler.wfile.write(b"{}")

            def log_message(handler, *args: object) -> None:  # noqa: N805
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_port}"


@pytest.fixture
def canary() -> Iterator[Canary]:
    found = Canary()
    thread = threading.Thread(target=found.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield found
    found.server.shutdown()
    thread.join()
    found.server.server_close()


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param({"$ref": "http://HOST/x.json"}, id="ref"),
        pytest.param({"$ref": "http://HOST/x.json#/a"}, id="fragment"),
        pytest.param({"properties": {"a": {"items": {"$ref": "http://HOST/x"}}}}, id="deep"),
        pytest.param({"$defs": {"a": {"$ref": "http://HOST/x"}}}, id="unused"),
        pytest.param({"$id": "http://HOST/base/", "$ref": "x.json"}, id="relative"),
        pytest.param({"$id": "http://HOST/base/", "$dynamicRef": "x.json#a"}, id="dynamic"),
        pytest.param({"$schema": "http://HOST/x"}, id="schema"),
        pytest.param({"$schema": DRAFTS[4], "id": "http://HOST/", "items": {"$ref": "x"}}, id="draft-4"),
        pytest.param({"$schema": DRAFTS[7], "items": {"$ref": "http://HOST/x"}}, id="draft-7"),
        pytest.param({"$ref": "//HOST/x"}, id="without-scheme"),
        pytest.param({"$ref": "HTTP://HOST/x"}, id="capitals"),
    ],
)
def test_no_schema_makes_the_server_fetch_anything(schema: dict[str, Any], canary: Canary) -> None:
    hostile = json.loads(json.dumps(schema).replace("HOST", canary.address))
    refusal(hostile)
    assert canary.hits == 0


def test_the_draft_of_an_inner_document_is_not_fetched_either(canary: Canary) -> None:
    inner = {"$id": "b", "$schema": f"http://{canary.address}/x", "type": "string"}
    assert not Schema({"$defs": {"a": inner}, "$ref": "b"}).is_valid(1)
    assert canary.hits == 0


def test_no_schema_makes_the_server_open_a_file(tmp_path: Path) -> None:
    pipe = tmp_path / "schema.json"
    os.mkfifo(pipe)
    # Whoever opened the pipe to read would hang here.
    path, message = refusal({"properties": {"a": {"$ref": pipe.as_uri()}}})
    assert path == "/schema"
    assert "never followed" in message


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}},
        {"$ref": "#a", "$defs": {"x": {"$anchor": "a", "type": "string"}}},
        {"$ref": "#/components/a~1b%20c", "components": {"a/b c": {"type": "string"}}},
        {"$id": "http://example.com/x", "$ref": "y", "$defs": {"x": {"$id": "y", "type": "string"}}},
        {"$ref": "#/allOf/1", "allOf": [True, {"type": "string"}]},
    ],
    ids=["pointer", "anchor", "anywhere", "own-id", "index"],
)
def test_references_inside_the_document_are_followed(schema: dict[str, Any]) -> None:
    compiled = Schema(schema)
    assert compiled.is_valid("text")
    assert not compiled.is_valid(1)


def test_a_schema_may_refer_to_its_own_draft() -> None:
    schema = Schema({"$ref": NEWEST})
    assert schema.is_valid({"type": "string"})
    assert not schema.is_valid({"type": "text"})


@pytest.mark.parametrize(
    ("schema", "path", "message"),
    [
        pytest.param({"type": "text"}, "/schema/type", "text", id="type"),
        pytest.param(
            {"properties": {"a/b": {"minimum": "1"}}}, "/schema/properties/a~1b/minimum", "1", id="deep"
        ),
        pytest.param({"$ref": "#/nowhere"}, "/schema", "nowhere", id="dangling"),
        pytest.param({"pattern": "(a"}, "/schema/pattern", "(a", id="bad-pattern"),
        pytest.param(
            {"items": {"pattern": "(?=a)"}}, "/schema/items/pattern", "linear time", id="look-ahead"
        ),
        pytest.param({"pattern": r"(a)\1"}, "/schema/pattern", "linear time", id="back-reference"),
        pytest.param(
            {"patternProperties": {"(?!a)": {}}}, "/schema/patternProperties/(?!a)", "linear", id="names"
        ),
        pytest.param({"description": "x" * 65536}, "/schema", "65536", id="too-large"),
        pytest.param({"properties": {str(n): {} for n in range(1001)}}, "/schema", "1000", id="too-many"),
        pytest.param({"pattern": "(a{1,1000}){1,1000}"}, "/schema/pattern", "50000", id="pattern-too-large"),
        pytest.param(
            {"minimum": 1, "exclusiveMinimum": True},
            "/schema/exclusiveMinimum",
            "beside minimum",
            id="openapi-3.0",
        ),
        pytest.param({"const": float("nan")}, "/schema", "JSON", id="not-json"),
    ],
)
def test_a_wrong_schema_is_refused_with_its_place(schema: dict[str, Any], path: str, message: str) -> None:
    found_path, found_message = refusal(schema)
    assert found_path == path
    assert message in found_message


def test_the_limits_are_inclusive() -> None:
    text = len(json.dumps({"description": ""}, separators=(",", ":")))
    Schema({"description": "x" * (MAX_BYTES - text)})
    Schema({"properties": {str(n): {} for n in range(999)}})


def test_a_very_deep_schema_is_refused_not_a_crash() -> None:
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"not": deep}
    assert refusal(deep)[0] == "/schema"


def chain(levels: int, keyword: str = "anyOf") -> dict[str, Any]:
    """Two ways at each level: 2^levels evaluations."""
    definitions: dict[str, Any] = {f"a{levels}": {"type": "string"}}
    for level in range(levels):
        below = {"$ref": f"#/$defs/a{level + 1}"}
        definitions[f"a{level}"] = {keyword: [below, below]}
    return {"$defs": definitions, "$ref": "#/$defs/a0"}


def unevaluated(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"properties": {"a": {"type": "integer"}}}
    for _ in range(levels):
        schema = {"allOf": [schema], "unevaluatedProperties": False}
    return schema


HOSTILE = [
    pytest.param(chain(30), id="doubling-anyOf"),
    pytest.param(chain(30, "allOf"), id="doubling-allOf"),
    pytest.param(chain(30, "oneOf"), id="doubling-oneOf"),
    pytest.param({**chain(28), "$ref": None, "items": {"$ref": "#/$defs/a0"}}, id="doubling-below"),
    pytest.param(unevaluated(20), id="unevaluated"),
    pytest.param({"anyOf": [{"properties": {"c": {"$ref": "#"}}}] * 2}, id="two-ways-to-itself"),
    pytest.param({"allOf": [{"items": {"$ref": "#"}}], "items": {"$ref": "#"}}, id="beside-and-below"),
    pytest.param(
        {"properties": {"a": {"$ref": "#"}}, "patternProperties": {"a": {"$ref": "#"}}}, id="name-and-pattern"
    ),
    pytest.param({"items": {"$ref": "#"}, "contains": {"$ref": "#"}}, id="items-and-contains"),
    pytest.param(
        {
            "$ref": "#/$defs/a",
            "$defs": {
                "a": {"if": {"$ref": "#/$defs/b"}, "then": {"$ref": "#/$defs/b"}},
                "b": {"properties": {"x": {"$ref": "#/$defs/a"}}},
            },
        },
        id="if-and-then",
    ),
    pytest.param({"$dynamicAnchor": "a", "anyOf": [{"items": {"$dynamicRef": "#a"}}] * 2}, id="dynamic"),
    pytest.param(
        {"$schema": DRAFTS[2019], "$recursiveAnchor": True, "items": {"$recursiveRef": "#"}}, id="recursive"
    ),
    pytest.param({"allOf": [{"$ref": "#"}]}, id="the-same-value-again"),
    pytest.param({"properties": {"text": {}, "replies": {"items": {"$ref": "#"}}}}, id="tree"),
    pytest.param(
        {"properties": {"a": {"$ref": "#"}, "b": {"unevaluatedProperties": False}}}, id="looking-again"
    ),
    pytest.param(
        {
            "properties": {"a": {"$ref": "#"}, "b": {"$ref": "#/$defs/b"}},
            "$defs": {"b": {"properties": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#"}}}},
        },
        id="two-loops",
    ),
    pytest.param(
        {"prefixItems": [{"$ref": "#"}], "properties": {"a": {}}, "items": {"$ref": "#"}},
        id="index-and-items",
    ),
]


def doubling_pattern() -> dict[str, Any]:
    schema = chain(5)
    schema["$defs"]["a5"] = {"pattern": "^([a-z]{1,50}){1,5}$"}
    return schema


@pytest.mark.parametrize("schema", HOSTILE)
def test_a_schema_that_may_take_long_is_never_run_in_the_event_loop(schema: dict[str, Any]) -> None:
    schema = {key: value for key, value in schema.items() if value is not None}
    assert Schema(schema).inline_bytes == 0


ADDRESS = {"type": "object", "properties": {"city": {"type": "string"}, "zip": {"pattern": r"^\d{5}$"}}}


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param({"type": "object"}, id="trivial"),
        pytest.param(
            {"$defs": {"a": ADDRESS}, "properties": {f"p{n}": {"$ref": "#/$defs/a"} for n in range(50)}},
            id="reuse",
        ),
        pytest.param({"oneOf": [{"properties": {"kind": {"const": n}}} for n in range(20)]}, id="variants"),
        pytest.param({"items": {"pattern": r"^[^@\s]+@[^@\s]+\.[a-z]{2,}$"}}, id="pattern"),
    ],
)
def test_ordinary_schemas_run_in_the_event_loop(schema: dict[str, Any]) -> None:
    assert Schema(schema).inline_bytes >= 2000


@pytest.mark.parametrize(
    ("schema", "answer"),
    [
        pytest.param(chain(7), "[]", id="doubling"),
        pytest.param(
            {"items": {"allOf": [{"type": ["string", "number"]}] * 900}},
            "[1,1,1]",
            id="wide",
        ),
        pytest.param({"pattern": "^([a-z]{1,50}){1,50}$"}, '"aaaaaaaaa"', id="repetitions"),
        pytest.param(
            {"items": {"pattern": "^([a-z]{1,9}){1,9}x$"}}, '["aaaaaaaaaaaaa","aaaaaaaaa"]', id="patterns"
        ),
        pytest.param(doubling_pattern(), '"aaaaaaaaa!"', id="doubling-pattern"),
        pytest.param({"uniqueItems": True}, "[[1],[2],[3]]", id="unique"),
        pytest.param({"items": {"enum": [[n] for n in range(5000)]}}, "[[4999],[4998]]", id="enum-of-arrays"),
        pytest.param(
            {"items": {"enum": [n + 0.5 for n in range(5000)]}}, "[4999.5,4998]", id="enum-of-fractions"
        ),
        pytest.param({"items": {"enum": [0.5, *range(9000)]}}, "[8999,8998]", id="enum-of-both"),
        pytest.param({"items": {"required": [f"k{n}" for n in range(5000)]}}, "[{},{}]", id="required"),
    ],
)
def test_the_longest_answer_that_runs_in_the_event_loop_does_not_hold_it_up(
    schema: dict[str, Any], answer: str
) -> None:
    compiled = Schema(schema)
    assert compiled.inline_bytes > 0
    data = json.loads(answer)
    data = data * (compiled.inline_bytes // len(answer))
    spent = min(_time(compiled, data) for _ in range(3))
    assert spent < 0.1


def _time(compiled: Schema, data: Any) -> float:
    began = time.process_time()
    compiled.is_valid(data)
    return time.process_time() - began


def test_a_catastrophic_pattern_takes_no_time() -> None:
    compiled = Schema({"pattern": "^(a+)+$"})
    assert min(_time(compiled, "a" * 5000 + "!") for _ in range(3)) < 0.1


def test_digits_are_ascii_as_in_javascript() -> None:
    assert not Schema({"pattern": r"^\d+$"}).is_valid("٣")


@pytest.mark.parametrize(
    "nest", [lambda inner: [inner], lambda inner: {"a": inner}], ids=["arrays", "objects"]
)
def test_a_very_deep_answer_against_a_recursive_schema_is_no_crash(nest: Any) -> None:
    schema: dict[str, Any] = {"items": {"$ref": "#"}, "additionalProperties": {"$ref": "#"}}
    for _ in range(50):
        schema = {"allOf": [schema, {"type": ["array", "object"]}]}
    data: Any = []
    for _ in range(900):
        data = nest(data)
    Schema(schema).is_valid(data)


def test_the_worker_says_what_the_loop_says_and_ends_what_takes_long() -> None:
    async def check() -> None:
        doubling = Schema(chain(40))
        assert await doubling.errors_in_worker('"text"') == []
        with pytest.raises(TaskTimeout):
            await doubling.errors_in_worker("1")
        plain = Schema({"$schema": DRAFTS[7], "properties": {"a": {"type": "string"}}})
        errors = await plain.errors_in_worker('{"a": 1, "b": "\\ud800"}')
        assert errors is not None
        [error] = errors
        assert error == {
            "path": "/a",
            "message": '1 is not of type "string"',
            "keyword": "/properties/a/type",
        }
        await close_workers()

    asyncio.run(check())


def test_closing_workers_that_never_started_is_fine() -> None:
    asyncio.run(close_workers())


def test_a_few_errors_are_all_listed_and_of_very_many_only_the_first() -> None:
    compiled = Schema({"items": {"type": "string"}})
    few, many = [1] * 5, [1] * 20_000
    assert len(compiled.errors(few, json.dumps(few))) == 5
    took = []
    for _ in range(3):
        began = time.thread_time()
        assert len(compiled.errors(many, json.dumps(many))) == 1
        took.append(time.thread_time() - began)
    assert min(took) < 0.2


def test_of_failed_alternatives_the_nearest_is_named() -> None:
    compiled = Schema({"anyOf": [{"type": "null"}, {"properties": {"day": {"format": "date"}}}]})
    [error] = compiled.errors({"day": "soon"}, "")
    assert error["message"].endswith('(nearest: /day: "soon" is not a "date")')


@pytest.mark.parametrize(
    ("pattern", "size"),
    [
        ("", 0),
        ("abc", 3),
        (r"^\d{2}:\d{2}$", 7),
        ("[a-z]{1,50}", 50),
        ("([a-z]{1,50}){1,50}", 2500),
        ("(ab|cd){3}", 15),
        (".{1,500}", 2500),
        (r"\p{L}{1,10}", 5000),
        ("a{99999999999999999999}", 999_999_999),
        ("[]a]{2}", 2),
        ("(((", 0),
        (")a{", 2),
    ],
)
def test_the_size_of_a_pattern_counts_repetitions_written_out(pattern: str, size: int) -> None:
    assert pattern_size(pattern) == pytest.approx(size, abs=3)


def test_the_cost_of_a_doubling_schema_doubles() -> None:
    estimates = [estimate(chain(levels)) for levels in range(1, 12)]
    costs = [found.evaluations for found in estimates if found]
    assert len(costs) == 7, "beyond, there is no bound"
    assert all(1.9 < after / before < 3.5 for before, after in pairwise(costs))


@pytest.mark.parametrize(
    ("schema", "place", "text"),
    [
        ({"type": "object", "requried": ["a"]}, "/requried", 'did you mean "required"'),
        ({"properties": {"a": {"type": "string", "minLenght": 1}}}, "/properties/a/minLenght", '"minLength"'),
        ({"$defs": {"a": {"enumm": [1]}}, "type": "object"}, "/$defs/a/enumm", '"enum"'),
        (
            {"items": {"anyOf": [{"typ": "string"}, {"type": "null"}]}},
            "/items/anyOf/0/typ",
            "unknown keyword",
        ),
        ({"strict": True}, "/strict", "x-"),
        ({"additionalItems": False}, "/additionalItems", "no such keyword"),
        (
            {"$schema": "http://json-schema.org/draft-07/schema#", "prefixItems": [False]},
            "/prefixItems",
            "draft",
        ),
        ({"$schema": "http://json-schema.org/draft-04/schema#", "const": 1}, "/const", "draft"),
        ({"nullable": "yes", "type": "string"}, "/nullable", "wanted true or false"),
        ({"patternProperties": {"/^x/i": False}}, "/patternProperties/~1^x~1i", "flags i"),
    ],
)
def test_an_unknown_keyword_of_a_spec_is_refused_with_the_nearest_one(
    schema: Any, place: str, text: str
) -> None:
    with pytest.raises(InvalidConfig) as refused:
        Schema.of_spec(schema)
    assert [problem.path for problem in refused.value.problems] == [f"/schema{place}"]
    assert text in refused.value.problems[0].message


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"requried": {"const": 1}, "nullable": {"type": "string"}}, "required": ["nullable"]},
        {"$defs": {"typ": {"type": "string"}}, "$ref": "#/$defs/typ"},
        {"enum": [{"foo": {"bar": 1}}], "default": {"foo": 1}, "examples": [{"foo": 1}]},
        {"const": {"foo": 1}},
        {"type": "string", "x-order": 1, "example": "a", "discriminator": {"propertyName": "a"}, "xml": {}},
        {
            "type": "object",
            "externalDocs": {"url": "x"},
            "propertyOrdering": ["a"],
            "errorMessage": {"type": "x"},
        },
        {"definitions": {"a": {"type": "null"}}, "$ref": "#/definitions/a"},
        {"dependencies": {"a": ["b"]}},
        {"components": {"schemas": {"A": {"type": "string"}}}, "$ref": "#/components/schemas/A"},
        {"dependentRequired": {"a": ["b"]}},
    ],
)
def test_what_is_no_keyword_or_a_known_annotation_is_accepted(schema: Any) -> None:
    assert not Schema.of_spec(schema).unknown


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda schema: {"name": "trip", "strict": True, "schema": schema},
        lambda schema: {"type": "json_schema", "json_schema": {"name": "trip", "schema": schema}},
        lambda schema: {"type": "json_schema", "name": "trip", "strict": True, "schema": schema},
        lambda schema: {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}},
        lambda schema: {"format": {"type": "json_schema", "name": "trip", "schema": schema}},
        lambda schema: {"name": "a", "schema": {"name": "b", "description": "c", "schema": schema}},
    ],
)
def test_the_wrapper_of_response_format_is_taken_off(wrapped: Any) -> None:
    schema = Schema.of_spec(wrapped({"type": "object", "required": ["a"]}))
    assert schema.is_valid({"a": 1})
    assert not schema.is_valid({"b": 1})
    for bad in ({}, True, {"requried": []}):
        with pytest.raises(InvalidConfig):
            Schema.of_spec(wrapped(bad))


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"type": "string"}, [None, "a"], [1]),
        ({"type": ["string", "integer"]}, [None, 1], [1.5]),
        ({"type": "string", "enum": ["a"]}, [None, "a"], ["b"]),
        ({"enum": [1]}, [None, 1], [2]),
        ({"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"type": "string"}}}, [None, "a"], [1]),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}}, [None, "a"], [1]),
        ({"anyOf": [{"type": "string"}], "minLength": 2}, [None, "ab"], ["a", 1]),
        ({"type": "object", "required": ["x"]}, [None, {"x": 1}], [{}]),
        ({"const": 1}, [None, 1], [2]),
    ],
)
@pytest.mark.parametrize("draft", DRAFTS)
def test_nullable_true_accepts_null(schema: Any, valid: list[Any], invalid: list[Any], draft: int) -> None:
    if "const" in schema and draft == 4:
        return
    if "$defs" in schema:
        schema = {**schema, "definitions": schema["$defs"]}
    full = {"$schema": DRAFTS[draft], **schema}
    nullable = Schema.of_spec({**full, "nullable": True})
    within = Schema.of_spec(
        {
            "$schema": DRAFTS[draft],
            "properties": {"p": {**schema, "nullable": True}},
            **{k: full[k] for k in ("$defs",) if k in full},
        }
    )
    assert not Schema.of_spec({**full, "nullable": False}).is_valid(None)
    for value in valid:
        assert nullable.is_valid(value)
        assert within.is_valid({"p": value})
    for value in invalid:
        assert not nullable.is_valid(value)
        assert not within.is_valid({"p": value})


@pytest.mark.parametrize(
    "schema",
    [
        *({}, True, {"title": "x"}, {"$schema": NEWEST}, {"$ref": "#"}, {"x-a": 1}, {"default": 1}),
        *({"allOf": [{}, {"title": "x"}]}, {"anyOf": [{"type": "string"}, {}]}, {"oneOf": [True]}),
        *({"minItems": 0}, {"required": []}, {"format": "money"}, {"not": False}, {"pattern": ""}),
        {"$ref": "#/$defs/a", "$defs": {"a": {"description": "x"}}},
        {"type": ["string", "number", "boolean", "null", "array", "object"]},
        {"not": {"not": {}}},
        {"$ref": "#/$defs/a", "$defs": {"a": {}}},
        *({"pattern": ".*"}, {"pattern": "^"}, {"pattern": "a*$"}, {"$ref": "#a", "$anchor": "a"}),
        {
            "anyOf": [
                {"type": "string"},
                {"type": ["number", "boolean", "null"]},
                {"type": ["array", "object"]},
            ]
        },
    ],
)
def test_a_schema_that_accepts_everything_is_refused(schema: Any) -> None:
    with pytest.raises(InvalidConfig, match="is-json"):
        Schema.of_spec(schema)


@pytest.mark.parametrize(
    "schema",
    [
        *(
            {"properties": {"a": {}}},
            {"items": True},
            {"additionalProperties": True},
            {"if": {"type": "string"}},
        ),
        *({"then": False}, {"dependentRequired": {"a": []}}, {"contains": {}, "minContains": 0}),
        {"properties": {"a": {"properties": {"b": {"items": {}}}}}},
    ],
)
def test_a_schema_that_names_parts_and_says_nothing_of_them_is_known_to_accept_everything(
    schema: Any,
) -> None:
    assert Schema.of_spec(schema).vacuous


@pytest.mark.parametrize(
    "schema",
    [
        *(
            {"type": "object"},
            {"not": {}},
            {"required": ["a"]},
            {"format": "date"},
            {"minLength": 1},
            {"enum": [1]},
        ),
        *(
            {"properties": {"a": False}},
            {"if": {"type": "string"}, "else": False},
            {"contains": {}},
            {"oneOf": [True, True]},
        ),
        *({"pattern": ".+"}, {"pattern": "^$"}, {"pattern": "[$]"}),
        {
            "anyOf": [
                {"type": ["string", "number", "boolean", "null", "array"]},
                {"type": "object", "required": ["a"]},
            ]
        },
        *({"type": ["string", "number", "boolean", "array", "object"]}, {"items": {"type": "string"}}),
    ],
)
def test_a_schema_that_can_refuse_a_value_is_not(schema: Any) -> None:
    assert not Schema.of_spec(schema).vacuous
