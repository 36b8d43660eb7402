"""Forbid this process a system call, as the seccomp filter of a container or sandbox does.

    forbid("memfd_create", errno.EPERM)      # from here on it fails, in all threads

Once forbidden, a call stays so until the process ends. What kernels lack answers ENOSYS.
"""

import ctypes
import os
import platform
import struct

NUMBERS = {
    "accept4": (288, 242),
    "bind": (49, 200),
    "clock_nanosleep": (230, 115),
    "connect": (42, 203),
    "epoll_create1": (291, 20),
    "epoll_ctl": (233, 21),
    "epoll_pwait": (281, 22),
    "eventfd2": (290, 19),
    "fallocate": (285, 47),
    "fcntl": (72, 25),
    "ftruncate": (77, 46),
    "getpeername": (52, 205),
    "getrandom": (318, 278),
    "getsockname": (51, 204),
    "getsockopt": (55, 209),
    "ioctl": (16, 29),
    "io_uring_setup": (425, 425),
    "kcmp": (312, 272),
    "listen": (50, 201),
    "madvise": (28, 233),
    "membarrier": (324, 283),
    "memfd_create": (319, 279),
    "mbind": (237, 235),
    "mlock": (149, 228),
    "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434),
    "prctl": (157, 167),
    "prlimit64": (302, 261),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "recvmsg": (47, 212),
    "sched_getaffinity": (204, 123),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_yield": (24, 124),
    "sendmsg": (46, 211),
    "setsockopt": (54, 208),
    "shutdown": (48, 210),
    "signalfd4": (289, 74),
    "socketpair": (53, 199),
    "statfs": (137, 43),
    "sysinfo": (99, 179),
    "timerfd_create": (283, 85),
    "userfaultfd": (323, 282),
}
"""System calls, by name: their numbers on x86_64 and on aarch64."""

ARCHITECTURES = {"x86_64": (0, 0xC000003E, 317), "aarch64": (1, 0xC00000B7, 277)}
"""By machine: its column in NUMBERS, its audit number, and its number of `seccomp`."""

_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_PR_SET_NO_NEW_PRIVS = 38
_SET_MODE_FILTER, _ALL_THREADS = 1, 1


def is_possible() -> bool:
    """Whether this machine's numbers are known here."""
    return platform.machine() in ARCHITECTURES


def forbid(name: str, error: int) -> None:
    """Have every call of this name fail with this errno, in all threads of this process."""
    column, audit, seccomp = ARCHITECTURES[platform.machine()]
    instructions = (
        (_LOAD, 0, 0, 4),  # the architecture
        (_JUMP_IF_EQUAL, 1, 0, audit),
        (_RETURN, 0, 0, _ALLOW),
        (_LOAD, 0, 0, 0),  # the number of the call
        (_JUMP_IF_EQUAL, 0, 1, NUMBERS[name][column]),
        (_RETURN, 0, 0, _ERRNO | error),
        (_RETURN, 0, 0, _ALLOW),
    )
    code = b"".join(struct.pack("HBBI", *one) for one in instructions)
    program = ctypes.create_string_buffer(code)
    head = struct.pack("HxxxxxxP", len(instructions), ctypes.addressof(program))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if libc.syscall(seccomp, _SET_MODE_FILTER, _ALL_THREADS, head) != 0:
        raise OSError(ctypes.get_errno(), f"seccomp: {os.strerror(ctypes.get_errno())}")
