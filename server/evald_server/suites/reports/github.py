"""Annotations of GitHub Actions: workflow commands that a step prints.

Source: docs.github.com, Workflow commands for GitHub Actions; escapes as in actions/toolkit, core/src/command.ts.
"""

from collections.abc import Sequence
from typing import Final, TextIO

from evald.result import Verdict
from evald_server.pages.formats import count
from evald_server.untrusted import visible

from .report import SuiteReport, checked_cases, lacks_a_red_case

# GitHub shows 10 errors and 10 warnings of a step, and silently drops the rest.
_MOST: Final = 10
_MOST_TEXT: Final = 1000
_COMMANDS: Final = {Verdict.FAILED: "error", Verdict.ERROR: "warning"}
_WORDS: Final = {Verdict.FAILED: "failed", Verdict.ERROR: "inconclusive"}


def write_github(reports: Sequence[SuiteReport], stream: TextIO) -> None:
    """Write an error for each failed case and a warning for each inconclusive case, at most ten of each.

    A notice has the number of the others. Raises WrongCases.
    """
    written = dict.fromkeys(_COMMANDS, 0)
    for report in reports:
        if lacks_a_red_case(report.run):
            _write(stream, "error", report.run.reason or "no verdict", f"{report.name} has no verdict")
        for case, verdict in checked_cases(report):
            if verdict not in _COMMANDS:
                continue
            written[verdict] += 1
            if written[verdict] <= _MOST:
                title = f"{report.name}: {case.case_id} {_WORDS[verdict]}"
                place = report.file_and_line(case.case_id)
                _write(stream, _COMMANDS[verdict], case.reason, title, **place)
    hidden = {verdict: number - _MOST for verdict, number in written.items() if number > _MOST}
    if hidden:
        more = " and ".join(
            f"{count(number, 'case')} {_WORDS[verdict]}" for verdict, number in hidden.items()
        )
        _write(stream, "notice", f"{more} in addition to those with an annotation", "evald")


def _write(stream: TextIO, command: str, message: str, title: str, **place: str) -> None:
    properties = {**place, "title": title[:_MOST_TEXT]}
    text = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    stream.write(f"::{command} {text}::{_data(message[:_MOST_TEXT])}\n")


def _data(text: str) -> str:
    return visible(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
