"""Read the files named by a command line or a setting, up to a limit: a device such as /dev/zero has no end."""

import errno
from pathlib import Path
from typing import BinaryIO, Final

# Parsing JSON of this size takes about 2 GB. Conversations in JSON Lines are read one by one instead.
MAX_BYTES: Final = 256 << 20
TOO_LONG: Final = f"longer than {MAX_BYTES >> 20} MiB, the maximum size of an input file"


def read_bytes(path: Path) -> bytes:
    """Return the bytes of a file. Raises OSError, also for a file longer than `MAX_BYTES`."""
    with path.open("rb") as stream:
        return read_stream(stream, str(path))


def read_stream(stream: BinaryIO, name: str) -> bytes:
    """Return the bytes of a stream. Raises OSError, also for more than `MAX_BYTES`."""
    data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise OSError(errno.EFBIG, TOO_LONG, name)
    return data
