"""A limit of what is in a message, checked before it is parsed, because the parser holds the interpreter: eight million
empty messages, 16 MB, take 1.2 GB and some seconds. No valid list has so many.
"""

from functools import cache
from typing import Any, Final, NamedTuple, TypeVar, cast

from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

M = TypeVar("M", bound=Message)

_MAX_MESSAGES: Final = 2_000_000

# A tag and a length for each message: what is smaller is within the limit.
_SMALL_BYTES: Final = 2 * _MAX_MESSAGES

# protobuf's own limit, beyond which it refuses to parse.
_MAX_LEVELS: Final = 100


class BeyondWireLimit(DecodeError):
    """A field has too many messages. path: the field's."""

    def __init__(self, path: str, got: str) -> None:
        super().__init__(got)
        self.path = path
        self.got = got


class _Field(NamedTuple):
    """A field with messages. is_single: later occurrences of it are merged with the first."""

    name: str
    kind: Descriptor
    is_single: bool


def parse_message(kind: type[M], data: bytes) -> M:
    """Parse a message from outside. Raises BeyondWireLimit, and DecodeError if it is unreadable."""
    if len(data) > _SMALL_BYTES:
        _check(cast("Descriptor", kind.DESCRIPTOR), data, "", 1)
    return kind.FromString(data)


def _check(kind: Descriptor, data: bytes, path: str, level: int) -> None:
    """Raise BeyondWireLimit for a field with too many messages, and DecodeError for an unreadable message."""
    parser, fields = _fields_of(kind)
    parsed: Any = parser.FromString(data)
    for field in fields:
        values = getattr(parsed, field.name)
        place = f"{path}.{field.name}".lstrip(".")
        if len(values) > _MAX_MESSAGES:
            raise BeyondWireLimit(place, f"got {len(values)} messages, wanted at most {_MAX_MESSAGES}")
        for value in [b"".join(values)] if field.is_single else values:
            if len(value) > _SMALL_BYTES and level < _MAX_LEVELS:
                _check(field.kind, value, place, level + 1)


@cache
def _fields_of(kind: Descriptor) -> tuple[type[Message], list[_Field]]:
    """Return a type that parses a message without the messages in it, which it has as bytes, and their fields."""
    name = kind.full_name.replace(".", "_")
    file = FileDescriptorProto(name=name, syntax="proto3")
    described = file.message_type.add(name=name).field
    fields = []
    for field in kind.fields:
        inner = field.message_type
        if inner is not None:
            repeated, as_bytes = FieldDescriptorProto.LABEL_REPEATED, FieldDescriptorProto.TYPE_BYTES
            described.add(name=field.name, number=field.number, label=repeated, type=as_bytes)
            fields.append(_Field(field.name, inner, field.has_presence))
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName(name)), fields
