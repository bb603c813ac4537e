"""Reads YAML and JSON as plain data that JSON can represent, with the line of every value.

YAML is read by the core schema of YAML 1.2. Tags are refused, because they create objects. Anchors, aliases and
merge keys are limited, because a few lines of them can expand to gigabytes. The module uses the events of
ruamel.yaml's Python parser: they carry line numbers, and deep nesting cannot overflow the stack.
"""

import csv
import json
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)
from ruamel.yaml.reader import ReaderError

from evald.strict_json import STRICT_JSON

from ..input_files import MAX_BYTES, TOO_LONG, read_bytes

# Limit of YAML: about 2,000 cases, which take about 10 seconds to parse.
MAX_CHARACTERS: Final = 1 << 20
# More levels than a config may have.
MAX_DEPTH: Final = 64
# Number of values with every alias expanded. The longest text without aliases holds fewer.
MAX_VALUES: Final = 1 << 20

DataPath: TypeAlias = tuple[str | int, ...]
"""The path of a value: keys and indexes from the root."""

_CONSTANTS: Final = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_DECIMAL: Final = re.compile(r"[-+]?[0-9]+")
_OTHER_BASE: Final = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_JSON: Final = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
# Python refuses to convert more than 4,300 digits; a double has at most 309.
_MOST_DIGITS: Final = 300
_JSON_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s\[\]{},:"]+')


def path_text(path: Sequence[str | int]) -> str:
    """Return a path as text, such as `turns[1].output`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


class InvalidDocument(ValueError):
    """The error of an invalid document. Its text is FILE:LINE:COLUMN and the message."""

    def __init__(self, file: str, line: int, message: str, column: int = 0) -> None:
        self.file = file
        self.line = line
        self.message = message
        self.column = column
        place = f":{line}:{column}" if column else f":{line}" if line else ""
        super().__init__(f"{file}{place}: {message}")

    @property
    def problems(self) -> "Sequence[InvalidDocument]":
        """All known problems of the document, as errors."""
        return [self]


class UnreadableFile(InvalidDocument):
    """The error of a file that cannot be read at all, not only one of its rows."""


class InvalidDocuments(InvalidDocument):
    """Several errors of one or more documents: a line of text for each. Its attributes are those of the first."""

    def __init__(self, problems: "Sequence[InvalidDocument]") -> None:
        first = problems[0]
        super().__init__(first.file, first.line, first.message, first.column)
        self._problems = problems

    def __str__(self) -> str:
        return "\n".join(map(str, self._problems))

    @property
    def problems(self) -> "Sequence[InvalidDocument]":
        """All known problems, as errors."""
        return self._problems


class Document(NamedTuple):
    """A parsed document. lines: the line of every value by its path; in a mapping, the line of its key.

    files: by path, the files of values that are not from `file`.
    """

    data: Any
    lines: Mapping[DataPath, int]
    file: str
    files: Mapping[DataPath, str] = {}

    def line(self, path: DataPath) -> int:
        """Return the line of a path, or of its nearest parent that has one."""
        return self.lines.get(self._known(path), 1)

    def place(self, path: DataPath) -> tuple[str, int]:
        """Return the file and the line of a path, or of its nearest parent that has them."""
        known = self._known(path)
        return self.files.get(known, self.file), self.lines.get(known, 1)

    def _known(self, path: DataPath) -> DataPath:
        while path and path not in self.lines:
            path = path[:-1]
        return path


def read_document(path: Path) -> Document:
    """Read a `.json` file as JSON, any other as YAML. Raises InvalidDocument if it cannot be read or parsed."""
    name = str(path)
    text = read_text(path)
    return parse_json_document(text, name) if path.suffix == ".json" else parse_yaml(text, name)


def read_text(path: Path) -> str:
    """Read a text file in UTF-8. Raises InvalidDocument."""
    try:
        data = read_bytes(path)
    except OSError as problem:
        raise InvalidDocument(str(path), 0, problem.strerror or "cannot be read") from None
    return decode(data, str(path))


def decode(data: bytes, file: str) -> str:
    """Decode UTF-8, with or without a byte order mark. Raises InvalidDocument."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        before = data[: problem.start]
        line, column = before.count(b"\n") + 1, problem.start - before.rfind(b"\n")
        raise InvalidDocument(file, line, f"not UTF-8: {problem.reason}", column) from None


def parse_json_document(text: str, file: str) -> Document:
    """Parse JSON. Raises InvalidDocument, also for a duplicate key and for NaN."""
    return Document(parse_json_text(text, file), _json_lines(text), file)


def parse_json_text(text: str, file: str, line: int = 1) -> Any:
    """Parse JSON. line: the line of the file where the text begins. Raises InvalidDocument."""
    try:
        return STRICT_JSON.decode(text)
    except json.JSONDecodeError as problem:
        message = f"not valid JSON: {problem.msg}"
        raise InvalidDocument(file, line + problem.lineno - 1, message, problem.colno) from None
    except RecursionError:
        raise InvalidDocument(file, line, "not valid JSON: nested too deep") from None
    except ValueError as problem:
        raise InvalidDocument(file, line, f"not valid JSON: {problem}") from None


def json_array_items(text: str) -> list[tuple[int, str]] | None:
    """Return the line and the text of each item of a JSON array, which need not be valid JSON; None for another text."""
    items: list[tuple[int, str]] = []
    levels = line = 0
    start = counted = 0
    for token in _JSON_TOKEN.finditer(text):
        mark = token[0]
        if levels == 0 and (items or start or mark != "["):
            return None  # something before or after the array
        levels += (mark in ("[", "{")) - (mark in ("]", "}"))
        if levels == 0 or (levels == 1 and mark in ("[", ",")):
            if mark != "[":
                first = start + len(text[start : token.start()]) - len(text[start : token.start()].lstrip())
                line, counted = line + text.count("\n", counted, first), first
                item = text[start : token.start()]
                if item.strip() or mark == ",":
                    items.append((line + 1, item.strip()))
            start = token.end()
    return items if levels == 0 and start else None


def parse_json_lines(text: str, file: str) -> Iterator[tuple[int, Any]]:
    """Yield the line number and the value of each line of JSON Lines. Raises InvalidDocument."""
    # Not splitlines(): it also splits at U+2028 and others, which may occur within a JSON string.
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield number, parse_json_text(line, file, number)


def _json_lines(text: str) -> dict[DataPath, int]:
    """Return the line of every value of a valid JSON text."""
    lines: dict[DataPath, int] = {(): 1}
    # The path of the next value: an index for each open list, a key for each open object.
    path: list[str | int] = []
    line, counted, wants_key = 1, 0, False
    for token in _JSON_TOKEN.finditer(text):
        line, counted = line + text.count("\n", counted, token.start()), token.start()
        mark = token[0]
        if mark in ("]", "}"):
            path.pop()
            wants_key = False
        elif mark == ",":
            wants_key = isinstance(path[-1], str)
            if not wants_key:
                path[-1] += 1  # type: ignore[operator]
        elif wants_key:
            path[-1] = STRICT_JSON.decode(mark)
            lines[tuple(path)] = line
            wants_key = False
        elif mark != ":":
            lines.setdefault(tuple(path), line)
            if mark in ("[", "{"):
                wants_key = mark == "{"
                path.append("" if wants_key else 0)
    return lines


def parse_yaml(text: str, file: str) -> Document:
    """Parse a YAML text with one document. Raises InvalidDocument."""
    if len(text) > MAX_CHARACTERS:
        message = f"got {len(text)} characters of YAML, wanted at most {MAX_CHARACTERS}; write a longer file as JSON"
        raise InvalidDocument(file, 0, message)
    builder = _Builder(file)
    try:
        for event in YAML(typ="safe", pure=True).parse(text):
            builder.process(event)
    except MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        message = f"not valid YAML: {problem.problem or problem.context}"
        raise InvalidDocument(file, line, message, column) from None
    except ReaderError as problem:
        before = text[: problem.position]
        line, column = before.count("\n") + 1, problem.position - before.rfind("\n")
        raise InvalidDocument(file, line, f"not valid YAML: {problem.reason}", column) from None
    except YAMLError as problem:
        message = str(problem).partition("\n")[0]
        raise InvalidDocument(file, 0, f"not valid YAML: {message}") from None
    return Document(builder.data, builder.lines, file)


class _Anchored(NamedTuple):
    """A value with an anchor. values: number of values in it, with itself. height: levels of lists and mappings."""

    data: Any
    values: int
    height: int


class _Open:
    """A list or mapping whose end has not been parsed.

    before: number of values before it. key: of the next value. merged: the mapping of its merge key.
    """

    __slots__ = ("anchor", "before", "data", "height", "key", "merged")

    def __init__(self, data: Any, anchor: str | None, before: int) -> None:
        self.data = data
        self.anchor = anchor
        self.before = before
        self.key: str | None = None
        self.merged: Any = None
        self.height = 1


# Replaces the merge key until its value is parsed. No key of a document equals it, because YAML's keys are shorter.
_MERGE: Final = "<<" * 1024


class _Builder:
    """Builds the data from the parser's events."""

    def __init__(self, file: str) -> None:
        self.data: Any = None
        self.lines: dict[DataPath, int] = {(): 1}
        self._file = file
        self._documents = 0
        self._values = 0
        self._open: list[_Open] = []
        self._path: list[str | int] = []
        self._anchors: dict[str, _Anchored] = {}

    def process(self, event: Event) -> None:
        """Process an event. Raises InvalidDocument."""
        if isinstance(event, AliasEvent):
            self._alias(event)
        elif isinstance(event, NodeEvent):
            tag = getattr(event, "tag", None)
            if tag is not None:
                raise self._refused(event, f"the tag {tag}")
            if isinstance(event, ScalarEvent):
                self._scalar(event)
            elif isinstance(event, MappingStartEvent | SequenceStartEvent):
                self._begin(event, [] if isinstance(event, SequenceStartEvent) else {})
        elif isinstance(event, DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                raise self._refused(event, "a second document")
        elif isinstance(event, SequenceEndEvent | MappingEndEvent):
            self._end(event)

    def _scalar(self, event: ScalarEvent) -> None:
        if self._wants_key:
            self._key(event, event.value, plain=not event.style)
            value = event.value
        else:
            # Quoted and block scalars are always strings.
            value = event.value if event.style else self._plain(event)
            self._count(event, 1)
            self._add(event, value)
        if event.anchor is not None:
            self._anchors[event.anchor] = _Anchored(value, 1, 0)

    def _key(self, event: Event, key: str, *, plain: bool) -> None:
        inner = self._open[-1]
        if plain and key == "<<":
            key = _MERGE
        if key in inner.data or (key is _MERGE and inner.merged is not None):
            raise self._refused(event, f"a duplicate key {'<<' if key is _MERGE else key[:60]!r}")
        inner.key = key
        self._path[-1] = "<<" if key is _MERGE else key
        self.lines[tuple(self._path)] = event.start_mark.line + 1

    def _begin(self, event: MappingStartEvent | SequenceStartEvent, found: Any) -> None:
        if self._wants_key:
            raise self._refused(event, "a list or mapping as a key")
        if len(self._open) >= MAX_DEPTH:
            raise self._refused(event, f"more than {MAX_DEPTH} levels of nesting")
        before = self._values
        self._count(event, 1)
        self._place(event)
        self._open.append(_Open(found, event.anchor, before))
        self._path.append(0 if isinstance(found, list) else "")
        if event.anchor is not None:
            self._anchors.pop(event.anchor, None)

    def _end(self, event: Event) -> None:
        ended = self._open.pop()
        self._path.pop()
        if ended.merged is not None:
            for key, value in ended.merged.items():
                ended.data.setdefault(key, value)
        if ended.anchor is not None:
            self._anchors[ended.anchor] = _Anchored(ended.data, self._values - ended.before, ended.height)
        if self._open:
            self._open[-1].height = max(self._open[-1].height, ended.height + 1)
        self._add(event, ended.data)

    def _alias(self, event: AliasEvent) -> None:
        name = event.anchor
        if self._wants_key:
            raise self._refused(event, f"the alias *{name} as a key; write the key out")
        found = self._anchors.get(name)
        if found is None:
            inside = any(one.anchor == name for one in self._open)
            what = "inside its own anchor, which is a cycle" if inside else "without an anchor before it"
            raise self._refused(event, f"the alias *{name} {what}")
        if len(self._open) + found.height > MAX_DEPTH:
            raise self._refused(event, f"more than {MAX_DEPTH} levels of nesting with the alias *{name}")
        self._count(event, found.values)
        if self._open:
            self._open[-1].height = max(self._open[-1].height, found.height + 1)
        self._add(event, found.data)

    def _count(self, event: Event, values: int) -> None:
        self._values += values
        if self._values > MAX_VALUES:
            raise self._refused(event, f"more than {MAX_VALUES} values with all aliases expanded")

    def _place(self, event: Event) -> None:
        self.lines.setdefault(tuple(self._path), event.start_mark.line + 1)

    def _add(self, event: Event, value: Any) -> None:
        if not self._open:
            self.data = value
            return
        inner = self._open[-1]
        if isinstance(inner.data, list):
            self._place(event)
            inner.data.append(value)
            self._path[-1] += 1  # type: ignore[operator]
        elif inner.key is _MERGE:
            inner.merged = self._merged(event, value)
            inner.key = None
        else:
            assert inner.key is not None
            inner.data[inner.key] = value
            inner.key = None

    def _merged(self, event: Event, value: Any) -> dict[str, Any]:
        """Return the value of a merge key as one mapping. In a list of mappings, earlier ones win."""
        found: dict[str, Any] = {}
        for one in value if isinstance(value, list) else [value]:
            if not isinstance(one, dict):
                raise self._refused(event, "the merge key << with a value that is not a mapping")
            for key, data in one.items():
                found.setdefault(key, data)
        return found

    @property
    def _wants_key(self) -> bool:
        return bool(self._open) and isinstance(self._open[-1].data, dict) and self._open[-1].key is None

    def _plain(self, event: ScalarEvent) -> Any:
        """Resolve a plain scalar by YAML 1.2's core schema: `no`, `12:30` and `2024-01-31` are strings."""
        text = event.value
        if text in _CONSTANTS:
            return _CONSTANTS[text]
        if _NOT_JSON.fullmatch(text):
            raise self._refused(event, f"{text}, which JSON does not have")
        if len(text) > _MOST_DIGITS and (_FLOAT.fullmatch(text) or _OTHER_BASE.fullmatch(text)):
            raise self._refused(event, f"a number of {len(text)} characters")
        if _DECIMAL.fullmatch(text):
            return int(text)
        if _OTHER_BASE.fullmatch(text):
            return int(text, 0)
        if not _FLOAT.fullmatch(text):
            return text
        number = float(text)
        if number in (float("inf"), float("-inf")):
            raise self._refused(event, f"{text[:60]}, which is too large for a double")
        return number

    def _refused(self, event: Event, what: str) -> InvalidDocument:
        mark = event.start_mark
        return InvalidDocument(self._file, mark.line + 1, f"not valid YAML: got {what}", mark.column + 1)


class TextLines:
    """The lines of a stream as text.

    number: of the last line, from 1. start: its byte offset. raw: its bytes. position: byte offset of the next line.
    """

    def __init__(self, stream: BinaryIO, file: str, number: int = 0) -> None:
        """number: of the line before the first one."""
        self._stream = stream
        self._file = file
        self.number = number
        self.start = 0
        self.raw = b""
        self.position = stream.tell()

    def __iter__(self) -> "TextLines":
        return self

    def __next__(self) -> str:
        """Return the next line. Raises UnreadableFile if it is too long, and InvalidDocument if it is not UTF-8.

        After InvalidDocument the next lines can be read; `raw` is the line.
        """
        self.raw = self._stream.readline(MAX_BYTES + 1)
        if not self.raw:
            raise StopIteration
        self.number += 1
        self.start, self.position = self.position, self.position + len(self.raw)
        if len(self.raw) > MAX_BYTES:
            raise UnreadableFile(self._file, self.number, TOO_LONG)
        try:
            return decode(self.raw, self._file)
        except InvalidDocument as problem:
            raise InvalidDocument(self._file, self.number, problem.message, problem.column) from None


@contextmanager
def open_lines(path: Path, name: str) -> Iterator[TextLines]:
    """Open a regular file, which has an end and can be read again. Raises InvalidDocument."""
    try:
        # Opening a pipe would also wait, for its writer.
        stream = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb")
    except OSError as problem:
        raise InvalidDocument(name, 0, problem.strerror or "cannot be read") from None
    with stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise InvalidDocument(
                name,
                0,
                "got a pipe or a device, which may have no end and be readable only once; wanted a file",
            )
        yield TextLines(stream, name)


# Larger cells than the library's 128 KiB: a cell may be a whole conversation.
csv.field_size_limit(MAX_BYTES)

_QUOTED: Final = re.compile(r'"[^"]*"')


def csv_delimiter(header: str) -> str:
    """Return the delimiter of a CSV file: of comma, semicolon and tab, the one that its first line has most."""
    count = Counter(_QUOTED.sub("", header))
    return max(",;\t", key=count.__getitem__)  # a comma if there is none
