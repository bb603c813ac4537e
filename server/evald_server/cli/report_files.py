"""Report files. The name's ending selects the format. A file is complete or not written at all."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from evald_server.pages.environment import MissingPackage, environment

from .exit_codes import CommandError, ExitCode, usage_error

if TYPE_CHECKING:
    from evald_server.suites.reports.report import SuiteReport

ENDINGS: Final = {
    ".json": "json",
    ".jsonl": "jsonl",
    ".xml": "junit",
    ".md": "markdown",
    ".html": "html",
    ".agentv.jsonl": "agentv",
}
_WRITERS: Final = {
    "json": ("json_files", "write_json"),
    "jsonl": ("json_files", "write_jsonl"),
    "junit": ("junit", "write_junit"),
    "markdown": ("markdown", "write_markdown"),
    "html": ("page", "write_page"),
    "agentv": ("agentv", "write_agentv"),
    "github": ("github", "write_github"),
}


def report_format(option: str, path: str) -> str:
    """Return the format of a report from its file's name. Raises CommandError for an unknown ending."""
    name = Path(path).name
    # The longest match: .agentv.jsonl also ends with .jsonl.
    ending = max((one for one in ENDINGS if name.endswith(one)), key=len, default=None)
    if ending is None:
        raise usage_error(f"{option} {path}: wanted a file name that ends with {', '.join(ENDINGS)}")
    return ENDINGS[ending]


def check_report_file(option: str, path: str, format_name: str) -> None:
    """Raise CommandError for a report that cannot be written, before anything runs."""
    check_output_file(option, path)
    if format_name == "html":
        try:
            environment()
        except MissingPackage as problem:
            raise usage_error(f"{option} {path}: {problem}") from None


def check_output_file(option: str, path: str) -> None:
    """Raise CommandError for a file that cannot be written, before anything runs."""
    folder = Path(path).parent
    if not folder.is_dir():
        raise usage_error(
            f"{option} {path}: the directory {folder} does not exist", f"create it: mkdir -p {folder}"
        )
    if Path(path).is_dir() or not os.access(path if _is_special(path) else folder, os.W_OK):
        raise usage_error(f"{option} {path}: cannot be written")


def _is_special(path: str) -> bool:
    """Return True for a device, a pipe or a link, such as /dev/stdout: written to directly, never replaced."""
    place = Path(path)
    return place.exists() and (place.is_symlink() or not place.is_file())


def write_report_file(path: str, format_name: str, reports: "Sequence[SuiteReport]") -> None:
    """Write a report, as `write_file` does."""
    write_file(path, partial(write_report, format_name, reports))


def write_file(path: str, write: Callable[[TextIO], object]) -> None:
    """Write a file, and replace an existing one only when complete. Raises CommandError if it cannot be written."""
    part = Path(path) if _is_special(path) else Path(f"{path}.part-{os.getpid()}")
    try:
        with part.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as stream:
            write(stream)
        if part != Path(path):
            part.replace(path)
    except OSError as problem:
        raise CommandError(ExitCode.INCONCLUSIVE, f"{path}: {problem.strerror}") from None
    finally:
        if part != Path(path):
            part.unlink(missing_ok=True)


def write_report(format_name: str, reports: "Sequence[SuiteReport]", stream: TextIO) -> None:
    """Write a report to a stream."""
    module, name = _WRITERS[format_name]
    getattr(import_module(f"evald_server.suites.reports.{module}"), name)(reports, stream)
