"""Names: a class name means one thing in the whole repository, and no private name of a library is used."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("client", "server", "benchmarks", "examples")
FILES = [
    path
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*.py"))
    if "_pb2" not in path.stem and "node_modules" not in path.parts
]
OWN = ("evald", "evald_server", "benchmarks")

# Private names that earlier versions relied on, or that one finds when one looks for a short cut.
KNOWN_PRIVATE = (
    "_cython",
    "PollerCompletionQueue",
    "_handle_events",
    "grpc._",
    "grpc.aio._",
    "asyncio._",
    "google.protobuf.internal",
    "google._upb",
    "pydantic._internal",
    "pydantic_core._",
    "openai._",
    "rich._",
    "prometheus_client.registry._",
    "_labelnames",
    "concurrent.futures._",
    "multiprocessing._",
    "mallopt",
)


def _place(path: Path, node: ast.AST) -> str:
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"


def _is_foreign(module: str) -> bool:
    return module.partition(".")[0] not in (*OWN, "__future__")


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def test_a_class_name_means_one_thing() -> None:
    places = defaultdict(list)
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(_place(path, node))
    taken = {name: found for name, found in places.items() if len(found) > 1}
    assert not taken


# Documented, for all its underscore.
PUBLIC = {"os._exit"}


def test_no_private_name_of_a_library_is_used() -> None:
    used = [use for path in FILES for use in _private_names(path)]
    assert not used


def _private_names(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    used = [f"{path.relative_to(ROOT)}: {name}" for name in KNOWN_PRIVATE if name in text]
    libraries = set()  # names in this file that stand for something of a library
    for node in ast.walk(tree := ast.parse(text)):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
            libraries |= {
                alias.asname or alias.name.partition(".")[0]
                for alias in node.names
                if _is_foreign(alias.name)
            }
        elif isinstance(node, ast.ImportFrom) and not node.level:
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
            libraries |= {
                alias.asname or alias.name for alias in node.names if _is_foreign(node.module or "")
            }
        else:
            continue
        used += [
            f"{_place(path, node)} imports {module}"
            for module in modules
            if _is_foreign(module) and any(map(_is_private, module.split(".")))
        ]
    used += [
        f"{_place(path, node)} uses {node.value.id}.{node.attr}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in libraries
        and _is_private(node.attr)
        and f"{node.value.id}.{node.attr}" not in PUBLIC
    ]
    return used
