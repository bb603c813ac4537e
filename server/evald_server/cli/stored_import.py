"""Files with scenarios, personas, connectors, experiments and runs: reading and import, for `evald import` and `create`."""

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import UUID

from evald import errors
from evald.convert.resources import check_masks
from evald.convert.runs import run_from_json
from evald.fields import nearest, shown
from evald.v1 import run_service_pb2
from evald_server.methods import StandardMethods

from ..input_files import read_stream
from ..suites.documents import (
    Document,
    InvalidDocument,
    decode,
    parse_json_document,
    parse_json_lines,
    parse_json_text,
    parse_yaml,
    read_text,
)
from .console import say, warn
from .exit_codes import ExitCode, usage_error
from .sanitize import clean, print_json
from .server_client import KINDS, ServerClient, open_server
from .server_connection import run_async

# The kind's word by key of a project file, and by name of a project's file or folder. A kind follows the kinds that
# it refers to.
_SECTIONS: Final = {
    "personas": "persona",
    "connectors": "connector",
    "scenarios": "scenario",
    "experiments": "experiment",
    "evals": "experiment",  # EvalStudio's word
    "runs": "run",
}
_WORDS: Final = {section.removesuffix("s"): word for section, word in _SECTIONS.items()}
_PROJECT_FILES: Final = ("evald.yaml", "evald.yml", "evald.json")
_EVALSTUDIO: Final = "evalstudio.config.json"
_SUFFIXES: Final = (".yaml", ".yml", ".json", ".jsonl", ".ndjson")

# Settings of an EvalStudio workspace that evald keeps elsewhere, with their place in evald.
_EVALSTUDIO_SETTINGS: Final = {
    **dict.fromkeys(("llmSettings", "llmProvider"), "models and their API keys are settings of the server"),
    "maxConcurrency": "it is a setting of the server",
    "evaluators": "they are JavaScript; run them as remote evaluators",
    "connectors": "they are JavaScript; use the connectors openai-chat, http or grpc",
}
_EVALSTUDIO_KNOWN: Final = frozenset(("version", "name", "projects", "id"))


class FileRecord(NamedTuple):
    """One object of a file. word: its kind's word. place: file and line, for messages."""

    word: str
    data: Any
    place: str


class ProjectFiles(NamedTuple):
    """The content of files. left_out: messages about content that evald does not store, with the reason."""

    records: list[FileRecord]
    left_out: list[str]


def read_files(paths: list[str], word: str = "", project: str = "") -> ProjectFiles:
    """Read files and directories. Kinds come in the order of _SECTIONS.

    word: the kind of objects without `kind`. project: name or id of a project of an EvalStudio workspace.
    Raises CommandError for a file that cannot be read, and for an object of unknown kind.
    """
    found = ProjectFiles([], [])
    for name in paths:
        try:
            one = _read_path(Path(name), word, project)
        except InvalidDocument as problem:
            raise usage_error(str(problem)) from None
        except OSError as problem:  # a name that is too long, a directory without permission
            raise usage_error(f"{name}: {problem.strerror}") from None
        found.records.extend(one.records)
        found.left_out.extend(one.left_out)
    order = list(dict.fromkeys(_SECTIONS.values()))
    found.records.sort(key=lambda record: order.index(record.word))
    return found


def _read_path(path: Path, word: str, project: str) -> ProjectFiles:
    if str(path) != "-" and path.is_dir():
        return _read_directory(path, project)
    if path.name == _EVALSTUDIO:
        return _read_evalstudio(path, project)
    return ProjectFiles(list(_read_file(path, word)), [])


def _read_directory(path: Path, project: str) -> ProjectFiles:
    if (path / _EVALSTUDIO).exists():
        return _read_evalstudio(path / _EVALSTUDIO, project)
    files = [path / name for name in _PROJECT_FILES if (path / name).exists()]
    records = [record for file in files for record in _read_file(file, "")]
    records += _read_folder(path)
    if not records:
        raise usage_error(
            f"{path}: the directory has no project file",
            f"wanted {_PROJECT_FILES[0]}, {_EVALSTUDIO}, or files such as scenarios.yaml or scenarios/*.yaml",
        )
    return ProjectFiles(records, [])


def _read_folder(path: Path) -> Iterator[FileRecord]:
    """Yield the objects of files and folders that are named after a section."""
    for section, word in _SECTIONS.items():
        files = [path / f"{section}{suffix}" for suffix in _SUFFIXES]
        files += sorted(file for file in (path / section).glob("*") if file.suffix in _SUFFIXES)
        for file in files:
            if file.is_file():
                yield from _read_file(file, word)


def _read_evalstudio(path: Path, project: str) -> ProjectFiles:
    """Read an EvalStudio workspace: its config, and the data of one of its projects."""
    config = parse_json_text(_text(path), str(path))
    if not isinstance(config, Mapping):
        raise usage_error(f"{path}: {shown(config)}, wanted the config of EvalStudio, an object")
    projects = config.get("projects")
    settings = dict(config)
    folder = path.parent / "data"
    if isinstance(projects, list) and projects:
        chosen = _choose(projects, project, path)
        settings |= chosen
        folder = path.parent / "projects" / str(chosen["id"]) / "data"
    if not folder.is_dir():
        raise usage_error(f"{path}: the directory {folder} with its data does not exist")
    left_out = [
        f"{path}: {key}: {_EVALSTUDIO_SETTINGS.get(key, 'evald has no counterpart for this key')}"
        for key in settings
        if key not in _EVALSTUDIO_KNOWN
    ]
    return ProjectFiles(list(_read_folder(folder)), left_out)


def _choose(projects: list[Any], wanted: str, path: Path) -> Mapping[str, Any]:
    named = [one for one in projects if isinstance(one, Mapping) and _is_folder_name(one.get("id"))]
    matching = [one for one in named if not wanted or wanted in (one["id"], one.get("name"))]
    if len(matching) == 1:
        return matching[0]
    names = ", ".join(str(one.get("name", one["id"])) for one in named)
    if wanted:
        raise usage_error(
            f'{path}: got the name "{wanted}" of {len(matching)} projects, wanted one',
            f"the projects are {names}",
        )
    raise usage_error(
        f"{path}: the workspace has {len(named)} projects: {names}", "choose one with --project"
    )


def _is_folder_name(name: Any) -> bool:
    return isinstance(name, str) and name not in ("", ".", "..") and "/" not in name and "\\" not in name


def _read_file(path: Path, word: str) -> Iterator[FileRecord]:
    name = "stdin" if str(path) == "-" else str(path)
    content = _text(path)
    word = word or _SECTIONS.get(path.stem, "")
    if path.suffix in (".jsonl", ".ndjson"):
        yield from _read_lines(content, name, word)
        return
    if path.suffix in (".yaml", ".yml"):
        yield from _document(parse_yaml(content, name), word)
        return
    try:
        document = parse_json_document(content, name)
    except InvalidDocument:
        if path.suffix == ".json":
            raise
        # Standard input or a file with another suffix: it may hold JSON Lines or YAML.
        first = next((line.strip() for line in content.splitlines() if line.strip()), "")
        if first.startswith("{") and first.endswith("}"):
            yield from _read_lines(content, name, word)
            return
        document = parse_yaml(content, name)
    yield from _document(document, word)


def _text(path: Path) -> str:
    return decode(read_stream(sys.stdin.buffer, "stdin"), "stdin") if str(path) == "-" else read_text(path)


def _read_lines(content: str, name: str, word: str) -> Iterator[FileRecord]:
    for number, data in parse_json_lines(content, name):
        yield _record(data, word, f"{name}:{number}")


def _document(document: Document, word: str) -> Iterator[FileRecord]:
    """Yield the objects of a document."""
    data, name = document.data, document.file
    sections = {"": [data]}
    if isinstance(data, list):
        sections = {"": data}
    elif isinstance(data, Mapping) and not _SECTIONS.keys().isdisjoint(data):
        sections = dict(data)
    for section, items in sections.items():
        if section and section not in _SECTIONS:
            near = nearest(section, _SECTIONS)
            raise usage_error(
                f"{name}: unknown key {section!r}",
                f"did you mean {near!r}?" if near else f"known keys: {', '.join(_SECTIONS)}",
            )
        if items is None:  # an empty key of YAML
            continue
        if not isinstance(items, list):
            raise usage_error(f"{name}: {section}: {shown(items)}, wanted a list")
        for index, item in enumerate(items):
            line = document.line((section, index) if section else (index,))
            yield _record(item, _SECTIONS.get(section, word), f"{name}:{line}")


def _record(data: Any, word: str, place: str) -> FileRecord:
    """Return the record of an object, without the key `kind`. Raises CommandError."""
    if not isinstance(data, Mapping):
        raise usage_error(f"{place}: {shown(data)}, wanted an object")
    given = data.get("kind")
    if given is None and not word:
        raise usage_error(
            f"{place}: the kind of the record is missing",
            f"add `kind` with one of {', '.join(_WORDS)}, or use evald scenarios import, evald runs import, ...",
        )
    said = word if given is None else _WORDS.get(str(given), "")
    if not said or (word and said != word):
        wanted = word or ", ".join(_WORDS)
        raise usage_error(f"{place}: kind: {shown(given)}, wanted {wanted}")
    return FileRecord(said, {key: value for key, value in data.items() if key != "kind"}, place)


def is_id(text: str) -> bool:
    """Return True if a text has the form of a server's id, a UUID."""
    try:
        UUID(text)
    except ValueError:
        return False
    return True


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
_ACTIVE: Final = ("chat", "pending", "queued", "running")
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
    if isinstance(status, str) and status.lower() in _ACTIVE:
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
