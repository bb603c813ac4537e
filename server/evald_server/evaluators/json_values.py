"""JSON values: equality, paths into them, and their text in a reason."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from math import isfinite, ulp
from typing import Annotated, Any, Final

from pydantic import AfterValidator

from evald_server.untrusted import encodable, shorten

CheckTime = Callable[[], None]
"""Called in long loops: `EvaluatorContext.check_time`, which raises when the time is used up."""

ANY: Final = "*"
"""A path step that matches every key and index."""

_STEP = re.compile(r"\[(\d+|\*)\]|\.?([^.\[\]]+)")


class _Missing:
    __slots__ = ()

    def __repr__(self) -> str:
        return "nothing"


MISSING: Final = _Missing()
"""The result of a lookup without a value; null is a value."""


def within(got: float, wanted: float, tolerance: float, *, relative: bool = False) -> bool:
    """Return whether |got - wanted| <= tolerance, or tolerance * |wanted| if `relative` and wanted is not 0.

    Up to binary rounding, because 1.1 - 1.0 > 0.1; whole numbers are subtracted exactly, because two card numbers may
    differ by less than the rounding of the larger.
    """
    try:
        if not isfinite(got) or not isfinite(wanted):  # 1e999 is JSON
            return got == wanted
        limit = tolerance * abs(wanted) if relative and wanted else tolerance
        if not got % 1 and not wanted % 1:
            return abs(int(got) - int(wanted)) <= limit + 4 * ulp(limit)
        return abs(got - wanted) <= limit + 4 * ulp(max(abs(got), abs(wanted), limit))
    except OverflowError:  # an integer of more than 308 digits and a float
        return False


def is_number(value: object) -> bool:
    """Return whether the value is a JSON number; true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


CHECK_EVERY: Final = 256
"""Number of values that `equal` compares between two checks of the time."""


def unlimited() -> None:
    """No-op for `check`: no time limit."""


def equal(
    got: object, wanted: object, tolerance: float = 0, check: CheckTime = unlimited, *, partial: bool = False
) -> bool:
    """Return whether two JSON values are equal: 1 equals 1.0, true does not equal 1, key order is ignored.

    tolerance: largest difference allowed between two numbers at any depth. check: called regularly, may raise.
    partial: objects of `got` may have more keys.
    """
    # Python's equality is less strict (True == 1), so values that differ in Python differ here too.
    if not tolerance and not partial and got != wanted:
        return False
    if not isinstance(wanted, dict | list):
        return _equal_leaves(got, wanted, tolerance)
    open_pairs: list[Iterator[tuple[object, object]]] = [iter([(got, wanted)])]
    count = 0
    while open_pairs:
        for mine, known in open_pairs[-1]:
            count += 1
            if not count % CHECK_EVERY:
                check()
            if isinstance(known, dict):
                if not isinstance(mine, dict) or not (
                    known.keys() <= mine.keys() if partial else known.keys() == mine.keys()
                ):
                    return False
                open_pairs.append(_same_keys(mine, known))
                break
            if isinstance(known, list):
                if not isinstance(mine, list) or len(mine) != len(known):
                    return False
                open_pairs.append(zip(mine, known, strict=True))
                break
            if not _equal_leaves(mine, known, tolerance):
                return False
        else:
            open_pairs.pop()
    return True


def _same_keys(got: dict[str, Any], wanted: dict[str, Any]) -> Iterator[tuple[object, object]]:
    return ((got[key], value) for key, value in wanted.items())


def _equal_leaves(got: object, wanted: object, tolerance: float) -> bool:
    if is_number(wanted):
        return is_number(got) and (got == wanted or (bool(tolerance) and within(got, wanted, tolerance)))  # type: ignore[arg-type]
    return type(got) is type(wanted) and got == wanted


Path = tuple[str | int, ...]


def parse_path(text: str) -> Path:
    """Parse a path: "items[0].name", "items.0.name" or the JSON Pointer "/items/0/name".

    `*` matches every key or index. Raises ValueError for an invalid path.
    """
    if text.startswith("/"):
        return tuple(step.replace("~1", "/").replace("~0", "~") for step in text[1:].split("/"))
    steps: list[str | int] = []
    position = 0
    while position < len(text):
        found = _STEP.match(text, position)
        if found is None or text[0] == ".":
            raise ValueError(f"got {text!r}, wanted a path such as 'items[0].name' or '/items/0/name'")
        index, key = found.groups()
        steps.append(key if key is not None else ANY if index == ANY else int(index))
        position = found.end()
    if not steps:
        raise ValueError("got an empty text, wanted a path such as 'items[0].name' or '/items/0/name'")
    return tuple(steps)


def parse_place(text: str) -> Path:
    """Parse a path to one place. Also raises ValueError for `*`, for which `lookup` finds nothing."""
    path = parse_path(text)
    if ANY in path:
        raise ValueError(
            f"got {text!r}, wanted a path without *, which matches several values; for example 'items[0].name'"
        )
    return path


MAX_PATH: Final = 1000


def _checked(text: str, parse: Callable[[str], Path]) -> str:
    if len(text) > MAX_PATH:
        raise ValueError(f"got a path of {len(text)} characters, wanted at most {MAX_PATH}")
    parse(text)
    return text


PathText = Annotated[str, AfterValidator(lambda text: _checked(text, parse_path))]
"""A path in a config."""

PlaceText = Annotated[str, AfterValidator(lambda text: _checked(text, parse_place))]
"""A path in a config that leads to one place."""


def lookup(data: object, path: Path) -> Any:
    """Return the value at a path of `parse_place`, or MISSING."""
    for step in path:
        if isinstance(data, dict):
            data = data.get(str(step), MISSING)
        elif isinstance(data, list):
            index = int(step) if isinstance(step, int) or step.isdecimal() else len(data)
            data = data[index] if index < len(data) else MISSING
        else:
            return MISSING
    return data


def covers(pattern: Path, place: Sequence[str | int]) -> bool:
    """Return whether a path with `*` steps matches this place."""
    return len(pattern) == len(place) and all(
        wanted == ANY or str(wanted) == str(step) for wanted, step in zip(pattern, place, strict=True)
    )


_MAX_SHOWN: Final = 80
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, default=str)


def shown(value: object) -> str:
    """Return the value as JSON, cut to 80 characters."""
    if value is MISSING:
        return "nothing"
    if isinstance(value, str):
        value = value[: _MAX_SHOWN + 1]  # avoids encoding all of a long text
    if value is None or isinstance(value, str | int | float):
        text = json.dumps(value, ensure_ascii=False)
    else:
        text = ""
        for piece in _ENCODER.iterencode(value):  # stops at the limit, to skip a large rest
            text += piece
            if len(text) > _MAX_SHOWN:
                break
    return shorten(encodable(text), _MAX_SHOWN)
