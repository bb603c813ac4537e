"""Annotations of GitHub Actions: workflow commands that a step prints.

Source: docs.github.com, Workflow commands for GitHub Actions; escapes as in actions/toolkit, core/src/command.ts.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final, TextIO

from evald.result import Verdict
from evald_server.pages.formats import count
from evald_server.untrusted import one_line, shorten, visible

from .failures import failure_lines
from .report import SuiteReport, checked_cases, lacks_a_red_case

# GitHub shows 10 errors and 10 warnings of a step, and silently drops the rest.
_MOST: Final = 10
_MOST_TITLE: Final = 1000
# GitHub keeps the first 4 KiB of a message.
_MOST_TEXT: Final = 4000
_COMMANDS: Final = {Verdict.FAILED: ("error", "failed"), Verdict.ERROR: ("warning", "inconclusive")}
"""By verdict of a case: the command, and the word for the title."""


def write_github(reports: Sequence[SuiteReport], stream: TextIO) -> None:
    """Write an error for each failed case and a warning for each inconclusive case, at most ten of each.

    A suite run without a verdict and without such a case gets an error, too. A notice has the number of the others.
    Raises WrongCases.
    """
    written: Counter[str] = Counter()

    def annotate(command: str, message: str, title: str, **place: str) -> None:
        written[command] += 1
        if written[command] <= _MOST:
            _write(stream, command, message, title, **place)

    for report in reports:
        if lacks_a_red_case(report.run):
            annotate("error", report.run.reason or "no verdict", f"{report.name} has no verdict")
        for case, verdict in checked_cases(report):
            if verdict in _COMMANDS:
                command, word = _COMMANDS[verdict]
                place = report.file_and_line(case.case_id)
                lines = failure_lines(case)
                if len(case.trials) > 1:
                    lines.insert(0, one_line(case.reason))
                annotate(command, "\n".join(lines), f"{report.name}: {case.case_id} {word}", **place)
    hidden = [count(number - _MOST, command) for command, number in written.items() if number > _MOST]
    if hidden:
        _write(stream, "notice", f"{' and '.join(hidden)} in addition to those with an annotation", "evald")


def _write(stream: TextIO, command: str, message: str, title: str, **place: str) -> None:
    if not message.strip():
        message = "no reason was given"  # GitHub drops an annotation without a message
    properties = {**place, "title": title[:_MOST_TITLE]}
    text = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    stream.write(f"::{command} {text}::{_data(shorten(message, _MOST_TEXT))}\n")


def _data(text: str) -> str:
    return visible(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
