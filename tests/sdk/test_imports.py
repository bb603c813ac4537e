"""`import evald` is cheap, loads what a caller needs and nothing else, and changes nothing."""

import subprocess
import sys

import pytest

import evald

from ..attempts import processor_seconds_of_children


def run(code: str) -> str:
    """In a fresh process, warnings are errors."""
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def seconds(code: str) -> float:
    """Of processor time, which no other process takes away."""
    began = processor_seconds_of_children()
    run(code)
    return processor_seconds_of_children() - began


def test_a_caller_needs_neither_pydantic_nor_the_server() -> None:
    loaded = run("import sys, evald; evald.Client; evald.AsyncClient; print(*sys.modules)").split()
    unwanted = {"pydantic", "evald_server", "jsonschema_rs", "google.rpc", "pytest", "importlib.metadata"}
    assert not unwanted & set(loaded)


def test_the_sdk_works_without_the_packages_of_the_server() -> None:
    """An author's whole day: a class, a function with a schema, both evaluated, and a worker made."""
    code = """
import sys
blocked = "evald_server openai rich jsonschema prometheus_client re2 ruamel rapidfuzz grpc_reflection pytest".split()
for name in blocked:
    sys.modules[name] = None  # importing it fails

import importlib, pathlib, evald
from evald import testing

for file in pathlib.Path(evald.__path__[0]).rglob("*.py"):
    module = file.relative_to(pathlib.Path(evald.__path__[0]).parent).with_suffix("")
    importlib.import_module(".".join(module.parts).removesuffix(".__init__"))

class Short(evald.Evaluator):
    type = "acme.short"
    kind = evald.ASSERTION
    words: int = 3
    def evaluate(self, ctx):
        return evald.passed("short")

schema = {"type": "object", "properties": {"word": {"type": "string"}}, "additionalProperties": False}
says = evald.assertion("acme.says", config_schema=schema)(lambda ctx: ctx.config["word"] in ctx.answer)
assert testing.evaluate(Short, {"words": 2}, evald.Turn(response="x")).passed
assert testing.evaluate(says, {"word": "x"}, evald.Turn(response="x")).passed
evald.ListeningWorker(Short, says)
evald.DiallingWorker(Short, says)
assert not [name for name in blocked if sys.modules[name] is not None]
"""
    run(code)


def test_no_thread_is_started_by_importing_or_by_making_an_asyncio_client() -> None:
    assert run("import threading, evald; evald.AsyncClient(); print(threading.active_count())").strip() == "1"


def test_pydantic_comes_with_the_first_evaluator() -> None:
    code = "import sys, evald; {}; print('pydantic' in sys.modules)"
    assert run(code.format("evald.Result")).strip() == "False"
    assert run(code.format("evald.Evaluator")).strip() == "True"


def test_errors_load_their_details_when_there_are_some() -> None:
    code = "import sys, evald; evald.errors.InvalidInput('a', 'b', 'c'); print('google.rpc' in sys.modules)"
    assert run(code).strip() == "False"


def test_every_name_is_there_for_star_dir_and_attribute() -> None:
    names = run("from evald import *; print(*sorted(n for n in globals() if not n.startswith('_')))").split()
    assert names == sorted(evald.__all__)
    assert set(evald.__all__) <= set(dir(evald))
    with pytest.raises(AttributeError, match="has no attribute 'Evaluate'"):
        evald.Evaluate  # type: ignore[attr-defined]  # noqa: B018


def test_it_costs_at_most_two_and_a_half_times_grpc_and_protobuf() -> None:
    """The cheapest of three processes each, taken in turn, because the machine is shared."""
    base, ours = [], []
    for _ in range(3):
        base.append(seconds("import grpc.aio, google.protobuf.struct_pb2"))
        ours.append(seconds("import evald; evald.Client; evald.AsyncClient"))
    assert min(ours) <= 2.5 * min(base)
