"""What the server and its child processes say to each other over pipes: frames of four bytes of length,
big-endian, and that many more."""

from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:  # the processes themselves have no use for it
    import asyncio

# What a pipe takes before its writer has to wait; the most that Linux gives to everybody. By default 64 KiB: a
# message of a batch would then wake both sides ten times.
PIPE_BYTES: Final = 1 << 20


def frame(data: bytes) -> bytes:
    """The data behind their length."""
    return len(data).to_bytes(4, "big") + data


def read_frame(stream: IO[bytes]) -> bytes | None:
    """The data of the next frame. None at the end, also in the middle of a frame."""
    header = stream.read(4)
    if len(header) < 4:
        return None
    size = int.from_bytes(header, "big")
    data = stream.read(size)
    return data if len(data) == size else None


def write_frame(stream: IO[bytes], data: bytes) -> None:
    """Send one frame."""
    stream.write(frame(data))
    stream.flush()


async def receive_frame(reader: "asyncio.StreamReader") -> bytes:
    """The data of the next frame. Raises asyncio.IncompleteReadError at the end."""
    size = int.from_bytes(await reader.readexactly(4), "big")
    return await reader.readexactly(size)
