from typing import Any

import pytest

from evald_server.evaluators.json_values import (
    MISSING,
    covers,
    equal,
    lookup,
    parse_path,
    shown,
    within,
)
from evald_server.jsonschema.check import json_pointer


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("a", ("a",)),
        ("a.b", ("a", "b")),
        ("items[0].name", ("items", 0, "name")),
        ("items.0.name", ("items", "0", "name")),
        ("[0][1]", (0, 1)),
        ("items[*].id", ("items", "*", "id")),
        ("/items/0/a~1b~0c", ("items", "0", "a/b~c")),
        ("with space.$x-y", ("with space", "$x-y")),
    ],
)
def test_a_path_is_read_into_steps(text: str, steps: tuple[str | int, ...]) -> None:
    assert parse_path(text) == steps


@pytest.mark.parametrize("text", ["", ".a", "a..b", "a[", "a[x]", "a.", "]"])
def test_what_is_no_path_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="path"):
        parse_path(text)


DATA = {"items": [{"id": 1}, {"id": None}], "0": "zero", "a/b": {"": 5}}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("items[0].id", 1),
        ("items.1.id", None),
        ("items[2].id", MISSING),
        ("items[0].name", MISSING),
        ("items.x", MISSING),
        ("items[0].id.deeper", MISSING),
        ("[0]", "zero"),
        ("/a~1b/", 5),
    ],
)
def test_a_path_leads_to_a_value_or_to_nothing(path: str, value: Any) -> None:
    assert lookup(DATA, parse_path(path)) is value or lookup(DATA, parse_path(path)) == value


@pytest.mark.parametrize(
    ("pattern", "place", "covered"),
    [
        ("a", ("a",), True),
        ("a", ("a", "b"), False),
        ("items[*].id", ("items", 3, "id"), True),
        ("items.0.id", ("items", 0, "id"), True),
        ("*.id", ("any", "id"), True),
        ("*", (), False),
    ],
)
def test_a_star_covers_every_key_and_index(pattern: str, place: tuple[str | int, ...], covered: bool) -> None:
    assert covers(parse_path(pattern), place) is covered


@pytest.mark.parametrize(
    ("got", "wanted", "tolerance", "same"),
    [
        ({"a": 1, "b": [1]}, {"b": [1], "a": 1.0}, 0, True),
        (True, 1, 0, False),
        ([0], [False], 0, False),
        ([False], [0], 0, False),
        ({"a": {"b": True}}, {"a": {"b": 1}}, 0, False),
        (None, 0, 0, False),
        ("1", 1, 0, False),
        ([1, 2], [1], 0, False),
        ([1.05], [1], 0.05, True),
        ([1.06], [1], 0.05, False),
        ("1.05", "1", 0.5, False),
        (10**400, 10**400, 1, True),
        (10**400, 1.5, 1, False),
        (float("inf"), 1, 1, False),
        (1, float("inf"), 1, False),
        (float("inf"), float("inf"), 1, True),
    ],
)
def test_equality_is_that_of_json(got: Any, wanted: Any, tolerance: float, same: bool) -> None:
    assert equal(got, wanted, tolerance) is same


def test_a_limit_is_inclusive_in_spite_of_rounding() -> None:
    assert within(1.1, 1.0, 0.1)
    assert not within(1.1000001, 1.0, 0.1)
    assert within(110, 100, 0.1, relative=True)
    assert not within(110.001, 100, 0.1, relative=True)
    assert within(0.1, 0, 0.1, relative=True)
    assert not within(1.0000000001, 1.0, 0)
    assert not within(1234567891, 1234567890, 0.5)
    assert not within(12345678901.5, 12345678900, 0.5)
    assert not within(10**17 + 1, 10**17 + 2, 0.5)
    assert not within(4111111111111112, 4111111111111111.0, 0)


def test_a_value_is_shown_short_and_printable() -> None:
    assert shown({"a": "\u00fc"}) == '{"a": "\u00fc"}'
    assert shown("\ud800") == '"\\ud800"'
    assert len(shown("x" * 1_000_000)) == 80
    assert shown(MISSING) == "nothing"


def test_a_place_is_shown_as_a_json_pointer() -> None:
    assert json_pointer(("a/b", 0, "~")) == "/a~1b/0/~0"
    assert json_pointer(()) == ""
