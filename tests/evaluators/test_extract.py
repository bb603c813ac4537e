"""Which JSON of an answer is read, and arguments of tool calls that are none."""

import json
from typing import Any

import pytest

from evald.result import Verdict

from .contexts import answered, calls, context
from .engine import evaluate

PASSED, FAILED, ERROR = Verdict.PASSED, Verdict.FAILED, Verdict.ERROR
CITY = {"type": "object", "required": ["city"]}


@pytest.mark.parametrize(
    ("answer", "schema", "matches"),
    [
        ('Draft {"note": 1}, final {"city": "Oslo"}', CITY, True),
        ('[{"note": 1}, {"city": "Oslo"}]', CITY, True),
        ('[[1, {"city": "Oslo"}]] and {"a": 1}', CITY, True),
        ('{"note": 1} {broken} {"city": 1', CITY, False),
        ('{"a": {"city": "Oslo"}}', CITY, False),
        ("none at all", CITY, False),
        ("[1, 2]", CITY, False),
        # Without a type, an array would match by chance: the [1] of a reference is no answer.
        ('As in [1]: {"note": 1}', {"required": ["city"]}, False),
        ('As in [1]: ["Oslo"]', {"type": "array", "items": {"type": "string"}}, True),
        ('["{\\"city\\": 1}"]', CITY, False),
        ('{"note": 1}\n```json\n{"city": "Oslo"}\n```', CITY, True),
    ],
)
def test_any_object_that_the_schema_accepts_is_enough(answer: str, schema: Any, matches: bool) -> None:
    spec = {"type": "json-schema", "config": {"schema": schema, "extract": "any"}}
    assert evaluate([spec], answered(answer)).verdict == (PASSED if matches else FAILED)
    assert evaluate([{**spec, "negate": True}], answered(answer)).verdict == (FAILED if matches else PASSED)


def test_an_object_with_a_key_twice_leaves_open_whether_one_matches() -> None:
    spec = {"type": "json-schema", "config": {"schema": CITY, "extract": "any"}}
    twice = '{"note": 1, "note": 2} {"city": "Oslo"}'
    assert evaluate([spec], answered(twice)).verdict == FAILED
    assert evaluate([{**spec, "negate": True}], answered(twice)).verdict == ERROR
    assert evaluate([spec], answered('{"city": "Oslo"} {"note": 1, "note": 2}')).verdict == PASSED


@pytest.mark.parametrize(
    "block",
    [
        '```json\n{"city": 1}\n```',
        ' ```json\n {"city": 1}\n ```',
        '   ~~~~ JSON\n{"city": 1}\n  ~~~~~~',
        '````\n{"city": "```"}\n````',
        '```json title="a"\r\n{"city": 1}\r\n```\r\n',
        '~~~`json`\n{"city": 1}\n~~~  ',
        '```text\n{"no": 1}\n```\n  ```json\n{"city": 1}\n  ```',
        '```json\n{"city": 1}',
        '1. So:\n\n    ```json\n    {"city": 1}\n    ```',
    ],
)
def test_a_fenced_block_is_read_as_commonmark_reads_it(block: str) -> None:
    spec = {"type": "json-schema", "config": {"schema": CITY, "extract": "fenced"}}
    assert evaluate([spec], answered(f"Here:\n{block}\nDone.")).verdict == (
        PASSED if block.rstrip()[-1] in "`~" else FAILED
    )


NONE = ["", "  ", "null", '""', '"null"', "{}", '"{}"']


@pytest.mark.parametrize("made", NONE)
@pytest.mark.parametrize("wanted", NONE)
def test_no_arguments_are_the_same_however_they_are_written(made: str, wanted: str) -> None:
    for mode in ("exact", "subset", "superset"):
        spec = {"type": "trajectory", "config": {"mode": "exact", "argsMatch": mode}}
        ctx = context([_call(made)], expected_messages=[_call(wanted)])
        assert evaluate([spec], ctx).verdict == PASSED
        rule = {"name": "book", "args": {}, "argsMatch": mode}
        ctx = context([_call(made)])
        assert evaluate([{"type": "tool-use", "config": {"expectations": [rule]}}], ctx).verdict == PASSED
        rule["args"] = {"a": 1}
        differs = evaluate([{"type": "tool-use", "config": {"expectations": [rule]}}], ctx).verdict
        assert differs == (PASSED if mode == "subset" else FAILED)


def _call(arguments: str) -> dict[str, Any]:
    message = json.loads(json.dumps(calls("book")))
    message["tool_calls"][0]["function"]["arguments"] = arguments
    return message
