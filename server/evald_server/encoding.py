"""Parts of messages, written as bytes where making message objects costs more than all checks.

A call's answer is mostly what its plan says already. So the plan holds that part serialised, and
a call appends what is new: fields of a message may come in any order, and those that come in
several pieces are read as one. Source: protobuf.dev, Encoding, "Last One Wins", "Field Order".
"""

import struct
from functools import lru_cache
from typing import Final

_SECOND: Final = 1_000_000_000  # in nanoseconds

_TAGS: Final = tuple(bytes((field << 3 | 2,)) for field in range(16))

double: Final = struct.Struct("<d").pack
"""A double, which has no length before it."""


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


_SMALL: Final = tuple(map(_varint, range(4096)))


def varint(number: int) -> bytes:
    """A number of 0 or more."""
    return _SMALL[number] if number < 4096 else _varint(number)


def size(data: bytes) -> bytes:
    """The length of data."""
    length = len(data)
    return _SMALL[length] if length < 4096 else _varint(length)


def sized(data: bytes) -> bytes:
    """Data behind its length."""
    return size(data) + data


def delimited(field: int, data: bytes) -> bytes:
    """Text, bytes or a serialised message as the field of that number, 1 to 15, of another message."""
    return b"".join((_TAGS[field], size(data), data))


SHORT_NANOS: Final = 1_000_000
"""Durations below are written in whole microseconds, rounded up, out of DURATIONS."""

DURATIONS: Final = tuple(
    sized(b"\x10" + varint(micros * 1000) if micros else b"") for micros in range(1 + SHORT_NANOS // 1000)
)
"""google.protobuf.Duration behind its length, by microseconds."""

THREE_BYTES: Final = next(micros for micros, data in enumerate(DURATIONS) if len(data) == 5)
"""Microseconds from which on DURATIONS are five bytes long; all from one to there are four."""


def duration(nanos: int) -> bytes:
    """A google.protobuf.Duration behind its length."""
    return DURATIONS[(nanos + 999) // 1000] if nanos < SHORT_NANOS else timestamp(nanos)


def timestamp(nanos: int) -> bytes:
    """A google.protobuf.Timestamp behind its length, or a Duration, whose fields are the same.

    nanos: Unix time in nanoseconds.
    """
    seconds, nanos = divmod(nanos, _SECOND)
    # `varint` without its loop, padded to five bytes, which every reader takes.
    return _seconds(seconds) + bytes(
        (
            nanos & 127 | 128,
            nanos >> 7 & 127 | 128,
            nanos >> 14 & 127 | 128,
            nanos >> 21 & 127 | 128,
            nanos >> 28,
        )
    )


@lru_cache(maxsize=64)  # many calls a second begin in the same one, and have the same time-out
def _seconds(seconds: int) -> bytes:
    """Up to the nanos, which take five bytes, behind the length of all."""
    body = b"\x08" + varint(seconds) + b"\x10"
    return _SMALL[len(body) + 5] + body
