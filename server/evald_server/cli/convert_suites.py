"""`evald convert`: convert a suite of another tool into a suite file of evald."""

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

from ..suites import foreign
from ..suites.documents import InvalidDocument, read_document
from .console import warn
from .exit_codes import ExitCode, usage_error
from .report_files import write_file
from .sanitize import clean


def run(args: argparse.Namespace) -> ExitCode:
    """Convert the file, and print or write the suite."""
    path = Path(args.file)
    try:
        converted = (
            foreign.convert_jsonl(path) if path.suffix == ".jsonl" else foreign.convert(read_document(path))
        )
    except InvalidDocument as problem:
        for one in problem.problems:
            warn(clean(str(one)))
        return ExitCode.USAGE
    if converted is None:
        raise usage_error(
            f"{path}: unknown format, wanted a suite of AgentV or promptfoo, or an OpenAI grader",
            "docs/suite-formats.md describes the formats",
        )
    for warning in converted.warnings:
        warn(f"warning: {clean(warning)}")
    if args.output is None:
        _dump(converted.suite, sys.stdout)
        return ExitCode.PASSED
    write_file(args.output, partial(_dump, converted.suite))
    return ExitCode.PASSED


def _dump(suite: dict[str, Any], stream: Any) -> None:
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.width = 4096
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.representer.ignore_aliases = lambda _data: True
    yaml.dump(_blocks(suite), stream)


def _blocks(data: Any) -> Any:
    """Return the data with multi-line texts as literal blocks, where a block keeps the text unchanged."""
    from ruamel.yaml.scalarstring import LiteralScalarString

    if isinstance(data, dict):
        return {key: _blocks(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_blocks(value) for value in data]
    if isinstance(data, str) and "\n" in data and _is_plain(data):
        return LiteralScalarString(data)
    return data


def _is_plain(text: str) -> bool:
    lines = text.split("\n")
    return all(line.isprintable() and line == line.rstrip() for line in lines) and not lines[0].startswith(
        " "
    )
