"""Reading data that somebody else made: keys in camelCase or snake_case, values checked with their path."""

import dataclasses
import difflib
import math
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from .errors import InvalidInput

if TYPE_CHECKING:
    from google.protobuf.duration_pb2 import Duration

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)s")


def snake(key: str) -> str:
    """`maxMs`, `max-ms` and `max_ms` as `max_ms`. Longer keys than any of ours stay as they are."""
    return _snake(key) if len(key) <= 64 else key


# 1,024 keys of 64 characters: bounded both ways, because keys come from outside.
@lru_cache(maxsize=1024)
def _snake(key: str) -> str:
    return _HUMP.sub("_", key).replace("-", "_").lower()


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known name that was probably meant; None when no one is like it, or when it is too long to look."""
    if len(name) > _LONGEST_NAME:
        return None
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=cutoff)), None)


_LONGEST_NAME: Final = 100


def shown(value: Any) -> str:
    """What a value is, for an error message: never more than a line of it."""
    if value is None:
        return "got null"
    if isinstance(value, Mapping):
        keys = ", ".join(str(key)[:30] for key in list(value)[:5])
        return f"got an object with {f'the keys {keys}' if keys else 'no keys'}"
    text = repr(value)
    return f"got {text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


def plain(value: Any) -> Any:
    """An object of a library as plain data, its own values perhaps still objects; anything else as it is."""
    if value.__class__ is dict or isinstance(value, str | type):
        return value
    dump = getattr(value, "model_dump", None)
    if dump is not None:
        # Without warnings: OpenAI's own parsed completions warn when they are dumped.
        try:
            return dump(mode="json", exclude_none=True, warnings=False)
        except (TypeError, ValueError):  # data that JSON cannot hold, for example a tool's artifact
            return dump(exclude_none=True, warnings=False)
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    return value


def join(path: str, key: object) -> str:
    """The path of a key below a path."""
    return f"{path}.{key}" if path else str(key)


def read_keys(
    data: Any, known: Mapping[str, str], path: str, *, ignore_unknown: bool = False
) -> dict[str, Any]:
    """The values under their fields' names; keys whose value is None are left out.

    known: field by key in snake_case. Raises InvalidInput for what is no
    mapping, for a key that is not known (naming the nearest one), and for a
    field that is given twice.
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
    wanted = f"{near!r}" if near else f"one of {', '.join(sorted(set(known.values())))}"
    return InvalidInput(join(path, key), "unknown key", wanted)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean "maxMs"?` for a name that is nearly one of those known, else ""."""
    spelled = {snake(one): one for one in known}
    near = nearest(snake(name), spelled)
    return f'; did you mean "{spelled[near]}"?' if near else ""


def schema_keys(schema: Mapping[str, Any], path: Iterable[str | int]) -> list[str]:
    """The keys that a JSON Schema of pydantic's knows for the object at a path; empty when none are named there."""
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
    """What a schema says, references and the branches of a union followed."""
    reference = schema.get("$ref", "")
    if reference:
        return _branches(whole["$defs"][reference.rpartition("/")[2]], whole)
    inner = [*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())]
    return [schema, *(branch for one in inner for branch in _branches(one, whole))]


def text(value: Any, path: str) -> str:
    """A string that UTF-8 can carry."""
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
    """True or false."""
    if not isinstance(value, bool):
        raise InvalidInput(path, shown(value), "true or false")
    return value


def number(value: Any, path: str, *, unit: str = "") -> float:
    """A finite number, 0 or more."""
    wanted = f"{unit or 'a number'}, 0 or more"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(path, shown(value), wanted)
    if not 0 <= value < math.inf:
        raise InvalidInput(path, shown(value), wanted)
    return value


def whole(value: Any, path: str, *, largest: int = (1 << 63) - 1) -> int:
    """A whole number from 0 to `largest`; a float such as 3.0 will do."""
    integral = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not integral or not 0 <= value <= largest:
        raise InvalidInput(path, shown(value), f"a whole number from 0 to {largest}")
    return int(value)


def seconds(value: Any, path: str) -> float:
    """Seconds, as a number or as protobuf writes a duration in JSON: "1.5s"."""
    if isinstance(value, str):
        match = _DURATION.fullmatch(value)
        if not match:
            raise InvalidInput(path, shown(value), 'seconds, as a number or as "1.5s"')
        return float(match[1])
    # 315,576,000,000 s: 10,000 years, the most that a protobuf Duration holds.
    if isinstance(value, int | float) and value > 315_576_000_000:
        raise InvalidInput(path, shown(value), "at most 315576000000 seconds")
    return number(value, path, unit="seconds")


def duration_to_pb(value: float, pb: "Duration") -> None:
    """Fill a Duration with seconds, to the nanosecond."""
    pb.seconds, pb.nanos = divmod(round(value * 1_000_000_000), 1_000_000_000)
