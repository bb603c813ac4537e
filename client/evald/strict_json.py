"""Parse and write strict JSON. NaN, Infinity, duplicate keys, numbers beyond a double and data above evald's limits are rejected."""

import json
import math
import re
from collections import Counter
from collections.abc import Callable
from itertools import accumulate
from typing import Any, Final, NoReturn


class TooLarge(Exception):
    """The input is larger or deeper than evald reads, so its validity is unknown.

    Not a ValueError, because callers treat a ValueError as "invalid". Evaluators do not catch it; the result is
    then ERROR with code INPUT_TOO_LARGE.
    """


class AmbiguousJson(ValueError):
    """Valid JSON that parsers read in different ways, so that no check of it proves anything."""


class DuplicateKey(AmbiguousJson):
    """An object has a duplicate key. RFC 8259 does not define which one counts, and parsers differ."""


class HugeNumber(AmbiguousJson):
    """A number is beyond a double: parsers read infinity, null or an exact integer."""


# Python 3.11's own decoder counts the frames of its callers too, and ends at about 900; later ones read more.
_MOST_LEVELS: Final = 500
NESTED_TOO_DEEP: Final = f"JSON is nested deeper than the {_MOST_LEVELS} levels that evald reads"


def no_constant(name: str) -> NoReturn:
    """Raise ValueError for NaN and Infinity. For `parse_constant` of a strict decoder."""
    raise ValueError(f"{name} is not JSON")


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs as a dict. Raises DuplicateKey. For `object_pairs_hook` of a strict decoder."""
    found = dict(pairs)
    if len(found) != len(pairs):
        (twice, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise DuplicateKey(f"got a duplicate key {twice[:60]!r}")
    return found


class LevelDecoder(json.JSONDecoder):
    """A decoder of JSON of at most 500 levels, under every Python. Raises RecursionError for more."""

    def raw_decode(self, s: str, idx: int = 0) -> tuple[Any, int]:
        """Decode the value that begins at `idx`. Returns the value and the index where it ends."""
        try:
            value, end = super().raw_decode(s, idx)
        except ValueError as problem:
            # What is invalid is as deep as it was read; of duplicate keys the position is not known.
            _refuse_deep(s, idx, getattr(problem, "pos", len(s)))
            raise
        _refuse_deep(s, idx, end)
        return value, end


def _refuse_deep(text: str, start: int, end: int) -> None:
    if end - start <= _MOST_LEVELS:
        return
    if text.count("[", start, end) + text.count("{", start, end) <= _MOST_LEVELS:
        return
    # Brackets alone: without escapes and then without strings. All in C, because texts may have megabytes.
    data = text[start:end].encode("utf-8", "surrogatepass").replace(b"\\\\", b"").replace(b'\\"', b"")
    data = data.translate(None, _NEITHER_BRACKETS_NOR_QUOTES).replace(b'""', b"")
    outside = b"".join(data.split(b'"')[::2])
    if max(accumulate(map(_STEPS.__getitem__, outside)), default=0) > _MOST_LEVELS:
        raise RecursionError(NESTED_TOO_DEEP)


_NEITHER_BRACKETS_NOR_QUOTES: Final = bytes(set(range(256)) - set(b'[]{}"'))
_STEPS: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}

# Created once: json.loads creates a decoder for each call with options, which is a quarter of the cost.
STRICT_JSON: Final = LevelDecoder(parse_constant=no_constant, object_pairs_hook=unique_keys)


def parse_json(text: str, check: Callable[[], None] | None = None) -> Any:
    """Parse strict JSON, without NaN, Infinity, duplicate keys and numbers beyond a double.

    check: called about every 2 ms while a long text is parsed; may raise to stop.

    Raises ValueError with the problem and its position (AmbiguousJson for a duplicate key or a number beyond a double),
    and TooLarge for too many levels.
    """
    if check is not None and len(text) > _PIECE:
        return _read(_checking(check).decode, text)
    return _read((_FINITE_JSON if _PERHAPS_HUGE.search(text) else STRICT_JSON).decode, text)


def _checking(check: Callable[[], None]) -> json.JSONDecoder:
    """Return a strict decoder that calls `check` between numbers and objects. Other threads can run there, too."""
    read = 0

    def counted(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def called(token: Any) -> Any:
            nonlocal read
            read += 1
            if not read & 1023:
                check()
            return convert(token)

        return called

    return LevelDecoder(
        parse_constant=no_constant,
        object_pairs_hook=counted(unique_keys),
        parse_int=counted(_whole),
        parse_float=counted(_finite),
    )


def parse_json_at(text: str, start: int) -> tuple[Any, int]:
    """Parse the JSON value that begins at `start`. Returns the value and the index where it ends.

    Raises json.JSONDecodeError for invalid JSON, and AmbiguousJson and TooLarge as `parse_json` does.
    """
    found: tuple[Any, int] = _read(_FINITE_JSON.raw_decode, text, start)
    return found


_PIECE: Final = 100_000

# A number beyond a double has an exponent of three digits, or 200 digits before one of two.
_PERHAPS_HUGE: Final = re.compile(r"[0-9][eE]\+?[0-9]{3}|(?<![0-9])[0-9]{200}")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise HugeNumber(f"got the number {_shown(text)}, which is beyond 1.8e308, the limit of a double")
    return number


def _whole(text: str) -> int:
    if len(text) > 300:
        _finite(text)
    return int(text)


def _shown(number: str) -> str:
    return number if len(number) <= 60 else f"{number[:40]}... of {len(number)} characters"


# Not the default, because a decoder that calls Python for each number is slower.
_FINITE_JSON: Final = LevelDecoder(
    parse_constant=no_constant, object_pairs_hook=unique_keys, parse_int=_whole, parse_float=_finite
)


def canonical_json(data: Any) -> str:
    """Return JSON data as text with sorted keys and without white space, so that equal data give equal texts."""
    return json.dumps(data, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def _read(decode: Callable[..., Any], *args: Any) -> Any:
    try:
        return decode(*args)
    except RecursionError:
        raise TooLarge(NESTED_TOO_DEEP) from None
