"""Checks whether this process could open an RDMA device, without opening it.

libibverbs is called by ctypes, because the launcher checks too and loads no engine.
"""

import ctypes
from typing import NamedTuple

from hccl_py.transport.providers.verbs.devices import may_open

_FILE = "libibverbs.so.1"


class Problem(NamedTuple):
    """A reason why RDMA does not work, and its remedy."""

    cause: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.cause}; {self.remedy}"


def library_problem() -> Problem | None:
    """Return why libibverbs cannot be loaded; None: it can."""
    library = _load()
    return library if isinstance(library, Problem) else None


def opening_problem(device: str) -> Problem | None:
    """Return why this process cannot open the device; None: no known problem."""
    library = _load()
    if isinstance(library, Problem):
        return library
    if device not in _names(library):
        return Problem("libibverbs has no driver for it", "apt install ibverbs-providers")
    if not may_open(device):
        return Problem(
            "its file in /dev/infiniband cannot be opened by this user",
            "chmod a+rw /dev/infiniband/uverbs*; in a container: --device /dev/infiniband",
        )
    return None


def _load() -> ctypes.CDLL | Problem:
    try:
        return ctypes.CDLL(_FILE)
    except OSError as error:
        return Problem(
            str(error),
            "install libibverbs and its drivers: apt install ibverbs-providers (Debian, Ubuntu) or "
            "dnf install libibverbs (Fedora, RHEL)",
        )


def _names(library: ctypes.CDLL) -> list[str]:
    list_devices, name_of = library.ibv_get_device_list, library.ibv_get_device_name
    list_devices.restype = ctypes.POINTER(ctypes.c_void_p)
    name_of.argtypes, name_of.restype = [ctypes.c_void_p], ctypes.c_char_p
    count = ctypes.c_int(0)
    devices = list_devices(ctypes.byref(count))
    if not devices:  # a kernel without RDMA
        return []
    names = [name_of(devices[index]).decode() for index in range(count.value)]
    library.ibv_free_device_list(devices)
    return names
