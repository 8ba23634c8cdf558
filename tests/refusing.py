"""Starts a command to which the kernel refuses something (seccomp), as older or hardened hosts do.

python refusing.py direct-io|io-uring COMMAND…
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _FILTER_MODE = 22, 38, 2
_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06  # BPF: ld abs, jeq, jset, ret
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER, _THIRD_ARGUMENT = 0, 32  # offsets in struct seccomp_data
_OPENAT = {"x86_64": 257, "aarch64": 56}
IO_URING_SETUP = 425


def refuse(what: str) -> None:
    """From now on, for this process and all it starts."""
    if what == "direct-io":
        program = [
            (_LOAD, 0, 0, _NUMBER),
            (_EQUAL, 0, 3, _OPENAT[platform.machine()]),
            (_LOAD, 0, 0, _THIRD_ARGUMENT),
            (_ANY_BIT, 0, 1, os.O_DIRECT),
            (_RETURN, 0, 0, _ERRNO | errno.EINVAL),
            (_RETURN, 0, 0, _ALLOW),
        ]
    else:
        program = [
            (_LOAD, 0, 0, _NUMBER),
            (_EQUAL, 0, 1, IO_URING_SETUP),
            (_RETURN, 0, 0, _ERRNO | errno.EPERM),
            (_RETURN, 0, 0, _ALLOW),
        ]
    code = b"".join(struct.pack("HBBI", *step) for step in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    filters = struct.pack("HxxxxxxP", len(program), ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    for option, *arguments in (
        (_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (_PR_SET_SECCOMP, _FILTER_MODE, filters, 0, 0),
    ):
        if libc.prctl(option, *arguments):
            raise OSError(ctypes.get_errno(), f"prctl {option}")


if __name__ == "__main__":
    refuse(sys.argv[1])
    os.execv(sys.argv[2], sys.argv[2:])
