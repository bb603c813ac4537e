"""Runs the blocks of one Markdown page, top to bottom, as a reader would: page.py PAGE

python blocks share one namespace. bash blocks, and the lines after "$ " of
console blocks, run in the same directory; a command of a console block must
print the lines shown below it, numbers and widths aside. A block with file=NAME
after its language is written to that file. Other languages are not run. What
`evald serve` listens on by default is replaced by the addresses in
EVALD_TEST_GRPC, EVALD_TEST_HTTP and EVALD_TEST_WEB; the other ports of this
machine by ones that are free.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).parents[2]))
from tests.ports import free_address

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\S*) *(?P<info>.*)$")
_ADDRESS = re.compile(r"\b(localhost|127\.0\.0\.1|0\.0\.0\.0):(\d{4,5})\b")
_OF_THE_SERVER = {"50051": "EVALD_TEST_GRPC", "9464": "EVALD_TEST_HTTP", "50080": "EVALD_TEST_WEB"}
_OWN_PORTS: dict[str, str] = {}


class Block(NamedTuple):
    """A fenced block. line: first line of its text, from 1. file: the file=NAME of its fence, or ""."""

    line: int
    language: str
    file: str
    text: str


def blocks(markdown: str) -> Iterator[Block]:
    """Return the fenced blocks of a page, in order."""
    lines = iter(enumerate(markdown.splitlines(), start=1))
    for _, line in lines:
        fence = _FENCE.match(line)
        if not fence:
            continue
        indent = len(fence["indent"])
        first, text = 0, []
        for number, inner in lines:
            first = first or number
            if inner.strip() == "```":
                break
            text.append(inner[indent:])
        file = re.search(r"\bfile=(\S+)", fence["info"])
        yield Block(first, fence["language"], file[1] if file else "", "\n".join(text) + "\n")


def _localised(text: str) -> str:
    return _ADDRESS.sub(_local, text)


def _local(address: re.Match[str]) -> str:
    host, port = address.groups()
    if port in _OF_THE_SERVER and host != "0.0.0.0":
        return os.environ[_OF_THE_SERVER[port]]
    if port not in _OWN_PORTS:
        _OWN_PORTS[port] = free_address().rpartition(":")[2]
    return f"{host}:{_OWN_PORTS[port]}"


def _shell(script: str, place: str) -> str:
    """Run commands and return their output; exit if one fails."""
    run = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(run.stdout, flush=True)
    if run.returncode:
        sys.exit(f"{place}: ended with {run.returncode}:\n{script}")
    return run.stdout


def _console(text: str, place: str) -> None:
    """Run each command after "$ ". It must print the lines below it."""
    for command, shown in re.findall(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE):
        printed = set(map(_comparable, _shell(command, place).splitlines()))
        missing = [
            line for line in shown.splitlines() if line.strip(" .") and _comparable(line) not in printed
        ]
        if missing:
            sys.exit(f"{place}: does not print\n" + "\n".join(missing))


def _comparable(line: str) -> str:
    """Return a line without numbers and column widths, which differ from run to run."""
    return re.sub(r"[\s─━-]+", " ", re.sub(r"\d+(?:\.\d+)?", "0", line)).strip()


def run_page(path: Path) -> None:
    """Run all blocks; exit at the first failure."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(path.read_text(encoding="utf-8")):
        place = f"{path.name}:{block.line}"
        text = _localised(block.text)
        print(f"-- {place} {block.language}", flush=True)
        if block.file:
            Path(block.file).write_text(text, encoding="utf-8")
        elif block.language == "python":
            # The line numbers of a traceback are those of the page.
            exec(compile("\n" * (block.line - 1) + text, str(path), "exec"), namespace)
        elif block.language == "bash":
            _shell(text, place)
        elif block.language == "console":
            _console(text, place)


if __name__ == "__main__":
    run_page(Path(sys.argv[1]))
