"""A config's JSON Schema as rows for people: key, type, default, meaning."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

# Deep enough for evaluators within evaluators; recursion of a schema into itself ends here as well.
_MAX_DEPTH = 3

_BOUNDS = (
    ("minimum", ">= "),
    ("exclusiveMinimum", "> "),
    ("maximum", "<= "),
    ("exclusiveMaximum", "< "),
    ("minLength", "length >= "),
    ("maxLength", "length <= "),
    ("minItems", "items >= "),
    ("maxItems", "items <= "),
)


class Row(NamedTuple):
    """One key of a config. default: JSON text; "required" when it has to be given, "" when it may be absent."""

    key: str
    type: str
    default: str
    meaning: str


def rows(schema: Mapping[str, Any]) -> list[Row]:
    """The keys of a config in the order of its schema, nested ones after the key that holds them."""
    return list(_rows(schema, schema, "", 0))


def _rows(schema: Mapping[str, Any], root: Mapping[str, Any], prefix: str, depth: int) -> Iterator[Row]:
    required = schema.get("required", ())
    for name, inner in schema.get("properties", {}).items():
        found = _resolved(inner, root)
        default = json.dumps(found["default"], ensure_ascii=False) if "default" in found else ""
        if default == "null":
            default = ""
        key = f"{prefix}{name}"
        meaning = str(found.get("description", "")).replace("\n", " ")
        yield Row(key, _type(found, root), "required" if name in required else default, meaning)
        if depth < _MAX_DEPTH:
            for suffix, nested in _nested(found, root):
                yield from _rows(nested, root, f"{key}{suffix}", depth + 1)


def _nested(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for option in _options(schema, root):
        items = option.get("items")
        if isinstance(items, Mapping):
            for item in _options(_resolved(items, root), root):
                if "properties" in item:
                    yield "[].", item
        elif "properties" in option:
            yield ".", option


def _options(schema: Mapping[str, Any], root: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    choices = schema.get("anyOf") or schema.get("oneOf")
    if not choices:
        return [schema]
    return [option for choice in choices for option in _options(_resolved(choice, root), root)]


def _resolved(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """A schema with a reference into its own document followed. Other references stay as they are."""
    if not isinstance(schema, Mapping):
        return {}
    seen: set[str] = set()
    found: dict[str, Any] = dict(schema)
    while (
        isinstance(reference := found.get("$ref"), str)
        and reference.startswith("#/")
        and reference not in seen
    ):
        seen.add(reference)
        target: Any = root
        for part in reference[2:].split("/"):
            target = target.get(part, {}) if isinstance(target, Mapping) else {}
        found = {
            **(target if isinstance(target, Mapping) else {}),
            **{k: v for k, v in found.items() if k != "$ref"},
        }
    return found


def _type(schema: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    names: list[str] = []
    for option in _options(schema, root):
        name = _one_type(option, root)
        if name != "null" and name not in names:
            names.append(name)
    return " or ".join(names)


def _one_type(schema: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return " | ".join(value if isinstance(value, str) else json.dumps(value) for value in schema["enum"])
    if "const" in schema:
        return json.dumps(schema["const"])
    name = schema.get("type", "any")
    if isinstance(name, list):
        name = " or ".join(part for part in name if part != "null")
    if name == "array":
        items = _resolved(schema.get("items", {}), root)
        inner = _type(items, root)
        name = f"list of {inner}{'s' * inner.isalpha()}" if items else "list"
    bounds = ", ".join(f"{sign}{schema[bound]}" for bound, sign in _BOUNDS if bound in schema)
    return f"{name} ({bounds})" if bounds else str(name)
