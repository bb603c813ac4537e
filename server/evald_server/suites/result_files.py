"""Reads the results that `evald test --output` writes as JSON or JSON Lines."""

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf.json_format import ParseDict, ParseError

from evald.v1 import suite_service_pb2

from .documents import InvalidDocument, parse_json_lines, parse_json_text, read_text
from .reports.report import SuiteReport, WrongCases, checked_cases


class SuiteResults(NamedTuple):
    """A suite run with its cases, ordered by id."""

    run: suite_service_pb2.SuiteRun
    cases: list[suite_service_pb2.CaseResult]


def read_results(path: Path) -> list[SuiteResults]:
    """Read all suite runs of a file. Raises InvalidDocument, also for a file that lacks cases of its suite runs."""
    text, name = read_text(path), str(path)
    found = list(_json_lines(text, name) if path.suffix == ".jsonl" else _json(text, name))
    if not found:
        raise InvalidDocument(name, 0, "got no suite run; the file may be incomplete")
    for run, cases in found:
        cases.sort(key=lambda case: case.case_id)
        twice = [one.case_id for one, other in pairwise(cases) if one.case_id == other.case_id]
        if twice:
            raise InvalidDocument(name, 0, f"{run.suite}: duplicate case {twice[0]!r}")
        if len(cases) != run.case_count:
            raise InvalidDocument(
                name, 0, f"{run.suite}: {len(cases)} cases, but the suite run counts {run.case_count}"
            )
        try:
            for _ in checked_cases(SuiteReport(run, cases)):
                pass
        except WrongCases as problem:
            raise InvalidDocument(name, 0, str(problem)) from None
    return found


def _json(text: str, name: str) -> Iterator[SuiteResults]:
    data = parse_json_text(text, name)
    for entry in data if isinstance(data, list) else [data]:
        if not isinstance(entry, dict) or "suiteRun" not in entry or not isinstance(entry.get("cases"), list):
            raise InvalidDocument(
                name, 1, "wanted `suiteRun` and `cases`, as evald test --output writes them"
            )
        cases = [_message(case, suite_service_pb2.CaseResult(), name, 0) for case in entry["cases"]]
        yield SuiteResults(_message(entry["suiteRun"], suite_service_pb2.SuiteRun(), name, 0), cases)


def _json_lines(text: str, name: str) -> Iterator[SuiteResults]:
    cases: list[suite_service_pb2.CaseResult] = []
    for number, data in parse_json_lines(text, name):
        if isinstance(data, dict) and "suiteRun" in data:
            yield SuiteResults(_message(data["suiteRun"], suite_service_pb2.SuiteRun(), name, number), cases)
            cases = []
        elif not (isinstance(data, dict) and "leftOut" in data):
            cases.append(_message(data, suite_service_pb2.CaseResult(), name, number))
    if cases:
        raise InvalidDocument(
            name, 0, f"{len(cases)} cases without a suite run after them; the file may be incomplete"
        )


def _message(data: Any, message: Any, name: str, line: int) -> Any:
    try:
        # A newer evald may write fields that this version does not know.
        return ParseDict(data, message, ignore_unknown_fields=True)
    except (ParseError, TypeError, AttributeError, json.JSONDecodeError) as problem:
        kind = message.DESCRIPTOR.name
        raise InvalidDocument(name, line, f"wanted a {kind} of evald: {str(problem)[:200]}") from None
