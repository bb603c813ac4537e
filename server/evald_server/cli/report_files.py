"""Report files: the format by the name's ending, and nothing half-written under the name."""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from .exit_codes import usage_error

if TYPE_CHECKING:
    from evald_server.suites.reports.report import SuiteReport

    Writer = Callable[[Sequence[SuiteReport], TextIO], None]

_FORMATS: Final = {
    ".json": "json",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".xml": "junit",
    ".md": "markdown",
    ".html": "html",
}


def report_format(path: str) -> str:
    """Return the format of a report by its file's name. Raises CommandError for an unknown ending."""
    found = _FORMATS.get(Path(path).suffix.lower())
    if found is None:
        endings = ", ".join(_FORMATS)
        raise usage_error(f"{path}: no report is called so", f"the ending says the format: {endings}")
    return found


def check_report_file(path: str, format_name: str) -> None:
    """Refuse a report that could not be written, before anything runs. Raises CommandError."""
    folder = Path(path).parent
    if not folder.is_dir():
        raise usage_error(f"{path}: there is no folder {folder}", "make it first: mkdir -p")
    if Path(path).is_dir() or not os.access(folder, os.W_OK):
        raise usage_error(f"{path}: cannot be written")
    if format_name == "html":
        from evald_server.pages.environment import MissingPackage, environment

        try:
            environment()
        except MissingPackage as problem:
            raise usage_error(str(problem)) from None


def write_report_file(path: str, format_name: str, reports: "Sequence[SuiteReport]") -> None:
    """Write a report. Until it is whole, what was there stays. Raises CommandError when it cannot be written."""
    part = f"{path}.part-{os.getpid()}"
    try:
        with Path(part).open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as stream:
            _writer(format_name)(reports, stream)
        Path(part).replace(path)
    except OSError as problem:
        raise usage_error(f"{path}: {problem.strerror}") from None
    finally:
        with suppress(OSError):
            Path(part).unlink()


def _writer(format_name: str) -> "Writer":
    match format_name:
        case "json":
            from evald_server.suites.reports.json_files import write_json as write
        case "jsonl":
            from evald_server.suites.reports.json_files import write_jsonl as write
        case "junit":
            from evald_server.suites.reports.junit import write_junit as write
        case "markdown":
            from evald_server.suites.reports.markdown import write_markdown as write
        case _:
            from evald_server.suites.reports.page import write_page as write
    return write
