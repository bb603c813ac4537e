"""Evaluators as users write them become the specs that they mean."""

import json
from pathlib import Path
from typing import Any

import pytest

from evald_server.cli.exit_codes import CommandError, ExitCode
from evald_server.cli.specs import load_file, load_specs, parse_expression

EXPRESSIONS: list[Any] = [
    pytest.param("is-json", {"type": "is-json"}, id="type alone"),
    pytest.param("is-json:", {"type": "is-json"}, id="nothing after the colon"),
    pytest.param("regex:pattern=BK-[0-9]+", {"type": "regex", "config": {"pattern": "BK-[0-9]+"}}, id="text"),
    pytest.param("latency:maxMs=3000", {"type": "latency", "config": {"maxMs": 3000}}, id="number"),
    pytest.param(
        "x:a=true,b=null,c=1.5", {"type": "x", "config": {"a": True, "b": None, "c": 1.5}}, id="JSON"
    ),
    pytest.param('contains:text="42"', {"type": "contains", "config": {"text": "42"}}, id="forced text"),
    pytest.param(
        'contains:substrings=["a,b=c","d"],mode=any',
        {"type": "contains", "config": {"substrings": ["a,b=c", "d"], "mode": "any"}},
        id="list, then more",
    ),
    pytest.param(
        "contains:text=Hello, world",
        {"type": "contains", "config": {"text": "Hello, world"}},
        id="comma in text",
    ),
    pytest.param(
        "regex:pattern=[a,b]{1,3}=x,mustMatch=false",
        {"type": "regex", "config": {"pattern": "[a,b]{1,3}=x", "mustMatch": False}},
        id="pattern full of signs",
    ),
    pytest.param(
        "contains:text=a=b,c=d",
        {"type": "contains", "config": {"text": "a=b", "c": "d"}},
        id="equals in text",
    ),
    pytest.param(
        "regex:pattern=^https?://x:8080/",
        {"type": "regex", "config": {"pattern": "^https?://x:8080/"}},
        id="colons",
    ),
    pytest.param("contains:text=", {"type": "contains", "config": {"text": ""}}, id="empty text"),
    pytest.param(
        "ref=regex:pattern=x", {"type": "regex", "name": "ref", "config": {"pattern": "x"}}, id="named"
    ),
    pytest.param(
        "tool-use:expectations.0.name=book,expectations.1.name=pay,expectations.1.maxCalls=1",
        {
            "type": "tool-use",
            "config": {"expectations": [{"name": "book"}, {"name": "pay", "maxCalls": 1}]},
        },
        id="dots and numbers",
    ),
    pytest.param("x:a.b.c=1", {"type": "x", "config": {"a": {"b": {"c": 1}}}}, id="dots"),
    pytest.param('x:a={"b":[1,2]},c=3', {"type": "x", "config": {"a": {"b": [1, 2]}, "c": 3}}, id="object"),
    pytest.param("x:a=1, b=2", {"type": "x", "config": {"a": 1, "b": 2}}, id="space after the comma"),
]


@pytest.mark.parametrize(("text", "spec"), EXPRESSIONS)
def test_an_expression_means_a_spec(text: str, spec: dict[str, Any]) -> None:
    assert parse_expression(text) == spec


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        pytest.param("", "wanted TYPE", id="empty"),
        pytest.param("regex:BK", "wanted KEY=VALUE", id="no key"),
        pytest.param("regex:=x", "wanted KEY=VALUE", id="empty key"),
        pytest.param("x:a=1,a=2", "'a' is given twice", id="twice"),
        pytest.param("x:a=1,a.b=2", "is below 'a', which already has a value", id="below a value"),
        pytest.param("a=b=c:x=1", "wanted TYPE", id="two names"),
        pytest.param('x:a={"b":1,"b":2}', "a: got a duplicate key 'b'", id="duplicate key in an object"),
        pytest.param('x:a=[{"b":1,"b":2}],c=1', "duplicate key", id="duplicate key before another pair"),
        pytest.param('x:a={"b":NaN}', "NaN is not JSON", id="NaN in an object"),
        pytest.param("x:a=" + "[" * 100_000, "nested deeper", id="nested too deep"),
    ],
)
def test_a_bad_expression_is_refused_with_an_example(text: str, complaint: str) -> None:
    with pytest.raises(CommandError) as caught:
        parse_expression(text)
    assert caught.value.code is ExitCode.USAGE
    assert complaint in str(caught.value)


FILES: list[Any] = [
    pytest.param(
        "a.json", '[{"type": "is-json"}, "regex"]', [{"type": "is-json"}, "regex"], {}, id="JSON list"
    ),
    pytest.param(
        "a.json",
        '{"evaluators": [{"type": "is-json"}], "options": {"failFast": true}}',
        [{"type": "is-json"}],
        {"failFast": True},
        id="JSON object",
    ),
    pytest.param("a.json", '{"type": "is-json"}', [{"type": "is-json"}], {}, id="one spec"),
    pytest.param(
        "a.toml",
        '[options]\nthreshold = 0.5\n[[evaluators]]\ntype = "regex"\nconfig = { pattern = "x" }\n',
        [{"type": "regex", "config": {"pattern": "x"}}],
        {"threshold": 0.5},
        id="TOML",
    ),
]


@pytest.mark.parametrize(("name", "text", "specs", "options"), FILES)
def test_a_file_holds_specs(
    name: str, text: str, specs: list[Any], options: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(text)
    loaded = load_file(path)
    assert loaded.specs == specs
    assert loaded.options == options


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        pytest.param("a.json", '{"evaluators": [\n}', ":2:1: not valid JSON", id="JSON"),
        pytest.param("a.toml", "[[evaluators]\n", "not valid TOML", id="TOML"),
        pytest.param("a.json", '{"checks": []}', "under 'evaluators'", id="other key"),
        pytest.param("a.json", "[1]", "evaluators[0]", id="not a spec"),
        pytest.param("a.json", "[" * 100_000, "not valid JSON", id="too deep"),
    ],
)
def test_a_bad_file_is_refused_with_the_place(name: str, text: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(CommandError, match=r"a\.") as caught:
        load_file(path)
    assert caught.value.code is ExitCode.USAGE
    assert complaint in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="No such file"):
        load_file(tmp_path / "none.json")


def test_files_and_expressions_add_up_and_know_their_places(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"type": "is-json"}, {"type": "regex"}]))
    found = load_specs([str(path)], ["contains:text=x"])
    assert [spec["type"] for spec in found.specs] == ["is-json", "regex", "contains"]
    assert found.places == [
        f"{path}: evaluators[0]",
        f"{path}: evaluators[1]",
        "-e 'contains:text=x'",
    ]
