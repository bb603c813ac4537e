"""The records of a file, with their positions."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from evald.strict_json import LevelDecoder
from evald_server.input_files import read_bytes

# Datasets written with pandas contain NaN for an empty cell.
_DECODER: Final = LevelDecoder(parse_constant=lambda _: None)


class BadCases(ValueError):
    """A file is not a file of labelled cases. The message names the place, the value got and the value wanted."""


class CaseRecord(NamedTuple):
    """One object of a file. place: "FILE:LINE", or "FILE[INDEX]" in a list; number: from 0."""

    place: str
    number: int
    data: Mapping[str, Any]


def read_records(path: Path) -> list[CaseRecord]:
    """Read all records of a file, JSON Lines or a JSON list. NaN becomes null. Raises BadCases."""
    try:
        text = read_bytes(path).decode()
    except OSError as problem:
        raise BadCases(f"{path}: {problem.strerror}") from None
    except UnicodeDecodeError as problem:
        raise BadCases(f"{path}: not UTF-8: {problem.reason} at byte {problem.start}") from None
    if text.lstrip().startswith("["):
        items = _decode(text, str(path))
        found = [CaseRecord(f"{path}[{number}]", number, item) for number, item in enumerate(items)]
    else:
        lines = [(line, place) for place, line in enumerate(text.split("\n"), start=1) if line.strip()]
        found = [
            CaseRecord(f"{path}:{place}", number, _decode(line, f"{path}:{place}"))
            for number, (line, place) in enumerate(lines)
        ]
    if not found:
        raise BadCases(f"{path}: empty; wanted one labelled case per line")
    for record in found:
        if not isinstance(record.data, Mapping):
            raise BadCases(f"{record.place}: got {type(record.data).__name__}, wanted an object")
    return found


def text_at(record: CaseRecord, key: str) -> str:
    """Return the text under a key. Raises BadCases if it is missing or blank."""
    value = record.data.get(key)
    if not isinstance(value, str) or not value.strip():
        raise BadCases(f"{record.place}: {key}: got {json.dumps(value)[:80]}, wanted a string")
    return value


def answer_at(record: CaseRecord, key: str) -> str:
    """Return a text that may be empty.

    pandas reads some texts as booleans or numbers, so these are converted back. Raises BadCases.
    """
    value = record.data.get(key)
    if value is None and key in record.data:
        return ""
    if not isinstance(value, str | bool | int | float):
        raise BadCases(f"{record.place}: {key}: got {json.dumps(value)[:80]}, wanted a string")
    return str(value)


def _decode(text: str, place: str) -> Any:
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as problem:
        where = (
            f"line {problem.lineno}, column {problem.colno}" if "\n" in text else f"column {problem.colno}"
        )
        raise BadCases(f"{place}: not valid JSON at {where}: {problem.msg}") from None
    except RecursionError:
        raise BadCases(f"{place}: nested too deeply") from None
    except ValueError:
        raise BadCases(f"{place}: got a number of more than 4,300 digits, wanted fewer") from None
