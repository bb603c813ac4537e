"""JSON and JSON Lines: complete suite runs and cases in protobuf's JSON form."""

import json
from collections.abc import Sequence
from typing import Final, TextIO

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from .report import SuiteReport, checked_cases

_LEFT_OUT: Final = "leftOut"


def write_json(reports: Sequence[SuiteReport], stream: TextIO) -> None:
    """Write `{"suiteRun": ..., "cases": [...]}`; a list of these for several suite runs. Raises WrongCases."""
    several = len(reports) != 1
    stream.write("[\n" if several else "")
    for number, report in enumerate(reports):
        stream.write(",\n" if number else "")
        stream.write(f'{{"suiteRun": {_text(report.run)},\n"cases": [')
        cases = enumerate(checked_cases(report))
        stream.writelines(("," if index else "") + "\n" + _text(case) for index, (case, _) in cases)
        stream.write("\n]")
        if report.comparison is not None:
            stream.write(f',\n"comparison": {_text(report.comparison)}')
        if report.left_out:
            stream.write(f',\n"{_LEFT_OUT}": {_dump(_left_out(report))}')
        stream.write("}")
    stream.write("\n]\n" if several else "\n")


def write_jsonl(reports: Sequence[SuiteReport], stream: TextIO) -> None:
    """Write a line for each case and then, for each suite run, its line `{"suiteRun": ...}`. Raises WrongCases."""
    for report in reports:
        stream.writelines(_text(case) + "\n" for case, _ in checked_cases(report))
        stream.writelines(_dump({_LEFT_OUT: skipped}) + "\n" for skipped in _left_out(report))
        stream.write(f'{{"suiteRun": {_text(report.run)}}}\n')


def _left_out(report: SuiteReport) -> list[dict[str, str]]:
    return [{"caseId": case_id, "reason": why} for case_id, why in report.left_out]


def _text(pb: Message) -> str:
    return _dump(MessageToDict(pb))


def _dump(data: object) -> str:
    return json.dumps(data, ensure_ascii=False, allow_nan=False)
