"""Recorded answers in separate files, which are joined with the cases by id, else by input.

JSON Lines, a JSON array, or CSV. Memory holds only a digest and the position of each row, but an array whole; a row is
read again when its case needs it. A row that cannot be read is an error of its case, not of its file.
"""

import csv
import re
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from evald.errors import InvalidInput
from evald.fields import first_of, shown, snake
from evald.messages import message_roles
from evald.records import camel

from .documents import (
    InvalidDocument,
    TextLines,
    UnreadableFile,
    csv_delimiter,
    json_array_items,
    open_lines,
    parse_json_text,
    read_text,
)
from .file_models import ABOUT_KEYS
from .id_set import digest
from .recorded_turns import RECORDED_ERROR, USER_ROLES, ends_unanswered, recorded_error, usage_of
from .recording import Questions, WrongRecording, data_as_text, last_asked

MISMATCH: Final = "TRANSCRIPT_MISMATCH"
"""The error code of a case whose transcript is not its recording."""
UNREADABLE: Final = "UNREADABLE_ROW"
"""The error code of a case whose row cannot be read."""
MISSING: Final = "NO_TRANSCRIPT"
"""The error code of a case without a transcript."""

_ID: Final = ("id", "case_id", "caseId", "conversation_id")
_OUTPUT: Final = ("output", "response", "answer", "completion")
_ABOUT_NAMES: Final = {name: key for key in ABOUT_KEYS for name in (key, camel(key))}
# Columns of a CSV file whose cells are JSON.
_JSON_COLUMNS: Final = frozenset(
    (
        *("latency_ms", "latency_seconds", "time_to_first_token_ms", "cost_usd", "cost"),
        *("messages", "answers", "usage", "token_usage", "tokens_usage"),
    )
)
_SHAPE: Final = (
    'wanted {"id": ..., "output": ...}, {"input": ..., "output": ...} or {"id": ..., "messages": [...]}'
)
# The id in a row that is not valid JSON.
_ID_IN_TEXT: Final = re.compile(rf'"(?:{"|".join(_ID)})"\s*:\s*(?:"([^"\\]+)"|(\d+))')


class Transcript(NamedTuple):
    """One row: the answers of one trial, one for each turn, or its error. place: FILE:LINE.

    error: code and message; None without an error. unanswered: the conversation ends with a question.
    """

    place: str
    answers: Sequence[Any]
    error: tuple[str, str] | None = None
    unanswered: bool = False

    @property
    def is_unusable(self) -> bool:
        """True if the row is no recording of the case, or cannot be read: then the case has no verdict."""
        return self.error is not None and self.error[0] != RECORDED_ERROR


class _Key(NamedTuple):
    """What joins a row with its case. kind: "id", "input", or "line" where neither is known."""

    kind: str
    value: str


class Transcripts:
    """The rows of transcript files, by case.

    lacking: number of cases that found too few rows.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        """Index the rows. Raises InvalidDocument for a file that cannot be read."""
        self.lacking = 0
        self._files = [_TranscriptFile(path) for path in paths]
        digests, rows, unreadable = array("Q"), array("Q"), bytearray()
        for number, file in enumerate(self._files):
            for row in file.rows():
                digests.append(digest(tuple(row.key)))
                rows.extend((number, row.position, row.line))
                unreadable.append(row.is_unreadable)
        order = sorted(range(len(digests)), key=digests.__getitem__)  # stable: trials stay in their order
        self._digests = array("Q", (digests[index] for index in order))
        self._rows = array("Q", (value for index in order for value in rows[3 * index : 3 * index + 3]))
        self._unreadable = bytearray(unreadable[index] for index in order)
        self._used = bytearray(len(order))

    @property
    def has_unreadable(self) -> bool:
        """Whether there is a row that cannot be read, which a case may lack."""
        return any(self._unreadable)

    def of(self, case_id: str, questions: Questions) -> list[Transcript]:
        """Return the trials of a case, by its id, else by what the user asks last."""
        found = self._read(_Key("id", case_id), questions)
        if not found and questions.last is not None:
            joined = self._read(_Key("input", questions.last), questions)
            # Several cases may end with the same question: a row without an id belongs to those that it fits.
            found = {index: row for index, row in joined.items() if not row.is_unusable} or joined
        for index in found:
            self._used[index] = 1
        return list(found.values())

    def unused(self) -> Iterator[str]:
        """Yield FILE:LINE of each readable row that no case has used."""
        for index, used in enumerate(self._used):
            if not used and not self._unreadable[index]:
                file, _, line = self._row(index)
                yield f"{file.name}:{line}"

    def unread(self) -> Iterator[InvalidDocument]:
        """Yield the problem of each row that cannot be read and whose case is not known."""
        for index, used in enumerate(self._used):
            if self._unreadable[index] and not used:
                file, position, line = self._row(index)
                try:
                    _key(file.row_at(position, line), f"{file.name}:{line}")
                except InvalidDocument as problem:
                    yield problem

    def _read(self, key: _Key, questions: Questions) -> dict[int, Transcript]:
        """Return the rows with a key, by their indexes."""
        wanted = digest(tuple(key))
        index = bisect_left(self._digests, wanted)
        found = {}
        while index < len(self._digests) and self._digests[index] == wanted:
            file, position, line = self._row(index)
            place = f"{file.name}:{line}"
            try:
                found[index] = _transcript(file.row_at(position, line), place, questions)
            except WrongRecording as problem:
                message = f"{place}: the transcript is not a recording of the case: {problem}"
                found[index] = Transcript(place, (), (MISMATCH, message))
            except InvalidDocument as problem:
                found[index] = Transcript(place, (), (UNREADABLE, str(problem)))
            except InvalidInput as problem:
                found[index] = Transcript(place, (), (UNREADABLE, f"{place}: {problem}"))
            index += 1
        return found

    def _row(self, index: int) -> tuple["_TranscriptFile", int, int]:
        number, position, line = self._rows[3 * index : 3 * index + 3]
        return self._files[number], position, line


def _key(row: Mapping[str, Any], place: str) -> _Key:
    """Return the key that joins a row with its case: its id, else its input. Raises InvalidDocument."""
    own = first_of(row, _ID)
    if own is not None:
        return _Key("id", str(own))
    try:
        asked = row.get("input")
        if asked is None:
            asked = row.get("messages")
        last = None if asked is None else last_asked(_question(asked))
    except InvalidInput as problem:
        raise InvalidDocument(place, 0, str(problem)) from None
    if last is None:
        raise InvalidDocument(
            place, 0, f"got neither an id nor an input, only {', '.join(list(row)[:8])}; {_SHAPE}"
        )
    return _Key("input", last)


def _question(asked: Any) -> Any:
    """Return an input as text or as a list of messages. Raises InvalidInput."""
    if isinstance(asked, Mapping):
        return [asked]
    if not isinstance(asked, str | list):
        raise InvalidInput("input", shown(asked), "text or messages")
    return asked


def _transcript(row: Mapping[str, Any], place: str, questions: Questions) -> Transcript:
    """Return the answers of a row. Raises WrongRecording, InvalidDocument and InvalidInput."""
    if error := recorded_error(row):
        # Other fields are ignored: messages of the agent before the error are no answer.
        return Transcript(place, (), (RECORDED_ERROR, error))
    about = {key: row[name] for name, key in _ABOUT_NAMES.items() if row.get(name) is not None}
    output, answers, messages, asked = (
        first_of(row, _OUTPUT),
        *(row.get(key) for key in ("answers", "messages", "input")),
    )
    if messages is not None and not (
        isinstance(messages, list) and all(isinstance(m, Mapping) for m in messages)
    ):
        raise InvalidInput("messages", shown(messages), "a list of messages")
    if _has_question(output):
        # Messages with their question are a conversation, wherever they are.
        if messages:
            raise InvalidInput("output", "messages of the user, as in messages", "them in one of the two")
        messages, output = output, None
    output = data_as_text(output, "output")
    # Tool calls in one place would be hidden from checks of the answer in the other.
    answered = messages and message_roles(messages)[-1] not in USER_ROLES
    given = {"output": output, "answers": answers, "messages": messages if answered else None}
    both = [name for name, value in given.items() if value is not None]
    if len(both) > 1:
        raise InvalidDocument(place, 0, f"got an answer in {' and in '.join(both)}; wanted it in one of them")
    if asked is not None:
        question = _question(asked)
        if answered and not isinstance(question, str):
            question = last_asked(question) or ""
        questions.check_asked(question)
    if messages and output is None and answers is None:
        turns = _answers(row, messages, questions)
        return Transcript(
            place,
            [*turns[:-1], _with(turns[-1], about)],
            unanswered=ends_unanswered(messages, questions.marks),
        )
    if answers is None and output is None:
        raise InvalidDocument(place, 0, f"got no output, only {', '.join(list(row)[:8])}; {_SHAPE}")
    if answers is None:
        if questions.turns != 1:
            raise WrongRecording(
                f"it has one output, the case {questions.turns} turns; wanted `messages`, or `answers`"
            )
        answers = [output]
        if messages:
            questions.answers_in([*messages, {"role": "assistant", "content": ""}])
    elif not isinstance(answers, list):
        raise InvalidInput("answers", shown(answers), "a list with the answer of each turn")
    elif len(answers) != questions.turns:
        raise WrongRecording(f"it has {len(answers)} answers, the case {questions.turns} turns")
    elif messages:
        questions.check_asked(messages)
    last = data_as_text(answers[-1], "answers") if answers else None
    return Transcript(place, [*answers[:-1], _with(last, about)])


def _has_question(output: Any) -> bool:
    if not isinstance(output, list) or not all(isinstance(one, Mapping) for one in output):
        return False
    try:
        return "user" in message_roles(output)
    except InvalidInput:
        return False  # no messages, but data


def _with(output: Any, about: dict[str, Any]) -> Any:
    if not about:
        return output
    if isinstance(output, Mapping):
        inner = dict(output) if {"text", "messages"} & output.keys() else {"messages": [dict(output)]}
        return about | inner
    return {**about, ("text" if isinstance(output, str) else "messages"): output}


def _answers(row: Mapping[str, Any], messages: Sequence[Any], questions: Questions) -> list[Any]:
    """Return the agent's messages for each turn of a conversation, with the usage that they report.

    A whole conversation is one answer with all of its messages. The row's own figures are those of the last turn.
    """
    bounds = questions.answers_in(messages)
    roles = message_roles(messages)
    found = []
    for start, end in bounds:
        said = [messages[index] for index in range(start, end) if roles[index] not in USER_ROLES]
        usage = usage_of(row, messages, start, end)
        found.append({"messages": said, **usage.missing_in(row if end == bounds[-1][1] else {})})
    if questions.last is None:
        found[-1]["messages"] = list(messages[: bounds[-1][1]])
    return found


class _Row(NamedTuple):
    """A row of a file. position: of its first byte, or its index in an array."""

    position: int
    line: int
    key: _Key
    is_unreadable: bool


class _TranscriptFile:
    """One transcript file."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path
        self._csv = path.suffix.lower() in (".csv", ".tsv")
        self._header: list[str] = []
        self._delimiter = ","
        self._items: list[tuple[int, str]] | None = None  # line and text of each item of an array

    def rows(self) -> Iterator[_Row]:
        """Yield the rows. Raises InvalidDocument if the file cannot be read."""
        with open_lines(self._path, self.name) as reading:
            if self._csv:
                yield from self._csv_rows(reading)
                return
            first = True
            while True:
                is_text = True
                try:
                    text = next(reading, None)
                except UnreadableFile:
                    raise
                except InvalidDocument:
                    text, is_text = reading.raw.decode(errors="replace"), False  # for the id
                if text is None:
                    return
                if first and text.lstrip().startswith("["):
                    self._items = json_array_items(read_text(self._path))
                    if self._items is not None:
                        break
                if text.strip():
                    first = False
                    yield self._indexed(reading.start, reading.number, text, is_text=is_text)
        for index, (line, text) in enumerate(self._items):
            yield self._indexed(index, line, text)

    def _indexed(self, position: int, line: int, text: str, *, is_text: bool = True) -> _Row:
        """Return a row of JSON with its key. Without valid JSON, the key is the first id in its text."""
        if is_text:
            with suppress(InvalidDocument):
                return _Row(position, line, _key(self._json_row(text, line), self.name), is_unreadable=False)
        known = _ID_IN_TEXT.search(text)
        return self._unreadable(position, line, known and (known[1] or known[2]))

    def _unreadable(self, position: int, line: int, case_id: str | None) -> _Row:
        key = _Key("id", case_id) if case_id else _Key("line", f"{self.name}:{line}")
        return _Row(position, line, key, is_unreadable=True)

    def _csv_rows(self, reading: TextLines) -> Iterator[_Row]:
        self._read_header(reading)
        table = csv.reader(reading, delimiter=self._delimiter, strict=True)
        while True:
            position, line = reading.position, reading.number + 1
            try:
                cells = next(table, None)
            except UnreadableFile:
                raise
            except (csv.Error, InvalidDocument):
                cells = next(
                    csv.reader([reading.raw.decode(errors="replace")], delimiter=self._delimiter), []
                )
                alone = reading.number == line  # else the row has several lines, and this is its last one
                yield self._unreadable(position, line, self._id_in(cells) if alone else None)
                continue
            if cells is None:
                return
            if any(cell.strip() for cell in cells):
                try:
                    key = _key(self._csv_row(cells, line), self.name)
                    yield _Row(position, line, key, is_unreadable=False)
                except InvalidDocument:
                    yield self._unreadable(position, line, self._id_in(cells))

    def _id_in(self, cells: Sequence[str]) -> str | None:
        row = {name: cell for name, cell in zip(self._header, cells, strict=False) if cell}
        found = first_of(row, _ID)
        return None if found is None else str(found)

    def _read_header(self, reading: TextLines) -> None:
        """Read the first line that is not empty. Raises InvalidDocument."""
        line = next((line for line in reading if line.strip(" \t\r\n,;")), "")
        self._delimiter = csv_delimiter(line)
        if line.startswith("sep="):  # Excel
            self._delimiter, line = line[4:5], next(reading, "")
        try:
            names = next(csv.reader([line], delimiter=self._delimiter, strict=True), [])
        except csv.Error as problem:
            raise InvalidDocument(self.name, reading.number, f"not valid CSV: {problem}") from None
        self._header = [snake(name.strip()) for name in names]
        if not {*_OUTPUT, "messages"} & set(self._header):
            got = f"got the columns {', '.join(self._header)[:200] or 'none'}"
            raise InvalidDocument(self.name, 1, f"{got}; wanted a header with output, and id or input")
        twice = [name for name, count in Counter(self._header).items() if count > 1 and name]
        if twice:
            raise InvalidDocument(self.name, 1, f"got a duplicate column {twice[0][:80]!r}")

    def row_at(self, position: int, line: int) -> Mapping[str, Any]:
        """Return the row at a position. Raises InvalidDocument."""
        if self._items is not None:
            return self._json_row(self._items[position][1], line)
        with self._path.open("rb") as stream:
            stream.seek(position)
            reading = TextLines(stream, self.name, line - 1)
            if not self._csv:
                return self._json_row(next(reading, ""), line)
            try:
                cells = next(csv.reader(reading, delimiter=self._delimiter, strict=True), [])
            except csv.Error as problem:
                raise InvalidDocument(self.name, line, f"not valid CSV: {problem}") from None
            return self._csv_row(cells, line)

    def _json_row(self, text: str, line: int) -> Mapping[str, Any]:
        row = parse_json_text(text.rstrip(), self.name, line)
        if not isinstance(row, dict):
            raise InvalidDocument(self.name, line, f"{shown(row)}, {_SHAPE}")
        return row

    def _csv_row(self, cells: list[str], line: int) -> Mapping[str, Any]:
        if len(cells) < len(self._header) or any(cells[len(self._header) :]):
            message = f"got {len(cells)} cells, wanted {len(self._header)} as in the header"
            raise InvalidDocument(self.name, line, message)
        row: dict[str, Any] = {}
        for name, cell in zip(self._header, cells, strict=False):
            if name in _JSON_COLUMNS:
                if cell.strip():
                    row[name] = parse_json_text(cell, f"{self.name}:{line}: {name}")
            elif cell or name in _OUTPUT:
                row[name] = cell
        if row.keys() & {"messages", "answers"}:
            # The row of a conversation, beside rows of single answers.
            row = {name: value for name, value in row.items() if value or name not in _OUTPUT}
        return row
