"""RESULTS.md: a table of figures that a run replaces row by row. The text below the table is kept."""

import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

from .pairs import Row

FILE: Final = Path(__file__).with_name("RESULTS.md")

_HEAD: Final = """\
# Results

Written by `python -m benchmarks --write`; [README.md](README.md) says what each figure means.
A figure is the median of its rounds, the range beside it their lowest and highest.

Machine of the last run: {machine}.

| figure | must reach | reached | range | absolute | command | measured |
|---|---|---|---|---|---|---|
"""


def line(row: Row, command: str, when: str) -> str:
    """Format the row as Markdown."""
    bound = "" if row.bound is None else str(row.bound)
    reached = f"{row.value:.2f}" if row.holds else f"**{row.value:.2f}, missed**"
    spread = f"{min(row.values):.2f} to {max(row.values):.2f}"
    return f"| {row.figure} | {bound} | {reached} | {spread} | {row.detail} | `{command}` | {when} |"


def write(found: Mapping[str, Sequence[Row]], commands: Mapping[str, str], order: Sequence[str]) -> None:
    """Write the rows into the file, in the order of the benchmarks; other rows stay."""
    lines: dict[str, list[str]] = {}
    below = ""
    if FILE.exists():
        above, heading, below = FILE.read_text(encoding="utf-8").partition("\n## ")
        below = heading + below
        for text in above.splitlines():
            name = next((name for name in order if f"| `python -m benchmarks {name} " in text), None)
            if name is not None:
                lines.setdefault(name, []).append(text)
    when = datetime.now(UTC).strftime("%Y-%m-%d")
    for name, rows in found.items():
        lines[name] = [line(row, commands[name], when) for row in rows]
    table = "\n".join(text for name in order for text in lines.get(name, []))
    FILE.write_text(f"{_HEAD.format(machine=machine())}{table}\n{below}", encoding="utf-8")


def machine() -> str:
    """Return a description of the machine and the versions."""
    model = platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            text.partition(":")[2].strip()
            for text in cpuinfo.read_text().splitlines()
            if "model name" in text
        ]
        model = names[0] if names else model
    gigabytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    packages = ", ".join(f"{name} {version(name)}" for name in ("grpcio", "protobuf", "uvloop"))
    return (
        f"{os.cpu_count()} cores ({model}), {gigabytes:.0f} GiB, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, {packages}"
    )
