"""The kernel copies between this process and another: process_vm_readv and process_vm_writev."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

import numpy.typing as npt


class _Extent(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("num_bytes", ctypes.c_size_t))


def _function(name: str) -> Callable[..., int]:
    function = _LIBC[name]
    function.restype = ctypes.c_ssize_t
    some = (ctypes.POINTER(_Extent), ctypes.c_ulong)
    function.argtypes = (ctypes.c_int, *some, *some, ctypes.c_ulong)
    return function


_LIBC = ctypes.CDLL(None, use_errno=True)
READ = _function("process_vm_readv")
WRITE = _function("process_vm_writev")


def kernel_copy(
    function: Callable[..., int], pid: int, here: npt.NDArray[Any], there: int
) -> Callable[[], None]:
    """Return the call that copies between an array of this process and an address of another.

    Args:
        function: READ, into the array, or WRITE, out of it.
        pid: the other process.
        here: a contiguous array of any type, which the call keeps alive.
        there: where as many bytes lie in the other process.
    """
    num_bytes = here.nbytes
    local, remote = _Extent(here.ctypes.data, num_bytes), _Extent(there, num_bytes)
    arguments = (pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)

    def call(_kept: object = here) -> None:
        copied = function(*arguments)
        if copied != num_bytes:
            code = ctypes.get_errno() if copied < 0 else 0
            why = os.strerror(code) if code else f"{copied} were copied"
            name = "process_vm_readv" if function is READ else "process_vm_writev"
            raise OSError(code, f"{name} of {num_bytes} bytes of process {pid}: {why}")

    return call
