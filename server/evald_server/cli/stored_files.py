"""Reading of files with scenarios, personas, connectors, experiments and runs: YAML, JSON, JSON Lines, projects."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import UUID

from evald.fields import nearest, shown

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
from .exit_codes import usage_error

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
