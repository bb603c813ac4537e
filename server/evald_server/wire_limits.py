"""Limits of what is in a message, checked before it is parsed, because the parser holds the interpreter.

protobuf keeps a map in a hash table whose order is the same for all maps of a process. A caller who reads its own maps
back from the server learns that order, and can choose keys that share a place in the table: 200,000 of them, 4 MB, take
12 s to parse, with the interpreter held, because the time grows with the square of their number. So the squares of all
maps' numbers of members are limited together.
"""

import heapq
import itertools
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar, cast

from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.struct_pb2 import Struct

M = TypeVar("M", bound=Message)

MAX_MEMBERS: Final = 20_000
"""Maximum members of a map or of a JSON object."""

# Chosen keys of so many members, in one map or in many, take 0.2 s to parse. Data of a message's maximum size with
# objects of 180 members are below it.
_MAX_SQUARES: Final = MAX_MEMBERS**2

# A member has at least two tags, two lengths, and a key of one byte. Members without a key can be shorter, but they
# are all the same one.
_MEMBER_BYTES: Final = 5

_JSON_FILE: Final = Struct.DESCRIPTOR.file.name

# Maps in smaller parts of a message, however many, take little time.
_SMALL_BYTES: Final = 128

# The check copies the parts of a message at each level. Only large data, all of them nested deep, need more. A part
# takes as much time as copying 2,000 bytes.
_MAX_COPIED_BYTES: Final = 256 << 20
_PART_BYTES: Final = 2000

# Eight million empty messages, 16 MB, take 1.2 GB and some seconds to parse. No list that means something has so many.
_MAX_MESSAGES: Final = 2_000_000


class BeyondWireLimit(DecodeError):
    """Maps have too many members, a field has too many messages, or too much data is nested too deep to tell.

    path: the field's.
    """

    def __init__(self, path: str, got: str) -> None:
        super().__init__(got)
        self.path = path
        self.got = got


class _Field(NamedTuple):
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
    """Raise BeyondWireLimit for a serialised message beyond a limit, and DecodeError if it is unreadable.

    Looks into the largest parts first, until the maps found and all that the other parts can hold are below the limit.
    """
    left = _MAX_COPIED_BYTES
    found = 0
    root = cast("Descriptor", message.DESCRIPTOR)
    unchecked = _most_squares(root, data)
    # A heap, the largest part first. The numbers are there because neither types nor paths are ordered.
    numbers = itertools.count()
    parts = [(-unchecked, next(numbers), root, data, "")]
    while found + unchecked > _MAX_SQUARES:
        negative, _, kind, data, path = heapq.heappop(parts)
        unchecked += negative
        left -= len(data) + _PART_BYTES
        if left < 0:
            raise BeyondWireLimit(path, "got too much data at too many levels")
        parser, fields = _fields_of(kind)
        parsed: Any = parser.FromString(data)
        for field in fields:
            values = getattr(parsed, field.name)
            count = len(values)
            place = f"{path}.{field.name}".lstrip(".")
            if field.is_map:
                found += count**2
                if count > MAX_MEMBERS:
                    raise BeyondWireLimit(place, f"got {count} members, wanted at most {MAX_MEMBERS}")
                if found > _MAX_SQUARES:
                    raise BeyondWireLimit(
                        place,
                        f"got {count} members here and too many in other objects, wanted fewer or smaller objects: the "
                        f"squares of their numbers of members may add up to {_MAX_SQUARES}",
                    )
            elif count > _MAX_MESSAGES:
                raise BeyondWireLimit(place, f"got {count} messages, wanted at most {_MAX_MESSAGES}")
            for value in [b"".join(values)] if field.is_single else values:
                if len(value) > _SMALL_BYTES:
                    most = _most_squares(field.kind, value)
                    unchecked += most
                    heapq.heappush(parts, (-most, next(numbers), field.kind, value, place))


def _most_squares(kind: Descriptor, data: bytes) -> int:
    """Return an upper bound of what the squares of the numbers of members of a message's maps add up to."""
    members = len(data) // _MEMBER_BYTES
    if kind.file.name == _JSON_FILE:
        # The tags of a member and of its key are 0x0a, or begin with 0x8a if encoded longer than they must be.
        members = min(members, (data.count(b"\x0a") + data.count(b"\x8a")) // 2)
    return members**2


@cache
def _fields_of(kind: Descriptor) -> tuple[type[Message], list[_Field]]:
    """Return a type that parses a message without the messages in it, which it has as bytes, and their fields."""
    name = kind.full_name.replace(".", "_")
    file = FileDescriptorProto(name=name, syntax="proto3")
    fields = file.message_type.add(name=name).field
    found = []
    for field in kind.fields:
        inner = field.message_type
        if inner is not None:
            repeated = FieldDescriptorProto.LABEL_REPEATED
            fields.add(
                name=field.name, number=field.number, label=repeated, type=FieldDescriptorProto.TYPE_BYTES
            )
            found.append(_Field(field.name, inner, inner.GetOptions().map_entry, field.has_presence))
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName(name)), found
