"""Keywords of JSON Schemas: which are known, which check nothing, and what other tools write in their place."""

import re
from collections.abc import Mapping
from typing import Any, Final

import re2

from evald.evaluator import InvalidConfig
from evald.fields import did_you_mean
from evald_server.untrusted import shorten

from .cost import escape, resolve, subschemas

# Keywords that check nothing, in any draft.
_ANNOTATIONS: Final = frozenset(
    {
        *("$schema", "$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary", "$comment"),
        *("$defs", "definitions", "title", "description", "default", "examples", "deprecated"),
        *("readOnly", "writeOnly", "contentSchema"),
        *("example", "discriminator", "xml", "externalDocs", "propertyOrdering", "errorMessage"),
        "nullable",  # read by `with_nulls`
    }
)
_DRAFT_4: Final = frozenset(
    {
        *("type", "enum", "multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"),
        *("maxLength", "minLength", "pattern", "format", "items", "maxItems", "minItems", "uniqueItems"),
        *("maxProperties", "minProperties", "required", "properties", "patternProperties"),
        *(
            "additionalProperties",
            "additionalItems",
            "dependencies",
            "allOf",
            "anyOf",
            "oneOf",
            "not",
            "$ref",
        ),
    }
)
_DRAFT_6: Final = _DRAFT_4 | {"const", "contains", "propertyNames"}
_DRAFT_7: Final = _DRAFT_6 | {"if", "then", "else", "contentEncoding", "contentMediaType"}
_DRAFT_2019: Final = _DRAFT_7 | {
    *("dependentRequired", "dependentSchemas", "minContains", "maxContains"),
    *("unevaluatedItems", "unevaluatedProperties", "$recursiveRef"),
}
_DRAFT_2020: Final = (_DRAFT_2019 - {"additionalItems", "$recursiveRef"}) | {"prefixItems", "$dynamicRef"}
_KEYWORDS: Final[Mapping[str, frozenset[str]]] = {
    "http://json-schema.org/draft-04/schema": _DRAFT_4,
    "http://json-schema.org/draft-06/schema": _DRAFT_6,
    "http://json-schema.org/draft-07/schema": _DRAFT_7,
    "https://json-schema.org/draft/2019-09/schema": _DRAFT_2019,
    "https://json-schema.org/draft/2020-12/schema": _DRAFT_2020,
}
_ANY_DRAFT: Final = frozenset().union(*_KEYWORDS.values())

_FORMATS: Final = frozenset(
    {
        *("date", "date-time", "time", "duration", "email", "idn-email", "hostname", "idn-hostname"),
        *("ipv4", "ipv6", "uri", "uri-reference", "iri", "iri-reference", "uri-template", "uuid"),
        *("json-pointer", "relative-json-pointer", "regex"),
    }
)
_ALL_TYPES: Final = frozenset({"null", "boolean", "object", "array", "number", "string"})
_BY_NAME: Final = ("properties", "patternProperties", "dependentSchemas", "dependencies")
_OF_PARTS: Final = (
    *("items", "prefixItems", "additionalItems", "additionalProperties", "propertyNames"),
    *("unevaluatedItems", "unevaluatedProperties", "allOf"),
)

_CONDITIONAL: Final = frozenset(
    {*_BY_NAME, *_OF_PARTS, "contains", "dependentRequired", "if", "then", "else"} - {"allOf"}
)

_MAX_UNKNOWN: Final = 20
_MAX_STEPS: Final = 10_000
_MAX_PATTERN: Final = 1024


# JavaScript's flags and x, which other languages have.
_LITERAL: Final = re.compile(r"\s*/((?:\\.|\[(?:\\.|[^\]\\])*+\]|[^/\\\[])++)/([dgimsuvxy]*)\s*", re.DOTALL)


def literal_problem(pattern: str) -> str:
    """Return the problem of a pattern that is written as a literal of JavaScript, such as /x/i; else ""."""
    found = _LITERAL.fullmatch(pattern)
    if found is None:
        return ""
    inner, flags = found.groups()
    with_flags = f" and flags {flags}" if flags else ""
    return (
        f"got a literal, whose slashes would be searched for; write the pattern {shorten(inner, 100)}{with_flags}, or, "
        f"if the slashes are meant, [/]{shorten(inner, 100)}[/]{flags}"
    )


# An escape or a class, and an assertion, which may refuse the empty text.
_ATOM: Final = re.compile(r"\\[^bBAz]|\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]", re.DOTALL)
_ASSERTION: Final = re.compile(r"[\^$]|\\[bBAz]")


def matches_every_text(pattern: str, compiled: Any) -> bool:
    """Return whether the pattern provably matches every text: it matches nothing, wherever it is searched."""
    without = pattern.removeprefix("^")
    if without == pattern:
        without = pattern.removesuffix("$")
    return compiled.search(b"") is not None and not _ASSERTION.search(_ATOM.sub("x", without))


def unwrapped(schema: Any) -> tuple[Any, str]:
    """Return the schema within the value of a model's `response_format`, and its place there as a JSON Pointer."""
    place = ""
    while isinstance(schema, dict):
        if schema.get("type") == "json_schema" and isinstance(schema.get("json_schema"), dict):
            step = "json_schema"
        elif len(schema) == 1 and isinstance(next(iter(schema.values())), dict):
            step = next(iter(schema))
            if step not in ("response_format", "json_schema", "format", "schema"):
                break
        elif schema.keys() <= {"type", "name", "strict", "description", "schema"} and isinstance(
            schema.get("schema"), dict | bool
        ):
            step = "schema"
        else:
            break
        schema = schema[step]
        place += f"/{step}"
    return schema, place


def unknown_keywords(schema: Mapping[str, Any], draft: str) -> list[tuple[str, str]]:
    """Return the place of each unknown keyword, and what to write instead; at most 20."""
    known = _KEYWORDS[draft] | _ANNOTATIONS
    holders = {"$defs"}  # keys outside all keywords to which references lead, such as "components"
    schemas = list(subschemas(schema))
    for _, subschema in schemas:
        reference = subschema.get("$ref")
        if isinstance(reference, str) and reference.startswith("#/"):
            holders.add(reference.split("/")[1])
    found = []
    for place, subschema in schemas:
        for key in subschema:
            if key in known or key.startswith("x-") or (subschema is schema and key in holders):
                continue
            if key in _ANY_DRAFT:
                text = f"draft {draft} has no such keyword, so it would check nothing; name another draft in $schema"
            else:
                text = (
                    f"unknown keyword, which would check nothing{did_you_mean(key, sorted(known))}; start the names "
                    "of your own annotations with x-"
                )
            found.append((f"{place}/{escape(shorten(key, 100))}", text))
            if len(found) == _MAX_UNKNOWN:
                return found
    return found


def with_nulls(schema: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the schema, changed in place: replace OpenAPI's `nullable: true` by a schema that accepts null. Raises InvalidConfig for another value."""
    schemas = list(subschemas(schema))
    references = [reference for _, each in schemas if isinstance(reference := each.get("$ref"), str)]
    for place, subschema in schemas:
        if "nullable" not in subschema:
            continue
        nullable = subschema.pop("nullable")
        if not isinstance(nullable, bool):
            raise InvalidConfig.at(
                f"{where}{place}/nullable", f"got {str(nullable)[:80]!r}, wanted true or false"
            )
        if not nullable:
            continue
        types = subschema.get("type")
        if types is not None:
            types = list(types) if isinstance(types, list) else [types]
            subschema["type"] = types if "null" in types else [*types, "null"]
        choices = subschema.get("enum")
        if isinstance(choices, list) and None not in choices:
            subschema["enum"] = [*choices, None]
        # Only keywords that can refuse null; the others stay in place, because references may lead below them.
        refusing = ("$ref", "allOf", "anyOf", "oneOf", "not", "const", "if", "then", "else")
        moved = {key: subschema.pop(key) for key in refusing if key in subschema}
        if any(f"{reference}/".startswith(f"#{place}/{key}/") for reference in references for key in moved):
            raise InvalidConfig.at(
                f"{where}{place}/nullable",
                'a "$ref" leads into this schema; move the schema that it means to "$defs"',
            )
        if moved:
            subschema["anyOf"] = [{"type": "null"}, moved]
    return schema


def names_parts(schema: Mapping[str, Any]) -> bool:
    """Return whether the schema names parts of a value or conditions, even if it says nothing of them."""
    return not _CONDITIONAL.isdisjoint(schema)


def accepts_everything(schema: Any, root: Any, draft: str) -> bool:
    """Return whether the schema provably accepts every JSON value: no keyword in it can refuse one."""
    return _Vacuity(root, draft).holds(schema)


class _Vacuity:
    def __init__(self, root: Any, draft: str) -> None:
        self._root = root
        self._draft = draft
        self._open: set[int] = set()  # schemas being examined
        self._steps = 0
        self._anchors: dict[str, Any] | None = None

    def holds(self, schema: Any) -> bool:
        if not isinstance(schema, dict):
            return schema is True
        self._steps += 1
        if self._steps > _MAX_STEPS:  # schemas that refer to others many times
            return False
        if id(schema) in self._open:  # refers to itself, which checks nothing more
            return True
        self._open.add(id(schema))
        old = "2019" not in self._draft and "2020" not in self._draft
        keys = ["$ref"] if old and "$ref" in schema else list(schema)
        holds = all(self._idle(key, schema[key], schema) for key in keys)
        self._open.discard(id(schema))
        return holds

    def _idle(self, key: str, value: Any, schema: Mapping[str, Any]) -> bool:
        """Return whether a keyword refuses nothing."""
        if key in _ANNOTATIONS or key not in _KEYWORDS[self._draft]:
            return True
        if key in _BY_NAME and isinstance(value, dict):
            return all(each == [] or self.holds(each) for each in value.values())
        if key in _OF_PARTS:
            return all(map(self.holds, value)) if isinstance(value, list) else self.holds(value)
        match key:
            case "anyOf":
                return isinstance(value, list) and (
                    any(map(self.holds, value)) or self._names_all_types(value)
                )
            case "oneOf":
                return isinstance(value, list) and len(value) == 1 and self.holds(value[0])
            case "not":
                return value is False or (
                    isinstance(value, dict) and "not" in value and self.holds(value["not"])
                )
            case "if":
                return all(self.holds(schema.get(branch, True)) for branch in ("then", "else"))
            case "then" | "else":
                return "if" not in schema or self.holds(value)
            case "contains":
                return schema.get("minContains") == 0 and "maxContains" not in schema
            case "minContains" | "maxContains":
                return "contains" not in schema or key == "minContains"
            case "$ref" | "$dynamicRef" | "$recursiveRef":
                target = resolve(self._root, value)
                target = self._anchored(value) if target is None else target
                return target is not None and self.holds(target)
            case "type":
                return isinstance(value, list) and set(value) >= _ALL_TYPES
            case "minLength" | "minItems" | "minProperties":
                return bool(value == 0)
            case "required" | "dependentRequired":
                return not any(value.values()) if isinstance(value, dict) else value == []
            case "uniqueItems":
                return value is False
            case "pattern":
                return self._is_idle_pattern(value)
            case "format":
                return not isinstance(value, str) or value not in _FORMATS
            case "contentEncoding" | "contentMediaType":
                return "draft-07" not in self._draft
        return False

    def _names_all_types(self, schemas: list[Any]) -> bool:
        """Return whether a value of each type is accepted by one of the schemas, which is a type and nothing else."""
        types: set[str] = set()
        for schema in schemas:
            if isinstance(schema, dict) and "type" in schema and schema.keys() - _ANNOTATIONS == {"type"}:
                types.update(schema["type"] if isinstance(schema["type"], list) else [schema["type"]])
        return types >= _ALL_TYPES

    def _anchored(self, reference: Any) -> Any:
        """Return the schema with the anchor of a reference within the document; None if there is none."""
        if "draft-0" in self._draft or not isinstance(reference, str) or not reference.startswith("#"):
            return None
        if self._anchors is None:
            self._anchors = {
                schema[key]: schema
                for _, schema in subschemas(self._root)
                for key in ("$anchor", "$dynamicAnchor")
                if isinstance(schema.get(key), str)
            }
        return self._anchors.get(reference[1:])

    @staticmethod
    def _is_idle_pattern(pattern: Any) -> bool:
        options = re2.Options()
        options.log_errors = False
        try:
            # `matches_every_text` takes the square of the length, and knows no quotations.
            if not isinstance(pattern, str) or len(pattern) > _MAX_PATTERN or "\\Q" in pattern:
                return False
            return matches_every_text(pattern, re2.compile(pattern.encode(), options))
        except re2.error:
            return False
