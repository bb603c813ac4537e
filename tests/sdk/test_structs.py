"""JSON-like data go into a Struct and come out the same, or are refused with their path."""

from enum import StrEnum
from types import MappingProxyType
from typing import Any

import pytest
from google.protobuf.struct_pb2 import Struct, Value
from hypothesis import given
from hypothesis import strategies as st

from evald.errors import InvalidInput
from evald.structs import dict_to_struct, struct_to_dict, value_to_pb


class Colour(StrEnum):
    RED = "red"


class Ratio(float):
    """As NumPy's float64 is one."""


def filled(data: Any) -> Struct:
    struct = Struct()
    dict_to_struct(data, struct)
    return struct


TEXT = st.text(st.characters(exclude_categories=["Cs"]))
DATA = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(TEXT, DATA, max_size=4))
def test_what_goes_in_comes_out(data: dict[str, Any]) -> None:
    assert struct_to_dict(Struct.FromString(filled(data).SerializeToString())) == data


def test_keys_come_out_in_one_order_whatever_order_they_went_in() -> None:
    """Protobuf's own order is another one in every process."""
    names = [f"key {number}" for number in range(9)]
    data = {name: dict.fromkeys(reversed(names), 1) for name in reversed(names)}
    found = struct_to_dict(filled(data))
    assert list(found) == names
    assert all(list(inner) == names for inner in found.values())


RELATIVES = {
    "tuple": ({"a": (1, 2)}, {"a": [1, 2]}),
    "other mapping": (MappingProxyType({"a": MappingProxyType({"b": 1})}), {"a": {"b": 1}}),
    "str enum": ({"a": Colour.RED}, {"a": "red"}),
    "float subclass": ({"a": Ratio(0.5)}, {"a": 0.5}),
    "empty containers": ({"a": {}, "b": []}, {"a": {}, "b": []}),
}


@pytest.mark.parametrize(("data", "expected"), RELATIVES.values(), ids=RELATIVES.keys())
def test_relatives_of_json_types_are_taken(data: Any, expected: dict[str, Any]) -> None:
    assert struct_to_dict(filled(data)) == expected


REFUSED = {
    "NaN": ({"a": float("nan")}, "a", "got nan"),
    "infinity in a list": ({"a": [1, float("-inf")]}, "a[1]", "got -inf"),
    "an integer beyond every float": ({"a": 10**400}, "a", "got 1000"),
    "bytes": ({"a": {"b": b"x"}}, "a.b", "got b'x' (bytes)"),
    "a set": ({"a": {1}}, "a", "got {1} (set)"),
    "a key that is no text": ({"a": {1: 2}}, "a", "a key is 1 (int)"),
    "a key that UTF-8 cannot carry": ({"\ud83d": 1}, "'\\ud83d'", "surrogate"),
    "text that UTF-8 cannot carry": ({"a": ["\ud83d"]}, "'a'", "surrogate"),
}


@pytest.mark.parametrize(("data", "path", "got"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_not_json_is_refused_with_its_path(data: Any, path: str, got: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        filled(data)
    assert (refused.value.path, got in refused.value.got) == (path, True)


def test_a_value_that_utf8_cannot_carry_is_refused() -> None:
    with pytest.raises(InvalidInput, match="surrogate"):
        value_to_pb(["\ud83d"], Value())


@pytest.mark.parametrize("wrap", [lambda data: {"k": data}, lambda data: [data]], ids=["objects", "lists"])
def test_the_limit_of_levels_is_inclusive(wrap: Any) -> None:
    data: Any = 0
    for _ in range(31):
        data = wrap(data)
    filled({"top": data})
    with pytest.raises(InvalidInput, match="nested too deep; wanted at most 32 levels"):
        filled({"top": wrap(data)})


def test_endless_data_are_refused_and_not_followed() -> None:
    endless: dict[str, Any] = {}
    endless["again"] = endless
    with pytest.raises(InvalidInput, match="nested too deep"):
        filled(endless)
