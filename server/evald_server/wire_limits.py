"""Limits of what is in a message, checked before it is parsed, because the parser holds the interpreter.

protobuf keeps a map in a hash table whose order is the same for all maps of a process. A caller who reads its own maps
back from the server learns that order, and can choose keys that share a place in the table: 200,000 of them, 4 MB, take
12 s to parse, with the interpreter held, because the time grows with the square of their number.
"""

from functools import cache
from typing import Any, Final, NamedTuple, TypeVar, cast

from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

M = TypeVar("M", bound=Message)

MAX_MEMBERS: Final = 5000
"""Maximum members of a map or of a JSON object: chosen keys of that many take 8 ms to parse. With a lower limit,
conversations of a thousand messages would be checked at four times the cost of parsing them."""

# The shortest map with more members: each has a tag and a length of its own and of its key, and most keys two bytes.
_SMALL_BYTES: Final = 6 * MAX_MEMBERS

# The check copies the parts of a message at each level. Only large data, all of them nested deep, need more.
_MAX_COPIED_BYTES: Final = 256 << 20


# Eight million empty messages, 16 MB, take 1.2 GB and some seconds to parse. No list that means something has so many.
_MAX_MESSAGES: Final = 2_000_000


class BeyondWireLimit(DecodeError):
    """A map has too many members, a field too many messages, or too much data is nested too deep to tell.

    path: the field's.
    """

    def __init__(self, path: str, got: str) -> None:
        super().__init__(got)
        self.path = path
        self.got = got


class _Part(NamedTuple):
    """A field with messages. is_single: later occurrences of it are merged with the first."""

    name: str
    kind: Descriptor
    is_map: bool
    is_single: bool


def parse_message(kind: type[M], data: bytes) -> M:
    """Parse a message from outside. Raises BeyondWireLimit, and DecodeError if it is unreadable."""
    check_wire_limits(kind, data)
    return kind.FromString(data)


def check_wire_limits(message: type[Message], data: bytes) -> None:
    """Raise BeyondWireLimit for a serialised message beyond a limit, and DecodeError if it is unreadable."""
    left = _MAX_COPIED_BYTES
    if not _may_exceed(data):
        return
    unchecked = [(cast("Descriptor", message.DESCRIPTOR), data, "")]
    while unchecked:
        kind, data, path = unchecked.pop()
        left -= len(data)
        if left < 0:
            raise BeyondWireLimit(path, "got too much data at too many levels")
        parser, parts = _parts_of(kind)
        found: Any = parser.FromString(data)
        for part in parts:
            values = getattr(found, part.name)
            place = f"{path}.{part.name}".lstrip(".")
            if part.is_map and len(values) > MAX_MEMBERS:
                raise BeyondWireLimit(place, f"got {len(values)} members, wanted at most {MAX_MEMBERS}")
            if len(values) > _MAX_MESSAGES:
                raise BeyondWireLimit(place, f"got {len(values)} messages, wanted at most {_MAX_MESSAGES}")
            merged = [b"".join(values)] if part.is_single else values
            unchecked += [(part.kind, value, place) for value in merged if _may_exceed(value)]


def _may_exceed(data: bytes) -> bool:
    """Return whether a map in a message may have too many members: each begins with the tag of its key.

    That is 0x0a, or 0x8a with an encoding that is longer than it must be.
    """
    if len(data) <= _SMALL_BYTES:
        return False
    tags = data.count(b"\x0a")
    return tags > MAX_MEMBERS or tags + data.count(b"\x8a") > MAX_MEMBERS


@cache
def _parts_of(kind: Descriptor) -> tuple[type[Message], list[_Part]]:
    """Return a type that parses a message without the messages in it, which it has as bytes, and their fields."""
    name = kind.full_name.replace(".", "_")
    file = FileDescriptorProto(name=name, syntax="proto3")
    fields = file.message_type.add(name=name).field
    parts = []
    for field in kind.fields:
        inner = field.message_type
        if inner is not None:
            repeated = FieldDescriptorProto.LABEL_REPEATED
            fields.add(
                name=field.name, number=field.number, label=repeated, type=FieldDescriptorProto.TYPE_BYTES
            )
            parts.append(_Part(field.name, inner, inner.GetOptions().map_entry, field.has_presence))
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName(name)), parts
