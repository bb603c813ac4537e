"""`evald types`: list a server's evaluator types, or show one with the keys of its config."""

import argparse
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rich.table import Table

from .console import new_table, say, show
from .exit_codes import ExitCode
from .sanitize import clean, print_json
from .server_connection import connect, run_async

if TYPE_CHECKING:
    from evald import EvaluatorType

# Deep enough for nested evaluators. Also stops the recursion of recursive schemas.
_MAX_DEPTH: Final = 3

_BOUNDS: Final = {
    "minimum": ">= ",
    "exclusiveMinimum": "> ",
    "maximum": "<= ",
    "exclusiveMaximum": "< ",
    "minLength": "length >= ",
    "maxLength": "length <= ",
    "minItems": "items >= ",
    "maxItems": "items <= ",
}


def run(args: argparse.Namespace) -> int:
    """List the types, or show one."""
    return run_async(_types(args))


async def _types(args: argparse.Namespace) -> int:
    async with connect(args) as client:
        if args.name:
            entry = await client.evaluator_type(args.name)
            if args.json:
                print_json(entry.to_dict(), indent=2)
            else:
                _show(entry)
            return ExitCode.PASSED
        entries = await client.evaluator_types()
    if args.json:
        print_json({"evaluatorTypes": [entry.to_dict() for entry in entries]}, indent=2)
        return ExitCode.PASSED
    for heading, kind, meaning in (
        ("Assertions", "ASSERTION", "What it checks"),
        ("Metrics", "METRIC", "What it measures"),
    ):
        of_kind = [entry for entry in entries if entry.kind.name == kind]
        if of_kind:
            say((f"{heading} ({len(of_kind)})", "bold"))
            show(_list(of_kind, meaning))
    say("evald types TYPE shows the config of one type.")
    return ExitCode.PASSED


def _list(entries: "list[EvaluatorType]", meaning: str) -> Table:
    table = new_table("Type", "Also called", meaning)
    table.columns[0].style = "cyan"
    aliases = table.columns[1]
    aliases.style, aliases.no_wrap, aliases.max_width = "dim", False, 28
    for entry in entries:
        notes = "" if entry.origin == "built_in" else f" [{entry.origin}]"
        if entry.state == "unavailable":
            notes += " [unavailable]"
        table.add_row(
            clean(entry.type, 63), clean(", ".join(entry.aliases)), clean(entry.description + notes)
        )
    return table


def _show(entry: "EvaluatorType") -> None:
    kind = entry.kind.name.lower()
    say((clean(entry.type), "bold cyan"), f"  {clean(entry.label)}, {kind}, version {clean(entry.version)}")
    say(clean(entry.description))
    facts = {
        "also called": ", ".join(entry.aliases),
        "needs": ", ".join(entry.required_data),
        "runs": _location(entry),
        "loaded by": "the operator of the server" if entry.origin == "plugin" else "",
        "can be called": "no" if entry.state == "unavailable" else "",
        "judges": "the final turn only" if entry.final_turn_only else "",
        "deprecated": entry.deprecation_message,
    }
    for name, value in facts.items():
        if value:
            say((f"{name}: ", "dim"), clean(value))
    table = config_table(entry.config_schema)
    if not table.row_count:
        say(("config: ", "dim"), "none")
        return
    say(("Config", "bold"))
    show(table)


def _location(entry: "EvaluatorType") -> str:
    if entry.origin != "remote":
        return ""
    if entry.state == "unavailable":
        return "in another process; no instance is connected"
    return f"in another process; {entry.instance_count} live"


class ConfigKey(NamedTuple):
    """One key of a config. default: JSON; "required" for a required key; "" for an optional key without a default."""

    key: str
    type: str
    default: str
    meaning: str


def config_table(schema: Mapping[str, Any]) -> Table:
    """Return a table of the keys of a config's JSON Schema."""
    table = new_table("Key", "Type", "Default", "Meaning")
    table.columns[1].no_wrap = False
    for key in config_keys(schema):
        table.add_row(*(clean(cell) for cell in key))
    return table


def config_keys(schema: Mapping[str, Any]) -> list[ConfigKey]:
    """Return the keys of a config's JSON Schema in the schema's order, nested keys after their parent."""
    return list(_keys(schema, schema, "", 0))


def _keys(schema: Mapping[str, Any], root: Mapping[str, Any], prefix: str, depth: int) -> Iterator[ConfigKey]:
    required = schema.get("required", ())
    for name, inner in schema.get("properties", {}).items():
        found = _resolve(inner, root)
        default = json.dumps(found["default"], ensure_ascii=False) if "default" in found else ""
        if default == "null":
            default = ""
        key = f"{prefix}{name}"
        meaning = str(found.get("description", "")).replace("\n", " ")
        yield ConfigKey(key, _type(found, root), "required" if name in required else default, meaning)
        if depth < _MAX_DEPTH:
            for suffix, nested in _nested(found, root):
                yield from _keys(nested, root, f"{key}{suffix}", depth + 1)


def _nested(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for option in _options(schema, root):
        items = option.get("items")
        if isinstance(items, Mapping):
            for item in _options(_resolve(items, root), root):
                if "properties" in item:
                    yield "[].", item
        elif "properties" in option:
            yield ".", option


def _options(schema: Mapping[str, Any], root: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    choices = schema.get("anyOf") or schema.get("oneOf")
    if not choices:
        return [schema]
    return [option for choice in choices for option in _options(_resolve(choice, root), root)]


def _resolve(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follow references within the document. Other references are kept."""
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
        del found["$ref"]
        found = {**(target if isinstance(target, Mapping) else {}), **found}
    return found


def _type(schema: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    names = dict.fromkeys(_option_type(option, root) for option in _options(schema, root))
    return " or ".join(name for name in names if name != "null")


def _option_type(schema: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return " | ".join(value if isinstance(value, str) else json.dumps(value) for value in schema["enum"])
    if "const" in schema:
        return json.dumps(schema["const"])
    name = schema.get("type", "any")
    if isinstance(name, list):
        name = " or ".join(part for part in name if part != "null")
    if name == "array":
        items = _resolve(schema.get("items", {}), root)
        inner = _type(items, root)
        name = f"list of {inner}{'s' * inner.isalpha()}" if items else "list"
    bounds = ", ".join(f"{sign}{schema[bound]}" for bound, sign in _BOUNDS.items() if bound in schema)
    return f"{name} ({bounds})" if bounds else str(name)
