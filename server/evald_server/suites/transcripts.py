"""Recorded answers in separate files, JSON Lines or CSV, which are joined with the cases by id, else by input.

Memory holds only a digest and the position of each row; a row is read again when its case needs it.
"""

import csv
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from evald.errors import InvalidInput
from evald.fields import first_of, shown, snake
from evald.messages import message_roles
from evald.records import camel

from .documents import InvalidDocument, TextLines, open_lines, parse_json_text
from .file_models import ABOUT_KEYS
from .id_set import digest
from .recorded_turns import USER_ROLES, recorded_error, turn_bounds, usage_of

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


class Transcript(NamedTuple):
    """One row: the answers of one trial, one for each turn, or its error. place: FILE:LINE."""

    place: str
    answers: list[Any]
    error: str = ""


class Transcripts:
    """The rows of transcript files, by case."""

    def __init__(self, paths: list[Path]) -> None:
        """Index the rows. Raises InvalidDocument if one cannot be read."""
        self._files = [_TranscriptFile(path) for path in paths]
        digests, rows = array("Q"), array("Q")
        for number, file in enumerate(self._files):
            for position, line, row in file.rows():
                digests.append(digest(_key(row, f"{file.name}:{line}")))
                rows.extend((number, position, line))
        order = sorted(range(len(digests)), key=digests.__getitem__)  # stable: trials stay in their order
        self._digests = array("Q", (digests[index] for index in order))
        self._rows = array("Q", (value for index in order for value in rows[3 * index : 3 * index + 3]))
        self._used = bytearray(len(order))

    def of(self, case_id: str, asked: str | None, turns: int, *, whole: bool = False) -> list[Transcript]:
        """Return the trials of a case, by its id, else by the input of its last turn. Raises InvalidDocument.

        whole: each trial is a whole conversation, with the user's messages.
        """
        rows = self._rows_of(("id", case_id))
        if not rows and asked is not None:
            rows = self._rows_of(("input", asked))
        return [_transcript(row, place, turns, whole=whole) for row, place in rows]

    def unused(self) -> Iterator[str]:
        """Yield FILE:LINE of each row that no case has used."""
        return (self._row(index)[1] for index, used in enumerate(self._used) if not used)

    def _rows_of(self, key: tuple[str, str]) -> list[tuple[Mapping[str, Any], str]]:
        wanted = digest(key)
        index = bisect_left(self._digests, wanted)
        found = []
        while index < len(self._digests) and self._digests[index] == wanted:
            self._used[index] = 1
            (file, position), place = self._row(index)
            found.append((file.row_at(position), place))
            index += 1
        return found

    def _row(self, index: int) -> tuple[tuple["_TranscriptFile", int], str]:
        number, position, line = self._rows[3 * index : 3 * index + 3]
        file = self._files[number]
        return (file, position), f"{file.name}:{line}"


def _key(row: Mapping[str, Any], place: str) -> tuple[str, str]:
    """Return the key that joins a row with its case: its id, else its input."""
    own = first_of(row, _ID)
    if own is not None:
        return "id", str(own)
    asked = asked_text(row.get("input"))
    messages = row.get("messages")
    if asked is None and isinstance(messages, list):
        said = [one for one, role in zip(messages, _roles(messages, place), strict=True) if role == "user"]
        asked = asked_text(said[-1:])
    if asked is None:
        raise InvalidDocument(
            place, 0, f"got neither an id nor an input, only {', '.join(list(row)[:8])}; {_SHAPE}"
        )
    return "input", asked


def asked_text(asked: Any) -> str | None:
    """Return the text of an input, or of its last message, for comparison; None if it is not text."""
    if isinstance(asked, str):
        return asked.strip()
    if isinstance(asked, list) and asked and isinstance(asked[-1], Mapping):
        content = asked[-1].get("content")
        return content.strip() if isinstance(content, str) else None
    return None


def _transcript(row: Mapping[str, Any], place: str, turns: int, *, whole: bool) -> Transcript:
    """Return the answers of a row. turns: their number. Raises InvalidDocument."""
    if error := recorded_error(row):
        # Other fields are ignored: messages of the agent before the error are no answer.
        return Transcript(place, [], error)
    about = {key: row[name] for name, key in _ABOUT_NAMES.items() if row.get(name) is not None}
    output, answers, messages = first_of(row, _OUTPUT), row.get("answers"), row.get("messages")
    # Tool calls in one place would be hidden from checks of the answer in the other.
    given = {
        "output": output,
        "answers": answers,
        "messages": messages if _answered(messages, place) else None,
    }
    both = [name for name, value in given.items() if value is not None]
    if len(both) > 1:
        raise InvalidDocument(place, 0, f"got an answer in {' and in '.join(both)}; wanted it in one of them")
    if answers is not None or (output is None and messages is not None):
        if answers is None:
            answers = [_whole(messages, place)] if whole else _answers(row, messages, place)[-turns:]
        if not isinstance(answers, list) or len(answers) != turns:
            count = f"{len(answers)} answers" if isinstance(answers, list) else shown(answers)
            raise InvalidDocument(place, 0, f"got {count}, but the case has {turns} turns")
        if about:
            answers = [*answers[:-1], _with(answers[-1], about)]
        return Transcript(place, answers)
    if output is None:
        raise InvalidDocument(place, 0, f"got no output, only {', '.join(list(row)[:8])}; {_SHAPE}")
    if turns != 1:
        raise InvalidDocument(
            place,
            0,
            f"got one output, but the case has {turns} turns; wanted `messages`, or `answers` with {turns}",
        )
    return Transcript(place, [_with(output, about)])


def _with(output: Any, about: dict[str, Any]) -> Any:
    if not about:
        return output
    if isinstance(output, Mapping):
        inner = dict(output) if {"text", "messages"} & output.keys() else {"messages": [dict(output)]}
        return about | inner
    return {**about, ("text" if isinstance(output, str) else "messages"): output}


def _roles(messages: Any, place: str) -> list[str]:
    if not isinstance(messages, list) or not all(isinstance(one, Mapping) for one in messages):
        raise InvalidDocument(place, 0, f"messages: {shown(messages)}, wanted a list of messages")
    try:
        return message_roles(messages)
    except InvalidInput as problem:
        raise InvalidDocument(place, 0, str(problem)) from None


def _answered(messages: Any, place: str) -> bool:
    """Return whether a row's messages, if it has any, end with an answer of the agent."""
    return messages is not None and not {*_roles(messages, place)[-1:]} <= {*USER_ROLES}


def _whole(messages: Any, place: str) -> list[Any]:
    """Return a conversation up to the agent's last message; later user messages have no answer."""
    end = len(roles := _roles(messages, place))
    while end and roles[end - 1] in USER_ROLES:
        end -= 1
    return list(messages[:end])


def _answers(row: Mapping[str, Any], messages: Any, place: str) -> list[Any]:
    """Return the agent's messages for each turn of a conversation, with the usage that they report.

    The row's own figures are those of the last turn.
    """
    roles = _roles(messages, place)
    found = []
    bounds = turn_bounds(messages)
    for start, end in bounds:
        said = [messages[index] for index in range(start, end) if roles[index] not in USER_ROLES]
        if not said:
            raise InvalidDocument(place, 0, "got a turn without an answer of the agent")
        usage = usage_of(row, messages, start, end)
        found.append({"messages": said, **usage.missing_in(row if end == bounds[-1][1] else {})})
    return found


class _TranscriptFile:
    """One transcript file. A row is identified by the position of its first byte."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path
        self._csv = path.suffix == ".csv"
        self._header: list[str] = []

    def rows(self) -> Iterator[tuple[int, int, Mapping[str, Any]]]:
        """Yield the position, the line number and the data of each row. Raises InvalidDocument."""
        with open_lines(self._path, self.name) as reading:
            if self._csv:
                yield from self._csv_rows(reading)
                return
            for line in reading:
                if line.strip():
                    yield reading.start, reading.number, self._json_row(line, reading.number)

    def _csv_rows(self, reading: TextLines) -> Iterator[tuple[int, int, Mapping[str, Any]]]:
        table = csv.reader(reading, strict=True)
        try:
            self._header = [snake(name.strip()) for name in next(table, [])]
            self._check_header()
            while True:
                position, line = reading.position, reading.number + 1
                cells = next(table, None)
                if cells is None:
                    return
                if cells:
                    yield position, line, self._csv_row(cells, line)
        except csv.Error as problem:
            raise InvalidDocument(self.name, reading.number, f"not valid CSV: {problem}") from None

    def _check_header(self) -> None:
        if not {"output", "response", "answer", "completion", "messages"} & set(self._header):
            got = f"got the columns {', '.join(self._header)[:200] or 'none'}"
            raise InvalidDocument(self.name, 1, f"{got}; wanted a header with output, and id or input")
        twice = [name for name, count in Counter(self._header).items() if count > 1 and name]
        if twice:
            raise InvalidDocument(self.name, 1, f"got a duplicate column {twice[0][:80]!r}")

    def row_at(self, position: int) -> Mapping[str, Any]:
        """Return the row at a position."""
        with self._path.open("rb") as stream:
            stream.seek(position)
            reading = TextLines(stream, self.name)
            if self._csv:
                return self._csv_row(next(csv.reader(reading, strict=True)), 0)
            return self._json_row(next(reading), 0)

    def _json_row(self, line: str, number: int) -> Mapping[str, Any]:
        row = parse_json_text(line, self.name, number)
        if not isinstance(row, dict):
            raise InvalidDocument(self.name, number, f"{shown(row)}, {_SHAPE}")
        return row

    def _csv_row(self, cells: list[str], number: int) -> Mapping[str, Any]:
        if len(cells) != len(self._header):
            message = f"got {len(cells)} cells, wanted {len(self._header)} as in the header"
            raise InvalidDocument(self.name, number, message)
        row: dict[str, Any] = {}
        for name, cell in zip(self._header, cells, strict=True):
            if name in _JSON_COLUMNS:
                if cell.strip():
                    row[name] = parse_json_text(cell, f"{self.name}:{number}: {name}")
            elif cell or name in _OUTPUT:
                row[name] = cell
        if row.keys() & {"messages", "answers"}:
            # The row of a conversation, beside rows of single answers.
            row = {name: value for name, value in row.items() if value or name not in _OUTPUT}
        return row
