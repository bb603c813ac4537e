"""Convert JSON-like Python data to protobuf's Struct and Value and back.

It runs for the metadata of every result, so it checks exact classes first and creates no intermediate copies.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, overload

from .errors import InvalidInput, errors_below
from .fields import shown

if TYPE_CHECKING:
    from google.protobuf.duration_pb2 import Duration
    from google.protobuf.struct_pb2 import Struct, Value

Item = TypeVar("Item")
Element_co = TypeVar("Element_co", covariant=True)


class RepeatedField(Protocol[Element_co]):
    """A repeated field of messages. protobuf has no public name for its type."""

    def add(self) -> Element_co:
        """Append an empty message and return it."""

    def __iter__(self) -> Iterator[Element_co]: ...

    def __len__(self) -> int: ...

    @overload
    def __getitem__(self, index: int) -> Element_co: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Element_co]: ...

    def __delitem__(self, index: int) -> None: ...


# protobuf parses a Struct with up to 33 levels; the service guarantees one less.
MAX_DEPTH: Final = 32

# Whole numbers up to this one are doubles.
_EXACT: Final = 1 << 53


def dict_to_struct(data: Mapping[str, Any], struct: "Struct") -> None:
    """Fill an empty Struct with JSON-like data: text, numbers, bools, None, lists, tuples and mappings.

    Integers beyond 2**53 lose precision, as in every Struct. Raises InvalidInput for NaN, infinity, other types,
    keys that are not text, and too many levels.
    """
    fill_fields(data, struct.fields, MAX_DEPTH)


def fill_struct(data: Any, struct: "Struct", path: str) -> None:
    """Fill an empty Struct with a caller's argument. Raises InvalidInput with a path below `path`."""
    if not isinstance(data, Mapping):
        raise InvalidInput(path, shown(data), "an object")
    with errors_below(path):
        dict_to_struct(data, struct)


def value_to_pb(data: Any, pb: "Value") -> None:
    """Fill a Value with JSON-like data. Errors as in `dict_to_struct`."""
    try:
        _fill_value(data, pb, MAX_DEPTH)
    except UnicodeEncodeError:
        raise _not_utf8("") from None


def _not_utf8(path: str) -> InvalidInput:
    return InvalidInput(path, "half of a surrogate pair", "text that UTF-8 can carry")


def _too_deep() -> InvalidInput:
    return InvalidInput("", "nested too deep", f"at most {MAX_DEPTH} levels")


def fill_fields(data: Mapping[str, Any], fields: Any, levels: int) -> None:
    """Fill the fields of a Struct. levels: maximum levels, including the mapping itself. Raises InvalidInput."""
    if levels < 1:
        raise _too_deep()
    for key, value in data.items():
        if not isinstance(key, str):
            raise InvalidInput("", f"a key is {shown(key).removeprefix('got ')}", "text")
        try:
            _fill_value(value, fields[key], levels - 1)
        except InvalidInput as problem:
            raise problem.below(key) from None
        except UnicodeEncodeError:
            raise _not_utf8(ascii(key)) from None


def _fill_value(value: Any, pb: Any, levels: int) -> None:
    # By exact class first: this runs for every value of every result's metadata.
    kind = value.__class__
    if kind is str:
        pb.string_value = value
    elif kind is bool:
        pb.bool_value = value
    elif kind is int or kind is float:
        _fill_number(value, pb)
    elif value is None:
        pb.null_value = 0
    elif kind is dict:
        pb.struct_value.SetInParent()
        fill_fields(value, pb.struct_value.fields, levels)
    elif kind is list or kind is tuple:
        _fill_list(value, pb.list_value, levels)
    else:
        _fill_relative(value, pb, levels)


def _fill_relative(value: Any, pb: Any, levels: int) -> None:
    """Fill a Value from a subclass or another mapping: str enums, NumPy's float64, non-dict mappings."""
    if isinstance(value, str):
        pb.string_value = str.__str__(value)
    elif isinstance(value, int | float):
        _fill_number(float(value), pb)
    elif isinstance(value, Mapping):
        pb.struct_value.SetInParent()
        fill_fields(value, pb.struct_value.fields, levels)
    elif isinstance(value, list | tuple):
        _fill_list(value, pb.list_value, levels)
    else:
        raise InvalidInput("", shown(value), "JSON-like data")


def _fill_number(value: float, pb: Any) -> None:
    try:
        finite = math.isfinite(value)
    except OverflowError:
        finite = False
    if not finite:
        raise InvalidInput("", shown(value), "a finite number")
    pb.number_value = value


def _fill_list(items: Sequence[Any], pb: Any, levels: int) -> None:
    if levels < 1:
        raise _too_deep()
    pb.SetInParent()
    add = pb.values.add
    for index, item in enumerate(items):
        try:
            _fill_value(item, add(), levels - 1)
        except InvalidInput as problem:
            raise problem.below(f"[{index}]") from None


def check_exact(data: Any, path: str) -> None:
    """Raise InvalidInput for a whole number that becomes another one in a Struct: it would be compared with answers.

    data: JSON-like, as deep as a Struct at most.
    """
    if isinstance(data, Mapping):
        for key, value in data.items():
            check_exact(value, f"{path}.{key}")
    elif isinstance(data, list | tuple):
        for index, value in enumerate(data):
            check_exact(value, f"{path}[{index}]")
    elif isinstance(data, int) and abs(data) > _EXACT and int(float(data)) != data:
        raise InvalidInput(path, f"{shown(data)}, which a double does not hold", "fewer digits, or text")


def check_levels(value: Any, levels: int) -> None:
    """Raise InvalidInput if the data have more levels. The recursion has the same limit."""
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return
    if levels < 1:
        raise _too_deep()
    for item in value:
        check_levels(item, levels - 1)


def struct_to_dict(struct: "Struct", check: Callable[[], None] | None = None) -> dict[str, Any]:
    """Convert a Struct to Python data. Whole numbers become int, because a Struct contains only doubles.

    check: as in `value_to_python`. Keys are in the order of their code points: protobuf does not keep an order, and
    returns them in a different one in every process, which reasons and prompts made of them would show.
    """
    items: Iterable[tuple[str, Value]] = sorted(struct.fields.items(), key=itemgetter(0))
    if check is not None:
        items = _checking(items, check)
    return {key: value_to_python(value, check) for key, value in items}


def _checking(items: Iterable[Item], check: Callable[[], None]) -> Iterator[Item]:
    for count, item in enumerate(items):
        if not count & 127:
            check()
        yield item


def value_to_python(value: "Value", check: Callable[[], None] | None = None) -> Any:
    """Convert a protobuf Value to Python data. check: called regularly; may raise to stop."""
    kind = value.WhichOneof("kind")
    if kind == "number_value":
        number = value.number_value
        return int(number) if number.is_integer() else number
    if kind == "string_value":
        return value.string_value
    if kind == "bool_value":
        return value.bool_value
    if kind == "struct_value":
        return struct_to_dict(value.struct_value, check)
    if kind == "list_value":
        items: Iterable[Value] = value.list_value.values
        if check is not None:
            items = _checking(items, check)
        return [value_to_python(item, check) for item in items]
    return None


def duration_ms(duration: "Duration") -> float:
    """Convert a Duration to milliseconds."""
    return duration.seconds * 1000 + duration.nanos / 1_000_000


def duration_seconds(duration: "Duration") -> float:
    """Convert a Duration to seconds."""
    return duration.seconds + duration.nanos / 1e9
