"""Limits of what is in a message, checked before it is parsed, because the parser holds the interpreter.

protobuf keeps a map in a hash table whose order is the same for all maps of a process. A caller who reads its own maps
back from the server learns that order, and can choose keys that share a place in the table: 200,000 of them, 4 MB, take
12 s to parse, with the interpreter held: colliding keys cost the square of their number. So the hash cost of a message,
which is the sum of the squares of its maps' numbers of members, is limited.
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

# Maximum hash cost of a message. At the limit, colliding keys take 0.2 s to parse, in one map or in many. A message of
# the maximum size whose objects have 180 members each is below the limit.
_MAX_HASH_COST: Final = MAX_MEMBERS**2

# The minimum size of a member: two tags, two lengths, and a key of one byte. Members without a key can be shorter, but
# all of them have the same key, so they are one member.
_MEMBER_BYTES: Final = 5

SMALL_BYTES: Final = _MEMBER_BYTES * MAX_MEMBERS
"""A message of so many bytes is within every limit."""

_JSON_FILE: Final = Struct.DESCRIPTOR.file.name

# Parts below this size are not checked: their maps are so small that any number of them takes little time to parse.
_SMALL_BYTES: Final = 128

# Maximum bytes that a check copies: it copies the parts of a message once per level of nesting, so only large data that
# is all nested deep exceeds the limit. Each part counts 2,000 bytes more, because handling it takes as long as copying
# them.
_MAX_COPIED_BYTES: Final = 256 << 20
_PART_BYTES: Final = 2000

# Eight million empty messages, 16 MB, take 1.2 GB and some seconds to parse. No valid list has so many.
_MAX_MESSAGES: Final = 2_000_000


class BeyondWireLimit(DecodeError):
    """Maps have too many members, a field has too many messages, or too much data is nested too deep to be checked.

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

    Parses the largest parts first, until the cost of the maps found and the maximum cost of the other parts are below the
    limit.
    """
    left = _MAX_COPIED_BYTES
    cost = 0  # of the maps found so far
    root = cast("Descriptor", message.DESCRIPTOR)
    unchecked = _max_hash_cost(root, data)  # of the parts
    # A heap, the largest part first. The numbers are there because neither types nor paths are ordered.
    numbers = itertools.count()
    parts = [(-unchecked, next(numbers), root, data, "")]
    while cost + unchecked > _MAX_HASH_COST:
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
                cost += count**2
                if count > MAX_MEMBERS:
                    raise BeyondWireLimit(place, f"got {count} members, wanted at most {MAX_MEMBERS}")
                if cost > _MAX_HASH_COST:
                    raise BeyondWireLimit(
                        place,
                        f"got {count} members here and too many in other objects, wanted fewer or smaller objects: the "
                        f"squares of their numbers of members may add up to {_MAX_HASH_COST}",
                    )
            elif count > _MAX_MESSAGES:
                raise BeyondWireLimit(place, f"got {count} messages, wanted at most {_MAX_MESSAGES}")
            for value in [b"".join(values)] if field.is_single else values:
                if len(value) > _SMALL_BYTES:
                    most = _max_hash_cost(field.kind, value)
                    unchecked += most
                    heapq.heappush(parts, (-most, next(numbers), field.kind, value, place))


def _max_hash_cost(kind: Descriptor, data: bytes) -> int:
    """Return an upper bound of the hash cost of a message."""
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
