"""YAML is read as YAML 1.2 says, or refused with the place: nothing in it runs, grows or changes its meaning."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evald_server.cli.exit_codes import CommandError, ExitCode
from evald_server.cli.specs import load_file
from evald_server.suites.documents import (
    MAX_CHARACTERS,
    InvalidDocument,
    decode,
    parse_json_document,
    parse_yaml,
    read_document,
)

READ: list[tuple[str, Any]] = [
    ("", None),
    ("a: null", {"a": None}),
    ("a:", {"a": None}),
    ("a: ~", {"a": None}),
    ("a: [true, False, TRUE]", {"a": [True, False, True]}),
    # Booleans, times and dates in YAML 1.1; texts since 2009.
    ("a: [no, yes, on, off, y]", {"a": ["no", "yes", "on", "off", "y"]}),
    ("a: 12:30:45", {"a": "12:30:45"}),
    ("a: 2024-01-31", {"a": "2024-01-31"}),
    ("a: [1, -2, +3, 012, 0o17, 0x1F]", {"a": [1, -2, 3, 12, 15, 31]}),
    ("a: [1.5, .5, 2., 1e3, -1.5E-3]", {"a": [1.5, 0.5, 2.0, 1000.0, -0.0015]}),
    (
        "a: [1_000, 1.2.3, 0b1, 0o8, '1', \"true\", +, .]",
        {"a": ["1_000", "1.2.3", "0b1", "0o8", "1", "true", "+", "."]},
    ),
    ("a: |\n  line one\n  2\n", {"a": "line one\n2\n"}),
    ("a: >-\n  folded\n  text\n", {"a": "folded text"}),
    ("1: a\ntrue: b\n", {"1": "a", "true": "b"}),
    ("# a comment\n- a # another\n- b: {c: [d]}\n", ["a", {"b": {"c": ["d"]}}]),
    ("---\na: BK-\\d{5}\n...\n", {"a": "BK-\\d{5}"}),
    ('{"json": ["too", {"a": 1.5, "b": null}]}', {"json": ["too", {"a": 1.5, "b": None}]}),
    ("é: ü", {"é": "ü"}),
    ("[" * 64 + "]" * 64, json.loads("[" * 64 + "]" * 64)),
    (
        "a: &x {b: [1]}\nc: *x\nd: [*x, &y z, *y]",
        {"a": {"b": [1]}, "c": {"b": [1]}, "d": [{"b": [1]}, "z", "z"]},
    ),
    ("a: &x {b: 1, c: 2}\nd:\n  b: 3\n  <<: *x\n", {"a": {"b": 1, "c": 2}, "d": {"b": 3, "c": 2}}),
    ("a: {<<: [{b: 1}, {b: 2, c: 3}]}", {"a": {"b": 1, "c": 3}}),
    ("'<<': {a: 1}", {"<<": {"a": 1}}),
    ("- &x a\n- &x b\n- *x", ["a", "b", "b"]),
]


@pytest.mark.parametrize(("text", "data"), READ, ids=[text[:30] for text, _ in READ])
def test_what_the_core_schema_says_is_read(text: str, data: Any) -> None:
    found = parse_yaml(text, "a.yaml").data
    assert found == data
    assert json.dumps(found) == json.dumps(data), "1 is not True, nor 1.0"


BOMB = "a0: &a0 [x]\n" + "".join(f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 9)}]\n" for i in range(9))

REFUSED: list[tuple[str, str]] = [
    ("a: *x", "1:4: not valid YAML: got the alias *x without an anchor before it"),
    ("a: 1\nb: &x [1, *x]", "2:11: not valid YAML: got the alias *x inside its own anchor, which is a cycle"),
    ("a: &x {b: {c: *x}}", "a cycle"),
    ("a: &x k\n*x : 1", "2:1: not valid YAML: got the alias *x as a key"),
    ("a: {<<: 1}", "the merge key << with a value that is not a mapping"),
    ("a: {<<: {b: 1}, <<: {c: 1}}", "1:17: not valid YAML: got a duplicate key '<<'"),
    (
        "a: &a " + "[" * 33 + "]" * 33 + "\nb: " + "[" * 32 + "*a" + "]" * 32,
        "more than 64 levels of nesting with the alias *a",
    ),
    (BOMB, "more than 1048576 values with all aliases expanded"),
    ("!!python/object/apply:os.system [id]", "the tag tag:yaml.org,2002:python/object/apply:os.system"),
    ("a: !!str 1", "the tag"),
    ("a: ! 1", "the tag !"),
    ("%TAG ! tag:x:\n---\n!a 1", "a.yaml:3:1: not valid YAML: got the tag"),
    ("? [a]\n: 1", "a list or mapping as a key"),
    ("{[a]: 1}", "a list or mapping as a key"),
    ("a: 1\nb: 2\na: 3", "a.yaml:3:1: not valid YAML: got a duplicate key 'a'"),
    ("a: 1\n---\nb: 2", "a second document"),
    ("a: .nan", ".nan, which JSON does not have"),
    ("a: -.inf", "-.inf, which JSON does not have"),
    ("a: 1e999", "1e999, which is too large for a double"),
    ("a: " + "9" * 5000, "a number of 5000 characters"),
    ("a: 0x" + "f" * 5000, "a number of 5002 characters"),
    ("a: [1, 2", "a.yaml:1:9: not valid YAML: "),
    ("a: b: c", "a.yaml:1:5: not valid YAML: mapping values are not allowed here"),
    ("\ta: 1", "a.yaml:1:1: not valid YAML: "),
    ("a: \x00", "a.yaml:1:4: not valid YAML: special characters are not allowed"),
    ("a: \x1b[31m", "a.yaml:1:4: not valid YAML: special characters are not allowed"),
    ("[" * 65 + "]" * 65, "a.yaml:1:65: not valid YAML: got more than 64 levels"),
    ("[" * 200_000, "got more than 64 levels"),
    ("{a: " * 60_000, "got more than 64 levels"),
    ("- " * 100_000, "got more than 64 levels"),
    ("x" * (MAX_CHARACTERS + 1), "characters of YAML, wanted at most 1048576"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED, ids=[text[:30] for text, _ in REFUSED])
def test_anything_else_is_refused_with_its_place(text: str, message: str) -> None:
    began = time.monotonic()
    with pytest.raises(InvalidDocument) as refused:
        parse_yaml(text, "a.yaml")
    assert message in str(refused.value)
    assert len(str(refused.value)) < 300
    assert time.monotonic() - began < 10


def test_a_merge_of_mappings_adds_the_keys_of_each_in_their_order() -> None:
    text = "- &a {k: 1, a: 1}\n- &b {k: 2, b: 2}\n- {c: 3, <<: [*a, *b]}\n"
    assert list(parse_yaml(text, "a.yaml").data[-1].items()) == [("c", 3), ("k", 1), ("a", 1), ("b", 2)]


YAML_LINES = """\
suite: &s
  cases:
    - id: a
      input:
        text
    - {id: b, turns: [1,
        {c: 2}]}
    - *s2
""".replace("*s2", "<<: {id: c}")


def test_every_value_has_its_line() -> None:
    document = parse_yaml(YAML_LINES, "a.yaml")
    found = {path: document.line(path) for path in document.lines}
    cases = ("suite", "cases")
    assert found[(*cases, 0)] == 3
    assert found[(*cases, 0, "input")] == 4
    assert found[(*cases, 1)] == 6
    assert found[(*cases, 1, "turns", 1)] == 7
    assert document.line((*cases, 2, "id")) == 8, "what was merged is where the merge key is"
    assert document.line((*cases, 1, "turns", 1, "d", 3)) == 7, "the nearest parent"


@settings(max_examples=200, deadline=None)
@given(
    st.recursive(
        st.text() | st.integers() | st.none(), lambda one: st.lists(one) | st.dictionaries(st.text(), one)
    )
)
def test_lines_of_json_are_those_of_its_indented_text(data: Any) -> None:
    text = json.dumps(data, indent=1)
    document = parse_json_document(text, "a.json")
    assert document.data == data
    for path, line in document.lines.items():
        inner = data
        for part in path:
            inner = inner[part]
        shown = (
            json.dumps(inner)
            if isinstance(inner, str | int | None)
            else "["
            if isinstance(inner, list)
            else "{"
        )
        assert shown in text.split("\n")[line - 1]


def test_json_is_refused_with_its_place() -> None:
    for text, message in (
        ('{"a": 1,\n"a": 2}', "got a duplicate key 'a'"),
        ("[1,\n NaN]", "NaN"),
        ("[1,\n?]", "a.json:2:1: not valid JSON"),
        ("[" * 100_000, "nested too deep"),
        ("9" * 5000, "not valid JSON"),
    ):
        with pytest.raises(InvalidDocument, match=message):
            parse_json_document(text, "a.json")


def test_another_encoding_is_refused_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(InvalidDocument, match=r"^a:2:4: not UTF-8: invalid start byte$"):
        decode(b"a: 1\nb: " + b"\xff", "a")
    path = tmp_path / "a.yaml"
    path.write_bytes("a: ü".encode("utf-16"))
    with pytest.raises(InvalidDocument, match=r"a\.yaml:1:1: not UTF-8"):
        read_document(path)
    path.write_bytes("a: ü".encode("utf-8-sig"))
    assert read_document(path).data == {"a": "ü"}
    with pytest.raises(InvalidDocument, match="No such file"):
        read_document(tmp_path / "missing.yaml")


YAML = r"""
options:
  aggregation: weighted_mean
  threshold: 0.5
evaluators:
  - is-json
  - type: regex
    name: reference
    when: final
    config: {pattern: 'BK-\d{5}'}
  - type: latency-budget
    config:
      maxMs: 3000
"""


@pytest.mark.parametrize("name", ["checks.yaml", "checks.yml"])
def test_a_file_of_evaluators_may_be_yaml(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(YAML)
    found = load_file(path)
    assert found.options == {"aggregation": "weighted_mean", "threshold": 0.5}
    assert found.specs == [
        "is-json",
        {"type": "regex", "name": "reference", "when": "final", "config": {"pattern": r"BK-\d{5}"}},
        {"type": "latency-budget", "config": {"maxMs": 3000}},
    ]
    assert found.places[1] == f"{path}: evaluators[1]"


def test_what_is_wrong_with_a_file_names_the_file_and_the_place(tmp_path: Path) -> None:
    path = tmp_path / "checks.yaml"
    path.write_text("- type: is-json\n  config: *shared\n")
    with pytest.raises(CommandError) as refused:
        load_file(path)
    assert refused.value.code is ExitCode.USAGE
    assert str(refused.value).startswith(f"{path}:2:11: not valid YAML: got the alias *shared")
