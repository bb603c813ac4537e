"""Read callers' data: keys in camelCase or snake_case, validated values, errors with the path."""

import dataclasses
import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from .errors import InvalidInput

if TYPE_CHECKING:
    from google.protobuf.duration_pb2 import Duration

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)s")

INT32_MAX: Final = (1 << 31) - 1

LEAST_WEIGHT: Final = 1e-9
MOST_WEIGHT: Final = 1e9
WEIGHTS: Final = "0, or a number from 1e-9 to 1e9"


def snake(key: str) -> str:
    """Convert `maxMs` and `max-ms` to `max_ms`. Returns keys of more than 64 characters unchanged."""
    return _snake(key) if len(key) <= 64 else key


# At most 1,024 keys of 64 characters: both are limited, because callers choose the keys.
@lru_cache(maxsize=1024)
def _snake(key: str) -> str:
    return _HUMP.sub("_", key).replace("-", "_").lower()


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Return the most similar known name; None if none is similar, or the name is too long to compare."""
    if len(name) > _LONGEST_NAME:
        return None
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=cutoff)), None)


_LONGEST_NAME: Final = 100


def shown(value: Any) -> str:
    """Return a description of a value for an error message, at most one line."""
    if value is None:
        return "got null"
    if isinstance(value, Mapping):
        keys = ", ".join(str(key)[:30] for key in list(value)[:5])
        return f"got an object with {f'the keys {keys}' if keys else 'no keys'}"
    try:
        text = repr(value)
    except ValueError:  # more digits than Python converts
        text = "a number of thousands of digits"
    except RecursionError:
        text = "data nested too deep to show"
    return f"got {text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


def found_and_wanted(error: Mapping[str, Any], *, hidden: bool = False) -> str:
    """Return pydantic's error as text: the value that was found, or its type if hidden, and what was wanted."""
    message = str(error["msg"])
    if error["type"] in ("missing", "twice"):
        return "missing" if error["type"] == "missing" else message
    if error["type"] == "model_type":
        message = "wanted an object"
    elif not message.startswith("wanted "):
        message = f"wanted {message.removeprefix('Input should be ')}"
    value = error["input"]
    return f"{f'got {type(value).__name__}' if hidden else shown(value)}, {message}"


def plain(value: Any) -> Any:
    """Convert a pydantic object or dataclass to plain data, dataclasses one level deep; return others unchanged."""
    if value.__class__ is dict or isinstance(value, str | type):
        return value
    dump = getattr(value, "model_dump", None)
    if dump is not None:
        # Without warnings: `model_dump` of OpenAI's own parsed completions warns.
        try:
            return dump(mode="json", exclude_none=True, warnings=False)
        except (TypeError, ValueError):  # data that are not JSON, for example a tool's artifact
            return dump(exclude_none=True, warnings=False)
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    return value


def join(path: str, key: object) -> str:
    """Return the path of a key below a path."""
    return f"{path}.{key}" if path else str(key)


def read_keys(
    data: Any, known: Mapping[str, str], path: str, *, ignore_unknown: bool = False
) -> dict[str, Any]:
    """Return the values of a mapping by field name, without None values.

    known: field name by key in snake_case.

    Raises InvalidInput if `data` is not a mapping, for an unknown key (with the nearest known one), and for a field
    that is given twice.
    """
    if not isinstance(data, Mapping):
        raise InvalidInput(path, shown(data), "an object")
    found: dict[str, Any] = {}
    for key, value in data.items():
        name = known.get(snake(key)) if isinstance(key, str) else None
        if name is None:
            if ignore_unknown:
                continue
            raise _unknown(path, key, known)
        if value is None:
            continue
        if name in found:
            raise InvalidInput(join(path, key), f"{name} is given twice", "it once")
        found[name] = value
    return found


def _unknown(path: str, key: Any, known: Mapping[str, str]) -> InvalidInput:
    key = str(key)
    near = nearest(snake(key), known)
    if len(key) > _LONGEST_NAME:
        key = f"{key[:_LONGEST_NAME]}..."
    accepted = {name if name in known else spelled for spelled, name in known.items()}
    wanted = f"{near!r}" if near else f"one of {', '.join(sorted(accepted))}"
    return InvalidInput(join(path, key), "unknown key", wanted)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean "maxMs"?` if a known name is similar, else ""."""
    spelled = {snake(one): one for one in known}
    near = nearest(snake(name), spelled)
    return f'; did you mean "{spelled[near]}"?' if near else ""


def schema_keys(schema: Mapping[str, Any], path: Iterable[str | int]) -> list[str]:
    """Return the property names that a JSON Schema declares for the object at a path."""
    at = _branches(schema, schema)
    for part in path:
        below: list[Mapping[str, Any]] = []
        for one in at:
            inner = one.get("items") if isinstance(part, int) else one.get("properties", {}).get(part)
            if inner is None and isinstance(part, str):
                inner = one.get("additionalProperties")
            if isinstance(inner, Mapping):
                below += _branches(inner, schema)
        at = below
    return [key for one in at for key in one.get("properties", ())]


def _branches(schema: Mapping[str, Any], whole: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return a schema and all schemas in its references, anyOf, oneOf and allOf.

    Follows only references in pydantic's form, "#/$defs/NAME".
    """
    found: dict[int, Mapping[str, Any]] = {}
    pending: list[Any] = [schema]
    while pending:
        one = pending.pop()
        if not isinstance(one, Mapping) or id(one) in found:
            continue
        found[id(one)] = one
        reference = one.get("$ref")
        if isinstance(reference, str) and reference.startswith("#/$defs/"):
            pending.append(whole.get("$defs", {}).get(reference.removeprefix("#/$defs/")))
        for keyword in ("anyOf", "oneOf", "allOf"):
            pending += one.get(keyword, ())
    return list(found.values())


def text(value: Any, path: str) -> str:
    """Read a string that UTF-8 can encode. Raises InvalidInput."""
    if not isinstance(value, str):
        raise InvalidInput(path, shown(value), "text")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as problem:
            raise InvalidInput(
                path, f"half of a surrogate pair at position {problem.start}", "text that UTF-8 can carry"
            ) from None
    return value


def flag(value: Any, path: str) -> bool:
    """Read a bool. Raises InvalidInput."""
    if not isinstance(value, bool):
        raise InvalidInput(path, shown(value), "true or false")
    return value


def number(value: Any, path: str, *, unit: str = "") -> float:
    """Read a finite number, 0 or more. Raises InvalidInput."""
    wanted = f"{unit or 'a number'}, 0 or more"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(path, shown(value), wanted)
    if not 0 <= as_double(value) < math.inf:
        raise InvalidInput(path, shown(value), wanted)
    return value


def is_weight(value: float) -> bool:
    """Return whether a weighted mean can be computed with this weight.

    Sums of larger weights are infinite, and shares of smaller weights are rounded to 0 or 1.
    """
    return value == 0 or LEAST_WEIGHT <= value <= MOST_WEIGHT


def weight(value: Any, path: str) -> float:
    """Read a weight. Raises InvalidInput."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not is_weight(value):
        raise InvalidInput(path, shown(value), WEIGHTS)
    return value


def as_double(value: float) -> float:
    """Convert a number to a double; infinity for an int that is too large."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def whole(value: Any, path: str, *, largest: int = (1 << 63) - 1) -> int:
    """Read a whole number from 0 to `largest`; a float such as 3.0 is accepted. Raises InvalidInput."""
    integral = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not integral or not 0 <= value <= largest:
        raise InvalidInput(path, shown(value), f"a whole number from 0 to {largest}")
    return int(value)


def int32(value: Any, path: str) -> int:
    """Read a whole number from 0 to 2**31 - 1. Raises InvalidInput."""
    return whole(value, path, largest=INT32_MAX)


def positive(value: Any, path: str, *, largest: int = (1 << 63) - 1) -> int:
    """Read a whole number from 1 to `largest`. Raises InvalidInput."""
    found = whole(value, path, largest=largest)
    if not found:
        raise InvalidInput(path, shown(value), "1 or more")
    return found


def seconds(value: Any, path: str) -> float:
    """Read seconds: a number, or a duration in protobuf's JSON such as "1.5s". Raises InvalidInput."""
    if isinstance(value, str):
        match = _DURATION.fullmatch(value)
        if not match:
            raise InvalidInput(path, shown(value), 'seconds, as a number or as "1.5s"')
        return float(match[1])
    # 315,576,000,000 s are 10,000 years, the maximum of a protobuf Duration.
    if isinstance(value, int | float) and value > 315_576_000_000:
        raise InvalidInput(path, shown(value), "at most 315576000000 seconds")
    return number(value, path, unit="seconds")


def milliseconds(value: Any, path: str) -> float:
    """Read milliseconds and return them as seconds. Raises InvalidInput."""
    return seconds(number(value, path, unit="milliseconds") / 1000, path)


def duration_to_pb(value: float, pb: "Duration") -> None:
    """Fill a Duration. value: seconds, rounded to nanoseconds."""
    pb.seconds, pb.nanos = divmod(round(value * 1_000_000_000), 1_000_000_000)


def first_of(data: Mapping[str, Any], keys: Sequence[str]) -> Any:
    """Return the value of the first of these keys that is present and not null."""
    return next((data[key] for key in keys if data.get(key) is not None), None)
