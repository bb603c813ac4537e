"""A filter of system calls that leaves a process without sockets, and so without a network.

Landlock alone limits TCP only, and that from its fourth version on.
Source of numbers and structures: the kernel's linux/filter.h, linux/seccomp.h, linux/audit.h and the
tables of system calls.
"""

import ctypes
import errno
import os
import struct

from evald_server import kernel

TYPE_CHECKING = False  # typing takes as long to import as Python to start
if TYPE_CHECKING:
    from typing import Final


_PR_SET_SECCOMP: "Final" = 22
_MODE_FILTER: "Final" = 2

_LOAD: "Final" = 0x20  # BPF_LD | BPF_W | BPF_ABS
_IF_EQUAL: "Final" = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_IF_AT_LEAST: "Final" = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_RETURN: "Final" = 0x06  # BPF_RET | BPF_K

_KILL: "Final" = 0x80000000
_REFUSE: "Final" = 0x00050000 | errno.EACCES
_ALLOW: "Final" = 0x7FFF0000

# Where struct seccomp_data holds them.
_NUMBER: "Final" = 0
_ARCHITECTURE: "Final" = 4

# By machine: its number in linux/audit.h, and socket(2). A pair of connected sockets stays allowed:
# programs talk to their own children with it.
_MACHINES: "Final" = {
    "x86_64": (0xC000003E, 41),
    "aarch64": (0xC00000B7, 198),
    "riscv64": (0xC00000F3, 198),
}
_IO_URING_SETUP: "Final" = 425  # everywhere; a ring opens sockets without socket(2)
_X32: "Final" = 0x40000000  # x86_64 has every call a second time, from here on


def is_supported() -> bool:
    """Whether the machine is one that the filter is written for."""
    return os.uname().machine in _MACHINES


def deny_sockets() -> None:
    """No new sockets and no io_uring, for this process and all that it starts. Needs
    `kernel.forgo_privileges`. Raises OSError, and KeyError on a machine that is not supported."""
    architecture, socket = _MACHINES[os.uname().machine]
    # A jump skips so many instructions: the first number when its test holds, else the second.
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
    kernel.prctl(_PR_SET_SECCOMP, _MODE_FILTER, header, 0, 0)
