"""`evald test`: run suites of cases against targets or recorded answers."""

import argparse
import asyncio
import json
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from threading import Event
from typing import Final, NamedTuple
from uuid import uuid4

from google.protobuf.json_format import MessageToDict

from evald.convert.resources import CONNECTOR
from evald.errors import EvaldError, InvalidInput, InvalidRequest, Unavailable
from evald.fields import nearest
from evald.v1 import connector_service_pb2, evaluator_pb2, suite_service_pb2

from ..suites.documents import InvalidDocument, path_text
from ..suites.file_models import suite_schema
from ..suites.message_file import MessageFile
from ..suites.reports.report import SuiteReport
from ..suites.suite_file import Suite, load_suites, path_parts
from ..suites.verdicts import NOTHING_COUNTED
from .console import new_table, progress_bar, say, show, warn
from .exit_codes import CommandError, ExitCode, usage_error
from .report_files import check_report_file, report_format, write_report, write_report_file
from .result_tables import CaseRow, VerdictCount, case_row, case_tables
from .sanitize import clean, print_json
from .server_connection import run_async
from .stored_import import is_id, read_files
from .suite_client import SuiteClient, open_suites
from .suite_view import (
    SHOWN_CASES,
    say_verdict,
    show_comparisons,
    show_evaluators,
    show_runs,
    show_trials,
    verdict_word,
)

_pb = suite_service_pb2

# Maximum number of suite runs in the history of an HTML report.
_HISTORY: Final = 30
_SHOWN_PROBLEMS: Final = 50
_SHOWN_WARNINGS: Final = 10
_LATEST: Final = "latest"
# About a thousand cases.
_LARGE_BYTES: Final = 2 << 20


def run(args: argparse.Namespace) -> int:
    """Run the suites."""
    if args.schema:
        sys.stdout.write(json.dumps(suite_schema(), indent=2) + "\n")
        return ExitCode.PASSED
    _read_resume(args)
    if not args.files:
        raise usage_error(
            "no suite is given",
            "evald test SUITE.yaml; evald test --schema prints the JSON Schema of suite files",
        )
    if args.transcripts and (args.targets or args.connectors):
        raise usage_error(
            "--transcripts and --target cannot be used together: the answers are already recorded",
            "remove one of them",
        )
    if args.trials and args.min_passed and args.min_passed > args.trials:
        raise usage_error(f"--min-passed: got {args.min_passed}, wanted at most the {args.trials} trials")
    for name in args.outputs:
        check_report_file("--output", name, report_format("--output", name))
    connectors = _read_connectors(args.connectors)
    testing = _Testing(args, connectors)
    try:
        if args.list:
            return _list(testing.load(), as_json=args.json)
        # Small suites are read before a server starts, so that their problems are reported at once, and a pipe before the
        # event loop starts, because nothing can interrupt that. Batch processes evaluate recorded answers only.
        suites = None if not testing.targets and _are_large(args.files) else testing.load()
        return run_async(testing.run(suites))
    except InvalidDocument as problem:
        return _report_problems(problem.problems)
    except InvalidRequest:
        raise  # resuming would be refused, too
    except (KeyboardInterrupt, EvaldError):
        testing.say_how_to_resume()
        raise


def _read_resume(args: argparse.Namespace) -> None:
    """Move the argument of --resume to the files if it is a suite and not the id of a suite run."""
    if args.resume not in (None, _LATEST) and not is_id(args.resume):
        args.files.append(args.resume)
        args.resume = _LATEST


def _read_connectors(files: list[str]) -> dict[str, "_GivenConnector"]:
    found: dict[str, _GivenConnector] = {}
    for record in read_files(files, "connector").records if files else ():
        try:
            pb = CONNECTOR.read(record.data)
        except InvalidInput as problem:
            raise usage_error(f"{record.place}: {problem}") from None
        if not pb.name or pb.name in found:
            raise usage_error(f"{record.place}: wanted a connector with a unique `name`")
        found[pb.name] = _GivenConnector(pb, record.place)
    return found


def _are_large(files: Sequence[str]) -> bool:
    """Return True if all are files, and reading them takes longer than starting the batch processes."""
    found = [Path(name) for name in files]
    return (
        all(path.is_file() for path in found) and sum(path.stat().st_size for path in found) >= _LARGE_BYTES
    )


def _warn_of(warnings: Iterable[str]) -> None:
    listed = list(warnings)
    for warning in listed[:_SHOWN_WARNINGS]:
        warn(f"warning: {clean(warning)}")
    if len(listed) > _SHOWN_WARNINGS:
        warn(f"and {len(listed) - _SHOWN_WARNINGS} more warnings")


def _report_problems(problems: Sequence[InvalidDocument]) -> int:
    for problem in problems[:_SHOWN_PROBLEMS]:
        warn(clean(str(problem)))
    if len(problems) > _SHOWN_PROBLEMS:
        warn(f"and {len(problems) - _SHOWN_PROBLEMS} more problems")
    return ExitCode.USAGE


def _list(suites: Sequence[Suite], *, as_json: bool) -> int:
    table = new_table("Suite", "Case", "Turns", "Trials", "Tags")
    for suite in suites:
        for case in suite.cases:
            trials = len(case.recorded_trials) or case.trials or suite.open.trials or 1
            if as_json:
                print_json(
                    {
                        "suite": suite.name,
                        "caseId": case.case_id,
                        "place": suite.place(case.case_id),
                        "turns": len(case.turns),
                        "trials": trials,
                        "tags": list(case.tags),
                    }
                )
            else:
                row = (suite.name, case.case_id, str(len(case.turns)), str(trials), ", ".join(case.tags))
                table.add_row(*(clean(cell, 100) for cell in row))
        for case_id, why in () if as_json else suite.skipped:
            table.add_row(clean(suite.name, 100), clean(case_id, 100), "", "skipped", clean(why, 200))
    if not as_json:
        show(table)
    return ExitCode.PASSED


class _GivenConnector(NamedTuple):
    """A connector from --connector. place: its FILE:LINE."""

    pb: connector_service_pb2.Connector
    place: str


class _SuiteOn(NamedTuple):
    """A suite and its target. target: "" for recorded answers."""

    suite: Suite
    target: str


class _Ended(NamedTuple):
    """A suite run that has ended.

    rows: of the cases that are shown. hidden: number of further failed or broken ones.
    """

    on: _SuiteOn
    run: _pb.SuiteRun
    results: MessageFile[_pb.CaseResult] | None
    rows: list[CaseRow]
    hidden: int


class _Testing:
    """The run of all suites against their targets, one after the other, and its reports."""

    def __init__(
        self,
        args: argparse.Namespace,
        connectors: dict[str, _GivenConnector],
    ) -> None:
        self._args = args
        self._connectors = connectors
        self.targets: Sequence[str] = args.targets or list(connectors)
        self._wanted: Sequence[_SuiteOn] = ()
        self._started: _pb.SuiteRun | None = None  # the suite run in progress
        self._stored = 0  # number of its stored cases

    def say_how_to_resume(self) -> None:
        """Print how to resume an interrupted suite run, if there is one."""
        if self._started is not None:
            name = clean(f"{self._started.suite} {self._started.target}")
            wanted = next(
                one.suite.case_count for one in self._wanted if one.suite.name == self._started.suite
            )
            words = self._args.words if self._args.resume else [*self._args.words, "--resume"]
            warn(
                f"{name} was interrupted: {self._stored} of {wanted} cases are stored, and no report is written",
                f"continue with {clean(shlex.join(['evald', *words]), 1000)}",
            )

    def load(self, stopped: Event | None = None) -> list[Suite]:
        """Read the suites. Raises InvalidDocument. stopped: another thread sets it to cancel the reading."""
        args = self._args
        return load_suites(
            args.files,
            tags=args.tags,
            exclude_tags=args.exclude_tags,
            ids=args.ids,
            transcripts=args.transcripts,
            targets=self.targets,
            trials=args.trials,
            min_passed=args.min_passed,
            stopped=stopped,
        )

    async def _load_beside(self) -> list[Suite]:
        """Read the suites in a thread, without blocking the event loop."""
        stopped = Event()
        try:
            return await asyncio.to_thread(self.load, stopped)
        finally:
            stopped.set()

    def _prepare(self, suites: Sequence[Suite]) -> None:
        """Print the warnings of suites, and pair each suite with its targets."""
        _warn_of(one for suite in suites for one in suite.warnings)
        recorded = [""]  # the target of recorded answers
        self._wanted = [
            _SuiteOn(suite, one)
            for suite in suites
            for one in (recorded if self._args.transcripts else self.targets or suite.targets or recorded)
        ]
        if self._args.trials and any(not one.target for one in self._wanted):
            warn("warning: --trials has no effect on recorded answers: each of them is a trial")

    async def run(self, suites: Sequence[Suite] | None) -> int:
        """Run everything. suites: None: read them while the server starts. Returns the exit code. Raises InvalidDocument."""
        async with open_suites(self._args, large_batch=suites is None) as client:
            self._prepare(await self._load_beside() if suites is None else suites)
            openings = [await self._opening(client, one) for one in self._wanted]
            problems = await _wrong_specs(client, [one.suite for one in self._wanted])
            for one, opening in zip(self._wanted, openings, strict=True):
                problems += await self._wrong_opening(client, one, opening)
            if problems:
                return _report_problems(problems)
            await self._resume(client, openings)
            ended = [
                await self._run_one(client, one, opening)
                for one, opening in zip(self._wanted, openings, strict=True)
            ]
            comparisons = [await client.compare(base.run.id, new.run.id) for base, new in _pairs(ended)]
            reports = [await self._report(client, one, comparisons) for one in ended]
        self._show(ended, comparisons)
        self._write(reports)
        return _exit_code([one.run for one in ended])

    async def _opening(self, client: SuiteClient, one: _SuiteOn) -> _pb.SuiteOpen:
        args, opening = self._args, _pb.SuiteOpen()
        opening.CopyFrom(one.suite.open)
        opening.target = one.target
        given = self._connectors.get(one.target)
        connector = given.pb if given else one.suite.connectors.get(one.target)
        if connector is not None:
            opening.connector.CopyFrom(connector)
        elif one.target:
            opening.connector_id = await self._stored_connector(client, one)
        opening.max_concurrency = args.concurrency or opening.max_concurrency
        if args.threshold is not None:
            opening.threshold = args.threshold
        # Generated here, so that the id is known however early the suite run ends.
        opening.suite_run_id = str(uuid4())
        return opening

    async def _stored_connector(self, client: SuiteClient, one: _SuiteOn) -> str:
        """Return the id of the target's connector. Raises CommandError, with the line of the suite that names it."""
        try:
            return await client.connector_id(one.target)
        except CommandError as problem:
            if problem.code != ExitCode.USAGE:
                raise
            near = nearest(one.target, one.suite.connectors)
            named = () if self.targets else ("targets", one.suite.targets.index(one.target))
            place = f"{one.suite.part_place(named)}: {path_text(named)}: " if named else ""
            hint = f'did you mean "{near}"?' if near else problem.hint
            raise usage_error(f"{place}{problem}", hint) from None

    async def _wrong_opening(
        self, client: SuiteClient, one: _SuiteOn, opening: _pb.SuiteOpen
    ) -> list[InvalidDocument]:
        """Return the problems of a suite's opening, except those of its evaluators."""
        try:
            await client.check(opening)
        except InvalidRequest as problem:
            wrong = [(found.field, found.message) for found in problem.violations] or [("", problem.message)]
        else:
            return []
        found = []
        for field, message in wrong:
            path = field.removeprefix("open.")
            if path.startswith("evaluators"):
                continue  # `_wrong_specs` reports it with its line
            place = one.suite.part_place(path_parts(path))
            if path.startswith("connector.") and opening.HasField("connector"):
                given = self._connectors.get(one.target)
                inside = path_parts(path)[1:]
                place = given.place if given else one.suite.part_place(("connectors", one.target, *inside))
                path = path.replace("connector", f'connector "{one.target}"', 1)
            found.append(InvalidDocument(place, 0, f"{path}: {message}" if path else message))
        return found

    async def _resume(self, client: SuiteClient, openings: Sequence[_pb.SuiteOpen]) -> None:
        """Set the ids of the suite runs to resume. Raises CommandError if there is none."""
        wanted = self._args.resume
        if not wanted:
            return
        if wanted != _LATEST and len(openings) > 1:
            raise usage_error(
                "--resume with an id needs exactly one suite and one target", "remove the id: --resume"
            )
        begun = True
        for opening in openings:
            if wanted != _LATEST:
                opening.suite_run_id, opening.resume = wanted, True
                continue
            same = {"suite": opening.suite, "target": opening.target or "recorded"}
            latest = await client.suite_runs(1, **same)
            stopped = await client.suite_runs(1, **same, status=_pb.SUITE_RUN_STATUS_INTERRUPTED)
            broken = [
                run for run in latest if run.status == _pb.SUITE_RUN_STATUS_COMPLETED and run.error_count
            ]
            # What follows an interrupted suite run did not begin in that command: its latest run is an older one's.
            for run in (broken if begun else []) or stopped:
                opening.suite_run_id, opening.resume = run.id, True
                begun = begun and run in broken
        if not any(opening.resume for opening in openings):
            names = ", ".join(f"{one.suite} {one.target}".strip() for one in openings)
            raise usage_error(
                f"no suite run of {names} is interrupted, and the latest has no case in error",
                "remove --resume to start a new run",
            )

    async def _run_one(self, client: SuiteClient, one: _SuiteOn, opening: _pb.SuiteOpen) -> _Ended:
        args = self._args
        results = MessageFile(_pb.CaseResult) if args.outputs or args.github else None
        # Only reports and --json need the trials of all cases.
        opening.brief = results is None and not args.json
        unpassed: list[str] = []
        warnings: dict[str, None] = {}
        ended: _pb.SuiteRun | None = None
        count = VerdictCount()
        self._stored = 0
        name = clean(f"{opening.suite} {one.target}".strip(), 60)
        total = one.suite.case_count
        with progress_bar(name, "{task.fields[rate]}", total, hidden=args.json, rate="") as move_on:
            async for response in client.run_suite(opening, one.suite.cases.serialized()):
                if response.HasField("started"):
                    self._started = response.started
                for result in response.results:
                    verdict = verdict_word(result.verdict)
                    count.add(verdict)
                    if verdict in ("FAILED", "ERROR") and len(unpassed) < SHOWN_CASES:
                        unpassed.append(result.case_id)
                    if len(warnings) <= _SHOWN_WARNINGS:
                        warnings |= dict.fromkeys(result.warnings)
                    if results is not None:
                        results.add(result.SerializeToString())
                    if args.json:
                        print_json(MessageToDict(result))
                if response.results:
                    self._stored += len(response.results)
                    move_on(advance=len(response.results), rate=f"{count.passed:,} passed{count.rest}")
                if response.HasField("ended"):
                    ended = response.ended
        if ended is None:
            raise Unavailable("the server ended the suite run without a verdict")
        self._started = None
        _warn_of(f"{name}: {warning}" for warning in warnings)
        if args.json:
            print_json({"suiteRun": MessageToDict(ended)})
            return _Ended(one, ended, results, [], 0)
        wanted: list[dict[str, str]] = [{}] if args.verbose else [{"case_id": name} for name in unpassed]
        rows = [case_row(case) for name in wanted async for case in client.cases(ended.id, **name)]
        hidden = 0 if args.verbose else count.failed + count.errors - len(unpassed)
        return _Ended(one, ended, results, rows, hidden)

    async def _report(
        self, client: SuiteClient, one: _Ended, comparisons: Sequence[_pb.SuiteComparison]
    ) -> SuiteReport:
        history: list[_pb.SuiteRun] = []
        if any(name.endswith(".html") for name in self._args.outputs):
            history = await client.suite_runs(_HISTORY, suite=one.run.suite, target=one.run.target)
        return SuiteReport(
            one.run,
            one.results or (),
            left_out=one.on.suite.skipped,
            place=one.on.suite.place,
            comparison=next((found for found in comparisons if found.new.id == one.run.id), None),
            history=[past for past in history if past.id != one.run.id],
        )

    def _show(self, ended: Sequence[_Ended], comparisons: Sequence[_pb.SuiteComparison]) -> None:
        for one in ended:
            _, found, where = one.run.reason.partition(NOTHING_COUNTED)
            if found:
                warn(
                    f"warning: {clean(one.run.suite)}: {clean(found + where)}: metrics and shadow assertions fail no case"
                )
        if self._args.json:
            return
        for one in ended:
            show_evaluators(one.run)
            show(*case_tables("Case", one.rows, one.hidden))
            show_trials(one.run)
        if ended:
            show_runs([one.run for one in ended])
        show_comparisons(comparisons)
        for suite in {id(one.suite): one.suite for one in self._wanted}.values():
            if suite.skipped:
                names = ", ".join(case_id for case_id, _ in suite.skipped[:SHOWN_CASES])
                many = len(suite.skipped) > 1
                say(
                    ("left out", "yellow"),
                    f"  {len(suite.skipped)} case{'s' * many} of {clean(suite.name)}: {clean(names, 200)}",
                )
        for one in ended:
            say_verdict(one.run)

    def _write(self, reports: Sequence[SuiteReport]) -> None:
        for name in self._args.outputs:
            write_report_file(name, report_format("--output", name), reports)
        if self._args.github:
            write_report("github", reports, sys.stdout)


def _pairs(ended: Sequence[_Ended]) -> Iterator[tuple[_Ended, _Ended]]:
    """Yield pairs of suite runs: the first target of each suite with each of its other targets."""
    first: dict[str, _Ended] = {}
    for one in ended:
        base = first.setdefault(one.run.suite, one)
        if base is not one:
            yield base, one


async def _wrong_specs(client: SuiteClient, suites: Sequence[Suite]) -> list[InvalidDocument]:
    """Return the problems of evaluators. Specs that suites do not keep are checked when they reach the server."""
    places: dict[bytes, str] = {}
    for suite in {id(one): one for one in suites}.values():
        for index, spec in enumerate(suite.open.evaluators):
            data = spec.SerializeToString(deterministic=True)
            places.setdefault(data, suite.part_place(("evaluators", index)))
        for data, place in suite.case_specs.items():
            places.setdefault(data, place)
    specs = [evaluator_pb2.EvaluatorSpec.FromString(data) for data in places]
    where = list(places.values())
    problems = []
    for one in await client.violations(specs):
        path = one.path.strip("/").replace("/", ".")
        message = one.message.partition(": ")[2] or one.message
        name = specs[one.index].name or specs[one.index].type
        problems.append(
            InvalidDocument(
                f'{where[one.index]}: evaluator "{name}"', 0, f"{path}: {message}" if path else message
            )
        )
    return problems


def _exit_code(runs: Sequence[_pb.SuiteRun]) -> int:
    """Return the worst exit code: FAILED, then INCONCLUSIVE, then PASSED. No runs: INCONCLUSIVE."""
    verdicts = {verdict_word(run.verdict) for run in runs}
    if "FAILED" in verdicts:
        return ExitCode.FAILED
    return ExitCode.PASSED if verdicts == {"PASSED"} else ExitCode.INCONCLUSIVE
