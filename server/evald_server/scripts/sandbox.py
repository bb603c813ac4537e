"""The kernel's sandbox: Landlock restricts a process's file access, and a seccomp filter denies it sockets.

Both apply to the process and all its descendants. Of the network, Landlock restricts only TCP, and only from
its version 4 on.
Sources of numbers and structures: the kernel's include/uapi/linux/landlock.h, filter.h, seccomp.h, audit.h, the
tables of system calls, and Documentation/userspace-api/landlock.rst.
"""

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Iterable

from evald_server import kernel

TYPE_CHECKING = False  # importing typing takes as long as starting Python
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

# Rights that each version of the interface knows. All rights are handled, so every access without a rule is denied.
_FILE_RIGHTS: "Final" = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
_NETWORK_RIGHTS: "Final" = (4, 0b11)  # binding and connecting TCP sockets
_SCOPES: "Final" = (6, 0b11)  # abstract Unix sockets, and signals to processes outside

_PR_SET_SECCOMP: "Final" = 22
_SECCOMP_MODE_FILTER: "Final" = 2

_LOAD: "Final" = 0x20  # BPF_LD | BPF_W | BPF_ABS
_IF_EQUAL: "Final" = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_IF_AT_LEAST: "Final" = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_RETURN: "Final" = 0x06  # BPF_RET | BPF_K

_KILL: "Final" = 0x80000000
_REFUSE: "Final" = 0x00050000 | errno.EACCES
_ALLOW: "Final" = 0x7FFF0000

# Offsets in struct seccomp_data.
_NUMBER: "Final" = 0
_ARCHITECTURE: "Final" = 4

# By machine: its number in linux/audit.h, and socket(2). A pair of connected sockets stays allowed, because programs
# use it to communicate with their own children.
_MACHINES: "Final" = {
    "x86_64": (0xC000003E, 41),
    "aarch64": (0xC00000B7, 198),
    "riscv64": (0xC00000F3, 198),
}
_IO_URING_SETUP: "Final" = 425  # on every machine; a ring opens sockets without socket(2)
_X32: "Final" = 0x40000000  # x86_64 has a second set of system calls that starts at this number


def is_available() -> bool:
    """Return whether the kernel has Landlock, and the filter supports this machine."""
    return landlock_version() > 0 and os.uname().machine in _MACHINES


def enter(read: "Iterable[str]", write: "Iterable[str]" = ()) -> None:
    """Restrict this process: it may only read and execute `read`, read and write the files `write`; no new sockets.

    Paths that do not exist are ignored. Needs `kernel.forgo_privileges`. Raises OSError, and KeyError on a machine
    that is not supported.
    """
    _restrict_files(read, write)
    _deny_sockets()


def landlock_version() -> int:
    """Return the version of Landlock in this kernel; 0 if there is none."""
    try:
        return kernel.call(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_GET_VERSION))
    except OSError:
        return 0


def _restrict_files(read: Iterable[str], write: Iterable[str] = ()) -> None:
    known = landlock_version()
    files = max(rights for since, rights in _FILE_RIGHTS.items() if since <= max(known, 1))
    network = _NETWORK_RIGHTS[1] if known >= _NETWORK_RIGHTS[0] else 0
    scopes = _SCOPES[1] if known >= _SCOPES[0] else 0
    words = [files, network, scopes][: 1 + (known >= _NETWORK_RIGHTS[0]) + (known >= _SCOPES[0])]
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


def _deny_sockets() -> None:
    """Refuse socket(2) and io_uring_setup(2)."""
    architecture, socket = _MACHINES[os.uname().machine]
    # A jump skips a number of instructions: the first number if its test is true, else the second.
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_IF_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_IF_EQUAL, 3, 0, socket),
        (_IF_EQUAL, 2, 0, _IO_URING_SETUP),
        (_IF_AT_LEAST, 1, 0, _X32),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _REFUSE),
    ]
    packed = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    code = ctypes.create_string_buffer(packed, len(packed))
    header = struct.pack("@HP", len(program), ctypes.addressof(code))
    kernel.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, header, 0, 0)
