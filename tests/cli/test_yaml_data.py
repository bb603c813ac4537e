"""YAML is read as YAML 1.2 says, or refused with the place: nothing in it runs, grows or changes its meaning."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from evald_server.cli.exit_codes import CommandError, ExitCode
from evald_server.cli.specs import load_file
from evald_server.cli.yaml_data import MAX_CHARACTERS, InvalidYaml, parse_yaml

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
]


@pytest.mark.parametrize(("text", "data"), READ, ids=[text[:30] for text, _ in READ])
def test_what_the_core_schema_says_is_read(text: str, data: Any) -> None:
    found = parse_yaml(text)
    assert found == data
    assert json.dumps(found) == json.dumps(data), "1 is not True, nor 1.0"


REFUSED: list[tuple[str, str]] = [
    ("a: &x 1\nb: 2", "line 1, column 4: got the anchor &x"),
    ("a: 1\nb: *x", "line 2, column 4: got the alias *x"),
    ("a: &a [x]\nb: &b [*a, *a]\nc: [*b, *b]", "the anchor &a"),
    ("a: {<<: {b: 1}}", "the merge key <<"),
    ("!!python/object/apply:os.system [id]", "the tag tag:yaml.org,2002:python/object/apply:os.system"),
    ("a: !!str 1", "the tag"),
    ("a: ! 1", "the tag !"),
    ("%TAG ! tag:x:\n---\n!a 1", "line 3, column 1: got the tag"),
    ("? [a]\n: 1", "a list or mapping as a key"),
    ("{[a]: 1}", "a list or mapping as a key"),
    ("a: 1\nb: 2\na: 3", "line 3, column 1: got the key 'a' a second time"),
    ("a: 1\n---\nb: 2", "a second document"),
    ("a: .nan", ".nan, which is not JSON"),
    ("a: -.inf", "-.inf, which is not JSON"),
    ("a: 1e999", "1e999, which is beyond what a double holds"),
    ("a: " + "9" * 5000, "a number of 5000 characters"),
    ("a: 0x" + "f" * 5000, "a number of 5002 characters"),
    ("a: [1, 2", "line 1, column 9: "),
    ("a: b: c", "line 1, column 5: mapping values are not allowed here"),
    ("\ta: 1", "line 1, column 1: "),
    ("a: \x00", "unacceptable character"),
    ("a: \x1b[31m", "unacceptable character"),
    ("[" * 65 + "]" * 65, "line 1, column 65: got more than 64 levels"),
    ("[" * 200_000, "got more than 64 levels"),
    ("{a: " * 60_000, "got more than 64 levels"),
    ("- " * 100_000, "got more than 64 levels"),
    ("x" * (MAX_CHARACTERS + 1), "at most 262144 are read"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED, ids=[text[:30] for text, _ in REFUSED])
def test_anything_else_is_refused_with_its_place(text: str, message: str) -> None:
    began = time.monotonic()
    with pytest.raises(InvalidYaml) as refused:
        parse_yaml(text)
    assert message in str(refused.value)
    assert len(str(refused.value)) < 300
    assert time.monotonic() - began < 10


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
    assert str(refused.value).startswith(
        f"{path}: not valid YAML at line 2, column 11: got the alias *shared"
    )
