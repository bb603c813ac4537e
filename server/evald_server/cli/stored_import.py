"""Import of resources from files, for `evald import` and `create`. Creates, or updates by id or name."""

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from evald import errors
from evald.convert.resources import check_masks
from evald.convert.runs import run_from_json
from evald.v1 import run_service_pb2
from evald_server.methods import StandardMethods

from .console import say, warn
from .exit_codes import ExitCode, usage_error
from .sanitize import clean, print_json
from .server_client import KINDS, ServerClient, open_server
from .server_connection import run_async
from .stored_files import FileRecord, read_files

# Fields that hold ids of other resources, with their kinds. A file may have names in these fields.
_REFERENCES: Final = {
    "scenario": {"persona_ids": "persona"},
    "experiment": {"scenario_ids": "scenario", "persona_ids": "persona", "connector_id": "connector"},
    "run": {
        "scenario_id": "scenario",
        "persona_id": "persona",
        "connector_id": "connector",
        "experiment_id": "experiment",
    },
}
_SET_BY_SERVER: Final = ("id", "create_time", "update_time")
# Statuses of runs that have not ended. "chat" and "pending" are EvalStudio's.
_GOING_ON: Final = ("chat", "pending", "queued", "running")
_STYLES: Final = {"created": "green", "updated": "green", "unchanged": "dim", "refused": "bold red"}


class Stored(NamedTuple):
    """The outcome of a record.

    outcome: "created", "updated", "unchanged" or "refused". resource: the stored version, or the refused one.
    """

    record: FileRecord
    outcome: str
    resource: Any
    problem: str = ""


def run(args: argparse.Namespace) -> int:
    """`evald import`: store all resources of the files."""
    return import_files(args, "")


def import_files(args: argparse.Namespace, word: str) -> int:
    """Store the resources of the files. word: the only kind to store; "" for all."""
    found = read_files(args.files, word, args.project or "")
    records, left_out = [], found.left_out
    for record in found.records:
        reason = _why_left_out(record, word)
        if reason:
            left_out.append(f"{record.place}: {record.word}: {reason}")
        else:
            records.append(record)
    return run_async(_store(args, records, read_records(records), left_out))


async def _store(
    args: argparse.Namespace, records: Sequence[FileRecord], messages: Sequence[Any], left_out: Sequence[str]
) -> int:
    """Store the messages of the records, and print the outcomes. left_out: what is not stored, and why."""
    async with open_server(args) as store:
        importing = Importing(store)
        counts: Counter[str] = Counter()
        for record, message in zip(records, messages, strict=True):
            stored = await importing.store(record, message)
            counts[stored.outcome] += 1
            report(stored, as_json=args.json)
    for text in left_out:
        if args.json:
            print_json({"outcome": "left out", "message": text})
        else:
            say(("left out  ", "yellow"), clean(text))
    if not args.json:
        say(", ".join(f"{count} {outcome}" for outcome, count in counts.items()) or "nothing to import")
    return ExitCode.USAGE if counts["refused"] else ExitCode.PASSED


def _why_left_out(record: FileRecord, word: str) -> str:
    """Return the reason not to store a record; "" to store it. word: the only kind to store; "" for all."""
    if word and record.word != word:
        return f"this command imports only {word}s; evald import imports every kind"
    status = record.data.get("status") if record.word == "run" else None
    if isinstance(status, str) and status.lower() in _GOING_ON:
        return f"got status {status}, wanted a run that has ended"
    return ""


def read_records(records: Iterable[FileRecord]) -> list[Any]:
    """Convert records to messages. Prints all problems but the last, and raises CommandError with the last."""
    messages, problems = [], []
    for record in records:
        try:
            read = run_from_json if record.word == "run" else KINDS[record.word].shape.read
            messages.append(read(record.data))
        except errors.InvalidInput as problem:
            problems.append(f"{record.place}: {record.word}: {problem}")
    for text in problems[:-1]:
        warn(clean(text))
    if problems:
        raise usage_error(problems[-1], "nothing was stored")
    return messages


def report(stored: Stored, *, as_json: bool) -> None:
    """Print the outcome of a record."""
    record, resource = stored.record, stored.resource
    name = getattr(resource, "name", "")
    if as_json:
        line = {"outcome": stored.outcome, "kind": record.word, "id": resource.id, "name": name}
        line |= {"place": record.place, "message": stored.problem}
        print_json({key: value for key, value in line.items() if value})
    elif stored.outcome == "refused":
        warn(clean(f"{record.place}: {record.word}: {stored.problem}"))
    else:
        label = f"{stored.outcome:9} {record.word:10} "
        say(
            (label, _STYLES[stored.outcome]),
            clean(name or resource.id, 80),
            (f"  {clean(record.place)}", "dim"),
        )


class Importing:
    """An import in progress. It stores resources one after the other and keeps their ids for references."""

    def __init__(self, store: ServerClient) -> None:
        self._store = store
        self._known: dict[tuple[str, str], Any] = {}

    async def store(self, record: FileRecord, message: Any) -> Stored:
        """Create or update a record's resource. Does not raise if the server refuses it: that is an outcome."""
        given = (message.id, getattr(message, "name", ""))
        try:
            await self.resolve(record.word, message)
            if record.word == "run":
                stored = await self._store_run(record, message)
            else:
                stored = await self._store_resource(record, KINDS[record.word], message)
        except errors.InvalidRequest as problem:
            return Stored(record, "refused", message, _explain(problem))
        for name in (*given, stored.resource.id):
            if name:
                self._known[record.word, name] = stored.resource
        return stored

    async def resolve(self, word: str, message: Any) -> None:
        """Replace names, and ids of another server, by ids of this server. Unknown references stay."""
        for field, other in _REFERENCES.get(word, {}).items():
            value = getattr(message, field)
            if isinstance(value, str):
                setattr(message, field, await self._id_of(other, value))
            else:
                value[:] = [await self._id_of(other, one) for one in value]

    async def _id_of(self, word: str, reference: str) -> str:
        found = await self._lookup(word, reference)
        return found.id if found is not None else reference

    async def _lookup(self, word: str, reference: str) -> Any:
        if not reference:
            return None
        if (word, reference) not in self._known:
            self._known[word, reference] = await self._store.lookup(KINDS[word], reference)
        return self._known[word, reference]

    async def _store_resource(self, record: FileRecord, kind: StandardMethods, resource: Any) -> Stored:
        current = await self._store.by_id(kind, resource.id) if resource.id else None
        if current is None and resource.name:
            current = next(iter([one async for one in self._store.every(kind, resource.name)]), None)
        if current is None:
            check_masks(resource)
            return Stored(record, "created", await self._store.create(kind, resource))
        resource.id = current.id
        if _without_times(current) == _without_times(resource):
            return Stored(record, "unchanged", current)
        return Stored(record, "updated", await self._store.update(kind, resource))

    async def _store_run(self, record: FileRecord, run: run_service_pb2.Run) -> Stored:
        for word in ("scenario", "persona", "connector"):
            if not run.HasField(word):
                copied = await self._lookup(word, getattr(run, f"{word}_id"))
                if copied is not None:
                    getattr(run, word).CopyFrom(copied)
        try:
            answer = await self._store.call(run_service_pb2.ImportRunRequest(run=run))
        except errors.InvalidRequest as problem:
            if problem.code != "ALREADY_EXISTS":
                raise
            return Stored(record, "unchanged", run)
        return Stored(record, "created", answer.run)


def _without_times(resource: Any) -> Any:
    copy = type(resource)()
    copy.CopyFrom(resource)
    for field in _SET_BY_SERVER:
        copy.ClearField(field)
    return copy


def _explain(problem: errors.InvalidRequest) -> str:
    """Return all violations, field by field."""
    if len(problem.violations) < 2:
        return problem.message
    return "; ".join(f"{one.field}: {one.message}" for one in problem.violations)
