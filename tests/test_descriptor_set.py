"""The descriptor set in deploy/ is the contract, with its comments and with what errors are made of."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from evald.v1 import evaluation_service_pb2

ROOT = Path(__file__).parents[1]
PATH = ROOT / "deploy/evald.binpb"
FILES = {file.name: file for file in descriptor_pb2.FileDescriptorSet.FromString(PATH.read_bytes()).file}
OWN = [name for name in FILES if name.startswith("evald/")]


def test_it_has_every_file_of_the_contract_and_the_details_of_errors() -> None:
    contract = {str(path.relative_to(ROOT / "protos")) for path in (ROOT / "protos/evald").rglob("*.proto")}
    assert set(OWN) == contract
    assert {"google/rpc/error_details.proto", "google/rpc/status.proto"} < FILES.keys()


@pytest.mark.parametrize("name", OWN)
def test_it_says_what_the_generated_code_says(name: str) -> None:
    module = importlib.import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
    generated = descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    shipped = descriptor_pb2.FileDescriptorProto()
    shipped.CopyFrom(FILES[name])
    shipped.ClearField("source_code_info")
    for found in (generated, shipped):
        # The names for JSON are derived, and not every tool writes them.
        for message in found.message_type:
            _clear_json_names(message)
    assert shipped == generated, "run: make proto"


def _clear_json_names(message: descriptor_pb2.DescriptorProto) -> None:
    for field in message.field:
        field.ClearField("json_name")
    for nested in message.nested_type:
        _clear_json_names(nested)


@pytest.mark.parametrize("name", OWN)
def test_it_carries_a_comment_for_every_message_and_field(name: str) -> None:
    file = FILES[name]
    said = {tuple(place.path) for place in file.source_code_info.location if place.leading_comments.strip()}
    for number, message in enumerate(file.message_type):
        assert (4, number) in said, message.name
        for position, field in enumerate(message.field):
            assert (4, number, 2, position) in said, f"{message.name}.{field.name}"


def test_details_of_an_error_are_read_with_it_alone() -> None:
    pool = descriptor_pool.DescriptorPool()
    for file in FILES.values():
        pool.Add(file)
    details = pool.FindMessageTypeByName("google.rpc.BadRequest")
    assert message_factory.GetMessageClass(details)().DESCRIPTOR.full_name == "google.rpc.BadRequest"


def test_tools_of_others_read_it() -> None:
    """`buf` converts a message with nothing but the set."""
    request = evaluation_service_pb2.EvaluateRequest(request_id="r1")
    buf = Path(sys.executable).with_name("buf")
    run = subprocess.run(
        [buf, "convert", PATH, "--type", "evald.v1.EvaluateRequest", "--from", "-#format=binpb"],
        input=request.SerializeToString(),
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert b'"requestId":"r1"' in run.stdout
