"""The load generator: compiles and runs grpc_load.c."""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from .processes import ROOT

BUILD: Final = ROOT / "build" / "benchmarks"
_SOURCE: Final = Path(__file__).with_name("grpc_load.c")

# 16 calls in flight, the default load of all figures.
CONNECTIONS: Final = 4
STREAMS: Final = 4

# Long enough to connect and to warm up.
WARM_SECONDS: Final = 0.2


class MissingTool(RuntimeError):
    """A measuring program is not installed. The message says how to install it."""


class BrokenRun(RuntimeError):
    """A run had errors, so its figures are invalid."""


@dataclass(frozen=True)
class Load:
    """Measured throughput and latency. Times in milliseconds.

    calls: answered calls per second; for streams, answered messages per second. units: entries of the counted field
    per second. refused: calls per second that got RESOURCE_EXHAUSTED; refused_p50: their median latency.
    p50_by_index: median latency by the message's position in its stream.
    """

    calls: float
    units: float = 0.0
    p50: float = 0.0
    p99: float = 0.0
    refused: float = 0.0
    refused_p50: float = 0.0
    p50_by_index: list[float] = field(default_factory=list)


def grpc_load() -> Path:
    """Return the compiled generator. Compiles it if the source is newer."""
    binary = BUILD / "grpc_load"
    if binary.exists() and binary.stat().st_mtime > _SOURCE.stat().st_mtime:
        return binary
    compiler = os.environ.get("CC", "cc")
    if shutil.which(compiler) is None:
        raise MissingTool(
            f"no C compiler {compiler!r}; on Debian: apt-get install gcc libc6-dev libnghttp2-dev"
        )
    BUILD.mkdir(parents=True, exist_ok=True)
    command = [compiler, "-O2", "-Wall", "-Wextra", str(_SOURCE), "-lnghttp2", "-lm", "-o", str(binary)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        hint = "; on Debian: apt-get install libnghttp2-dev" if "nghttp2" in done.stderr else ""
        raise MissingTool(f"{' '.join(command)} failed{hint}\n{done.stderr}")
    return binary


def command(
    port: int,
    path: str,
    body: Path,
    seconds: float,
    *options: str,
    connections: int = CONNECTIONS,
    streams: int = STREAMS,
) -> list[str]:
    """Return the command line of a grpc_load run."""
    numbers = {
        "--port": port,
        "--conns": connections,
        "--streams": streams,
        "--secs": seconds,
        "--warm": WARM_SECONDS,
    }
    flags = [str(word) for pair in numbers.items() for word in pair]
    return [str(grpc_load()), *flags, "--path", path, "--body", str(body), *options]


def run(
    port: int,
    path: str,
    body: Path,
    seconds: float,
    *options: str,
    connections: int = CONNECTIONS,
    streams: int = STREAMS,
) -> Load:
    """Run grpc_load. Raises BrokenRun if a call ended with a status other than OK or RESOURCE_EXHAUSTED."""
    words = command(port, path, body, seconds, *options, connections=connections, streams=streams)
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BrokenRun(f"{' '.join(words)} failed: {done.stderr}")
    return parsed(done.stdout, done.stderr)


def parsed(output: str, complaints: str = "") -> Load:
    """Parse the output line of grpc_load. Raises BrokenRun if calls failed."""
    found = json.loads(output)
    if found["errors"]:
        raise BrokenRun(f"{found['errors']} calls failed: {complaints or 'the server did not say why'}")
    return Load(
        calls=found["calls_per_second"],
        units=found["units_per_second"],
        p50=found["p50_ms"],
        p99=found["p99_ms"],
        refused=found["refused_per_second"],
        refused_p50=found["refused_p50_ms"],
        p50_by_index=found.get("p50_ms_by_index", []),
    )
