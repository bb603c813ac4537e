"""Parse and write strict JSON. NaN, Infinity, duplicate keys and data above evald's limits are rejected."""

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


class DuplicateKey(ValueError):
    """An object has a duplicate key. RFC 8259 does not define which one counts, and parsers differ."""


# Python 3.11's own decoder counts the frames of its callers too, and ends at about 900; later ones read more.
_MOST_LEVELS: Final = 500
NESTED_TOO_DEEP: Final = f"JSON is nested deeper than the {_MOST_LEVELS} levels that evald reads"
_TOO_MANY_DIGITS: Final = "JSON has a number of more than 4,300 digits, which is more than evald reads"


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
    """Parse strict JSON, without NaN, Infinity and duplicate keys.

    check: called about every 2 ms while a long text is parsed; may raise to stop.

    Raises ValueError with the problem and its position (DuplicateKey for a duplicate key), and TooLarge for too many
    levels or digits of a number.
    """
    decoder = STRICT_JSON if check is None or len(text) <= _PIECE else _checking(check)
    return _read(decoder.decode, text)


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
        parse_int=counted(int),
        parse_float=counted(float),
    )


def parse_json_at(text: str, start: int) -> tuple[Any, int]:
    """Parse the JSON value that begins at `start`. Returns the value and the index where it ends.

    Raises json.JSONDecodeError for invalid JSON, and DuplicateKey and TooLarge as `parse_json` does.
    """
    found: tuple[Any, int] = _read(STRICT_JSON.raw_decode, text, start)
    return found


def refuse_huge_numbers(text: str, check: Callable[[], None]) -> None:
    """Raise TooLarge for JSON with a number beyond a double, which decoders read as infinity.

    text: valid JSON. check: called about every 2 ms; may raise to stop.
    """
    for start in range(0, len(text), _PIECE):
        if start:
            check()
        if _PERHAPS_HUGE.search(text, start, start + _PIECE + 400):
            _read(_FINITE_JSON.decode, text)
            return


_PIECE: Final = 100_000
_PERHAPS_HUGE: Final = re.compile(r"[0-9](?:[eE]\+?[0-9]{3}|[0-9]{308})")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise TooLarge("JSON has a number beyond 1.8e308, which is more than evald reads")
    return number


_FINITE_JSON: Final = LevelDecoder(parse_float=_finite)


def canonical_json(data: Any) -> str:
    """Return JSON data as text with sorted keys and without white space, so that equal data give equal texts."""
    return json.dumps(data, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def _read(decode: Callable[..., Any], *args: Any) -> Any:
    try:
        return decode(*args)
    except RecursionError:
        raise TooLarge(NESTED_TOO_DEEP) from None
    except ValueError as problem:
        if "integer string conversion" in str(problem):
            raise TooLarge(_TOO_MANY_DIGITS) from None
        raise
