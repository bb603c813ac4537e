"""Convert Python and JSON data to protobuf messages and back.

`parse_messages_json` and `dict_to_struct` are the parts that a server needs.
"""

from ..messages import parse_messages_json
from ..structs import dict_to_struct
from .evaluator_type import type_to_pb
from .spec import spec_to_pb

# What a server needs of this; the clients import the rest by name.
__all__ = ["dict_to_struct", "parse_messages_json", "spec_to_pb", "type_to_pb"]
