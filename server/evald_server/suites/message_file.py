"""Keeps many messages as bytes, which take a tenth of the memory of objects."""

import weakref
from collections.abc import Iterable, Iterator
from tempfile import SpooledTemporaryFile, gettempdir
from typing import Final, Generic, TypeVar

from google.protobuf.message import Message

from evald_server.frames import frame, read_frame

M = TypeVar("M", bound=Message)

# Limit in memory; above it the messages are kept in an unnamed temporary file.
_KEPT_BYTES: Final = 16 << 20
# Memory that the caller needs for each message: a case's id and its line.
_MESSAGE_BYTES: Final = 200


class MessageFile(Iterable[M], Generic[M]):
    """Messages of one type, which can be read any number of times.

    are_many: whether they are too many for memory.
    """

    def __init__(self, kind: type[M]) -> None:
        self.are_many = False
        self._kind = kind
        self._bytes = 0
        self._file = SpooledTemporaryFile(max_size=_KEPT_BYTES)  # noqa: SIM115 - it lives as long as this
        weakref.finalize(self, self._file.close)

    def add(self, data: bytes) -> None:
        """Add a serialised message. Raises OSError, with the directory that TMPDIR sets, when the disk is full."""
        try:
            self._file.write(frame(data))
        except OSError as problem:
            raise OSError(problem.errno, problem.strerror, gettempdir()) from None
        self._bytes += len(data) + _MESSAGE_BYTES
        self.are_many = self._bytes > _KEPT_BYTES

    def serialized(self) -> Iterator[bytes]:
        """Yield the messages as bytes."""
        place = 0
        while True:
            self._file.seek(place)
            data = read_frame(self._file)
            if data is None:
                return
            place = self._file.tell()
            yield data

    def __iter__(self) -> Iterator[M]:
        return map(self._kind.FromString, self.serialized())
