"""Read the files named by a command line or a setting, up to a limit: a device such as /dev/zero has no end."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

# Parsing JSON of this size takes about 2 GB. Conversations in JSON Lines are read one by one instead.
MAX_BYTES: Final = 256 << 20
TOO_LONG: Final = f"longer than {MAX_BYTES >> 20} MiB, the maximum size of an input file"


def read_bytes(path: Path) -> bytes:
    """Return the bytes of a file. Raises OSError, also for a file longer than `MAX_BYTES`."""
    with path.open("rb") as stream:
        return read_stream(stream, str(path))


def read_regular(path: Path, max_bytes: int) -> bytes:
    """Return the bytes of a file that a running server reads again, such as one of credentials.

    Raises OSError, also for a file that is longer, for one that every user can write, and for one that is not a regular
    file: reading a named pipe may never end.
    """
    # Opening a pipe would also wait, for its writer.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as stream:
        mode = os.fstat(stream.fileno()).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "is not a regular file", str(path))
        if mode & stat.S_IWOTH:
            raise OSError(errno.EPERM, "every user can write this file; run chmod o-w on it", str(path))
        data = stream.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise OSError(errno.EFBIG, f"more than {max_bytes} bytes", str(path))
    return data


def read_stream(stream: BinaryIO, name: str) -> bytes:
    """Return the bytes of a stream. Raises OSError, also for more than `MAX_BYTES`."""
    data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise OSError(errno.EFBIG, TOO_LONG, name)
    return data
