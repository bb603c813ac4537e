"""`evald types`: what a server can evaluate."""

import argparse
from typing import TYPE_CHECKING, Any

from rich.table import Table

from .console import say, show
from .exits import Exit
from .plain import clean, print_json
from .schemas import rows
from .tables import table_of
from .target import connected, run_async

if TYPE_CHECKING:
    from evald import EvaluatorType


def run(args: argparse.Namespace) -> int:
    """List the types, or show one."""
    return run_async(_types(args))


async def _types(args: argparse.Namespace) -> int:
    async with connected(args) as client:
        if args.name:
            entry = await client.evaluator_type(args.name)
            if args.json:
                print_json(entry.to_dict(), indent=2)
            else:
                _show(entry)
            return Exit.PASSED
        entries = await client.evaluator_types()
    if args.json:
        print_json({"evaluatorTypes": [entry.to_dict() for entry in entries]}, indent=2)
        return Exit.PASSED
    for heading, kind in (("Assertions", "ASSERTION"), ("Metrics", "METRIC")):
        of_kind = [entry for entry in entries if entry.kind.name == kind]
        if of_kind:
            say((f"{heading} ({len(of_kind)})", "bold"))
            show(_list(heading, of_kind))
    say("evald types TYPE shows one with its config.")
    return Exit.PASSED


def _list(heading: str, entries: "list[EvaluatorType]") -> Table:
    table = table_of(
        "Type", "Also called", "What it checks" if heading == "Assertions" else "What it measures"
    )
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


def _where(entry: "EvaluatorType") -> str:
    if entry.origin != "remote":
        return ""
    if entry.state == "unavailable":
        return "in another process, of which no instance is there now"
    return f"in another process, {entry.instance_count} live"


def _show(entry: "EvaluatorType") -> None:
    kind = entry.kind.name.lower()
    say((clean(entry.type), "bold cyan"), f"  {clean(entry.label)}, {kind}, version {clean(entry.version)}")
    say(clean(entry.description))
    facts: list[tuple[str, Any]] = [
        ("also called", ", ".join(entry.aliases)),
        ("needs", ", ".join(entry.required_data)),
        ("runs", _where(entry)),
        ("loaded by", "the operator of the server" if entry.origin == "plugin" else ""),
        ("can be called", "no" if entry.state == "unavailable" else ""),
        ("judges", "the final turn only" if entry.final_turn_only else ""),
        ("deprecated", entry.deprecation_message),
    ]
    for name, value in facts:
        if value:
            say((f"{name}: ", "dim"), clean(value))
    found = rows(entry.config_schema)
    if not found:
        say((f"{'config'}: ", "dim"), "none")
        return
    table = table_of("Key", "Type", "Default", "Meaning")
    table.columns[1].no_wrap = False
    for row in found:
        table.add_row(*(clean(cell) for cell in row))
    say(("Config", "bold"))
    show(table)
