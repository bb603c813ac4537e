"""Frames on the pipes between the server and its child processes: four bytes of length, big-endian, then the data."""

from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:  # child processes do not need it
    import asyncio

# Capacity of a pipe: the largest that Linux allows unprivileged processes. At the default of 64 KiB, a chunk of a
# batch wakes both sides ten times.
PIPE_BYTES: Final = 1 << 20


def frame(data: bytes) -> bytes:
    """Return the data with their length in front."""
    return len(data).to_bytes(4, "big") + data


def read_frame(stream: IO[bytes]) -> bytes | None:
    """Read a frame. Returns None at the end of the stream, also in the middle of a frame."""
    header = stream.read(4)
    if len(header) < 4:
        return None
    size = int.from_bytes(header, "big")
    data = stream.read(size)
    return data if len(data) == size else None


def write_frame(stream: IO[bytes], data: bytes) -> None:
    """Write a frame."""
    stream.write(frame(data))
    stream.flush()


async def receive_frame(reader: "asyncio.StreamReader") -> bytes:
    """Read a frame. Raises asyncio.IncompleteReadError at the end of the stream."""
    size = int.from_bytes(await reader.readexactly(4), "big")
    return await reader.readexactly(size)
