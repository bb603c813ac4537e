"""Forms from JSON Schemas: a schema and data become fields, and posted fields become data again.

The names of posted fields are JSON Pointers. Data that the schema's widgets cannot show or that the schema does not
have are edited in a JSON box, so that nothing is lost. It is posted under "json:" and the pointer. A blank field and
a value equal to the default are left out. This module validates nothing: the server's methods do, and their messages
are shown at the fields.
"""

import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from evald.strict_json import STRICT_JSON

# Limits, because the schemas of remote evaluators are untrusted.
MAX_FIELDS: Final = 200
MAX_DEPTH: Final = 6
# Most parts of a field's name: its depth in the schema, below "/evaluators/0/config".
_MAX_PARTS: Final = MAX_DEPTH + 5
_MAX_ITEMS: Final = 100
_MAX_TEXT: Final = 300

_JSON: Final = "json:"
_COUNT: Final = "count:"

# A text that may be longer has a widget of several lines.
_LONG_TEXT: Final = 200

# A group always shows this many fields. The other fields without data are folded if there are at least this many.
_SHOWN_FIELDS: Final = 4
_FOLDED_FIELDS: Final = 3


class RawText(str):
    """The invalid text of a JSON box, which is shown again unchanged."""

    __slots__ = ()


Posted = Mapping[str, str]
"""A posted form: the last value of each name."""


class Choice(NamedTuple):
    """One option of a field. value: as JSON text, because a field may have numbers and texts as options."""

    value: str
    label: str
    selected: bool


class Field(NamedTuple):
    """One field of a form, or a group of fields.

    name: the posted name. pointer: of its data. kind: "text", "long", "number", "flag", "choice", "lines", "group",
    "items" or "json". value: the widget's text. default: the text of the schema's default, "" for none. whole: only
    whole numbers are valid. hint: the reason for a JSON box. errors: the server's messages about the data.
    """

    name: str
    pointer: str
    kind: str
    label: str
    help: str = ""
    value: str = ""
    required: bool = False
    default: str = ""
    whole: bool = False
    choices: tuple[Choice, ...] = ()
    fields: tuple["Field", ...] = ()
    length: int = 0
    hint: str = ""
    errors: tuple[str, ...] = ()

    @property
    def must_show(self) -> bool:
        """Whether the field must be shown: it or a field in it is required, has data, or has errors."""
        return bool(self.required or self.value or self.errors) or any(one.must_show for one in self.fields)

    @property
    def folded(self) -> tuple["Field", ...]:
        """The fields of a group that are folded: neither among the first ones nor `must_show`."""
        found = tuple(one for one in self.fields[_SHOWN_FIELDS:] if not one.must_show)
        return found if len(found) >= _FOLDED_FIELDS else ()


class Problems:
    """The errors of posted data, by JSON Pointer."""

    def __init__(self, found: Iterable[tuple[str, str]] = ()) -> None:
        self._found: dict[str, list[str]] = {}
        for pointer, text in found:
            self.add(pointer, text)

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, pointer: str, text: str) -> None:
        """Add the error of a field."""
        self._found.setdefault(pointer, []).append(text)

    def take(self, pointer: str, *, below: bool = False) -> tuple[str, ...]:
        """Remove and return the errors of a field. below: also those of all fields in it."""
        places = [pointer]
        if below:
            places += [place for place in self._found if place.startswith(f"{pointer}/")]
        return tuple(text for place in places for text in self._found.pop(place, ()))

    def rest(self) -> list[str]:
        """Return the errors that no field has taken."""
        return [
            f"{pointer.removeprefix('/')}: {text}" if pointer else text
            for pointer, texts in self._found.items()
            for text in texts
        ]


def fields_of(
    schema: Mapping[str, Any],
    data: Any,
    pointer: str = "",
    problems: Problems | None = None,
    edited_as_json: Container[str] = (),
) -> Field:
    """Return the field of a schema and its data: a group for an object.

    data: None for no data yet. problems: of these data; errors with a field here are taken. edited_as_json: pointers of
    fields that the user has chosen to edit as JSON.
    """
    form = _Form(schema, Problems() if problems is None else problems, edited_as_json)
    return form.field(pointer, schema, {} if data is None else data, required=True)


def json_field(pointer: str, data: Any, label: str, problems: Problems) -> Field:
    """Return a JSON box with data."""
    is_raw = isinstance(data, RawText)
    errors = problems.take(pointer, below=not is_raw)
    text = data if is_raw else _json_text(data)
    return Field(_JSON + pointer, pointer, "json", label, value=text, errors=errors)


def data_of(schema: Mapping[str, Any], posted: Posted, problems: Problems, pointer: str = "") -> Any:
    """Return the data of a form, None if nothing was posted. Invalid JSON is added to problems and becomes a RawText in
    the data."""
    return _Reading(schema, posted, problems).value(pointer, schema, depth=0)


def pointer_of(path: str) -> str:
    """Return the JSON Pointer of a path such as `scenario.evaluators[0].config.maxMs`."""
    parts = re.findall(r"[^.\[\]]+", path)
    return "".join("/" + escape(part) for part in parts)


def read_json(text: str) -> Any:
    """Parse JSON. Raises ValueError, also for strings that a page cannot show, and RecursionError."""
    found = STRICT_JSON.decode(text)
    if "\\u" in text:
        try:
            json.dumps(found, ensure_ascii=False).encode()
        except UnicodeEncodeError as problem:
            half = ascii(problem.object[problem.start])
            raise ValueError(f"{half} is one half of a surrogate pair, without the other half") from None
    return found


def escape(key: str) -> str:
    """Encode a key as a part of a JSON Pointer."""
    return key.replace("~", "~0").replace("/", "~1")


def unescape(part: str) -> str:
    """Decode a part of a JSON Pointer to its key."""
    return part.replace("~1", "/").replace("~0", "~")


class _Form:
    """The builder of one schema's fields. root: the schema that references point into."""

    def __init__(self, root: Mapping[str, Any], problems: Problems, edited_as_json: Container[str]) -> None:
        self._root = root
        self._problems = problems
        self._edited_as_json = edited_as_json
        self._left = MAX_FIELDS

    def field(
        self, pointer: str, schema: Any, data: Any, *, required: bool = False, name: str = "", depth: int = 0
    ) -> Field:
        """Return the field of data. data: None if absent."""
        self._left -= 1
        shape = _Shape(self._root, schema)
        label = _text(shape.schema.get("title")) or _words(name)
        about = _text(shape.schema.get("description"))
        hint = shape.hint or ("too large for a form" if depth > MAX_DEPTH or self._left < 0 else "")
        if not hint and pointer in self._edited_as_json:
            hint = "instead of the form"
        # An empty object is not the same as an absent one, so it needs a JSON box.
        empty = shape.kind == "group" and data == {} and not required
        if not hint and data is not None and (empty or not shape.shows(data)):
            hint = (
                "not valid JSON"
                if isinstance(data, RawText)
                else "contains a value that the form cannot show"
            )
        if hint:
            box = json_field(pointer, data, label, self._problems)
            return box._replace(required=required, help=about, hint=hint, default=shape.default_text())
        common = Field(
            pointer, pointer, shape.kind, label, about, required=required, default=shape.default_text()
        )
        if shape.kind == "group":
            return common._replace(fields=tuple(self._children(pointer, shape.schema, data, depth)))
        if shape.kind == "items":
            found = data or []
            inner = [
                self.field(f"{pointer}/{index}", shape.schema["items"], one, required=True, depth=depth + 1)
                for index, one in enumerate(found)
            ]
            errors = self._problems.take(pointer)
            return common._replace(fields=tuple(inner), length=len(found), errors=errors)
        errors = self._problems.take(pointer, below=True)
        return common._replace(
            kind="long" if shape.kind == "text" and shape.is_long() else shape.kind,
            value=shape.written(data),
            whole=shape.schema.get("type") == "integer",
            choices=tuple(shape.choices(data, required=required)),
            errors=errors,
        )

    def _children(self, pointer: str, schema: Mapping[str, Any], data: Any, depth: int) -> Iterator[Field]:
        wanted = schema.get("required")
        wanted = wanted if isinstance(wanted, list) else []
        for key, one in schema["properties"].items():
            value = data.get(key) if isinstance(data, Mapping) else None
            place = f"{pointer}/{escape(key)}"
            yield self.field(place, one, value, required=key in wanted, name=key, depth=depth + 1)


class _Reading:
    """The reader of one schema's data from a posted form."""

    def __init__(self, root: Mapping[str, Any], posted: Posted, problems: Problems) -> None:
        self._root = root
        self._posted = posted
        self._problems = problems
        # The pointers of posted fields and of all their parents; no others are read. Names are untrusted: the parents
        # of a long and deep one would fill the memory, so its depth is limited.
        self._places = {
            place[:end]
            for name in posted
            for place in (name.partition(":")[2] if name.startswith((_JSON, _COUNT)) else name,)
            if place.count("/") <= _MAX_PARTS
            for end in (*(match.start() for match in re.finditer("/", place)), len(place))
        }

    def value(self, pointer: str, schema: Any, *, depth: int, required: bool = True) -> Any:
        """Return the data at a pointer, None if there are none."""
        if pointer not in self._places or depth > MAX_DEPTH + 1:
            return None
        shape = _Shape(self._root, schema)
        text = self._posted.get(_JSON + pointer)
        if text is not None:
            return self._from_json(pointer, text)
        if shape.hint:
            return None
        if shape.kind == "group":
            return self._group(pointer, shape.schema, depth, required=required)
        if shape.kind == "items":
            count = _length(self._posted.get(_COUNT + pointer, ""))
            found = [
                self.value(f"{pointer}/{index}", shape.schema["items"], depth=depth + 1)
                for index in range(count)
            ]
            return [{} if one is None else one for one in found] or None
        return shape.read(self._posted.get(pointer, "").replace("\r\n", "\n"))

    def _from_json(self, pointer: str, text: str) -> Any:
        if not text.strip():
            return None
        try:
            return read_json(text)
        except (ValueError, RecursionError) as problem:
            said = f"not valid JSON: {problem}" if isinstance(problem, ValueError) else "nested too deep"
            self._problems.add(pointer, said)
            return RawText(text)

    def _group(self, pointer: str, schema: Mapping[str, Any], depth: int, *, required: bool) -> Any:
        wanted = schema.get("required")
        wanted = wanted if isinstance(wanted, list) else []
        found = {}
        for key, one in schema["properties"].items():
            value = self.value(f"{pointer}/{escape(key)}", one, depth=depth + 1, required=key in wanted)
            if value is not None and (key in wanted or value != _Shape(self._root, one).default):
                found[key] = value
        return found if found or required else None


class _Shape:
    """The widget for one schema. kind: of its field. hint: the reason for a JSON box instead, or ""."""

    def __init__(self, root: Mapping[str, Any], schema: Any) -> None:
        self.kind = "json"
        self.hint = ""
        self.default: Any = None
        resolved = _resolved(root, schema)
        self.schema: dict[str, Any] = resolved or {}
        if resolved is None:
            self.hint = "its schema cannot be shown as a form"
            return
        self.default = self.schema.get("default")
        self._root = root
        self._options = _options(self.schema)
        known = self._kind()
        if known is None:
            self.hint = "any value"
        else:
            self.kind = known

    def _kind(self) -> str | None:
        schema = self.schema
        if self._options is not None:
            return "choice" if self._options else None
        match schema.get("type"):
            case "string":
                return "text"
            case "integer" | "number":
                return "number"
            case "boolean":
                # A checkbox cannot show that neither value is set.
                return "flag" if isinstance(self.default, bool) else "choice"
            case "object":
                named = schema.get("properties")
                fits = isinstance(named, dict) and 0 < len(named) <= MAX_FIELDS
                return "group" if fits and _is_closed(schema) else None
            case "array":
                inner = _resolved(self._root, schema.get("items"))
                if inner is None:
                    return None
                if inner.get("type") == "string" and isinstance(inner.get("enum", []), list):
                    return "lines"
                named = inner.get("properties")
                return (
                    "items" if inner.get("type") == "object" and isinstance(named, dict) and named else None
                )
        return None

    def shows(self, data: Any) -> bool:
        """Return whether the widget can show data and post them back unchanged."""
        if isinstance(data, RawText):
            return False
        match self.kind:
            case "text":
                odd = r"[\r\0]" if self.is_long() else r"[\r\n\0]"
                return isinstance(data, str) and data != "" and not re.search(odd, data)
            case "number":
                # An invalid number is shown as it was typed, with the server's error.
                if isinstance(data, str):
                    return bool(re.fullmatch(r"\S[^\r\n\0]{0,99}", data)) and _number(data.strip()) == data
                return isinstance(data, int | float) and not isinstance(data, bool)
            case "flag":
                return isinstance(data, bool)
            case "choice":
                return any(_same(data, option) for option in self._all_options())
            case "lines":
                return (
                    isinstance(data, list)
                    and (bool(data) or data == self.default)
                    and all(isinstance(one, str) and one and not re.search(r"[\r\n\0]", one) for one in data)
                )
            case "items":
                return (
                    isinstance(data, list)
                    and len(data) <= _MAX_ITEMS
                    and (bool(data) or data == self.default)
                )
            case "group":
                return isinstance(data, dict) and data.keys() <= self.schema["properties"].keys()
        return True

    def is_long(self) -> bool:
        """Return whether a text may have several lines."""
        longest = self.schema.get("maxLength")
        return not isinstance(longest, int) or longest > _LONG_TEXT

    def written(self, data: Any) -> str:
        """Return the widget's text for data."""
        if data is None and self.kind == "flag":
            data = self.default
        if data is None:
            return ""
        if self.kind == "lines":
            return "\n".join(data)
        if self.kind == "flag":
            return "true" if data else ""
        return data if isinstance(data, str) else _json_text(data)

    def read(self, text: str) -> Any:
        """Parse a widget's text, None for no data. An invalid number stays a text: the server refuses it."""
        match self.kind:
            case "flag":
                return text == "true"
            case "choice":
                return next((one for one in self._all_options() if _json_text(one) == text), text or None)
            case "lines":
                return [line for line in text.split("\n") if line] or None
            case "number":
                return _number(text.strip())
        return text or None

    def choices(self, data: Any, *, required: bool) -> Iterator[Choice]:
        """Yield the options of a choice, first the one for "not set"."""
        if self.kind != "choice":
            return
        if not required or data is None:
            said = self.default_text()
            yield Choice("", f"default: {said}" if said else "not set", data is None)
        for one in self._all_options():
            label = (
                {True: "yes", False: "no"}[one]
                if isinstance(one, bool)
                else _text(one if isinstance(one, str) else _json_text(one))
            )
            yield Choice(_json_text(one), label or '""', data is not None and _same(one, data))

    def _all_options(self) -> list[Any]:
        return [True, False] if self._options is None else self._options

    def default_text(self) -> str:
        """Return the default as a text for users, "" without one."""
        if self.default is None or self.default in ([], {}, ""):
            return ""
        if isinstance(self.default, bool):
            return "yes" if self.default else "no"
        return _text(self.default if isinstance(self.default, str) else _json_text(self.default))


def _resolved(root: Mapping[str, Any], schema: Any) -> dict[str, Any] | None:
    """Follow local references, and unwrap nullable schemas. Returns None if the result is no schema."""
    outer: dict[str, Any] = {}
    for _ in range(MAX_DEPTH):
        if not isinstance(schema, dict):
            return None
        reference = schema.get("$ref")
        # With a type, anyOf only adds conditions, which the server checks.
        options = None if "type" in schema else schema.get("anyOf")
        if isinstance(reference, str):
            target: Any = root if reference.startswith("#/") or reference == "#" else None
            for part in reference.split("/")[1:]:
                target = target.get(unescape(part)) if isinstance(target, dict) else None
        elif isinstance(options, list):
            rest = [one for one in options if not (isinstance(one, dict) and one.get("type") == "null")]
            if len(rest) != 1 or len(rest) == len(options):
                return {**schema, **outer}  # a union: no type, so a JSON box
            target = rest[0]
        else:
            return {**schema, **outer}
        outer = {key: schema[key] for key in ("title", "description", "default") if key in schema} | outer
        schema = target
    return None


def _options(schema: Mapping[str, Any]) -> list[Any] | None:
    """Return the values of an enum or a const, None for other schemas. The list is empty if they cannot be options."""
    if "const" in schema:
        return [schema["const"]] if isinstance(schema["const"], str | int | float) else []
    found = schema.get("enum")
    if not isinstance(found, list):
        return None
    return (
        found if all(isinstance(one, str | int | float) for one in found) and len(found) <= MAX_FIELDS else []
    )


def _is_closed(schema: Mapping[str, Any]) -> bool:
    """Return whether a schema describes only properties with fixed names."""
    return not isinstance(schema.get("additionalProperties"), dict) and "patternProperties" not in schema


def _same(one: Any, other: Any) -> bool:
    return bool(one == other and isinstance(one, bool) == isinstance(other, bool))


def _length(text: str) -> int:
    """Return the number of posted items of a list."""
    return min(int(text), _MAX_ITEMS) if text.isascii() and text.isdigit() and len(text) < 6 else 0


def _number(text: str) -> Any:
    if not text:
        return None
    if re.fullmatch(r"[+-]?\d{1,300}", text, re.ASCII):
        return int(text)
    try:
        found = float(text)
    except ValueError:
        return text
    return found if found - found == 0 else text


def _json_text(data: Any) -> str:
    if data is None:
        return ""
    return json.dumps(data, ensure_ascii=False, indent=2 if isinstance(data, dict | list) else None)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        return ""
    return value if len(value) <= _MAX_TEXT else f"{value[:_MAX_TEXT]}…"


def _words(name: str) -> str:
    """Split a key into words: "maxMs" becomes "Max ms"."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[_-]", " ", name).strip()
    return words[:1].upper() + words[1:].lower() if words else name
