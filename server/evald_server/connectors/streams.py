"""Streamed answers: parsing of server-sent events and NDJSON, and assembly of the answer's pieces."""

import json
from collections.abc import Mapping
from typing import Any, Final, Literal

from evald.call_shapes import call_shapes
from evald.errors import InvalidInput
from evald.fields import shown, snake
from evald.messages import check_nodes
from evald.shapes.parts import CALL_PARTS, RESULT_PARTS
from evald.shapes.role_messages import ROLES
from evald.strict_json import TooLarge, parse_json
from evald_server.redaction import Redactor

from .answers import CALL_LISTS, TEXT_KEYS, bad_answer, check_reported, excerpt
from .paths import DataPath, look_up

# Events are parsed one by one in the event loop; larger ones would block it.
_MAX_EVENT_BYTES: Final = 1 << 20

StreamFormat = Literal["sse", "ndjson"]

_PIECES: Final = ("delta", "token", *TEXT_KEYS)

# The index of a call in the older form `function_call`.
_LEGACY: Final = -1


class EventLines:
    """A parser that splits a stream into events and collects their pieces. done: the end marker has arrived."""

    def __init__(
        self, stream_format: StreamFormat, pieces: "ChatChunks | TextPieces", redactor: Redactor
    ) -> None:
        self._redactor = redactor
        self._sse = stream_format == "sse"
        self._pieces = pieces
        self._rest: list[bytes] = []
        self._data: list[bytes] = []
        self._size = 0  # bytes of the data
        self._error = False
        self.done = False

    @property
    def started(self) -> bool:
        """Whether some part of the answer has arrived."""
        return self._pieces.started

    def add(self, chunk: bytes) -> None:
        """Parse the next chunk of the stream. Raises ConnectorFailure."""
        *lines, rest = chunk.split(b"\n")
        if lines:
            lines[0] = b"".join((*self._rest, lines[0]))
            self._rest = []
        self._rest.append(rest)
        for line in lines:
            if not self.done:
                self._line(line.removesuffix(b"\r"))

    def finish(self) -> Any:
        """Return the whole answer. Raises ConnectorFailure."""
        if not self.done:
            for line in (b"".join(self._rest), b""):
                self._line(line)
        # Redact again, because several pieces may form a secret together.
        return self._redactor.redact_json(self._pieces.finish())

    def _line(self, line: bytes) -> None:
        if not self._sse:
            if line.strip():
                self._event(line)
            return
        name, _, value = line.partition(b":")
        if not line:
            if self._data or self._error:
                self._event(b"\n".join(self._data))
            self._data, self._error, self._size = [], False, 0
        elif name == b"data":
            self._data.append(value.removeprefix(b" "))
            self._size += len(self._data[-1]) + 1
            _check_size(self._size)
        elif name == b"event":
            self._error = value.strip() == b"error"
        elif name not in (b"", b"id", b"retry"):
            raise bad_answer(
                f"the answer is not a stream of server-sent events{excerpt(line, self._redactor)}"
            )

    def _event(self, data: bytes) -> None:
        if data.strip() == b"[DONE]":
            self.done = True
            return
        if self._error:
            raise bad_answer(f"the stream reports an error{excerpt(data, self._redactor)}")
        _check_size(len(data))
        try:
            text = data.decode()
            check_nodes(text, "an event of the stream")
            event = self._redactor.redact_json(parse_json(text))
        except (InvalidInput, TooLarge) as problem:
            raise bad_answer(str(problem)) from None
        except ValueError:
            raise bad_answer(f"an event of the stream is not JSON{excerpt(data, self._redactor)}") from None
        check_reported(event)
        self._pieces.add(event)


def _check_size(size: int) -> None:
    if size > _MAX_EVENT_BYTES:
        raise bad_answer(f"an event of the stream is longer than {_MAX_EVENT_BYTES >> 20} MiB")


class ChatChunks:
    """A collector that assembles the chunks of an OpenAI chat completion into a whole completion.

    started: whether some part of the answer has arrived.
    """

    def __init__(self) -> None:
        self.started = False
        self._about: dict[str, Any] = {}
        self._texts: list[str] = []
        self._refusals: list[str] = []
        self._calls: list[dict[str, Any]] = []
        self._places: dict[
            int, dict[str, Any]
        ] = {}  # the call that the next piece with this index belongs to
        self._finish: Any = None

    def add(self, event: Any) -> None:
        """Add an event. Raises ConnectorFailure."""
        choices = event.get("choices") if isinstance(event, Mapping) else None
        if not isinstance(choices, list):
            raise bad_answer(f"{shown(event)}, wanted a chunk of a chat completion, with choices")
        self._about |= {key: event[key] for key in ("id", "model", "usage") if event.get(key) is not None}
        for choice in choices:
            delta = choice.get("delta") if isinstance(choice, Mapping) else None
            if not isinstance(delta, Mapping):
                raise bad_answer("choices[0].delta: missing; wanted chunks of a chat completion")
            if choice.get("index"):
                raise bad_answer("choices: got a second answer, wanted one; remove n from config.parameters")
            self._add_delta(delta)
            self._finish = choice.get("finish_reason") or self._finish

    def _add_delta(self, delta: Mapping[str, Any]) -> None:
        for key, pieces in (("content", self._texts), ("refusal", self._refusals)):
            if (piece := delta.get(key)) is None:
                continue
            if not isinstance(piece, str):
                raise bad_answer(
                    f"choices[0].delta.{key}: {shown(piece)}, wanted text; set config.stream to false"
                )
            pieces.append(piece)
            self.started |= bool(piece)
        calls = delta.get("tool_calls") or []
        for call in calls if isinstance(calls, list) else [calls]:
            if not isinstance(call, Mapping):
                raise bad_answer("choices[0].delta.tool_calls: wanted objects")
            self._add_call(call)
        if legacy := delta.get("function_call"):
            self._add_call({"index": _LEGACY, "function": legacy})

    def _add_call(self, piece: Mapping[str, Any]) -> None:
        self.started = True
        index, function = piece.get("index"), piece.get("function")
        said = function if isinstance(function, Mapping) else {}
        found = self._places.get(index) if isinstance(index, int) else None
        # Some endpoints give all calls the same index.
        if found is None or (
            said.get("name")
            and found["name"]
            and (said["name"] != found["name"] or (piece.get("id") or found["id"]) != found["id"])
        ):
            found = {"id": None, "name": None, "arguments": []}
            self._calls.append(found)
            if isinstance(index, int):
                self._places[index] = found
        found["id"] = found["id"] or piece.get("id")
        found["name"] = found["name"] or said.get("name")
        arguments = said.get("arguments")
        if arguments is not None:
            found["arguments"].append(arguments if isinstance(arguments, str) else json.dumps(arguments))

    def finish(self) -> Any:
        """Return the whole completion. Raises ConnectorFailure for a stream that breaks off."""
        if self._finish is None:
            raise bad_answer("the stream is incomplete: it ends without a finish_reason")
        calls = [{**call, "arguments": "".join(call["arguments"])} for call in self._calls]
        message = {
            "role": "assistant",
            "content": "".join(self._texts) if self._texts else None,
            "refusal": "".join(self._refusals) or None,
            "tool_calls": calls or None,
        }
        return {**self._about, "choices": [{"message": message, "finish_reason": self._finish}]}


class TextPieces:
    """A collector of text pieces, of tool calls, and of the last value of every other key of the events.

    delta_path: path of the piece in an event; None for chunks of a chat completion, or the first known key with a text.
    """

    def __init__(self, delta_path: DataPath | None) -> None:
        self.started = False
        self._path = delta_path
        self._texts: list[tuple[str, str, str]] = []  # type of the event, key, text
        self._chunks: ChatChunks | None = None
        self._calls: dict[Any, Any] = {}  # by id; later events may repeat calls
        self._others: dict[str, Any] = {}
        self._shaped: list[Mapping[str, Any]] = []  # events that may hold a call

    def add(self, event: Any) -> None:
        """Add an event. Raises ConnectorFailure."""
        if self._path is None and isinstance(event, Mapping) and "choices" in event:
            self._chunks = self._chunks or ChatChunks()
            self._chunks.add(event)
            self.started = self._chunks.started
            return
        if isinstance(event, Mapping):
            self._add_event(event)
        key, piece = self._piece(event)
        if isinstance(piece, str):
            self._texts.append((_kind(event) if isinstance(event, Mapping) else "", key, piece))
            self.started |= bool(piece)

    def _add_event(self, event: Mapping[str, Any]) -> None:
        self._others |= {key: value for key, value in event.items() if value is not None}
        if next(call_shapes({"event": event}), None) is not None:
            self._shaped.append(event)
        found: list[Any] = [event] if _kind(event) in CALL_PARTS else []
        for key in CALL_LISTS:
            calls = event.get(key)
            found += calls if isinstance(calls, list) else [calls] if calls else []
        choices = event.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            delta = choice.get("delta") if isinstance(choice, Mapping) else None
            if isinstance(delta, Mapping) and (delta.get("tool_calls") or delta.get("function_call")):
                raise bad_answer(
                    "choices[0].delta: tool calls are not read with config.deltaPath; remove it, so that the events "
                    "are read as chunks of a chat completion"
                )
        for call in found:
            self.started = True
            known = call.get("id") if isinstance(call, Mapping) else None
            self._calls[known if isinstance(known, str) else len(self._calls)] = call

    def _piece(self, event: Any) -> tuple[str, Any]:
        """Return the key and the value of the piece in an event."""
        if self._path is not None:
            return "", look_up(event, self._path)
        if not isinstance(event, Mapping):
            return "", event
        role = event.get("role") or "assistant"
        if not isinstance(role, str) or ROLES.get(role, role) != "assistant":
            raise bad_answer(
                f"an event of the stream: role: {shown(role)}, wanted pieces of the agent's answer; "
                "set config.deltaPath to the path of the text in an event"
            )
        if _kind(event) in CALL_PARTS | RESULT_PARTS:
            return "", None
        return next(((key, event[key]) for key in _PIECES if isinstance(event.get(key), str)), ("", None))

    def _text(self) -> str:
        """Return the pieces as one text, without a last event of another kind that repeats all of them."""
        texts = [one for one in self._texts if one[2]]
        pieces = "".join(text for _, _, text in texts[:-1])
        if not texts or (texts[-1][2] == pieces and texts[-1][:2] not in (one[:2] for one in texts[:-1])):
            return pieces
        return pieces + texts[-1][2]

    def finish(self) -> Any:
        """Return the last values with the whole text as `content`, without other keys that could hold the text.

        Raises ConnectorFailure if there is no text, or if the stream breaks off.
        """
        if self._chunks is not None:
            if self._texts or self._calls:
                raise bad_answer(
                    "the stream has chunks of a chat completion, and other events with text or tool calls; "
                    "set config.deltaPath to the path of the text in an event"
                )
            return self._chunks.finish()
        if not self._texts and not self._calls:
            raise bad_answer(
                "the stream has no text; set config.deltaPath to the path of the text in an "
                f"event. The keys of the events: {', '.join(list(self._others)[:10]) or 'none'}"
            )
        left_out = (*_PIECES, *CALL_LISTS, "role")
        known = {key: value for key, value in self._others.items() if key not in left_out}
        text = self._text() if self._texts else None
        return known | {"content": text, "tool_calls": list(self._calls.values()), "events": self._shaped}


def _kind(event: Mapping[str, Any]) -> str:
    kind = event.get("type")
    return snake(kind) if isinstance(kind, str) else ""
