"""Reads suites of cases from files. Checks a suite before any case runs, and reports all problems at once."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from threading import Event
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from evald.convert.resources import CONNECTOR
from evald.convert.spec import fill_options
from evald.errors import InvalidInput
from evald.fields import nearest, shown, snake, text
from evald.structs import fill_struct
from evald.v1 import connector_service_pb2, suite_service_pb2

from . import foreign
from .case_messages import CaseShared, SentCase, case_to_pb, evaluator_paths, fail_case, specs_to_pb
from .documents import (
    DataPath,
    Document,
    InvalidDocument,
    InvalidDocuments,
    UnreadableFile,
    open_lines,
    parse_json_text,
    path_text,
    read_document,
)
from .file_models import CaseEntry, FilePart, SuiteEntry, TurnEntry, problem_message
from .id_set import IdSet
from .message_file import MessageFile
from .recorded_turns import unanswered_warning
from .transcripts import UNREADABLE, Transcripts

# Reading stops after this many problems.
_MOST_PROBLEMS: Final = 100
# Number of ids kept for hints: "did you mean".
_KEPT_IDS: Final = 10_000
# Number of different evaluators of cases kept, to be checked before any case runs.
_KEPT_SPECS: Final = 10_000
_SHOWN_UNUSED: Final = 3

# Keys of a case that hold recorded data, which in JSON Lines are one case in error if they cannot be read.
_DATA_KEYS: Final = ("input", "messages", "turns", "output", "outputs")
_SPEC_KEYS: Final = ("evaluators", "criteria")

_PART: Final = re.compile(r"([^.\[\]]+)|\[(\d+)[:\]]")


class Suite(NamedTuple):
    """A suite that is ready to be sent.

    targets: names of the connectors to test. connectors: the suite's own, by name. open: the message with the
    fields that all cases share; it has no target yet. cases: those that pass the filters. skipped: (id, reason).
    place: returns FILE:LINE of a case by its id; the file alone for a large suite. case_specs: the first 10,000
    different evaluators of cases, serialised, each with the place and the id of the first case that has it.
    part_place: returns FILE:LINE of a part of the suite outside its cases, by its path. case_count: number of cases.
    """

    name: str
    file: str
    targets: list[str]
    connectors: dict[str, connector_service_pb2.Connector]
    open: suite_service_pb2.SuiteOpen
    cases: MessageFile[suite_service_pb2.SuiteCase]
    skipped: list[tuple[str, str]]
    place: Callable[[str], str]
    case_specs: Mapping[bytes, str]
    part_place: Callable[[Sequence[str | int]], str]
    case_count: int
    warnings: list[str]


class CaseFilter(NamedTuple):
    """A filter of cases: any of the tags, none of the excluded tags, one of the ids. Empty lists filter nothing."""

    tags: Sequence[str] = ()
    exclude_tags: Sequence[str] = ()
    ids: Sequence[str] = ()

    def takes(self, entry: CaseEntry) -> bool:
        """Return whether a case passes the filter."""
        return (
            (not self.tags or any(tag in self.tags for tag in entry.tags))
            and not any(tag in self.exclude_tags for tag in entry.tags)
            and (not self.ids or entry.id in self.ids)
        )


def load_suites(
    paths: Iterable[str | Path],
    *,
    tags: Sequence[str] = (),
    exclude_tags: Sequence[str] = (),
    ids: Sequence[str] = (),
    transcripts: Sequence[str | Path] = (),
    targets: Sequence[str] = (),
    trials: int | None = None,
    min_passed: int | None = None,
    stopped: Event | None = None,
) -> list[Suite]:
    """Read suites. Raises InvalidDocument with all problems found.

    transcripts: files with recorded answers, which replace those of the cases. targets: names of targets, which
    replace the suites' own targets and recorded answers. trials, min_passed: replace those of the suites. stopped:
    another thread sets it to stop reading.
    """
    wanted = CaseFilter(tags, exclude_tags, ids)
    problems: list[InvalidDocument] = []
    recorded = Transcripts([Path(path) for path in transcripts]) if transcripts else None
    stopped = stopped or Event()
    given = {name: value for name, value in (("trials", trials), ("min_passed", min_passed)) if value}
    readers = [
        _SuiteReader(Path(path), wanted, recorded, targets, given, problems, stopped) for path in paths
    ]
    suites = [reader.suite() for reader in readers]
    _check_names([suite for suite in suites if suite is not None], problems)
    known = [one for reader in readers for one in reader.ids]
    found = {one for reader in readers for one in reader.found}
    for one in ids:
        if one not in found and readers:
            near = nearest(one, known)
            hint = f'; did you mean "{near}"?' if near else ""
            problems.append(InvalidDocument(readers[0].name, 0, f'no case has the id "{one}"{hint}'))
    if problems:
        raise InvalidDocuments(problems)
    read = [suite for suite in suites if suite is not None and (suite.case_count or suite.skipped)]
    if not read:
        raise InvalidDocuments(
            [InvalidDocument(reader.name, 0, "no case matches the filters") for reader in readers]
        )
    if recorded is not None:
        read[0] = _with_unread(read[0], recorded)
        read[0].warnings.extend(_unused(recorded))
    return read


def _with_unread(suite: Suite, transcripts: Transcripts) -> Suite:
    """Return a suite with a case in error for rows that cannot be read, unless cases that lack them are in error."""
    unread = list(islice(transcripts.unread(), _SHOWN_UNUSED))
    suite.warnings.extend(f"{problem}; the row is left out" for problem in unread)
    if sum(1 for _ in transcripts.unread()) <= transcripts.lacking:
        return suite
    pb = suite_service_pb2.SuiteCase(case_id=_row_id(unread[0]), turns=[suite_service_pb2.SuiteTurn()])
    opening = suite.open
    entry = SuiteEntry.model_validate(
        {"trials": opening.trials or None, "min_passed": opening.min_passed or None}
    )
    fail_case(pb, UNREADABLE, str(unread[0]), entry)
    data = pb.SerializeToString(deterministic=True)
    suite.cases.add(data)
    opening.case_count += 1
    opening.cases_digest = blake2b(opening.cases_digest.encode() + data, digest_size=32).hexdigest()
    return suite._replace(case_count=suite.case_count + 1)


def _row_id(problem: InvalidDocument) -> str:
    """Return the id of the case that stands for a row that cannot be read: its place."""
    place = f"{problem.file}:{problem.line}" if problem.line else problem.file
    place = place.encode(errors="replace")[-200:].decode(errors="ignore")
    return "".join(sign if sign.isprintable() else "?" for sign in place)


def _check_names(suites: Sequence[Suite], problems: list[InvalidDocument]) -> None:
    first: dict[str, Suite] = {}
    for suite in suites:
        same = first.setdefault(suite.name, suite)
        if same is not suite:
            problems.append(
                InvalidDocument(
                    suite.file, 1, f'duplicate suite name "{suite.name}", already used by {same.file}'
                )
            )


def _unused(transcripts: Transcripts) -> Iterator[str]:
    unused = transcripts.unused()
    shown_ones = list(islice(unused, _SHOWN_UNUSED))
    more = sum(1 for _ in unused)
    for place in shown_ones:
        yield f"{place}: no case matches this transcript"
    if more:
        yield f"no case matches {more} more transcripts"


class _Raw(NamedTuple):
    """A case as read from its file. path: of the case in the document. problem: why its line cannot be read."""

    data: Any
    document: Document
    path: tuple[str | int, ...]
    problem: InvalidDocument | None = None


class _SuiteReader:
    """Reads the suite of one file.

    ids: the first case ids, for hints. found: the ids of the filter that exist.

    given: keys of the suite that are replaced.
    """

    def __init__(
        self,
        path: Path,
        wanted: CaseFilter,
        transcripts: Transcripts | None,
        targets: Sequence[str],
        given: Mapping[str, int],
        problems: list[InvalidDocument],
        stopped: Event,
    ) -> None:
        self.name = str(path)
        self.ids: list[str] = []
        self.found: set[str] = set()
        self._path = path
        self._wanted = wanted
        self._transcripts = transcripts
        self._targets = targets
        self._given = given
        self._problems = problems
        self._stopped = stopped
        self._warnings: list[str] = []
        self._document: Document | None = None  # None for JSON Lines in our own format
        self._case_specs: dict[bytes, str] = {}

    def suite(self) -> Suite | None:
        """Return the suite. If it is invalid, add its problems to the list and return None."""
        before = len(self._problems)
        try:
            found = self._read()
        except InvalidDocument as problem:
            self._problems += problem.problems
            return None
        return found if len(self._problems) == before else None

    def _read(self) -> Suite | None:
        header, document = self._header()
        entry = self._validate(SuiteEntry, header, document, ())
        if entry is None:
            self._check(None)
            return None
        assert isinstance(entry, SuiteEntry)
        entry = entry.model_copy(update=self._given)
        name = entry.name or self._path.stem
        opening, connectors = suite_service_pb2.SuiteOpen(suite=name), {}
        try:
            _fill_open(entry, opening)
            for index, target in enumerate(entry.targets):
                text(target, f"targets[{index}]")
            connectors = _connectors(entry)
        except InvalidInput as problem:
            self._problems.append(_of_input(problem, document, ()))
            self._check(None)
            return None
        shared = CaseShared(
            entry,
            list(opening.evaluators),
            self._transcripts,
            asked=bool(self._targets or entry.targets) and self._transcripts is None,
            ask_all=bool(self._targets),
        )
        kept, places_of, skipped, count, opening.cases_digest = self._check(shared)
        opening.case_count = count
        root: DataPath = ("suite",) if self._document is None else ()
        # Without the lines of the cases, which `places_of` keeps.
        places = {
            path: line
            for path, line in document.lines.items()
            if len(path) <= len(root) or path[len(root)] != "cases"
        }
        file = self.name
        head = Document({"suite": header} if root else header, places, file)

        return Suite(
            name,
            file,
            entry.targets,
            connectors,
            opening,
            kept,
            skipped,
            lambda case_id: places_of.get(case_id, file),
            self._case_specs,
            lambda path: "{}:{}".format(*_place(head, root, path)),
            count,
            self._warnings,
        )

    def _header(self) -> tuple[Any, Document]:
        """Return the suite's data without its cases, and its document."""
        if self._path.suffix == ".jsonl":
            self._document = self._adopted(foreign.convert_jsonl(self._path))
        if self._document is None and self._path.suffix in (".jsonl", ".ndjson"):
            first = next(self._json_lines(), None)
            document = first[1].document if first else Document({}, {}, self.name)
            data = document.data
            is_header = _is_header(data)
            if is_header and len(data) > 1:
                line = document.line(())
                raise InvalidDocument(
                    self.name, line, "got other keys with `suite`; wanted a line with only `suite`"
                )
            return (data["suite"] if is_header else {}), document
        if self._document is None:
            document = read_document(self._path)
            self._document = self._adopted(foreign.convert(document)) or document
        document = self._document
        data = document.data
        if not isinstance(data, Mapping):
            raise InvalidDocument(
                self.name, 1, f"{shown(data)}, wanted a suite, which is a mapping with `cases`"
            )
        cases = data.get("cases")
        if "cases" in data and (not isinstance(cases, list) or not cases):
            raise InvalidDocument(
                self.name, document.line(("cases",)), f"cases: {shown(cases)}, wanted a list of cases"
            )
        return {key: value for key, value in data.items() if key != "cases"}, document

    def _adopted(self, converted: foreign.Converted | None) -> Document | None:
        """Return a suite of another tool as a document, and keep its warnings."""
        if converted is None:
            return None
        self._warnings.extend(converted.warnings)
        return foreign.as_document(converted, self.name)

    def _check(
        self, shared: CaseShared | None
    ) -> tuple[MessageFile[suite_service_pb2.SuiteCase], dict[str, str], list[tuple[str, str]], int, str]:
        """Check all cases. Return them, their places (none if they are many), the skipped ones, the count, a digest.

        shared: None when the suite itself is invalid; then the cases are validated but not converted.
        """
        kept = MessageFile(suite_service_pb2.SuiteCase)
        places: dict[str, str] = {}
        skipped: list[tuple[str, str]] = []
        seen, count, any_case, cases_digest = IdSet(), 0, False, blake2b(digest_size=32)
        not_asked = unanswered = 0
        for raw in self._raw_cases():
            any_case = True
            if self._stopped.is_set():
                raise InvalidDocument(self.name, 0, "reading was interrupted")
            if len(self._problems) >= _MOST_PROBLEMS:
                self._problems.append(
                    InvalidDocument(
                        self.name,
                        0,
                        f"more than {_MOST_PROBLEMS} problems; the rest of the file was not read",
                    )
                )
                break
            entry, converted = self._case(raw, shared)
            if entry is None:
                continue
            pb = converted and converted.pb
            if not seen.add(entry.id):
                self._twice(raw, entry.id, places)
                continue
            if len(self.ids) < _KEPT_IDS:
                self.ids.append(entry.id)
            if entry.id in self._wanted.ids:
                self.found.add(entry.id)
            if entry.skip is not False and self._wanted.takes(entry):
                skipped.append((entry.id, entry.skip if isinstance(entry.skip, str) else ""))
            if pb is None:
                continue
            count += 1
            unanswered += converted.unanswered if converted else 0
            not_asked += bool(shared and shared.asked and pb.recorded_trials)
            data = pb.SerializeToString(deterministic=True)
            cases_digest.update(b"%d:%b" % (len(data), data))
            try:
                kept.add(data)
            except OSError as problem:
                raise InvalidDocument(
                    self.name,
                    0,
                    f"cannot write to {problem.filename}: {problem.strerror}; TMPDIR sets the directory of temporary files",
                ) from None
            places[entry.id] = "{}:{}".format(*raw.document.place(raw.path))
            if kept.are_many:
                places.clear()
            if shared is not None:
                self._note_specs(raw, entry, pb, shared)
        if not any_case:
            self._problems.append(
                InvalidDocument(self.name, 0, "no cases; wanted at least one under `cases`")
            )
        if unanswered:
            self._warnings.append(f"{self.name}: {unanswered_warning(unanswered)}")
        if not_asked:
            self._warnings.append(
                f"{self.name}: cases with a recorded answer, for which the targets are not asked: {not_asked}; "
                "--target NAME asks it for all cases"
            )
        return kept, places, skipped, count, cases_digest.hexdigest()

    def _note_specs(
        self, raw: _Raw, entry: CaseEntry, pb: suite_service_pb2.SuiteCase, shared: CaseShared
    ) -> None:
        """Keep the evaluators of a case that are not the suite's."""
        specs = [*pb.evaluators, *(spec for turn in pb.turns for spec in turn.evaluators)]
        for path, spec in zip(evaluator_paths(entry, shared) if specs else (), specs, strict=True):
            if path and len(self._case_specs) < _KEPT_SPECS:
                file, line = _place(raw.document, raw.path, path)
                place = f'{file}:{line}: case "{entry.id}"'
                self._case_specs.setdefault(spec.SerializeToString(deterministic=True), place)

    def _twice(self, raw: _Raw, case_id: str, places: Mapping[str, str]) -> None:
        file, line = raw.document.place((*raw.path, "id"))
        first_file, _, first = places.get(case_id, "").rpartition(":")
        where = f"line {first}" if first_file == file else places.get(case_id)
        used = f", first used in {where}" if where else ""
        self._problems.append(InvalidDocument(file, line, f'duplicate id "{case_id}"{used}'))

    def _case(self, raw: _Raw, shared: CaseShared | None) -> tuple[CaseEntry | None, SentCase | None]:
        """Return a case, and its message if it is to be sent. For an invalid case, add a problem and return None."""
        if raw.problem is not None:
            return self._broken(CaseEntry.model_validate({"id": _row_id(raw.problem)}), raw.problem, shared)
        entry, problems = self._entry(raw)
        if entry is not None and problems:
            return self._broken(entry, problems[0], shared)
        if entry is None:
            self._problems += problems
            return None, None
        if entry.skip is not False or shared is None:
            return entry, None
        is_null = isinstance(raw.data, Mapping) and raw.data.get("output", "") is None
        empty = "{}:{}".format(*_place(raw.document, raw.path, ("output",))) if is_null else ""
        try:
            converted = case_to_pb(entry, shared, empty=empty)
        except InvalidInput as problem:
            found = _of_input(problem, raw.document, raw.path, entry.id)
            if self._is_data(path_parts(problem.path)):
                return self._broken(entry, found, shared)
            self._problems.append(found)
            return None, None
        return entry, converted if self._wanted.takes(entry) else None

    def _entry(self, raw: _Raw) -> tuple[CaseEntry | None, list[InvalidDocument]]:
        """Return a case and its problems; the case alone without its data if these cannot be read."""
        errors: list[tuple[str | int, ...]] = []
        entry = self._validate(CaseEntry, raw.data, raw.document, raw.path, errors)
        if entry is not None:
            assert isinstance(entry, CaseEntry)
            return entry, []
        problems, self._problems[-len(errors) :] = self._problems[-len(errors) :], []
        if isinstance(raw.data, Mapping) and all(map(self._is_data, errors)):
            kept = {
                key: value for key, value in raw.data.items() if CaseEntry.field_of(key) not in _DATA_KEYS
            }
            return CaseEntry.model_validate(kept), problems
        return None, problems

    def _is_data(self, where: Sequence[str | int]) -> bool:
        """Return whether a problem is one of recorded data in JSON Lines, not of what the author of the suite wrote."""
        return (
            self._document is None
            and bool(where)
            and CaseEntry.field_of(str(where[0])) in _DATA_KEYS
            and not any(part in _SPEC_KEYS for part in where)
        )

    def _broken(
        self, entry: CaseEntry, problem: InvalidDocument, shared: CaseShared | None
    ) -> tuple[CaseEntry, SentCase | None]:
        """Return a case in error, whose row cannot be read."""
        if shared is None or entry.skip is not False or not self._wanted.takes(entry):
            return entry, None
        pb = suite_service_pb2.SuiteCase(case_id=entry.id, tags=entry.tags, weight=entry.weight)
        pb.turns.add()
        pb.trials, pb.min_passed = entry.trials or 0, entry.min_passed or 0
        fail_case(pb, UNREADABLE, str(problem), shared.entry)
        return entry, SentCase(pb, 0)

    def _validate(
        self,
        model: type[FilePart],
        data: Any,
        document: Document,
        path: tuple[str | int, ...],
        where_wrong: list[tuple[str | int, ...]] | None = None,
    ) -> FilePart | None:
        """Return validated data. For invalid data, add the problems, and their places to `where_wrong`."""
        try:
            return model.model_validate(data)
        except ValidationError as problem:
            for error in problem.errors(include_url=False, include_context=False):
                where = tuple(error["loc"])
                message = problem_message(error, _known_keys(model, where))
                place = _place(document, path, where)
                at = path_text((*path, *where))
                self._problems.append(InvalidDocument(*place, f"{at}: {message}" if at else message))
                if where_wrong is not None:
                    where_wrong.append(where)
            return None

    def _raw_cases(self) -> Iterator[_Raw]:
        if self._document is not None:
            for index, data in enumerate(self._document.data.get("cases", ())):
                yield _Raw(data, self._document, ("cases", index))
            return
        for number, raw in self._json_lines():
            if number > 0 or not _is_header(raw.data):
                yield raw

    def _json_lines(self) -> Iterator[tuple[int, _Raw]]:
        """Yield each value of JSON Lines with its index."""
        with open_lines(self._path, self.name) as lines:
            count = 0
            while True:
                problem, data, line = None, None, ""
                try:
                    line = next(lines, "")
                    if not line:
                        return
                    if not line.strip():
                        continue
                    data = parse_json_text(line.rstrip(), self.name, lines.number)
                    if not isinstance(data, dict):
                        raise InvalidDocument(
                            self.name, lines.number, f"{shown(data)}, wanted a case, which is an object"
                        )
                except UnreadableFile:
                    raise
                except InvalidDocument as found:
                    problem, data = found, None
                yield count, _Raw(data, Document(data, {(): lines.number}, self.name), (), problem)
                count += 1


def _is_header(data: Any) -> bool:
    return isinstance(data, Mapping) and "suite" in data and "id" not in data


def _fill_open(entry: SuiteEntry, pb: suite_service_pb2.SuiteOpen) -> None:
    pb.evaluators.extend(specs_to_pb(entry.evaluators))
    if entry.options:
        fill_options(entry.options, pb.options)
    if entry.min_passed and entry.trials and entry.min_passed > entry.trials:
        raise InvalidInput(
            "min_passed", f"{entry.min_passed} of {entry.trials} trials", f"at most {entry.trials}"
        )
    pb.trials, pb.min_passed = entry.trials or 0, entry.min_passed or 0
    if entry.threshold is not None:
        pb.threshold = entry.threshold
    pb.max_concurrency = entry.max_concurrency
    pb.labels.update(
        {text(name, "labels"): text(value, f"labels.{name}") for name, value in entry.labels.items()}
    )
    if entry.metadata:
        fill_struct(entry.metadata, pb.metadata, "metadata")


def _connectors(entry: SuiteEntry) -> dict[str, connector_service_pb2.Connector]:
    found = {}
    for name, data in entry.connectors.items():
        try:
            found[name] = CONNECTOR.read({"name": name, **data})
        except InvalidInput as problem:
            if problem.path.startswith("headers"):
                # Headers may hold secrets, which a CI log would show.
                problem = InvalidInput(problem.path, "a value of another type", problem.wanted)
            raise problem.below(f"connectors.{name}") from None
    return found


def path_parts(path: str) -> tuple[str | int, ...]:
    """Return the keys and indexes of a path such as `turns[1].output`."""
    return tuple(int(number) if number else key for key, number in _PART.findall(path))


def _of_input(
    problem: InvalidInput, document: Document, path: tuple[str | int, ...], case_id: str = ""
) -> InvalidDocument:
    where = path_parts(problem.path)
    place = path_text(path) + (f' ("{case_id}")' if case_id else "")
    at = problem.path if not place else f"{place}: {problem.path}" if problem.path else place
    message = f"{problem.got}; wanted {problem.wanted}"
    return InvalidDocument(*_place(document, path, where), f"{at}: {message}" if at else message)


def _place(document: Document, path: tuple[str | int, ...], where: Sequence[str | int]) -> tuple[str, int]:
    """Return the file and the line of the value at `where` below `path`. where: keys in canonical spelling, and indexes."""
    data: Any = document.data
    for part in path:
        data = data[part]
    for part in where:
        if isinstance(data, Mapping) and isinstance(part, str):
            spelled = next((key for key in data if key == part or _canonical(key) == _canonical(part)), None)
            if spelled is None:
                break
            path, data = (*path, spelled), data[spelled]
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            path, data = (*path, part), data[part]
        else:
            break
    return document.place(path)


def _canonical(key: str) -> str:
    name = snake(key)
    return CaseEntry.aliases.get(name) or SuiteEntry.aliases.get(name) or name


def _known_keys(model: type[FilePart], where: Sequence[str | int]) -> list[str]:
    model = TurnEntry if "turns" in where[:-1] else model
    return [*model.model_fields, *model.aliases, *(["cases"] if model is SuiteEntry else ())]
