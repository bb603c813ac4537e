"""Imports go downwards only: cli -> app -> rpc, monitoring -> engine -> evaluators -> evald -> generated code."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = {"evald": ROOT / "client/evald", "evald_server": ROOT / "server/evald_server"}

# What each part of the server may import of the others. The SDK and third parties are open to all, but see below.
BELOW = {
    "wire_pb2": set(),
    "wire_limits": set(),
    "call_errors": set(),
    "auth": {"call_errors", "files", "input_files"},
    "day_totals": set(),
    "fair_slots": {"auth"},
    "certificates": {"files", "input_files"},
    "dev_certificates": set(),
    "files": set(),
    "config": {"input_files", "redaction"},
    "data_dir": set(),
    "untrusted": set(),
    "pages": {"untrusted"},
    "input_files": set(),
    "evaluator_counts": set(),
    "suites": {"evaluator_counts", "frames", "input_files", "pages", "reported_errors", "untrusted"},
    "descriptors": set(),
    "methods": set(),
    "memory": set(),
    "loop": set(),
    "frames": set(),
    "kernel": set(),
    "workers": {"frames"},
    "logs": set(),
    "jsonschema": {"fair_slots", "frames", "kernel", "untrusted", "workers"},
    "evaluators": {"jsonschema", "untrusted"},
    "redaction": set(),
    "reported_errors": set(),
    "retries": set(),
    "judge": {
        "calibration",
        "config",
        "day_totals",
        "evaluators",
        "fair_slots",
        "redaction",
        "retries",
        "untrusted",
    },
    "scripts": {"auth", "config", "fair_slots", "kernel"},
    "remote": {
        "auth",
        "call_errors",
        "config",
        "fair_slots",
        "input_files",
        "jsonschema",
        "store",
        "untrusted",
        "wire_limits",
        "wire_pb2",
    },
    "engine": {"call_errors", "evaluators", "logs", "wire_pb2"},
    "plugins": {"engine", "jsonschema"},
    "batch": {
        "auth",
        "engine",
        "evaluator_counts",
        "evaluators",
        "fair_slots",
        "wire_pb2",
        "memory",
        "frames",
        "kernel",
        "logs",
        "workers",
    },
    "store": {"call_errors"},
    "connectors": {
        "config",
        "engine",
        "loop",
        "redaction",
        "remote",
        "reported_errors",
        "retries",
        "wire_limits",
    },
    "runs": {
        "auth",
        "batch",
        "connectors",
        "engine",
        "fair_slots",
        "judge",
        "logs",
        "monitoring",
        "store",
        "suites",
        "wire_pb2",
    },
    "rpc": {
        "auth",
        "batch",
        "call_errors",
        "certificates",
        "connectors",
        "engine",
        "evaluators",
        "fair_slots",
        "logs",
        "methods",
        "remote",
        "runs",
        "store",
        "suites",
        "monitoring",
        "config",
        "wire_limits",
        "wire_pb2",
    },
    "monitoring": {"engine"},
    "http": {
        "auth",
        "call_errors",
        "calibration",
        "config",
        "connectors",
        "fair_slots",
        "logs",
        "loop",
        "methods",
        "monitoring",
        "pages",
        "redaction",
        "rpc",
        "store",
        "suites",
        "untrusted",
        "wire_limits",
    },
    "calibration": {"input_files", "suites"},
    "app": {
        "http",
        "auth",
        "batch",
        "certificates",
        "connectors",
        "runs",
        "rpc",
        "engine",
        "evaluators",
        "jsonschema",
        "judge",
        "methods",
        "monitoring",
        "plugins",
        "remote",
        "scripts",
        "store",
        "config",
        "data_dir",
        "descriptors",
        "files",
    },
    "cli": {
        "app",
        "auth",
        "config",
        "day_totals",
        "descriptors",
        "dev_certificates",
        "files",
        "input_files",
        "loop",
        "memory",
        "methods",
        "logs",
        "calibration",
        "conformance",
        "frames",
        "judge",
        "pages",
        "redaction",
        "suites",
        "untrusted",
        "wire_pb2",
    },
    "conformance": {
        "dev_certificates",
        "engine",
        "evaluators",
        "judge",
        "remote",
        "scripts",
        "untrusted",
    },
    "testing": {"app", "config", "engine"},
    "pytest_plugin": {"pages", "suites", "testing"},
    "__main__": {"cli", "memory"},
}

# The engine, the evaluators and the batch processes know nothing of the ways in and out.
INNER = {"engine", "evaluators", "batch"}
EDGE_LIBRARIES = {
    "grpc",
    "grpc_health",
    "grpc_reflection",
    "prometheus_client",
    "sqlite3",
    "sqlalchemy",
    "openai",
    "rich",
}

# Where the SDK may touch generated code: the stubs of a connection, the details of a status, the conversion, and workers.
PROTOBUF_AWARE = {"connection.py", "errors.py"}
PROTOBUF_AWARE_FOLDERS = {"convert", "worker"}


class Import(NamedTuple):
    """One imported module, as an absolute name."""

    file: Path
    line: int
    module: str
    typing_only: bool

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line} imports {self.module}"


def _generated(path: Path) -> bool:
    return "_pb2" in path.stem


@cache
def _imports(package: str) -> list[Import]:
    files = [file for file in sorted(SOURCES[package].rglob("*.py")) if not _generated(file)]
    return [found for file in files for found in _imports_of(file, package)]


def _imports_of(file: Path, package: str) -> Iterator[Import]:
    parts = (package, *file.relative_to(SOURCES[package]).with_suffix("").parts)
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        typing_only = id(node) in for_types
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(file, node.lineno, alias.name, typing_only)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(parts[: len(parts) - node.level]) if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            for alias in node.names:
                yield Import(file, node.lineno, f"{module}.{alias.name}", typing_only)


def _part(name: str) -> str:
    """The first component below evald_server: "engine" of "evald_server.engine.plan"."""
    return name.split(".")[1] if "." in name else ""


def _part_of_file(file: Path) -> str:
    return Path(file.relative_to(SOURCES["evald_server"]).parts[0]).stem


def _name_of(file: Path, package: str) -> str:
    parts = file.relative_to(SOURCES[package]).with_suffix("").parts
    return ".".join((package, *parts)).removesuffix(".__init__")


def _at_run_time(package: str) -> list[Import]:
    return [found for found in _imports(package) if not found.typing_only]


def _list(offenders: list[Import]) -> str:
    return "\n".join(map(str, offenders))


@pytest.mark.parametrize("part", sorted(BELOW))
def test_a_part_of_the_server_imports_only_what_is_below_it(part: str) -> None:
    allowed = BELOW[part] | {part}
    offenders = [
        found
        for found in _imports("evald_server")
        if _part_of_file(found.file) == part
        and found.module.split(".")[0] == "evald_server"
        and _part(found.module) in BELOW.keys() - allowed
    ]
    assert not offenders, _list(offenders)


def test_every_part_of_the_server_has_its_place_in_the_order() -> None:
    parts = {
        Path(path.name).stem
        for path in SOURCES["evald_server"].iterdir()
        if any(path.glob("*.py")) or path.suffix == ".py"
    }
    assert parts - {"__init__"} <= BELOW.keys()


def test_no_two_files_of_the_server_import_each_other() -> None:
    package = "evald_server"
    names = {_name_of(file, package) for file in SOURCES[package].rglob("*.py")}
    graph: dict[str, set[str]] = {}
    for found in _imports(package):
        importer = _name_of(found.file, package)
        # "a.b.c" is the object c of the module a.b, unless there is a module of that name.
        module = found.module if found.module in names else found.module.rpartition(".")[0]
        if module in names and module != importer:
            graph.setdefault(importer, set()).add(module)
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the files


def test_the_sdk_does_not_import_the_server() -> None:
    offenders = [found for found in _imports("evald") if found.module.split(".")[0] == "evald_server"]
    assert not offenders, _list(offenders)


def test_the_engine_and_the_evaluators_know_no_transport_store_or_telemetry() -> None:
    offenders = [
        found
        for found in _imports("evald_server")
        if _part_of_file(found.file) in INNER and found.module.split(".")[0] in EDGE_LIBRARIES
    ]
    assert not offenders, _list(offenders)


def test_the_evaluators_see_no_protobuf() -> None:
    offenders = [
        found
        for found in _imports("evald_server")
        if _part_of_file(found.file) == "evaluators"
        and ("_pb2" in found.module or found.module.startswith("google.protobuf"))
    ]
    assert not offenders, _list(offenders)


def test_in_the_sdk_only_the_conversion_and_the_clients_touch_generated_code() -> None:
    offenders = [
        found
        for found in _at_run_time("evald")
        if "_pb2" in found.module
        and found.file.name not in PROTOBUF_AWARE
        and found.file.parent.name not in PROTOBUF_AWARE_FOLDERS
    ]
    assert not offenders, _list(offenders)


@pytest.mark.parametrize(
    "script", ["import evald", "import evald; evald.Client; evald.AsyncClient; evald.Tls"]
)
def test_importing_evald_loads_nothing_heavy_and_grpc_only_for_a_client(script: str) -> None:
    code = (
        f"import sys, threading; {script}\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split())
    assert ("grpc" in loaded) == ("Client" in script)
    heavy = {"evald_server", "pydantic", "jsonschema", "openai", "prometheus_client", "rich", "jsonschema_rs"}
    assert not heavy & loaded
