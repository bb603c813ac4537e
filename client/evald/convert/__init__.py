"""Convert Python and JSON data to protobuf messages and back."""

from ..messages import parse_messages_json
from ..structs import dict_to_struct
from .evaluator_type import type_to_pb
from .spec import spec_to_pb

# The functions that a server needs; the clients import the others from the submodules.
__all__ = ["dict_to_struct", "parse_messages_json", "spec_to_pb", "type_to_pb"]
