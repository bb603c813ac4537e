"""Landlock: a process gives up the file system but for what it names, for itself and all that it starts.

Source of numbers and structures: the kernel's include/uapi/linux/landlock.h and
Documentation/userspace-api/landlock.rst.
"""

import ctypes
import os
import stat
import struct
from collections.abc import Iterable

from evald_server import kernel

TYPE_CHECKING = False  # typing takes as long to import as Python to start
if TYPE_CHECKING:
    from typing import Final


_CREATE_RULESET: "Final" = 444
_ADD_RULE: "Final" = 445
_RESTRICT_SELF: "Final" = 446
_GET_VERSION: "Final" = 1
_PATH_BENEATH: "Final" = 1

_EXECUTE: "Final" = 1 << 0
_WRITE_FILE: "Final" = 1 << 1
_READ_FILE: "Final" = 1 << 2
_READ_DIR: "Final" = 1 << 3

# Rights that each version of the interface knows: everything is handled, so that everything is denied
# that no rule allows.
_FILE_RIGHTS: "Final" = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
_NETWORK_RIGHTS: "Final" = (4, 0b11)  # binding and connecting TCP sockets
_SCOPES: "Final" = (6, 0b11)  # abstract Unix sockets, and signals to processes outside


def version() -> int:
    """Version of the interface that the kernel speaks; 0 when it has no Landlock."""
    try:
        return kernel.call(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_GET_VERSION))
    except OSError:
        return 0


def restrict(read: Iterable[str], write: Iterable[str] = ()) -> None:
    """Leave this process these files and directories, to read and run, and these files to write.

    What does not exist is left out. Needs `kernel.forgo_privileges`. Raises OSError.
    """
    spoken = version()
    files = max(rights for since, rights in _FILE_RIGHTS.items() if since <= max(spoken, 1))
    network = _NETWORK_RIGHTS[1] if spoken >= _NETWORK_RIGHTS[0] else 0
    scopes = _SCOPES[1] if spoken >= _SCOPES[0] else 0
    words = [files, network, scopes][: 1 + (spoken >= _NETWORK_RIGHTS[0]) + (spoken >= _SCOPES[0])]
    attributes = struct.pack(f"={len(words)}Q", *words)
    ruleset = kernel.call(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0))
    try:
        for path in read:
            _allow(ruleset, path, _EXECUTE | _READ_FILE | _READ_DIR)
        for path in write:
            _allow(ruleset, path, _READ_FILE | _WRITE_FILE)
        kernel.call(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            rights &= ~_READ_DIR
        rule = struct.pack("=Qi", rights, place)
        kernel.call(_ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(_PATH_BENEATH), rule, ctypes.c_uint32(0))
    finally:
        os.close(place)
