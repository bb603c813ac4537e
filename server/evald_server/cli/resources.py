"""`evald scenarios`, `personas`, `connectors` and `experiments`: create, list, show, update, delete, export, import."""

import argparse
import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from evald.convert.resources import check_masks, connector_test_to_json, connector_type_to_json
from evald.errors import InvalidInput
from evald.v1 import connector_service_pb2
from evald_server.methods import StandardMethods

from .catalog import config_table
from .console import new_table, say, show
from .exit_codes import ExitCode, usage_error
from .sanitize import clean, print_json, to_json
from .server_client import KINDS, ServerClient, open_server
from .server_connection import run_async
from .stored_import import FileRecord, Importing, import_files, read_files, read_records

# The columns of a list besides name and id, by kind: heading, and a function from a resource to the cell's text.
_COLUMNS: Final[Mapping[str, Mapping[str, Callable[[Any], str]]]] = {
    "scenario": {
        "Messages": lambda pb: f"at most {pb.max_messages or 10}",
        "Criteria": lambda pb: "yes" if pb.success_criteria or pb.failure_criteria else "-",
        "Evaluators": lambda pb: ", ".join(spec.name or spec.type for spec in pb.evaluators),
    },
    "persona": {
        "Speaks": lambda pb: f"{len(pb.script)} messages" if pb.script else "by a model",
        "Description": lambda pb: pb.description or pb.system_prompt,
    },
    "connector": {"Type": lambda pb: pb.type, "Address": lambda pb: pb.base_url},
    "experiment": {
        "Scenarios": lambda pb: str(len(pb.scenario_ids)),
        "Personas": lambda pb: str(len(pb.persona_ids)) if pb.persona_ids else "of the scenarios",
        "Connector": lambda pb: pb.connector_id,
    },
}


def run(args: argparse.Namespace) -> int:
    """Perform the action."""
    word = next(word for word, kind in KINDS.items() if kind.plural == args.command)
    if args.action == "import":
        return import_files(args, word)
    # Before the event loop starts, because nothing can interrupt reading a pipe in it.
    args.records = _read(KINDS[word], args)
    return run_async(_run(KINDS[word], args))


def _read(kind: StandardMethods, args: argparse.Namespace) -> list[FileRecord]:
    """Return the records of the files of the command line; none for an action without files. Raises CommandError."""
    files = getattr(args, "files", None) or ([args.file] if getattr(args, "file", None) else [])
    records = read_files(files, kind.word).records if files else []
    other = next((record for record in records if record.word != kind.word), None)
    if other is not None:
        raise usage_error(
            f"{other.place}: got a {other.word}, wanted only {kind.plural}",
            "evald import reads files with several kinds of records",
        )
    return records


async def _run(kind: StandardMethods, args: argparse.Namespace) -> int:
    async with open_server(args) as store:
        return await _ACTIONS[args.action](store, kind, args)


async def _create(store: ServerClient, kind: StandardMethods, args: argparse.Namespace) -> int:
    records, references = args.records, Importing(store)
    created: list[Any] = []
    try:
        for record, resource in zip(records, read_records(records), strict=True):
            try:
                check_masks(resource)
            except InvalidInput as problem:
                raise usage_error(f"{record.place}: {problem}") from None
            await references.resolve(kind.word, resource)
            created.append(await store.create(kind, resource))
            if not args.json:
                say(("created   ", "green"), f"{clean(created[-1].name, 80)}  {created[-1].id}")
    finally:
        # Also print the resources that were stored before an error.
        if args.json and created:
            data = [kind.shape.write(one) for one in created]
            print_json(data[0] if len(records) == 1 else data, indent=2)
    return ExitCode.PASSED


async def _list(store: ServerClient, kind: StandardMethods, args: argparse.Namespace) -> int:
    found = [resource async for resource in store.every(kind)]
    if args.json:
        print_json([kind.shape.write(one) for one in found], indent=2)
        return ExitCode.PASSED
    columns = _COLUMNS[kind.word]
    table = new_table("Name", "Id", *columns)
    for one in found:
        table.add_row(
            clean(one.name, 60), clean(one.id, 40), *(clean(text(one), 200) for text in columns.values())
        )
    show(table) if found else say(f"No {kind.plural} are stored; evald {kind.plural} create FILE stores some")
    return ExitCode.PASSED


async def _show(store: ServerClient, kind: StandardMethods, args: argparse.Namespace) -> int:
    (name,) = args.names
    _print(kind.shape.write(await store.find(kind, name)), as_json=args.json)
    return ExitCode.PASSED


def _print(data: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(data, indent=2)
        return
    for key, value in data.items():
        if isinstance(value, list) and value:
            say((f"{key}:", "dim"))
            for one in value:
                say("  - ", clean(_text(one)))
        else:
            say((f"{key}: ", "dim"), clean(_text(value)))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


async def _update(store: ServerClient, kind: StandardMethods, args: argparse.Namespace) -> int:
    (name,) = args.names
    if len(args.records) != 1:
        raise usage_error(f"{args.file}: got {len(args.records)} {kind.plural}, wanted one")
    (resource,) = read_records(args.records)
    fields = kind.shape.given(args.records[0].data)
    if not fields:
        raise usage_error(
            f"{args.records[0].place}: nothing to change", "write the keys to change with their new values"
        )
    resource.id = (await store.find(kind, name)).id
    await Importing(store).resolve(kind.word, resource)
    updated = await store.update(kind, resource, fields)
    if args.json:
        print_json(kind.shape.write(updated), indent=2)
    else:
        say(("updated   ", "green"), f"{clean(updated.name, 80)}: {', '.join(fields)}")
    return ExitCode.PASSED


async def _delete(store: ServerClient, kind: StandardMethods, args: argparse.Namespace) -> int:
    found = [await store.find(kind, name) for name in args.names]
    for one in found:
        await store.delete(kind, one.id)
        if not args.json:
            say(("deleted   ", "green"), f"{clean(one.name, 80)}  {one.id}")
    if args.json:
        print_json({"deleted": [one.id for one in found]})
    return ExitCode.PASSED


async def _export(store: ServerClient, kind: StandardMethods, args: argparse.Namespace) -> int:
    for name in args.names:
        _print_line(kind, await store.find(kind, name))
    if not args.names:
        async for one in store.every(kind):
            _print_line(kind, one)
    return ExitCode.PASSED


def _print_line(kind: StandardMethods, resource: Any) -> None:
    sys.stdout.write(to_json({"kind": kind.word, **kind.shape.write(resource)}) + "\n")


async def _test(store: ServerClient, kind: StandardMethods, args: argparse.Namespace) -> int:
    if len(args.names) + bool(args.file) != 1:
        raise usage_error("wanted exactly one connector", "evald connectors test NAME_OR_ID, or --file FILE")
    request = connector_service_pb2.TestConnectorRequest(message=args.message)
    if args.file:
        if len(args.records) != 1:
            raise usage_error(f"{args.file}: got {len(args.records)} {kind.plural}, wanted one")
        (resource,) = read_records(args.records)
        request.connector.CopyFrom(resource)
    else:
        request.connector_id = (await store.find(kind, args.names[0])).id
    answer = await store.call(request)
    data = connector_test_to_json(answer)
    if args.json:
        print_json(data, indent=2)
    elif answer.success:
        say(("✓ ", "green"), f"{data['latencyMs']} ms  {clean(data['response'], 500)}")
    else:
        say(("✗ ", "red"), f"{data['latencyMs']} ms  {clean(data['error'], 500)}")
    return ExitCode.PASSED if answer.success else ExitCode.INCONCLUSIVE


async def _types(store: ServerClient, kind: StandardMethods, args: argparse.Namespace) -> int:
    answer = await store.call(connector_service_pb2.ListConnectorTypesRequest())
    found = [one for one in answer.connector_types if args.name in (None, one.type)]
    if not found:
        names = ", ".join(one.type for one in answer.connector_types)
        raise usage_error(f'unknown connector type "{args.name}"', f"the types are {names}")
    if args.json:
        data = [connector_type_to_json(one) for one in found]
        print_json(data[0] if args.name else data, indent=2)
        return ExitCode.PASSED
    table = new_table("Type", "Label", "Description")
    for one in found:
        table.add_row(clean(one.type), clean(one.label), clean(one.description))
    show(table)
    if args.name:
        show(config_table(json.loads(found[0].config_schema_json)))
    return ExitCode.PASSED


_ACTIONS: Final[
    Mapping[str, Callable[[ServerClient, StandardMethods, argparse.Namespace], Awaitable[int]]]
] = {
    "create": _create,
    "list": _list,
    "show": _show,
    "update": _update,
    "delete": _delete,
    "export": _export,
    "test": _test,
    "types": _types,
}
